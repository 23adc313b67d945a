"""One group of the members of one roster: gather, exchange, abort.

A group is built directly on gloo, with no global state, and knows nothing of rosters or steps. Operations block, release
the GIL while they wait, and are issued by one thread; abort() may come from any. Every failure is a PeerError and breaks
the whole group, here and at the peers: nobody is left waiting for a member that has given up.

Operations never time out. Who is slow and who is gone is decided elsewhere; abort() is the way out.

Data goes point to point, straight between the caller's tensors: half the time of gloo's all-gather for a boundary row,
and no staging copies for the slices of a gradient.
"""

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Lock
from typing import Protocol, cast

import torch
import torch.distributed as dist

from regrow.collectives.meeting import Meeting, MeetingStore
from regrow.collectives.sockets import connections
from regrow.collectives.watch import Watch
from regrow.core.errors import InfraError, PeerError

_SIZE = struct.Struct("<Q")
_TAG = 0  # one is enough: operations of a pair are matched in the order they are issued


class Group(Protocol):
    """What a group can do, whatever carries it."""

    rank: int
    size: int

    def gather(self, row: bytes) -> list[bytes]:
        """Everybody's row, in order of rank; rows are of one size everywhere."""
        ...

    def gather_any(self, data: bytes) -> list[bytes]:
        """Everybody's data, of any size, in order of rank."""
        ...

    def exchange(self, incoming: Sequence[torch.Tensor], outgoing: Sequence[torch.Tensor]) -> None:
        """Send outgoing[r] to rank r, receive incoming[r] from it: contiguous bytes, empty for nothing.

        What a member has for itself is not moved: its own entries are ignored. The same tensor may go to many.
        When it fails, gloo may go on writing into `incoming` for a while: never use that memory again.
        """
        ...

    def abort(self) -> None:
        """Wake whoever is blocked in this group, here and at the peers. From any thread, any number of times."""
        ...

    def close(self) -> None:
        """Let go of the group between two operations. Peers that are still in the last one finish it.

        gloo takes 10 to 20 ms to end its threads (without the GIL): not on the way of a recovery.
        """
        ...


def form(meeting: Meeting, rank: int, size: int, host: str, timeout_s: float) -> Group:
    """Meet the other ranks and connect to each. Blocks, up to timeout_s once all have been met: use a disposable thread.

    `host` is the address of this machine that peers can reach.
    """
    if size == 1:
        return Solo()
    store = MeetingStore(meeting)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=timeout_s)
    try:
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    except RuntimeError as error:
        raise InfraError(
            f"cannot listen at {host}: {error}; give an address of this machine that peers can reach"
        ) from error
    try:
        gloo = cast(_Gloo, dist.ProcessGroupGloo(store, rank, size, options))
    except RuntimeError as error:
        raise PeerError(f"rank {rank} of {size} at {host} could not form its group: {error}") from error
    finally:
        del options  # an error's traceback would keep the listener and its thread alive
    own = b"".join(store.said.values())
    sockets = connections(own, [blob for blob in store.heard.values() if blob != own])
    group = GlooGroup(gloo, rank, sockets)
    if len(sockets) < size - 1:  # more, when several ranks of the group are threads of one process
        group.abort()
        group.close()
        raise PeerError(f"rank {rank} of {size} formed its group but has {len(sockets)} connections: a peer is gone already")
    return group


class _Gloo(Protocol):
    """What is used of ProcessGroupGloo: torch's own stubs leave it out."""

    def size(self) -> int: ...

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> dist.Work: ...

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> dist.Work: ...


