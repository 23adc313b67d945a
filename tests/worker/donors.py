"""Donors as real processes, each with a door of its own, which a test starts, speaks to, corrupts, stops and kills."""

import asyncio
import multiprocessing
import os
import secrets
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from regrow.core.messages import Want
from regrow.core.roster import Endpoint, Member
from regrow.shell.faultpoint import arm
from regrow.state.memory import bytes_of
from regrow.state.tracked import Tracked
from regrow.wire.tcp import Connection, listen
from regrow.worker.donor import Donor
from regrow.worker.replica import Replica

DEADLINE_S = 60.0
STEP = 7
KEY = "r9.0 (try 1)"
JOINER = Member("r9", 0)
TOKEN = secrets.token_hex(32)

# Forked from a process that has torch imported: a donor starts in milliseconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "regrow.worker.replica", "regrow.worker.donor"])

Build = Callable[[bool], Tracked]
"""The tracked state of a trained member, or of a joiner's script that has not trained; the same in every process."""


class Donors:
    """`size` donors that hold the state that `build` makes. Leaving the block ends what is left of them."""

    def __init__(self, size: int, build: Build, holds: bool = True, faults: str = "", run_dir: str = ".") -> None:
        self.pipes: dict[Member, Pipe] = {}
        self.processes: dict[Member, BaseProcess] = {}
        for number in range(size):
            here, there = _context.Pipe()
            member = Member(f"r{number}", 0)
            arguments = (member, TOKEN, build, there, faults, run_dir)
            process = _context.Process(target=_donate, args=arguments, daemon=True)
            process.start()
            there.close()
            self.pipes[member], self.processes[member] = here, process
        self.endpoints: dict[Member, Endpoint] = {member: self.hear(member) for member in self.pipes}
        if holds:
            for member in self.pipes:
                self.tell(member, "hold")

    def __enter__(self) -> "Donors":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()

    def hear(self, member: Member) -> Any:
        assert self.pipes[member].poll(DEADLINE_S), f"{member} said nothing in {DEADLINE_S} s"
        return self.pipes[member].recv()

    def tell(self, member: Member, *words: object) -> Any:
        self.pipes[member].send(words)
        return self.hear(member)

    def bid(self, member: Member, *words: object) -> None:
        """Without an answer: it may be struck by what it is told to do before it can say that it was done."""
        self.pipes[member].send(words)

    def signal(self, member: Member, number: signal.Signals) -> None:
        pid = self.processes[member].pid
        assert pid is not None
        os.kill(pid, number)

    def is_stopped(self, member: Member) -> bool:
        """By the kernel's word."""
        stat = Path(f"/proc/{self.processes[member].pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"


class Valve:
    """Stands before a donor's door, and lets so many of its bytes through until it is opened."""

    def __init__(self, behind: Endpoint, size_bytes: int) -> None:
        self._behind = behind
        self._size_bytes = size_bytes
        self._open = threading.Event()
        self.is_reached = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(*self._listener.getsockname())
        threading.Thread(target=self._run, daemon=True).start()

    def open(self) -> None:
        self._open.set()

    def _run(self) -> None:
        joiner, _ = self._listener.accept()
        donor = socket.create_connection((self._behind.host, self._behind.port))
        threading.Thread(target=self._pass, args=(joiner, donor, None), daemon=True).start()
        self._pass(donor, joiner, self._size_bytes)

    def _pass(self, source: socket.socket, sink: socket.socket, size_bytes: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16 if size_bytes is None else min(1 << 16, size_bytes)):
                sink.sendall(data)
                if size_bytes is not None:
                    size_bytes -= len(data)
                    if not size_bytes:
                        self.is_reached.set()
                        self._open.wait()
                        size_bytes = None


class Scissors:
    """Stands before a donor's door, and cuts the first line when so many of its bytes have passed, or every one of them."""

    def __init__(self, behind: Endpoint, size_bytes: int, again: bool = False) -> None:
        self._behind = behind
        self._size_bytes = size_bytes
        self._again = again
        self.passed_bytes = 0
        """All that joiners were given, over all lines."""
        self.has_cut, self.came_again = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(*self._listener.getsockname())
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            joiner, _ = self._listener.accept()
            donor = socket.create_connection((self._behind.host, self._behind.port))
            if self.has_cut.is_set():
                self.came_again.set()
            cuts = self._again or not self.has_cut.is_set()
            threading.Thread(target=self._ask, args=(joiner, donor), daemon=True).start()
            threading.Thread(target=self._give, args=(donor, joiner, cuts), daemon=True).start()

    def _ask(self, joiner: socket.socket, donor: socket.socket) -> None:
        with suppress(OSError):
            while data := joiner.recv(1 << 16):
                donor.sendall(data)
        with suppress(OSError):
            donor.shutdown(socket.SHUT_RDWR)

    def _give(self, donor: socket.socket, joiner: socket.socket, cuts: bool) -> None:
        passed_bytes = 0
        with suppress(OSError):
            while (data := donor.recv(1 << 16)) and not (cuts and passed_bytes >= self._size_bytes):
                joiner.sendall(data)
                passed_bytes += len(data)
                self.passed_bytes += len(data)
        if cuts:
            joiner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
            with suppress(OSError):
                joiner.shutdown(socket.SHUT_RD)  # wakes who listens to it here: until then it would not be closed
            self.has_cut.set()
        joiner.close()
        donor.close()


def _donate(member: Member, token: str, build: Build, parent: Pipe, faults: str, run_dir: str) -> None:
    torch.set_num_threads(1)
    arm(faults, member, Path(run_dir))
    replica, donor = Replica(build(True), steps=100), Donor()
    replica.structure = build(False).structure()  # as the script built it, before it trained

    async def peer(connection: Connection) -> None:
        want = await connection.receive()
        assert isinstance(want, Want)
        donor.answer(*connection.detach(), want)

    async def serve() -> None:
        listener = await listen("127.0.0.1", 0, token, peer, lambda peer, why: None)
        parent.send(listener.endpoint)
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    snapshot = None
    with suppress(EOFError):
        while True:
            match parent.recv():
                case ("corrupt", int(tensor), int(byte)):
                    bytes_of(replica.tracked.flatten().tensors[tensor])[byte] ^= 1
                case ("corrupt snapshot", int(byte)):
                    assert snapshot is not None
                    snapshot.piece(0)[byte] ^= 1
                case ("alter", float(rate)):
                    optimizer = replica.tracked.objects["optimizer"]
                    optimizer.param_groups[0]["lr"] = rate
                case ("hold",):
                    snapshot = replica.snap(STEP)
                    donor.hold(KEY, snapshot)
                case ("drop",):
                    donor.drop(KEY)
                case ("root",):
                    parent.send(replica.tracked.fingerprint())
                    continue
            parent.send("done")
