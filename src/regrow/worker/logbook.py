"""A worker's side of the log: its parts of each result, written before it says that it holds that (rules L1, L3, L6 and L8).

    regrow-reduce      ......... what has arrived of the part goes into the log (worker.early)
    training thread    write ──> the part is in the log ──> the row
    regrow-log         ......... makes memory ready for the next parts
    regrow-vault       ......... hears that the log is held, and that a state is whole: then older records make room

Nobody is asked for a step, and nothing is sent but to the neighbour, where the job has one (worker.copyist). Training waits
for the log in two cases: once, until the agent holds it, and where it is full while a save that makes room is on its way.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import torch

from regrow.core.effects import Log
from regrow.core.errors import InfraError
from regrow.core.listener import part_of
from regrow.core.log import UNHELD_STEPS, Part
from regrow.core.neighbour import Guard, Guarded, Unguarded, in_words
from regrow.core.progress import Phase
from regrow.core.records import BaseDue, Fact, LogMeasured, LogOutgrown, LogUnheld, LogWaited, NeighbourBack, NeighbourLost
from regrow.core.renewal import renewal
from regrow.core.roster import Member, Version
from regrow.core.saves import Urgency
from regrow.shell.faultpoint import faultpoint
from regrow.shell.stamp import Stamp
from regrow.shell.vaulting import FromWorker, LogOpens
from regrow.state.gradient import Gradient
from regrow.state.log import Entry, rest_of, slot_bytes
from regrow.state.log_filling import Filling
from regrow.state.log_writer import LogWriter
from regrow.state.memory import bytes_of
from regrow.state.record import summary
from regrow.worker.copyist import Copyist
from regrow.worker.early import Early
from regrow.worker.expense import Expense

_AWAY_S = 30.0
"""A log that nobody holds for so long is written all the same: whoever waits for it keeps the others waiting."""
_ROOM_S = 10.0
"""A log that is full waits no longer for room: a save that can only be void, now that some member is gone, becomes so by the
rows of the others, and they wait for the row of whoever waits here."""
_LONGEST_S = 3600.0
_AHEAD = 2
"""Slots that are ready before they are needed."""
_TOLD_S = 0.001
_RECORDS = 8
"""With room for fewer hardly a step passes that no copy of the state is made in."""
_SPARE_BYTES = 512
"""What a part may need behind it beyond what parts before it did."""
_MB = 1_000_000


class Logbook:
    """Of one worker. `write` on the training thread, what the vault says on its line's."""

    def __init__(
        self,
        me: Member,
        root: str,
        limit_bytes: int,
        expense: Expense,
        stamp: Stamp,
        note: Callable[[Fact], None],
        wish: Callable[[Urgency], None],
        copyist: Copyist | None = None,
    ) -> None:
        """`root`: of the state as the script built it. `limit_bytes`: of the logs of all members of this host. `copyist`:
        where the job has a neighbour."""
        self.root = root
        self._me = me
        self.expense = expense
        self._writer = LogWriter.new(str(me), root)
        self._limit_bytes = limit_bytes
        self._stamp = stamp
        self._note = note
        self._wish = wish
        self._copyist = copyist
        self._guard = Guard()
        self._is_saving: Callable[[], bool] = lambda: False
        self._changed = threading.Condition()
        """Guards what follows."""
        self._is_held = False
        self._is_late = False
        """It was waited for in vain."""
        self._unheld = -UNHELD_STEPS
        """The step at which that was said last."""
        self._base: int | None = None
        """The newest state that is whole, as far as it was heard."""
        self._inherited_bytes = 0
        """Of what was replayed since that state: it lies in logs of those who are dead, until a newer one is whole."""
        self._is_outgrown = False
        self._is_in_vain = False
        """Room was waited for as long as it may be, and has not come since."""
        self._is_begun = False
        self._told: tuple[int | None, int] = (None, 0)
        """The base and the size that were told last."""
        self._is_ahead = True
        """Nothing is asked of the thread."""
        self._early: Early | None = None
        self._rest_bytes = 0
        """What the parts so far needed behind them at most, and some more; 0: there was none."""
        self._asked: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._make_ready, name="regrow-log", daemon=True)

    def open(self, is_saving: Callable[[], bool]) -> None:
        """`is_saving`: did this worker give its portion of a save that is not decided yet?"""
        self._is_saving = is_saving
        os.register_at_fork(after_in_child=self._writer.close)
        self._thread.start()
        if self._copyist is not None:
            self._copyist.open()

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join()
        if self._copyist is not None:
            self._copyist.close()

    def early(self, step: int, attempt: Version, index: int, count: int) -> Early | None:
        """A reduce is about to begin, of whose result this is to be this member's part. None: it is written once that is
        there."""
        self._finish_early()
        if self._is_held and self._rest_bytes:
            limit_bytes = self._limit_bytes // count
            self._early = Early(self._writer, self._copyist, limit_bytes, self._rest_bytes, step, attempt, index, count)
        return self._early

    def write(self, work: Log, result: Gradient) -> None:
        """Once this returns the parts lie in the log, and at the neighbour if it answers, whoever dies."""
        step = work.record.step
        faultpoint("logging", step=step)
        self._wait_held(step)
        tail, total_bytes = summary(result) if 0 in work.indices else b"", result.buffer.numel()
        for index in work.indices:
            start, stop = part_of(total_bytes, index, work.count)
            said = Part(record=work.record, stop=work.stop, index=index, count=work.count)
            entry = Entry(said=said, total_bytes=total_bytes, start=start)
            self._write(entry, tail if index == 0 else b"", result.buffer[start:stop])
        self._wait_copied(step, 0 in work.indices)
        faultpoint("logged", step=step)
        self._look_at_limit(total_bytes, 0 in work.indices)
        self._renew(step, work.count, total_bytes)

    def _write(self, entry: Entry, tail: bytes, data: torch.Tensor) -> None:
        said = entry.said
        limit_bytes = self._limit_bytes // said.count
        filling = self._finish_early(said)
        sizes = [data.numel()] if filling is None else [piece.size_bytes for piece in filling.pieces]
        rest_bytes = rest_of(entry, sizes, len(tail))
        if filling is not None and rest_bytes > filling.rest_bytes:
            self._writer.drop(filling)
            filling = None
        self._rest_bytes = max(self._rest_bytes, rest_bytes + _SPARE_BYTES)
        size_bytes = slot_bytes(data.numel(), self._rest_bytes)
        if filling is not None:
            self._is_outgrown = self._is_in_vain = False
            entry = self._writer.keep(filling, entry, tail)
        else:
            host = data.cpu()  # itself, but for a GPU's
            self._wait_room(said.record.step, size_bytes, limit_bytes)
            if self._copyist is not None:
                self._copyist.begin(size_bytes, host.numel())
                self._copyist.put(0, host)
            entry = self._writer.write(entry, tail, bytes_of(host), self._rest_bytes)
        if self._copyist is not None:
            self._copyist.end(entry, tail)
        if self._is_ahead and self._writer.count_free(size_bytes) < _AHEAD:
            self._is_ahead = False
            self._asked.put((size_bytes, limit_bytes))

    def _finish_early(self, said: Part | None = None) -> Filling | None:
        """The part that this says, where it is there already."""
        early, self._early = self._early, None
        if early is None:
            return None
        return early.finish(None if said is None else (said.record.step, said.record.attempt, said.index, said.count))

    def _look_at_limit(self, total_bytes: int, is_told: bool) -> None:
        """Once, by one member: is the limit made for records of this size?"""
        is_first, self._is_begun = not self._is_begun, True
        if is_first and is_told and _RECORDS * total_bytes > self._limit_bytes:
            steps, wanted = self._limit_bytes // total_bytes, -(-_RECORDS * total_bytes // _MB)
            print(
                f"regrow: the logs of {self._limit_bytes / _MB:.0f} MB have room for {steps} steps, of "
                f"{total_bytes / _MB:.0f} MB each: a copy of the state is made every few steps. Give --log-mb {wanted} or "
                "more, where this host has that",
                file=sys.stderr,
                flush=True,
            )

    def _renew(self, step: int, count: int, total_bytes: int) -> None:
        """A newer base is wished where the log is half full, or where it would save a founding time."""
        limit_bytes, used_bytes = self._limit_bytes // count, self._writer.used_bytes
        self._measure(step, used_bytes, limit_bytes)
        used_bytes += self._inherited_bytes // count
        base = self._base if self._base is not None else self._writer.oldest
        costs = self.expense.costs(total_bytes)
        if base is None or costs is None or self._is_saving():
            return
        if (why := renewal(step + 1 - base, costs, used_bytes, limit_bytes)) is not None:
            self._note(BaseDue(step=step, why=why))
            self._wish(Urgency.DUE)

    def _measure(self, step: int, used_bytes: int, limit_bytes: int) -> None:
        base, made_bytes = self._base, self._writer.made_bytes
        if base == self._told[0] and made_bytes < 2 * self._told[1]:
            return
        self._told = base, made_bytes
        self._note(
            LogMeasured(
                step=step,
                base=-1 if base is None else base,
                used_bytes=used_bytes,
                made_bytes=made_bytes,
                limit_bytes=limit_bytes,
            )
        )

    # Waiting

    def _wait_held(self, step: int) -> None:
        if self._is_held:
            return
        if self._is_late:
            self._tell_unheld(step)
            return
        begun_s = time.monotonic()
        with self._stamp.aside(Phase.BUSY, "the log", _LONGEST_S), self._changed:
            self._is_late = not self._changed.wait_for(lambda: self._is_held, _AWAY_S)
        why = "no vault took it: what this worker logs dies with it" if self._is_late else "the agent did not hold it yet"
        self._tell_wait(step, begun_s, why)
        if self._is_late:
            self._tell_unheld(step)
            print(
                f"regrow: no vault has come for {_AWAY_S:g} s, and nobody else holds the log of {self._me}: until one "
                "comes, committed steps are lost if all replicas are",
                file=sys.stderr,
                flush=True,
            )

    def _wait_copied(self, step: int, is_told: bool) -> None:
        if self._copyist is None:
            return
        faultpoint("copying", step=step)
        with self._stamp.aside(Phase.BUSY, "the neighbour", _LONGEST_S):
            through, why = self._copyist.wait()
        news, is_base_wished = self._guard.settle(step, through, why)
        if is_base_wished:
            self._wish(Urgency.DUE)
        if isinstance(news, Unguarded):
            self._note(NeighbourLost(step=step, why=news.why))
        if isinstance(news, Guarded):
            self._note(NeighbourBack(step=step))
        if is_told and (isinstance(news, Guarded) or (news is not None and news.is_news)):
            print(f"regrow: {in_words(news, step)}", file=sys.stderr, flush=True)

    def _tell_unheld(self, step: int) -> None:
        if step >= self._unheld + UNHELD_STEPS:
            self._unheld = step
            self._note(LogUnheld(step=step))

    def _wait_room(self, step: int, size_bytes: int, limit_bytes: int) -> None:
        if self._writer.has_room(size_bytes, limit_bytes):
            self._is_outgrown = self._is_in_vain = False
            return
        begun_s = time.monotonic()
        with self._stamp.aside(Phase.BUSY, "the log", _LONGEST_S), self._changed:
            while self._is_saving() and not self._is_in_vain and not self._writer.has_room(size_bytes, limit_bytes):
                self._changed.wait(1.0)
                self._is_in_vain = time.monotonic() >= begun_s + _ROOM_S
        self._tell_wait(step, begun_s, "the log was full, and a save on its way")
        if not self._is_outgrown and not self._writer.has_room(size_bytes, limit_bytes):
            self._is_outgrown = True
            used_bytes = self._writer.used_bytes + size_bytes
            self._note(LogOutgrown(step=step, used_bytes=used_bytes, limit_bytes=limit_bytes))

    def _tell_wait(self, step: int, begun_s: float, why: str) -> None:
        seconds = time.monotonic() - begun_s
        if seconds >= _TOLD_S:
            self._note(LogWaited(step=step, seconds=seconds, why=why))

    def inherit(self, size_bytes: int) -> None:
        """What this founder replays: after death upon death the logs together must not grow for ever."""
        with self._changed:
            self._inherited_bytes = size_bytes

    # The line's thread

    def opening(self) -> list[tuple[FromWorker, int | None]]:
        """What a line begins with, until the log is held."""
        return [] if self._is_held else [(LogOpens(), self._writer.fd)]

    def held(self) -> None:
        with self._changed:
            self._is_held = True
            self._changed.notify_all()

    def based(self, step: int) -> None:
        """The state of this step is whole in memory, or is what this job goes on from: older records are not needed."""
        with self._changed:
            if step < 0 or (self._base is not None and step <= self._base):
                return
            self._base, self._inherited_bytes = step, 0
            self._writer.free(step)
            self._changed.notify_all()

    def wake(self) -> None:
        """A save was decided, or the vault is lost: whoever waits for that looks again."""
        with self._changed:
            self._changed.notify_all()

    # The thread that makes memory ready

    def _make_ready(self) -> None:
        while (asked := self._asked.get()) is not None:
            size_bytes, limit_bytes = asked
            try:
                while self._writer.count_free(size_bytes) < _AHEAD and self._writer.has_room_made(size_bytes, limit_bytes):
                    self._writer.grow(size_bytes)
                if not self._writer.count_free(size_bytes):
                    self._writer.empty(size_bytes)
            except InfraError:
                pass  # whoever needs the room says so
            self._is_ahead = True
