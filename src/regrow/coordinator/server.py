"""Hosts core.membership: turns what arrives into events, carries out the effects in order. It decides nothing itself.

Order is the contract: an effect is carried out only after those before it, and a Persist that the disk refuses holds
back all that follow but the job's end (a roster that is not durable must not be pushed). It is tried again with every
tick; members train on meanwhile.
"""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol, assert_never

import msgspec

from regrow.coordinator.bulletin import Bulletin
from regrow.coordinator.line import Line
from regrow.coordinator.notices import Notice, idle, is_routine, told
from regrow.coordinator.store import Store
from regrow.core.attendance import names_member
from regrow.core.errors import ConfigError, InfraError
from regrow.core.invariants import member_of
from regrow.core.membership import Membership
from regrow.core.membership_effects import (
    End,
    Founded,
    Granted,
    Kill,
    Lost,
    Made,
    MembershipEffect,
    Persist,
    Poisoned,
    Saved,
    Seek,
    Send,
    Spared,
    Start,
    Unfounded,
    WishTold,
)
from regrow.core.membership_events import (
    AgentCame,
    AgentGone,
    Died,
    Heard,
    Hung,
    MembershipEvent,
    Opened,
    OriginCame,
    Stalled,
    StopRequested,
    Ticked,
    WishCame,
)
from regrow.core.messages import (
    OPERATOR,
    Abandoned,
    Beat,
    Dismissed,
    Enlist,
    Exited,
    FromMember,
    HangSeen,
    Join,
    Message,
    Missed,
    Push,
    Raised,
    Refuse,
    Reply,
    Report,
    Request,
    StallSeen,
    StateSought,
    StopWanted,
)
from regrow.core.records import (
    JobEnded,
    JobOpened,
    LanePoisoned,
    OriginTaken,
    Refused,
    ReplicaLost,
    RestartPlanned,
    RosterMade,
    SeatTaken,
    WishNoted,
    WorkerDismissed,
    WorkerRaised,
    WorkerSpared,
)
from regrow.core.roster import NO_VERSION, Endpoint, Member
from regrow.shell.faultpoint import faultpoint
from regrow.shell.journal import Journal
from regrow.wire.tcp import Connection, Listener, listen

_TICK_S = 0.05
_RECENT_BYTES = 1 << 22
_LAST_WORDS_S = 0.02
"""A dead worker's words are already in this process's buffers; only when another holds its socket does it take this long."""


class Actuator(Protocol):
    """Whoever starts and ends workers."""

    def start(self, member: Member, why: str, delay_s: float) -> None: ...

    def kill(self, member: Member, why: str) -> None: ...

    def seek(self, number: int, step: int | None) -> None: ...


