"""Ranks as real processes, which a test starts, listens to and kills."""

import multiprocessing
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from regrow.collectives.group import TcpGroup
from regrow.collectives.line import Line

DEADLINE_S = 60

# Forked from a process that has torch imported: a rank starts in milliseconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "regrow.collectives.reduce"])


def form(port: int, name: str, rank: int, size: int) -> TcpGroup:
    """A group of that name. Addresses go through a TCP store of the test."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=DEADLINE_S))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store.set(f"{name}/{rank}", str(listener.getsockname()[1]))
        lines = {}
        for other in range(rank):
            there = socket.create_connection(("127.0.0.1", int(store.get(f"{name}/{other}"))))
            there.sendall(bytes([rank]))
            lines[other] = Line(there)
        for _ in range(rank + 1, size):
            here = listener.accept()[0]
            other = here.recv(1)[0]
            lines[other] = Line(here)
    return TcpGroup(rank, lines)


Play = Callable[..., Any]
"""play(rank, size, form, parent, *arguments); form(name, rank, size) gives a group, parent is a pipe to the test."""


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
    play(rank, size, partial(form, port), parent, *arguments)
