"""A worker's side of saves: its portion of each state into the vault's arena, and an origin out of it.

    training thread    save ──> lays out, takes what could change ──> trains on ──> an optimizer's step waits, if need be
    regrow-copy        ............. borrows the arena, copies this member's portion, says so
    regrow-vault       ................................................. hears what became of the save

A save that finds no vault, or loses it on the way, is settled by the next line: kept, or void and wished again. Of a job's
last save nothing comes after, so it is waited for (rule S3 of ADR 0027).
"""

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec
import torch
import xxhash

from regrow.core.draft import ALIGNED_BYTES, Draft
from regrow.core.effects import Save
from regrow.core.errors import ConfigError, InfraError, PeerError, StateError
from regrow.core.origin import Origin
from regrow.core.progress import Phase
from regrow.core.records import Fact, SaveWaited
from regrow.core.roster import Member, Version
from regrow.core.saves import Urgency
from regrow.core.toll import Toll
from regrow.shell.faultpoint import faultpoint
from regrow.shell.stamp import Stamp
from regrow.shell.vaulting import (
    Came,
    Deposit,
    Deposited,
    Due,
    Foreseen,
    FromWorker,
    Kept,
    Lacking,
    Lent,
    LogHeld,
    Paid,
    Recall,
    Recalled,
    Shown,
    ToWorker,
    Unknown,
    Void,
    Waits,
)
from regrow.state.recall import fill
from regrow.state.tracked import Tracked
from regrow.worker.drafting import Drafting, is_young, optimizers
from regrow.worker.hold import Copy, Hold, Outcome, carried_out, copy_of
from regrow.worker.loan import Loan, Mappings
from regrow.worker.logbook import Logbook
from regrow.worker.mapping import Mapping
from regrow.worker.replaying import Replaying
from regrow.worker.restoring import difference
from regrow.worker.vault_line import VaultLine

_AWAY_S = 30.0
"""Whoever cannot do without the vault waits so long for it: it is started again within a second."""
_LONGEST_S = 3600.0
"""A step that waits longer for a save counts as a hang: a vault that is there says every second why it has to."""
_AGAIN_S = 0.1
"""A last save that is void is tried again after this: what stands in its way takes longer."""
_TOLD_S = 0.001
_SETTLED = 3
"""By the entry of so many steps an optimizer has made its state, if it ever does."""
_MAPPINGS = 4
"""More than a vault has arenas."""

_Key = tuple[int, Version]


class _Layout(msgspec.Struct, frozen=True):
    """The state of this moment, laid out."""

    plan: Draft
    tensors: list[tuple[str, torch.Tensor, int]]
    """Path, tensor, offset in the arena."""


