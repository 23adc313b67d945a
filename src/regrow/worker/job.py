"""The job, as the user's script sees it: join, track, data, steps."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import msgspec
import xxhash

from regrow.core.attendance import Attendance
from regrow.core.effects import Commit, Leave
from regrow.core.errors import ConfigError, HaltError, Mismatch, PoisonError, StateError
from regrow.core.events import StepEntered, StopAsked
from regrow.core.lanes import Cell, lanes_in
from regrow.core.messages import Contract, Join
from regrow.core.order import DataFrom, Grid, mix
from regrow.core.origin import mathematics
from regrow.core.progress import Phase
from regrow.core.records import Departed, Fact
from regrow.core.roster import Endpoint
from regrow.shell.door import WorkerDoor
from regrow.shell.faultpoint import faultpoint
from regrow.shell.journal import Journal
from regrow.shell.stamp import Stamp
from regrow.state.layout import BUCKET_BYTES
from regrow.state.neighbour_store import address_of
from regrow.state.tracked import Tracked
from regrow.worker import numerics
from regrow.worker.audit import Audit
from regrow.worker.buffers import Buffers
from regrow.worker.compiling import Compilations
from regrow.worker.copyist import Copyist
from regrow.worker.data import Data, Given, make_data
from regrow.worker.depot import Depot
from regrow.worker.dismissal import Dismissal
from regrow.worker.drafting import Drafting
from regrow.worker.driver import Driver
from regrow.worker.expense import Expense
from regrow.worker.guard import Guard
from regrow.worker.logbook import Logbook
from regrow.worker.mesh import Mesh
from regrow.worker.partials import Partials
from regrow.worker.randomness import seed_everything
from regrow.worker.refusals import refuse, warn_untracked, watch_steps
from regrow.worker.replica import Replica
from regrow.worker.session import Session
from regrow.worker.solo import ME, SoloLink, founding
from regrow.worker.step import Step

DEFAULT_LANES = 8
FLUSH_S = 5.0
UNSEATED_CODE = 66
"""Exit code of a worker that the others went on without."""
LEFT_CODE = 67
"""Exit code of a worker that has handed over."""


class Place:
    """A worker's place in a job of several: its door, its session, its journal, its stamp."""

    def __init__(self, door: WorkerDoor, stamp: Stamp) -> None:
        self.door = door
        self.stamp = stamp
        self.journal = Journal(door.run_dir / "journal", str(door.member))
        self.session = Session(door, self.journal, stamp)
        self.began_s = time.monotonic()
        self.endpoint: Endpoint = self.session.open()


class Strength(msgspec.Struct, frozen=True, kw_only=True):
    """Who made up a step: for hooks."""

    roster: str
    """The version of the roster under which it was reduced."""
    members: int
    lanes: int
    lanes_present: int
    """Lanes the step's gradient is made of: all of them, unless some were lost (--on-loss shrink) or skipped."""