class GlooGroup:
    """A group of two or more, on TCP. `sockets`: dup()s of its connections, one to each peer."""

    def __init__(self, gloo: _Gloo, rank: int, sockets: Sequence[socket.socket]) -> None:
        self.rank = rank
        self.size = size = gloo.size()
        # Each begins with its neighbour; were rank 0 first for all, its link would be the bottleneck.
        self._peers = [(rank + i) % size for i in range(1, size)]
        self._gloo: _Gloo | None = gloo
        self._sockets = list(sockets)
        self._lock = Lock()  # abort() may come while close() lets go of the sockets
        self._broken: str | None = None
        self._watch = Watch(f"regrow-watch-{rank}of{size}")
        self._tables: dict[int, _Table] = {}

    def gather(self, row: bytes) -> list[bytes]:
        table = self._tables.get(len(row))
        if table is None:
            table = self._tables[len(row)] = _Table(len(row), self.size)
        table.own[:] = row
        self.exchange(table.incoming, table.outgoing)
        rows = table.rows()
        rows[self.rank] = row
        return rows

    def gather_any(self, data: bytes) -> list[bytes]:
        sizes = [_SIZE.unpack(row)[0] for row in self.gather(_SIZE.pack(len(data)))]
        received = [bytearray(size) for size in sizes]
        outgoing = [_tensor(bytearray(data))] * self.size
        self.exchange([_tensor(buffer) for buffer in received], outgoing)
        return [data if rank == self.rank else bytes(buffer) for rank, buffer in enumerate(received)]

    def exchange(self, incoming: Sequence[torch.Tensor], outgoing: Sequence[torch.Tensor]) -> None:
        gloo = self._gloo
        if gloo is None or self._broken:
            raise PeerError(f"rank {self.rank} of {self.size}: the group is broken: {self._broken}")
        received, sent = _on_host(incoming, copy=False), _on_host(outgoing, copy=True)
        posted: list[dist.Work] = []
        try:
            # Receives first: a send whose receiver is known needs no further round trip.
            posted += [gloo.recv([received[r]], r, _TAG) for r in self._peers if received[r].numel()]
            posted += [gloo.send([sent[r]], r, _TAG) for r in self._peers if sent[r].numel()]
            why = self._watch.wait(posted)
        except RuntimeError as error:
            why = str(error)
        if why is not None:
            self._break(why)
            del gloo, posted  # or the error's traceback keeps threads and sockets alive after close()
            raise PeerError(f"rank {self.rank} of {self.size}: {self._broken}")
        for rank in self._peers:
            if received[rank] is not incoming[rank]:
                incoming[rank].copy_(received[rank])

    def abort(self) -> None:
        self._break("it was aborted here")

    def close(self) -> None:
        with self._lock:
            self._broken = self._broken or "it was closed here"
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()
        self._watch.end()
        self._gloo = None

    def _break(self, why: str) -> None:
        with self._lock:
            self._broken = self._broken or why
            for connection in self._sockets:
                with suppress(OSError):  # the peer was faster
                    connection.shutdown(socket.SHUT_RDWR)
        self._watch.give_up(why)


class Solo:
    """The group of one."""

    rank = 0
    size = 1

    def gather(self, row: bytes) -> list[bytes]:
        return [row]

    def gather_any(self, data: bytes) -> list[bytes]:
        return [data]

    def exchange(self, incoming: Sequence[torch.Tensor], outgoing: Sequence[torch.Tensor]) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Table:
    """Buffers for rows of one size, kept because the boundary gathers at every step."""

    def __init__(self, row_bytes: int, size: int) -> None:
        self._row_bytes = row_bytes
        self._all = bytearray(row_bytes * size)
        self.own = bytearray(row_bytes)
        whole = _tensor(self._all)
        self.incoming = [whole[rank * row_bytes : (rank + 1) * row_bytes] for rank in range(size)]
        self.outgoing = [_tensor(self.own)] * size

    def rows(self) -> list[bytes]:
        return [bytes(self._all[at : at + self._row_bytes]) for at in range(0, len(self._all), self._row_bytes)]


def _tensor(buffer: bytearray) -> torch.Tensor:
    """The same bytes as a tensor."""
    return torch.frombuffer(buffer, dtype=torch.uint8) if buffer else torch.empty(0, dtype=torch.uint8)


def _on_host(tensors: Sequence[torch.Tensor], copy: bool) -> list[torch.Tensor]:
    """gloo moves host memory; tensors of a device get a twin there, the same one where they are the same."""
    twins: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if id(tensor) not in twins:
            there = tensor.device.type == "cpu"
            twins[id(tensor)] = tensor if there else tensor.cpu() if copy else torch.empty(tensor.shape, dtype=tensor.dtype)
    return [twins[id(tensor)] for tensor in tensors]