class Server:
    """`ended` gets the End of the job. `notice` gets lines for the operator, with whether each is routine; `warn` gets this
    process's own trouble."""

    def __init__(
        self,
        job: Enlist,
        store: Store,
        journal: Journal,
        actuator: Actuator,
        notice: Callable[[str, bool], None],
        warn: Callable[[str], None],
    ) -> None:
        self._job = job
        self._saved = store.load()
        self._membership = Membership(job.config, self._saved)
        self._store = store
        self._journal = journal
        self._actuator = actuator
        self._notice = notice
        self._warn = warn
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[End] = self._loop.create_future()
        self._noted: JobEnded | None = None
        self.raised: list[Raised] = []
        """Every exception of the user's script, in the order heard."""
        self._steps: int | None = None
        """Of the job, once a member has said so."""
        self._is_founded = self._saved is not None and self._saved.roster is not None
        self._started: set[Member] = set()
        self._dead: set[Member] = set()
        self._dismissed: set[Member] = set()
        self._lines: dict[Member, Line] = {}
        self._bulletin = Bulletin(*((self._saved.base, self._saved.roster) if self._saved else ()))
        self._asking: dict[int, asyncio.Future[Reply]] = {}
        """Operators that wait for an answer, by their ticket."""
        self._tickets = itertools.count()
        self._events: deque[MembershipEvent] = deque()
        self._is_feeding = False
        self._undone: deque[MembershipEffect] = deque()
        self._is_stuck = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None

    async def listen(self, host: str, port: int, token: str) -> Endpoint:
        try:
            self._listener = await listen(host, port, token, self.serve, self._refuse)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError):
                raise InfraError(str(error)) from error
            raise
        return self._listener.endpoint

    def open(self) -> None:
        """Begin, or go on where an earlier coordinator ended."""
        self._note_beginning()
        self._feed(Opened(now=_now()))
        if self._is_stuck:
            raise InfraError("the run directory cannot be written: free space, or choose another --run-dir")
        self._spawn(self._tick())

    def report(self, report: Report) -> None:
        """What the agent saw or was told. It may be told again."""
        match report:
            case Exited():
                self._died(Died(now=_now(), **msgspec.structs.asdict(report)))
            case HangSeen(member=member, why=why, place=place):
                self._feed(Hung(now=_now(), member=member, why=why, place=place))
            case StallSeen(why=why):
                self._feed(Stalled(now=_now(), why=why))
            case StopWanted():
                self._feed(StopRequested(now=_now()))
            case StateSought():
                self._feed(OriginCame(now=_now(), **msgspec.structs.asdict(report)))
            case Abandoned(outcome=outcome, why=why):
                self.end(End(outcome=outcome, why=why))
            case _:
                assert_never(report)

    def agent_gone(self) -> None:
        self._feed(AgentGone(now=_now()))

    def agent_came(self) -> None:
        self._feed(AgentCame(now=_now()))

    def end(self, end: End) -> None:
        """The job is over, by the operator's word or by core's."""
        if not self.ended.done():
            if (fact := JobEnded(outcome=end.outcome, why=end.why)) != self._noted:
                self._journal.write(fact)
            self.ended.set_result(end)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()

    def _note_beginning(self) -> None:
        """The journal as if there had been one coordinator: one that died may have saved a roster it did not note."""
        facts = [line.what for line in self._journal.recent(_RECENT_BYTES)]
        self._noted = next((fact for fact in reversed(facts) if isinstance(fact, JobEnded)), None)
        roster = self._saved.roster if self._saved else None
        if roster is not None:
            if not any(isinstance(fact, RosterMade) and fact.version == roster.version for fact in facts):
                why = "saved by a coordinator that died before it noted this"
                made = Made(roster=roster, why=why, staff=self._membership.staff)
                self._journal.write(_made(made, self._steps))
        elif self._saved is None and self._job.config.lanes is not None:
            self._note_job(self._job.config.lanes)

    def _note_job(self, lanes: int) -> None:
        job = self._job
        opened = JobOpened(
            job=job.job,
            replicas=job.config.replicas,
            lanes=lanes,
            command=job.command,
            every_step=job.config.logs,
        )
        self._journal.write(opened)

    # Events

    def _died(self, died: Died) -> None:
        """What the worker said before counts first: an exception explains its exit."""
        self._dead.add(died.member)
        line = self._lines.get(died.member)
        if line is None:
            self._feed(died)
        else:
            self._spawn(self._bury(line, died))

    async def serve(self, connection: Connection) -> None:
        if connection.name == OPERATOR:
            await self._serve_operator(connection)
            return
        member = member_of(connection.name)
        if member is None:
            self._refuse(connection.peer, f"{connection.name!r} is no member's name")
            return
        if member not in self._started or member in self._dead:
            # It knows the token, but no such process lives: what it says (that the script raised, say) must not count.
            self._refuse(connection.peer, f"{member} {'is dead' if member in self._dead else 'was never started'}")
            return
        line = Line(connection)
        former, self._lines[member] = self._lines.get(member), line
        if former is not None:
            former.connection.abort()  # it came back: what it is told now must not go to the line it gave up
        try:
            await connection.receive_each(lambda message: self._hear(member, line, message))
        finally:
            line.close()
            if self._lines.get(member) is line:
                del self._lines[member]

    async def _serve_operator(self, connection: Connection) -> None:
        want = await connection.receive()
        if not isinstance(want, Request):
            self._refuse(connection.peer, f"an operator began with {type(want).__name__}")
            return
        ticket = next(self._tickets)
        reply = self._asking[ticket] = self._loop.create_future()
        self._feed(WishCame(now=_now(), ticket=ticket, wish=want.wish))
        try:
            await connection.send(await reply)
        finally:
            del self._asking[ticket]

    def _hear(self, member: Member, line: Line, message: Message) -> bool:
        """False: it may not go on like that."""
        if not isinstance(message, FromMember):
            self._refuse(str(member), f"{type(message).__name__} is not for a coordinator")
            return False
        if names_member(message) != member:
            self._refuse(str(member), f"spoke in the name of {names_member(message)}")
            return False
        if not isinstance(message, Beat):
            self._note(line, message)
        self._feed(Heard(now=_now(), message=message))
        return True

    def _note(self, line: Line, message: FromMember) -> None:
        if isinstance(message, Missed):
            line.told = NO_VERSION
        if isinstance(message, Join):
            line.told = message.seen
            steps = message.contract.terms.get("steps", "")
            self._steps = int(steps) if steps.isdecimal() and len(steps) < 19 else None
        if isinstance(message, Dismissed) and message.member not in self._dismissed:
            self._dismissed.add(message.member)
            self._journal.write(WorkerDismissed(member=message.member, within_s=message.within_s))
            self._notice(f"{message.member} was told to end: it hands over within {message.within_s:g} s", False)
        if isinstance(message, Raised):
            self.raised.append(message)
            self._journal.write(
                WorkerRaised(
                    member=message.member,
                    kind=message.kind,
                    place=message.place,
                    step=message.step,
                    lane=message.lane,
                    scope=message.scope,
                    traceback=message.traceback,
                    memory=message.memory,
                )
            )

    async def _bury(self, line: Line, died: Died) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await line.closed.wait()
        self._feed(died)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._feed(Ticked(now=_now()))

    def _feed(self, event: MembershipEvent) -> None:
        if self.ended.done():
            return
        self._events.append(event)
        if self._is_feeding:
            return  # an effect caused it; it is handled once that effect is done
        self._is_feeding = True
        try:
            while self._events:
                self._undone.extend(self._membership.handle(self._events.popleft()))
                while self._undone and self._carry_out(self._undone[0]):
                    self._undone.popleft()
            # Nothing follows an end, so it need not wait for a disk: a job whose members have left would never be over.
            for effect in self._undone:
                if isinstance(effect, End):
                    self.end(effect)
        finally:
            self._is_feeding = False

    # Effects

    def _carry_out(self, effect: MembershipEffect) -> bool:
        """False when it could not be done and must be tried again before anything later."""
        match effect:
            case Persist(saved=saved):
                return self._persist(saved)
            case Send(member=member, message=message):
                if isinstance(message, Refuse):
                    self._refuse(str(member), message.why)
                if isinstance(message, Push):
                    faultpoint("push", roster=message.roster.version.n)
                line = self._lines.get(member)
                if line is not None:
                    self._bulletin.tell(line, message)
            case Start(member=member, delay_s=delay_s, why=why):
                faultpoint("order")
                self._started.add(member)
                self._actuator.start(member, why, delay_s)
            case Kill(member=member, why=why):
                faultpoint("doom")
                self._actuator.kill(member, why)
            case Seek(number=number, step=step):
                self._actuator.seek(number, step)
            case Made():
                self._tell_made(effect)
            case Unfounded():
                self._tell(effect)
            case Founded(version=version, origin=origin):
                self._journal.write(
                    OriginTaken(
                        version=version,
                        step=origin.step,
                        root=origin.root,
                        where=origin.where,
                        reached=effect.reached,
                        differences=effect.differences,
                        data_from=effect.data_from,
                        records=origin.records,
                    )
                )
                self._tell(effect)
            case Granted(member=member, restart=restart, why=why):
                self._journal.write(RestartPlanned(member=member, why=why, **msgspec.structs.asdict(restart)))
                self._tell(effect)
            case Lost(replica=replica, why=why, left=left, needed=needed):
                self._journal.write(ReplicaLost(replica=replica, why=why, left=left, needed=needed))
                self._tell(effect)
            case Spared(member=member, why=why):
                self._journal.write(WorkerSpared(member=member, why=why))
                self._tell(effect)
            case Poisoned(poison=poison, samples=samples, decision=decision):
                self._journal.write(
                    LanePoisoned(cell=poison.cell, replicas=poison.replicas, samples=samples, decision=decision)
                )
                self._tell(effect)
            case WishTold():
                self._tell_wish(effect)
            case End():
                self.end(effect)
            case _:
                assert_never(effect)
        return True

    def _tell_wish(self, told: WishTold) -> None:
        wish = told.wish
        self._journal.write(WishNoted(number=wish.number, wish=str(wish), state=told.state, why=told.why))
        self._tell(told)
        asking = self._asking.get(told.ticket) if told.ticket is not None else None
        if asking is not None and not asking.done():
            asking.set_result(Reply(is_granted=told.state == "granted", why=told.why, number=wish.number))

    def _tell(self, notice: Notice) -> None:
        self._notice(told(notice), is_routine(notice))

    def _tell_made(self, made: Made) -> None:
        roster, config = made.roster, self._job.config
        faultpoint("made", roster=roster.version.n)
        self._journal.write(_made(made, self._steps))
        self._tell(made)
        if config.lanes is None and not self._is_founded:
            lanes = sum(len(seat.lanes) for seat in roster.seats)
            self._note_job(lanes)
            if (warning := idle(len(roster.seats), lanes)) is not None:
                self._notice(warning, False)
        self._is_founded = True

    def _persist(self, saved: Saved) -> bool:
        n = saved.roster.version.n if saved.roster else 0
        try:
            faultpoint("persist", roster=n)
            self._store.save(saved)
            faultpoint("persisted", roster=n)
        except OSError as error:
            if not self._is_stuck:
                self._warn(f"cannot save the coordinator's state ({error}): no replica can be replaced until there is space")
            self._is_stuck = True
            return False
        if self._is_stuck:
            self._warn("the coordinator's state is saved again")
        self._is_stuck = False
        return True

    def _refuse(self, peer: str, why: str) -> None:
        self._journal.write(Refused(peer=peer, why=why))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "the coordinator failed", "exception": error})


def _made(made: Made, steps: int | None) -> RosterMade:
    roster = made.roster
    seats = tuple(
        SeatTaken(member=seat.member, founder=seat.founder, lanes=seat.lanes, spectates=seat.spectates)
        for seat in roster.seats
    )
    return RosterMade(
        version=roster.version,
        cause=roster.cause,
        why=made.why,
        floor=roster.floor,
        seats=seats,
        skips=roster.skips,
        suspects=roster.suspects,
        halt=roster.halt,
        shrinks=roster.shrinks,
        base=roster.base,
        waits=roster.waits,
        steps=steps,
        places=made.staff.places,
        target=made.staff.target,
        origin=None if roster.origin is None else roster.origin.step,
    )


def _now() -> float:
    return time.monotonic()
