"""Stamps around exactly what waits for others: whatever comes before and after is this worker's own to hang in."""

import contextlib
from collections.abc import Iterator, Sequence

from regrow.collectives.group import Group, Parcel
from regrow.core.errors import PeerError
from regrow.core.progress import Phase
from regrow.shell.faultpoint import faultpoint
from regrow.shell.stamp import Stamp


@contextlib.contextmanager
def waiting(stamp: Stamp, phase: Phase, then: Phase, step: int) -> Iterator[None]:
    stamp.enter(phase, step)
    try:
        faultpoint("waiting", step=step)
        yield
    except PeerError:
        stamp.enter(Phase.TURN, completed=False)
        raise
    stamp.enter(then)


class StampedGroup:
    """A group whose collectives are stamped as waits; the arithmetic between them is not."""

    def __init__(self, group: Group, stamp: Stamp, phase: Phase, then: Phase, step: int) -> None:
        self.rank = group.rank
        self.size = group.size
        self._group = group
        self._stamp = stamp
        self._phase = phase
        self._then = then
        self._step = step

    def gather(self, data: bytes) -> list[bytes]:
        with self._waiting():
            return self._group.gather(data)

    def exchange(self, incoming: Sequence[Parcel], outgoing: Sequence[Parcel]) -> None:
        with self._waiting():
            self._group.exchange(incoming, outgoing)

    def abort(self) -> None:
        self._group.abort()

    def close(self) -> None:
        self._group.close()

    def _waiting(self) -> contextlib.AbstractContextManager[None]:
        return waiting(self._stamp, self._phase, self._then, self._step)
