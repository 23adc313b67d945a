"""One group of the members of one roster: gather, exchange, abort.

A group is one TCP connection to each peer, and knows nothing of rosters or steps. Operations block, release the GIL while
they wait, and are issued by one thread at a time; abort() may come from any. Every failure is a PeerError and breaks the
whole group, here and at the peers: nobody is left waiting for a member that has given up.

Operations never time out. Who is slow and who is gone is decided elsewhere; abort() is the way out. When an operation has
ended, well or not, nobody touches its memory any more.
"""

import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Protocol

import torch

from regrow.collectives.line import Line
from regrow.core.errors import PeerError
from regrow.state.memory import bytes_of

Parcel = Sequence[torch.Tensor]
"""Contiguous bytes, one after the other."""


class Group(Protocol):
    """What a group can do, whatever carries it."""

    rank: int
    size: int

    def gather(self, data: bytes) -> list[bytes]:
        """Everybody's data, of any size, in order of rank."""
        ...

    def exchange(self, incoming: Sequence[Parcel], outgoing: Sequence[Parcel]) -> None:
        """Send outgoing[r] to rank r, receive incoming[r] from it. Both ends must mean the same sizes.

        What a member has for itself is not moved: its own entries are ignored. The same tensor may go to many.
        """
        ...

    def abort(self) -> None:
        """Wake whoever is blocked in this group, here and at the peers. From any thread, any number of times."""
        ...

    def close(self) -> None:
        """Let go of the group. Peers that are still in the last operation finish it; one under way here ends broken."""
        ...


class TcpGroup:
    """A group of two or more. `lines`: by rank, one to each peer."""

    def __init__(self, rank: int, lines: Mapping[int, Line]) -> None:
        self.rank = rank
        self.size = size = len(lines) + 1
        # Each begins with its neighbour; were rank 0 first for all, its link would be the bottleneck.
        self._lines = {peer: lines[peer] for peer in ((rank + i) % size for i in range(1, size))}
        self._lock = Lock()
        self._broken: str | None = None
        self._is_busy = False
        self._is_closed = False

    def gather(self, data: bytes) -> list[bytes]:
        view = [memoryview(data)]
        self._operate(dict.fromkeys(self._lines, view), dict.fromkeys(self._lines))
        return [data if rank == self.rank else bytes(self._lines[rank].received) for rank in range(self.size)]

    def exchange(self, incoming: Sequence[Parcel], outgoing: Sequence[Parcel]) -> None:
        twins: dict[int, torch.Tensor] = {}
        received = {peer: [_on_host(tensor, twins, copy=False) for tensor in incoming[peer]] for peer in self._lines}
        sent = {peer: [_on_host(tensor, twins, copy=True) for tensor in outgoing[peer]] for peer in self._lines}
        self._operate(
            {peer: [bytes_of(tensor) for tensor in parcel] for peer, parcel in sent.items()},
            {peer: [bytes_of(tensor) for tensor in parcel] for peer, parcel in received.items()},
        )
        for peer, parcel in received.items():
            for twin, tensor in zip(parcel, incoming[peer], strict=True):
                if twin is not tensor:
                    tensor.copy_(twin)

    def abort(self) -> None:
        self._break("it was aborted here")

    def close(self) -> None:
        self._break("it was closed here")
        with self._lock:
            self._is_closed = True
            self._let_go()

    def _operate(
        self, outgoing: Mapping[int, Sequence[memoryview]], incoming: Mapping[int, Sequence[memoryview] | None]
    ) -> None:
        with self._lock:
            if self._broken:
                raise PeerError(f"rank {self.rank} of {self.size}: the group is broken: {self._broken}")
            self._is_busy = True
        peer = self.rank
        try:
            for peer, line in self._lines.items():
                line.begin(outgoing[peer], incoming[peer])
            poll, busy = select.poll(), {}
            for peer, line in self._lines.items():
                line.write()
                line.read()  # it may all be here, and what came early is not seen by a poll
                if line.awaits:
                    poll.register(line.fd, line.awaits)
                    busy[line.fd] = peer
            while busy:
                for fd, event in poll.poll():
                    peer = busy[fd]
                    line = self._lines[peer]
                    awaited = line.awaits
                    if event & ~select.POLLOUT:
                        line.read()
                    if event & ~select.POLLIN:
                        line.write()
                    if not line.awaits:
                        poll.unregister(fd)
                        del busy[fd]
                    elif line.awaits != awaited:
                        poll.modify(fd, line.awaits)
        except OSError as error:
            self._break(f"with rank {peer}: {error.strerror or error}")
            raise PeerError(f"rank {self.rank} of {self.size}: {self._broken}") from None
        except BaseException as error:  # a signal's handler, say: the next operation would take up where this one was left
            self._break(f"an operation was interrupted by {type(error).__name__}")
            raise
        finally:
            with self._lock:
                self._is_busy = False
                self._let_go()

    def _break(self, why: str) -> None:
        with self._lock:
            self._broken = self._broken or why
            for line in self._lines.values():
                with suppress(OSError):  # the peer was faster
                    line.shut()

    def _let_go(self) -> None:
        """Not while an operation polls them: another's socket could get the number."""
        if self._is_closed and not self._is_busy:
            for line in self._lines.values():
                line.close()


class Solo:
    """The group of one."""

    rank = 0
    size = 1

    def gather(self, data: bytes) -> list[bytes]:
        return [data]

    def exchange(self, incoming: Sequence[Parcel], outgoing: Sequence[Parcel]) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


def _on_host(tensor: torch.Tensor, twins: dict[int, torch.Tensor], copy: bool) -> torch.Tensor:
    """Sockets move host memory; tensors of a device get a twin there, the same one where they are the same."""
    if tensor.device.type == "cpu":
        return tensor
    if id(tensor) not in twins:
        twins[id(tensor)] = tensor.cpu() if copy else torch.empty(tensor.shape, dtype=tensor.dtype)
    return twins[id(tensor)]