class Job:
    """Made by join(). One per process, with one loop over its steps."""

    def __init__(
        self, place: Place | None, *, lanes: int, microbatches_per_lane: int, seed: int, skips: tuple[Cell, ...]
    ) -> None:
        self.lanes = lanes
        self.microbatches_per_lane = microbatches_per_lane
        self.seed = seed
        self.place = place
        self._stamp = place.stamp if place else Stamp()
        self._tracked = Tracked()
        self._driver: Driver | None = None
        self._step: Step | None = None
        self._ended = False
        self._skips = skips
        self._hooks: list[Callable[[Strength], None]] = []
        self._strength: Strength | None = None
        self._depot: Depot | None = None

    @property
    def ended(self) -> bool:
        """Has this replica seen the end of the job?"""
        return self._ended

    @property
    def position(self) -> tuple[int | None, int | None]:
        """The step and lane under way, as far as there is one."""
        if self._step is None or self._ended:
            return None, None
        return self._step.index, self._step.lane

    def track(self, **objects: object) -> None:
        """Name the state that must survive: anything with state_dict() and load_state_dict()."""
        if self._driver is not None:
            raise ConfigError("track() after steps(): name all state before the loop starts")
        for name, thing in objects.items():
            refuse(name, thing)
            self._tracked.add(name, thing)

    def data(
        self,
        source: Given,
        batch_size: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        num_workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        timeout_s: float | None = None,
    ) -> Data:
        """The job's data, as microbatches.

        source: a map-style dataset, of which every sample is used exactly once in an epoch; or an iterable one, of which
            each lane reads its own part (for_lane(lane, lanes), or each `lanes`-th item); or a function of (step, lane,
            microbatch) that returns a microbatch. It must be pure: whoever calls it, the same arguments give the same batch.
        batch_size: samples of a microbatch; not for a function.
        collate: makes a microbatch of a list of samples (default: torch's); not for a function.
        num_workers: data workers, processes of this replica that make microbatches ahead; 0: they are made when needed. They
            see the source as it is now.
        prefetch: how many microbatches each data worker is asked for at a time.
        pin_memory: hand out tensors in pinned memory, where there is a device to copy them to.
        timeout_s: a data worker that is waited for longer than this is replaced.
        """
        grid = Grid(
            seed=self.seed,
            lanes=self.lanes,
            microbatches_per_lane=self.microbatches_per_lane,
            data_from=self.place.door.data_from if self.place else DataFrom(),
        )
        return make_data(
            source,
            grid,
            batch_size=batch_size,
            collate=collate,
            num_workers=num_workers,
            prefetch=prefetch,
            pins=pin_memory,
            timeout_s=timeout_s,
        )

    def digest(self) -> str:
        """sha256 over all tracked state, in hex."""
        return self._tracked.digest()

    def stop(self) -> None:
        """Stop after the step under way: every replica ends there, with the same state."""
        if self._driver is None:
            raise ConfigError("stop() before steps(): there is nothing to stop")
        self._driver.tell(StopAsked())

    def on_roster(self, hook: Callable[[Strength], None]) -> None:
        """Call `hook` whenever a step is committed by other members, or of other lanes, than the one before.

        It is called on every replica, on leaving the inner loop, before the optimizer's step. It must set things to what
        fits the lanes present (a learning rate, say), so that being called once more changes nothing: never multiply, and
        do not set what a scheduler goes on from; with a scheduler, use step.lanes_present at every step instead.
        """
        self._hooks.append(hook)

    def _committed(self, commit: Commit) -> None:
        present = len(lanes_in(node for nodes in commit.holdings for node in nodes))
        now = Strength(roster=str(commit.attempt), members=len(commit.holdings), lanes=self.lanes, lanes_present=present)
        if now != self._strength:
            self._strength = now
            for hook in self._hooks:
                hook(now)

    def busy(self, name: str, at_most_s: float) -> contextlib.AbstractContextManager[None]:
        """Around long work between the loops (an evaluation): this replica hangs when it takes longer than it says here."""
        if not at_most_s > 0:
            raise ConfigError(f"busy({name!r}, at_most_s={at_most_s}): say how many seconds it may take at most")
        return self._stamp.aside(Phase.BUSY, name, at_most_s)

    def steps(self, count: int, data: Data) -> Iterator[Step]:
        """Steps wherever the job is, up to `count`. A replica that joins late starts with the others' state."""
        if self._driver is not None:
            raise ConfigError("steps() was called twice: a job has one loop over its steps")
        if count < 0:
            raise ConfigError(f"steps({count}): the number of steps cannot be negative")
        if not self._tracked.objects:
            raise ConfigError("steps() before track(): name the model and the optimizer, e.g. job.track(model=model, ...)")
        settings = numerics.Settings()
        self._driver = self._attend(count, data)
        return self._loop(self._driver, data, settings)

    def _attend(self, count: int, data: Data) -> Driver:
        for name, thing in data.tracked.items():
            self._tracked.add(name, thing)
        replica = Replica(self._tracked, count)
        trained = replica.trained()
        self._tracked.awaken()
        warn_untracked(self._tracked)
        watch_steps(self._tracked, lambda: self._step.index if self._step is not None and self._step.open else None)
        audit = Audit(self._tracked, self.place.door.audit_every if self.place else 0)
        me = self.place.door.member if self.place else ME
        initial = self._tracked.manifest() if self.place else ()
        saves = self.place.door.saves if self.place and self.place.door.vault else None
        logs = bool(saves is not None and self.place and self.place.door.log_bytes)
        attendance = Attendance(me, lanes=self.lanes, steps=count, initial=initial, saves=saves, logs=logs)
        bucket_bytes = self.place.door.bucket_bytes if self.place else BUCKET_BYTES
        partials = Partials(trained, self.lanes, bucket_bytes)
        driver = Driver(attendance, replica, partials, audit, self._note, self._stamp)
        data.attend(driver.expected, self._stamp, self._note)
        if self.place is None:
            driver.connect(SoloLink())
            driver.tell(founding(self.lanes, self._skips))
            return driver
        place = self.place
        contract = self._contract(count, data)
        driver.connect(Mesh(place.door, place.session, place.journal, driver.tell))
        if place.door.vault:
            self._depot = self._furnish(place, driver, contract)

        def join() -> Join:
            return Join(
                member=me,
                endpoint=place.endpoint,
                contract=contract,
                lanes=self.lanes,
                seen=attendance.seen,
                entered=attendance.entered,
                step=attendance.step,
                skips=self._skips,
                listens=attendance.listens,
            )

        place.session.attend(driver, join)
        Dismissal(place.session.call, driver.dismissed, place.door.grace_s).install()
        faultpoint("join")
        return driver

    def _furnish(self, place: Place, driver: Driver, contract: Contract) -> Depot:
        drafting = Drafting(place.door.shard_bytes, mathematics(contract.terms))
        door = place.door
        depot = Depot(
            door.vault,
            door.member,
            self._tracked,
            drafting,
            self._stamp,
            self._note,
            driver.save_again,
            driver.save_due,
            self._make_logbook(place, driver, contract) if door.log_bytes else None,
        )
        driver.keep(depot)
        depot.open()
        return depot

    def _make_logbook(self, place: Place, driver: Driver, contract: Contract) -> Logbook:
        door = place.door
        size_bytes = sum(tensor.nbytes for tensor in self._tracked.flatten().tensors)
        terms = mathematics(contract.terms)
        # Another run may find the log, and must not replay it with other mathematics onto the same weights.
        root = f"{self._tracked.fingerprint()}-{xxhash.xxh3_64_hexdigest(msgspec.json.encode(terms, order='sorted'))}"
        copyist = None
        if door.neighbour:
            copyist = Copyist(
                address_of(door.neighbour),
                door.neighbour_token,
                door.neighbour_claim,
                door.neighbour_patience_s,
                str(door.member),
                root,
            )
        return Logbook(
            door.member,
            root,
            door.log_bytes,
            Expense(time.monotonic() - place.began_s, size_bytes),
            self._stamp,
            self._note,
            driver.save_again,
            copyist,
        )

    def _contract(self, count: int, data: Data) -> Contract:
        terms = {
            "lanes": str(self.lanes),
            "microbatches_per_lane": str(self.microbatches_per_lane),
            "seed": str(self.seed),
            "steps": str(count),
            "audit every": str(self.place.door.audit_every if self.place else 0),
            "bucket bytes": str(self.place.door.bucket_bytes if self.place else BUCKET_BYTES),
            "tracked objects": ", ".join(self._tracked.objects),
            "skipped lanes": ", ".join(map(str, self._skips)),
        }
        return Contract(terms=terms | data.terms | numerics.terms())

    def _loop(self, driver: Driver, data: Data, settings: numerics.Settings) -> Iterator[Step]:
        guard = Guard(self._tracked.parameters())
        buffers = Buffers(self._tracked)
        compilations = Compilations(self._stamp)
        while True:
            settings.check()
            compilations.watch()
            if self._step is not None:
                faultpoint("entered", step=self._step.index + 1)
            driver.partials.retract()
            if self._depot is not None:
                self._depot.enter()
            driver.tell(StepEntered())
            first = driver.enter()
            if self._depot is not None and isinstance(first, Commit):
                self._depot.skip()
            if isinstance(first, Leave):
                if first.fault is not None:
                    self._fail(first)
                self._depart(first)
                data.close()
                faultpoint("after")
                return
            self._step = Step(first, driver, data, guard, buffers, self._note, self._committed, self._fail)
            self._stamp.enter(Phase.BETWEEN, self._step.index)
            yield self._step
            if not self._step.committed:
                raise ConfigError(
                    f"step {self._step.index} was left before it was committed: loop over all of its batches (no break, no "
                    "swallowed exception), then call optimizer.step()"
                )

    def _depart(self, leave: Leave) -> None:
        """The job is over, and everyone has acknowledged it."""
        assert self._driver is not None
        self._ended = True
        self._stamp.enter(Phase.LEAVING)
        if self._depot is not None:
            self._depot.close()
        if self.place is not None:
            # Whatever becomes of this process from here on happens after its last step, and is told so.
            self.place.session.flush(FLUSH_S)
        step = self._driver.attendance.step
        self._note(Departed(step=step, why=leave.why, fault=leave.fault, digest=self.digest()))

    def _fail(self, leave: Leave) -> NoReturn:
        """This member takes no further part, and not as planned."""
        assert self._driver is not None
        if leave.fault == "halt":
            self._depart(leave)
            acting, step = self._driver.attendance.acting, self._driver.attendance.step
            if acting is not None and acting.halt is not None and not acting.halt.is_poison:
                raise HaltError(f"{leave.why}. This replica ends with the state before step {step}")
            raise PoisonError(
                f"{leave.why}. The parameters are those before step {step}: to keep them, catch regrow.PoisonError around "
                "the loop and save them"
            )
        self._note(Departed(step=self._driver.attendance.step, why=leave.why, fault=leave.fault, digest=None))
        match leave.fault:
            case "divided":
                raise ConfigError(leave.why)
            case "refused":
                raise Mismatch(leave.why)
            case "corrupt":
                raise StateError(leave.why)
        # The others go on without this process, or the coordinator ends the job: either way the error is not here.
        print(f"regrow: {leave.why}", file=sys.stderr)
        raise SystemExit(LEFT_CODE if leave.fault == "left" else UNSEATED_CODE)

    def _note(self, fact: Fact) -> None:
        if self.place is not None:
            self.place.journal.write(fact)


