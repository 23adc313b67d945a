"""Groups inside one process: real ones on loopback, and an in-memory twin for thousands of cases."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from board import Board

from regrow.collectives.group import Group, form

T = TypeVar("T")


def together(size: int, play: Callable[[int], T]) -> list[T]:
    """Run one function per rank, each in its own thread; results in order of rank."""
    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(play, rank) for rank in range(size)]
        return [future.result(timeout=60) for future in futures]


def formed(size: int) -> list[Group]:
    """Real groups, one per rank, all in this process."""
    board = Board()
    return together(size, lambda rank: form(board, rank, size, "127.0.0.1", 20))


def twins(size: int) -> list["Twin"]:
    table: list[list[torch.Tensor]] = [[] for _ in range(size)]
    barrier = Barrier(size)
    return [Twin(rank, size, table, barrier) for rank in range(size)]


class Twin:
    """A group that moves bytes by memory copy."""

    def __init__(self, rank: int, size: int, table: list[list[torch.Tensor]], barrier: Barrier) -> None:
        self.rank, self.size = rank, size
        self._table, self._barrier = table, barrier

    def gather(self, row: bytes) -> list[bytes]:
        return self.gather_any(row)

    def gather_any(self, data: bytes) -> list[bytes]:
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._table[self.rank] = [own]
        self._barrier.wait(30)
        found = [bytes(sent[0].tolist()) for sent in self._table]
        self._barrier.wait(30)
        return found

    def exchange(self, incoming: Sequence[torch.Tensor], outgoing: Sequence[torch.Tensor]) -> None:
        self._table[self.rank] = list(outgoing)
        self._barrier.wait(30)
        for other in range(self.size):
            if other != self.rank:
                assert incoming[other].numel() == self._table[other][self.rank].numel()
                incoming[other].copy_(self._table[other][self.rank])
        self._barrier.wait(30)

    def abort(self) -> None:
        self._barrier.abort()

    def close(self) -> None:
        pass