class Depot:
    """Of one worker; `save`, `recall` and `close` on the training thread."""

    def __init__(
        self,
        address: str,
        me: Member,
        tracked: Tracked,
        drafting: Drafting,
        stamp: Stamp,
        note: Callable[[Fact], None],
        again: Callable[[Urgency], None],
        due: Callable[[], None],
        logbook: Logbook | None = None,
    ) -> None:
        """`again` wishes a save anew, after one that is void; `due` does when the vault's clock says so. `logbook`: of an
        every-step job."""
        self._me = me
        self._tracked = tracked
        self._drafting = drafting
        self._stamp = stamp
        self._note = note
        self._again = again
        self._due = due
        self._toll = Toll()
        self._entries = 0
        self._logbook = logbook
        self._replaying: Replaying | None = None
        self._line = VaultLine(address, self._first, self._heard, self._lost)
        self._hold = Hold(self._before_step)
        self._mappings = Mappings()
        self._restless: set[str] = set()
        """Paths of tensors that have changed under a copy: from then on they are copied at once."""
        self._changed = threading.Condition()
        """Guards what follows."""
        self._unsettled: Save | None = None
        """The newest save of which this worker gave its portion, or was to, and has not heard what became of it."""
        self._is_decided = False
        """The last one that was settled is whole, or will not be however often it is tried."""
        self._lent: tuple[_Key, Mapping | InfraError] | None = None
        """What the vault lends for this save; or why this worker cannot have it."""
        self._lacking: deque[Lacking] = deque()
        self._answer: tuple[Recalled, int | None] | Unknown | None = None
        self._shown: dict[str, int] = {}
        """Logs that came before the answer, by member."""
        self._why_waiting = ""
        self._is_foreseen = False

    def open(self) -> None:
        if self._logbook is not None:
            self._logbook.open(lambda: self._unsettled is not None and self._line.number > 0)
        self._line.open()

    def close(self) -> None:
        self._hold.close()
        self._line.close()
        self._mappings.close()
        if self._replaying is not None:
            self._replaying.close()
        if self._logbook is not None:
            self._logbook.close()

    # Steps

    def enter(self) -> None:
        """A step begins."""
        self._toll.entered(time.monotonic())
        self._entries += 1
        if self._entries >= _SETTLED:
            self._foresee()  # no optimizer of torch's has said so

    def skip(self) -> None:
        """It was computed elsewhere, or before."""
        self._toll.skipped()

    # Saving

    def save(self, work: Save) -> None:
        begun_s = time.monotonic()
        self._wait()  # two saves without an optimizer's step in between
        self._toll.saves(work.step)
        layout = self._laid_out(work.step)
        with self._changed:
            self._unsettled, self._lent, self._why_waiting = work, None, ""
            self._lacking.clear()
        if work.urgency is Urgency.LAST:
            self._save_last(work, layout)
        else:
            self._hold.begin(self._copy(work, layout, work.members.index(self._me)))
        if self._logbook is not None:
            self._logbook.expense.began_save(time.monotonic() - begun_s)

    def _laid_out(self, step: int) -> _Layout:
        plan, offsets, flat = self._drafting.planned(step, self._tracked)
        frozen = tuple(name for name, parameter in self._tracked.parameters() if not parameter.requires_grad)
        return _Layout(
            msgspec.structs.replace(plan, frozen=frozen), list(zip(flat.paths, flat.tensors, offsets, strict=True))
        )

    def _copy(self, work: Save, layout: _Layout, index: int) -> Copy:
        """Of the portion of this member, or of another one."""
        plan = layout.plan
        deposit = Deposit(
            step=work.step,
            version=work.version,
            members=tuple(map(str, work.members)),
            index=index,
            urgency=work.urgency,
            layout=xxhash.xxh3_64_hexdigest(msgspec.json.encode(plan)),
            arena_bytes=plan.arena_bytes,
            draft=plan if index == 0 or work.urgency is Urgency.LAST else None,
        )
        number = self._line.number
        return copy_of(
            layout.tensors,
            optimizers(self._tracked),
            Loan(lambda: self._borrowed(work, deposit, number)),
            plan.arena_bytes,
            self._restless,
            lambda there_bytes: faultpoint("depositing", step=work.step),
            lambda outcome: self._deposited(deposit, number, outcome),
            portion(plan.arena_bytes, index, len(work.members)),
        )

    def _borrowed(self, work: Save, deposit: Deposit, number: int) -> Mapping:
        """The arena of this save, once the vault lends it. PeerError: there will be none, which is settled elsewhere."""
        faultpoint("deposit", step=work.step)
        key = (work.step, work.version)
        with self._changed:
            if self._lent is not None and self._lent[0] == key:
                return _mapped(self._lent[1])  # another portion of the same save
        self._line.touch()
        self._line.say(deposit, number)
        with self._changed:
            while self._lent is None or self._lent[0] != key:
                if self._unsettled is not work or self._line.number != number:
                    raise PeerError("the save is void, or the vault is away")
                if self._line.is_silent():
                    self._line.drop(number)
                self._changed.wait(1.0)
            return _mapped(self._lent[1])

    def _deposited(self, deposit: Deposit, number: int, outcome: Outcome) -> None:
        if isinstance(outcome.error, PeerError):
            return
        self._restless.update(outcome.changed)
        why = ""
        if outcome.error is not None:
            why = f"{self._me} could not copy its portion: {outcome.error}"
        elif outcome.changed:
            why = (
                f"{', '.join(outcome.changed[:3])} changed on {self._me} while being copied, and not in an optimizer's step"
            )
        faultpoint("deposited", step=deposit.step)
        told = Deposited(step=deposit.step, version=deposit.version, index=deposit.index, why=why)
        try:
            self._line.say(told, number)
        except PeerError:
            pass  # the next line settles it

    def _save_last(self, work: Save, layout: _Layout) -> None:
        """Returns once it is whole, whoever of the others is left; or when it never will be, which the vault tells at the
        job's end; or when there is no vault any more."""
        while (number := self._line.wait(_AWAY_S)) > 0:
            with self._changed:
                self._unsettled, self._lent, self._is_decided = work, None, False
                self._lacking.clear()
            mine = self._copy(work, layout, work.members.index(self._me))
            mine.done(carried_out(mine))
            while self._is_open(work, number):
                with self._changed:
                    self._changed.wait_for(lambda: self._lacking or not self._is_open(work, number), 1.0)
                    lacking = self._lacking.popleft() if self._lacking else None
                if lacking is not None:
                    other = self._copy(work, layout, lacking.index)
                    other.done(carried_out(other))
            if self._is_decided:
                return
            time.sleep(_AGAIN_S)
        print(f"regrow: no vault has come for {_AWAY_S:g} s: the last state is not saved", file=sys.stderr, flush=True)

    def _is_open(self, work: Save, number: int) -> bool:
        return self._unsettled is work and self._line.number == number

    # Waiting

    def _before_step(self) -> None:
        """Before each step of an optimizer."""
        waited_s = self._wait()
        paid = self._toll.updates(time.monotonic(), waited_s)
        if paid is not None and (number := self._line.number):
            with contextlib.suppress(PeerError):  # one save less to learn from
                self._line.say(Paid(step=paid[0], seconds=paid[1]), number)
        if not self._is_foreseen and not is_young(self._tracked):
            self._foresee()

    def _foresee(self) -> None:
        if not self._is_foreseen and (number := self._line.number):
            self._is_foreseen = True
            try:
                self._line.say(Foreseen(arena_bytes=self._laid_out(0).plan.arena_bytes), number)
            except PeerError:
                self._is_foreseen = False

    def _wait(self) -> float:
        if self._hold.is_idle:
            return 0.0
        with self._changed:
            work = self._unsettled
        with self._stamp.aside(Phase.BUSY, "a save", _LONGEST_S):
            seconds = self._hold.wait()
        if self._logbook is not None:
            self._logbook.expense.waited(seconds)
        if seconds >= _TOLD_S and work is not None:
            why = self._why_waiting or "the copy was not done"
            self._note(SaveWaited(step=work.step, seconds=seconds, why=why))
        return seconds

    # Recalling

    def recall(self, origin: Origin) -> int:
        """ConfigError when it is not the state of this script; StateError when it is not what it was said to be."""
        recalled, fd = self._asked(origin)
        with self._changed:
            self._replaying, self._shown = Replaying(recalled.records, self._shown), {}
        if self._logbook is not None:
            self._logbook.based(origin.step)
            self._logbook.inherit(sum(piece.size_bytes for one in recalled.records for piece in one.pieces))
        plan = recalled.draft
        if plan is None or fd is None:
            self._hold_to(origin)
            return 0
        try:
            if (words := difference(plan.skeleton, self._tracked)) is not None:
                raise ConfigError(f"the saved state of step {origin.step} ({origin.where}) is of something else: {words}")
            places = self._tracked.places(plan.skeleton)
            found = fill(fd, plan, places)
        finally:
            os.close(fd)
        if found != origin.root:
            raise StateError(
                f"the state of step {origin.step} has the root {found} in memory, it was found with {origin.root}"
            )
        for name, parameter in self._tracked.parameters():
            if parameter.requires_grad == (name in plan.frozen):
                parameter.requires_grad_(name not in plan.frozen)
        self._tracked.restore(plan.skeleton, places, origin.root, keeps=True)
        return plan.size_bytes

    def _hold_to(self, origin: Origin) -> None:
        """The job's own beginning: this script has built it, or something else."""
        built = self._logbook.root if self._logbook is not None else self._tracked.fingerprint()
        if built != origin.root:
            raise ConfigError(
                f"the script built a state with the root {built}, and the job began from one with {origin.root}: what it "
                "begins from must not depend on anything but the seed, and it must go on with the same mathematics"
            )

    @property
    def replaying(self) -> Replaying:
        """What follows the origin that was recalled last."""
        assert self._replaying is not None, "recall() comes first"
        return self._replaying

    @property
    def logbook(self) -> Logbook | None:
        return self._logbook

    def _asked(self, origin: Origin) -> tuple[Recalled, int | None]:
        ask = Recall(step=origin.step, root=origin.root, records=origin.records)
        end_s = time.monotonic() + _AWAY_S
        while True:
            number = self._line.wait(max(0.0, end_s - time.monotonic()))
            if not number:
                raise InfraError(
                    f"no vault has come for {_AWAY_S:g} s: the saved state of step {origin.step} is out of reach"
                )
            with self._changed:
                self._answer = None
            self._line.touch()
            try:
                self._line.say(ask, number)
            except PeerError:
                continue
            with self._changed:
                while self._answer is None and self._line.number == number:
                    if self._line.is_silent():
                        self._line.drop(number)
                    self._changed.wait(1.0)
                answer = self._answer
            if isinstance(answer, Unknown):
                raise StateError(f"the vault does not hold the saved state of step {origin.step} any more: {answer.why}")
            if answer is not None:
                return answer

    # The line's thread

    def _first(self) -> list[tuple[FromWorker, int | None]]:
        with self._changed:
            came = Came(member=str(self._me), unsettled=-1 if self._unsettled is None else self._unsettled.step)
            self._let_go_of_logs()
        return [(came, None), *(self._logbook.opening() if self._logbook is not None else [])]

    def _lost(self) -> None:
        with self._changed:
            self._is_foreseen = False  # the next vault may know of nothing yet
            self._changed.notify_all()
        if self._logbook is not None:
            self._logbook.wake()

    def _let_go_of_logs(self) -> None:
        """Of an answer that never came: it is asked for again."""
        for fd in self._shown.values():
            os.close(fd)
        self._shown.clear()

    def _mapping(self, fd: int, size_bytes: int) -> Mapping | InfraError:
        """Of an arena. Why there is none is for the copy to say, which makes its save void: this thread must live on."""
        try:
            return self._mappings.of(fd, size_bytes, _MAPPINGS)
        except InfraError as error:
            return error

    def _heard(self, message: ToWorker, fd: int | None) -> None:
        void: Save | None = None
        is_due = False
        with self._changed:
            work = self._unsettled
            match message:
                case Lent(step=step, version=version, size_bytes=size_bytes):
                    assert fd is not None, "an arena comes with its descriptor"
                    self._lent = ((step, version), self._mapping(fd, size_bytes))
                case Kept(step=step) if work is not None and step >= work.step:
                    self._unsettled, self._is_decided = None, True
                case Void(step=step, is_final=is_final) if work is not None and step == work.step:
                    self._unsettled, self._is_decided, void = None, is_final, work
                case Due():
                    is_due = work is None  # else one is on its way
                case Waits(why=why):
                    self._why_waiting = why
                case Lacking() if work is not None and (message.step, message.version) == (work.step, work.version):
                    self._lacking.append(message)
                case Recalled():
                    self._answer = message, fd
                case Shown(member=member):
                    assert fd is not None, "a log comes with its descriptor"
                    self._shown[member] = fd
                case Unknown():
                    self._answer = message
            self._changed.notify_all()
        if self._logbook is not None:
            self._tell_logbook(self._logbook, message)
        if is_due:
            self._due()
        if void is not None and void.urgency is not Urgency.LAST:
            self._again(void.urgency)

    def _tell_logbook(self, logbook: Logbook, message: ToWorker) -> None:
        match message:
            case LogHeld():
                logbook.held()
            case Kept(step=step):
                logbook.based(step)
                logbook.wake()
            case Void():
                logbook.wake()


def _mapped(lent: Mapping | InfraError) -> Mapping:
    if isinstance(lent, InfraError):
        raise lent
    return lent


def portion(arena_bytes: int, index: int, count: int) -> tuple[int, int]:
    """The pages of the arena, cut evenly."""
    pages = arena_bytes // ALIGNED_BYTES
    return pages * index // count * ALIGNED_BYTES, pages * (index + 1) // count * ALIGNED_BYTES