current: Job | None = None
"""The job this process joined."""


def join_job(
    place: Place | None,
    *,
    lanes: int | None,
    microbatches_per_lane: int,
    seed: int,
    threads: int,
    skip: Iterable[tuple[int, int]],
) -> Job:
    global current
    if current is not None:
        raise ConfigError("join() was called twice: a process takes part in one job")
    for name, value in (("lanes", lanes), ("microbatches_per_lane", microbatches_per_lane), ("threads", threads)):
        if value is not None and value < 1:
            raise ConfigError(f"join({name}={value}): must be at least 1")
    flag = place.door.lanes if place else None
    if flag is not None and lanes is not None and flag != lanes:
        raise ConfigError(f"the script says join(lanes={lanes}) but the command says --lanes {flag}: give one, or the same")
    numerics.fix(threads)
    seed_everything(mix(seed))
    lanes = lanes or flag or DEFAULT_LANES
    skips = tuple(sorted({Cell(step, lane) for step, lane in skip}))
    for cell in skips:
        if cell.step < 0 or not 0 <= cell.lane < lanes:
            raise ConfigError(f"join(skip=...) names {cell}: steps count from 0, and lanes are 0 to {lanes - 1}")
    current = Job(place, lanes=lanes, microbatches_per_lane=microbatches_per_lane, seed=seed, skips=skips)
    return current
