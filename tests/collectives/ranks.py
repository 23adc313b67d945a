"""Ranks as real processes, which a test starts, listens to and kills."""

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from regrow.core.errors import PeerError

DEADLINE_S = 60

# Forked from a process that has torch imported: a rank starts in milliseconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "regrow.collectives.reduce"])


class StoreMeeting:
    """A meeting on a TCP store of the test."""

    def __init__(self, port: int, name: str) -> None:
        self._store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=DEADLINE_S))
        self._name = name

    def put(self, key: str, value: bytes) -> None:
        self._store.set(f"{self._name}/{key}", value)

    def get(self, key: str) -> bytes:
        try:
            found: bytes = self._store.get(f"{self._name}/{key}")
        except RuntimeError as error:
            raise PeerError(f"{key} never came: {error}") from error
        return found


Play = Callable[..., Any]
"""play(rank, size, meet, parent, *arguments); meet(name) gives a meeting, parent is a pipe to the test."""


class Ranks:
    """Processes that each run `play`. Leaving the block kills what is left of them."""

    def __init__(self, size: int, play: Play, *arguments: object) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            here, there = _context.Pipe()
            process = _context.Process(target=_run, args=(play, rank, size, self._store.port, there, arguments), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def hear(self, rank: int) -> Any:
        """The next thing this rank says."""
        assert self.pipes[rank].poll(DEADLINE_S), f"rank {rank} said nothing in {DEADLINE_S} s"
        return self.pipes[rank].recv()

    def tell(self, rank: int, word: object) -> None:
        self.pipes[rank].send(word)

    def exit_code(self, rank: int) -> int | None:
        self.processes[rank].join(DEADLINE_S)
        code: int | None = self.processes[rank].exitcode
        return code


def _run(play: Play, rank: int, size: int, port: int, parent: Connection, arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    play(rank, size, lambda name: StoreMeeting(port, name), parent, *arguments)
