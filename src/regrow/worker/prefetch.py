"""Microbatches made ahead by data workers: the training thread's side.

It looks after them only when it needs a microbatch: takes what has come, asks for what will be wanted next, and waits if the
one it needs is not there. Between two such moments each data worker has a few errands to go on with.
"""

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from regrow.core.errands import Errand, Errands
from regrow.core.errors import DataError
from regrow.core.records import DataWorkerReplaced
from regrow.worker.data_worker import PACKET_BYTES, Made, Source, encode, work
from regrow.worker.nursery import Nursery
from regrow.worker.parcel import unpack

TRIES = 3
"""So many data workers may die or hang at one microbatch before that is an error."""


class PrefetchConfig(msgspec.Struct, frozen=True, kw_only=True):
    workers: int
    ahead: int
    """Microbatches that each of them has to make at a time."""
    keeps_lanes: bool
    """Each lane's microbatches are made by one of them."""
    timeout_s: float | None
    """A data worker that is waited for longer is replaced; None: it is waited for."""


class Prefetch:
    def __init__(self, source: Source, config: PrefetchConfig, note: Callable[[DataWorkerReplaced], None]) -> None:
        self._config = config
        self._note = note
        self._errands = Errands(config.workers, config.ahead, config.keeps_lanes)
        self._nursery = Nursery(partial(work, source=source))
        self._lines = [self._nursery.start(number) for number in range(config.workers)]
        self._ready: dict[Errand, Any] = {}
        self._failed: dict[Errand, Exception] = {}
        """To be raised when they are needed, and only then: what fails ahead must not be blamed on the lane under way."""
        self.took_s: list[float] = []
        """How long microbatches took to make, since somebody last looked."""

    @property
    def reach(self) -> int:
        """How many microbatches ahead it is worth to know."""
        return self._errands.reach

    def is_ready(self, wanted: Sequence[Errand]) -> bool:
        """Take in what has come, ask for what is wanted; is the first one there?"""
        while self._collect(0.0):
            pass
        self.ask(wanted)
        return wanted[0] in self._ready or wanted[0] in self._failed

    def peek(self, errand: Errand) -> Any:
        """What was made of it; None when it is not there."""
        return self._ready.get(errand)

    def take(self, wanted: Sequence[Errand]) -> Any:
        """The first one wanted."""
        needed = wanted[0]
        since = time.monotonic()
        while not self.is_ready(wanted):
            holder = self._errands.holder(needed)
            assert holder is not None, "what is needed was asked for"
            left_s = None if self._config.timeout_s is None else self._config.timeout_s - (time.monotonic() - since)
            if left_s is not None and left_s <= 0:
                self._replace(holder, is_hung=True)
                since = time.monotonic()
            elif holder in self._collect(left_s):
                since = time.monotonic()
        self._errands.used(needed)
        if needed in self._failed:
            raise self._failed.pop(needed)
        return self._ready.pop(needed)

    def close(self) -> None:
        for line in self._lines:
            line.close()
        self._nursery.close()

    def ask(self, wanted: Sequence[Errand]) -> None:
        """Send for what is wanted, soonest first, and let go of what is not."""
        orders, stale = self._errands.want(wanted)
        for errand in stale:
            self._ready.pop(errand, None)
            self._failed.pop(errand, None)
        for order in orders:
            try:
                self._lines[order.worker].send(encode(order))
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has died: its line says so at the next look, and its errands are asked for again

    def _collect(self, wait_s: float | None) -> set[int]:
        """Take in what has come, waiting for the first of it; the workers that were heard of."""
        numbers = {line.fileno(): number for number, line in enumerate(self._lines)}
        poll = select.poll()  # not select: descriptors may be many here
        for fd in numbers:
            poll.register(fd, select.POLLIN)
        heard = {numbers[fd] for fd, _ in poll.poll(None if wait_s is None else wait_s * 1e3)}
        for number in heard:
            self._take_in(number, self._lines[number])
        return heard

    def _take_in(self, number: int, line: socket.socket) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(line, PACKET_BYTES, 1)
        except ConnectionResetError:
            packet, fds = b"", []
        if not packet:
            self._replace(number, is_hung=False)
            return
        (fd,) = fds
        try:
            made = msgspec.msgpack.decode(packet, type=Made)
            content = unpack(made.parcel, fd)
        finally:
            os.close(fd)
        self._errands.done(number, made.errand)
        self.took_s.append(made.took_s)
        if made.is_error:
            error, text = content
            self._failed[made.errand] = _error(error, text, made.errand)
        else:
            self._ready[made.errand] = content

    def _replace(self, number: int, is_hung: bool) -> None:
        if is_hung:
            self._nursery.kill(number)
        ended = self._nursery.wait_end(number)
        self._lines[number].close()
        errand, losses = self._errands.lost(number)
        how = f"did not answer within timeout_s={self._config.timeout_s:g}" if is_hung else ended.how
        what = f"a data worker (pid {ended.pid}) {how}" + (f" while it made {errand}" if errand else "")
        print(f"regrow: {what}; it is replaced", file=sys.stderr, flush=True)
        making = Errand(errand.step, errand.lane, errand.microbatch) if errand else None
        self._note(DataWorkerReplaced(pid=ended.pid, how=how, making=making, losses=losses))
        if errand is not None and losses >= TRIES:
            self._errands.give_up(errand)
            told = f"{what}, the last of {losses} that died or hung there: look at what this microbatch holds"
            self._failed[errand] = DataError(told)
        self._lines[number] = self._nursery.start(number)


def _error(error: Exception | None, text: str, errand: Errand) -> Exception:
    told = f"raised in a data worker, making {errand}:\n{text}"
    if error is None:
        return DataError(told)
    error.add_note(told)
    return error
