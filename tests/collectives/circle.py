"""Groups inside one process: real ones on loopback, and an in-memory twin for thousands of cases."""

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from regrow.collectives.group import Parcel, TcpGroup
from regrow.collectives.line import Line

T = TypeVar("T")


def together(size: int, play: Callable[[int], T]) -> list[T]:
    """Run one function per rank, each in its own thread; results in order of rank."""
    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(play, rank) for rank in range(size)]
        return [future.result(timeout=60) for future in futures]


def formed(size: int) -> list[TcpGroup]:
    """Real groups, one per rank, all in this process."""
    lines: list[dict[int, Line]] = [{} for _ in range(size)]
    for low in range(size):
        for high in range(low + 1, size):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                lines[low][high] = Line(socket.create_connection(listener.getsockname()))
                lines[high][low] = Line(listener.accept()[0])
    return [TcpGroup(rank, lines[rank]) for rank in range(size)]


def twins(size: int) -> list["Twin"]:
    table: list[list[Parcel]] = [[] for _ in range(size)]
    said, barrier = [b""] * size, Barrier(size)
    return [Twin(rank, size, table, said, barrier) for rank in range(size)]


class Twin:
    """A group that moves bytes by memory copy."""

    def __init__(self, rank: int, size: int, table: list[list[Parcel]], said: list[bytes], barrier: Barrier) -> None:
        self.rank, self.size = rank, size
        self._table, self._said, self._barrier = table, said, barrier

    def gather(self, data: bytes) -> list[bytes]:
        self._said[self.rank] = data
        self._barrier.wait(30)
        found = list(self._said)
        self._barrier.wait(30)
        return found

    def exchange(self, incoming: Sequence[Parcel], outgoing: Sequence[Parcel]) -> None:
        self._table[self.rank] = list(outgoing)
        self._barrier.wait(30)
        for other in range(self.size):
            if other != self.rank:
                for into, sent in zip(incoming[other], self._table[other][self.rank], strict=True):
                    assert into.numel() == sent.numel()
                    into.copy_(sent)
        self._barrier.wait(30)

    def abort(self) -> None:
        self._barrier.abort()

    def close(self) -> None:
        pass
