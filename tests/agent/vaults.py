"""A vault under a real custodian, in a process of its own; and workers, played over the real socket with a real state."""

import json
import mmap
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from regrow.core.draft import Draft, draft
from regrow.core.interval import CadenceConfig
from regrow.core.records import SaveDurable, VaultEnded, VaultStarted
from regrow.core.retention import Retention
from regrow.core.roster import Version
from regrow.core.saves import Urgency
from regrow.shell.journal import read
from regrow.shell.vaulting import (
    Came,
    Deposit,
    Deposited,
    Due,
    FromWorker,
    Kept,
    Lent,
    Place,
    Recall,
    Recalled,
    Setting,
    ToWorker,
    Unknown,
    Waits,
)
from regrow.state.archive import Archive
from regrow.state.pieces import digests
from regrow.state.stores import open_store
from regrow.wire.handover import Handover

HERE = Path(__file__).parent
DEADLINE_S = 60.0
TENSORS = 4
TENSOR_BYTES = 8192
V1 = Version(1, 1)
MATHEMATICS = {"lanes": "4", "data": "map"}

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str) -> T:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {DEADLINE_S:g} s in vain for {what}"
        time.sleep(0.005)
    return found


# States


def drafted(step: int, tensors: int = TENSORS, mathematics: dict[str, str] = MATHEMATICS) -> Draft:
    """Two tensors in each shard, named out of canonical order."""
    names = [f"x{9 - n}" for n in range(tensors)]
    skeleton = ["dict", [[["str", name], ["tensor", [n, "int64", [TENSOR_BYTES // 8]]]] for n, name in enumerate(names)]]
    return draft(
        step=step,
        term=0,
        mathematics=mathematics,
        skeleton=skeleton,
        tensors=[(name, "int64", (TENSOR_BYTES // 8,), TENSOR_BYTES) for name in names],
        shard_bytes=2 * TENSOR_BYTES,
    )


def bytes_of(step: int, size_bytes: int) -> bytes:
    """What lies in the arena of this step."""
    return b"".join((step * 1_000_003 + n).to_bytes(8, "little") for n in range(size_bytes // 8))


def root_at(step: int) -> str:
    made = drafted(step)
    return digests(made, memoryview(bytes_of(step, made.arena_bytes))).root


def steps_in(url: str | Path) -> list[int]:
    """Of its checkpoints, newest first; every byte of them is checked."""
    archive = Archive(open_store(str(url)))
    pointers, damages = archive.pointers()
    assert damages == []
    for pointer in pointers:
        assert archive.verify(pointer) == []
        assert archive.manifest(pointer).root == root_at(pointer.step)
    return [pointer.step for pointer in pointers]


# The vault


class Host:
    """A custodian and its vault."""

    def __init__(
        self,
        folder: Path,
        *places: Place,
        patience_s: float = DEADLINE_S,
        silence_s: float = DEADLINE_S,
        cadence: CadenceConfig | None = None,
        faults: str = "",
    ) -> None:
        """With a `cadence` memory is on auto."""
        self.address = f"regrow-test-{secrets.token_hex(8)}"
        self.folder = folder
        setting = Setting(
            run_dir=str(folder),
            address=self.address,
            places=places,
            patience_s=patience_s,
            shard_bytes=2 * TENSOR_BYTES,
            silence_s=silence_s,
            paces_memory=cadence is not None,
            cadence=cadence or CadenceConfig(),
            faults=faults,
        )
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "vault_host.py"), msgspec.json.encode(setting).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if "said" in event:
                self.said.append(event["said"])
            else:
                self._events.put(event)

    def order(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def event(self, key: str) -> Any:
        event = self._events.get(timeout=DEADLINE_S)
        assert key in event, event
        return event[key]

    def open(self) -> Any:
        self.order("open")
        return self.event("opened")

    def seek(self, step: int | None = None) -> Any:
        self.order("seek" if step is None else f"seek {step}")
        return self.event("sought")

    def finish(self) -> list[str]:
        self.order("finish")
        found: list[str] = self.event("finished")
        return found

    def facts(self, *kinds: type[T]) -> list[T]:
        lines = [line for account in read(self.folder / "journal", lenient=True) for line in account.lines]
        return [line.what for line in sorted(lines, key=lambda line: line.ns) if isinstance(line.what, kinds)]  # type: ignore[misc]

    def vault(self, incarnation: int = 0) -> int:
        """Its pid, once there is one."""

        def find() -> int | None:
            return next((fact.pid for fact in self.facts(VaultStarted) if fact.incarnation == incarnation), None)

        return wait_for(find, f"vault {incarnation}") or 0

    def ended(self, count: int = 1) -> list[VaultEnded]:
        return wait_for(lambda: found if len(found := self.facts(VaultEnded)) >= count else [], f"{count} vaults to end")

    def kill(self) -> None:
        """The newest vault, wherever it is."""
        wait_for(lambda: len(self.facts(VaultStarted)) > len(self.facts(VaultEnded)), "a vault")
        lives = self.facts(VaultStarted)
        os.kill(lives[-1].pid, signal.SIGKILL)
        self.ended(len(lives))

    def kill_after(self, seconds: float) -> None:
        """A moment that nobody chose."""
        time.sleep(seconds)
        self.kill()

    def release(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stdin is not None
        self.process.stdin.close()


# Its writer


def writer_of(host: Host, url: str | Path = "") -> int:
    """The only child of the newest vault that saves there, or anywhere."""
    pid = host.facts(VaultStarted)[-1].pid

    def find() -> list[str]:
        pids = [pid for task in Path(f"/proc/{pid}/task").iterdir() for pid in (task / "children").read_text().split()]
        return [pid for pid in pids if str(url) in Path(f"/proc/{pid}/cmdline").read_text()]

    (child,) = wait_for(find, "a writer")
    return int(child)


def state_of(pid: int) -> str:
    """As the kernel says: T stands still, Z is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def stopped_writer(host: Host, url: str | Path = "") -> int:
    """Between two saves; it stands still."""
    wait_for(lambda: [fact for fact in host.facts(SaveDurable) if str(url) in fact.url], "the first save")
    pid = writer_of(host, url)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: state_of(pid) == "T", "it to stand still")
    return pid


# Workers


class Worker:
    """One line to the vault. It may come before there is a vault to hear it."""

    def __init__(self, host: Host, member: str, unsettled: int = -1) -> None:
        self.member = member
        self.line = Handover(connected(host.address), DEADLINE_S)
        self.arena: mmap.mmap | None = None
        self.say(Came(member=member, unsettled=unsettled))
        if unsettled < 0:
            assert self.heard(Kept).step == -1

    def say(self, message: FromWorker) -> None:
        self.line.send(msgspec.json.encode(message))

    def hear(self) -> ToWorker:
        """But for words that only soothe, and what is said again and again."""
        while isinstance(message := self._received(), Waits | Due):
            pass
        return message

    def wait_due(self) -> None:
        while not isinstance(self._received(), Due):
            pass

    def wait_told(self) -> None:
        """Why it has to wait, once more."""
        while not isinstance(self._received(), Waits):
            pass

    def _received(self) -> ToWorker:
        payload = self.line.receive(DEADLINE_S)
        assert payload is not None, f"{self.member} waited {DEADLINE_S:g} s in vain"
        return msgspec.json.decode(payload, type=ToWorker)

    def heard(self, kind: type[T]) -> T:
        message = self.hear()
        assert isinstance(message, kind), message
        return message

    def hears_nothing(self) -> bool:
        """After the vault has answered something that was asked later."""
        self.say(Recall(step=-2, root="none"))
        return isinstance(self.hear(), Unknown)

    def deposit(
        self,
        step: int,
        members: tuple[str, ...],
        urgency: Urgency = Urgency.DUE,
        version: Version = V1,
        made: Draft | None = None,
        layout: str = "same",
    ) -> None:
        index = members.index(self.member)
        made = made or drafted(step)
        self.say(
            Deposit(
                step=step,
                version=version,
                members=members,
                index=index,
                urgency=urgency,
                layout=layout,
                arena_bytes=made.arena_bytes,
                draft=made if index == 0 or urgency is Urgency.LAST else None,
            )
        )

    def lent(self) -> None:
        self.take_arena(self.heard(Lent).size_bytes)

    def take_arena(self, size_bytes: int) -> None:
        fd = self.line.take_fd()
        self.arena = mmap.mmap(fd, size_bytes)
        os.close(fd)

    def copy(self, step: int, members: tuple[str, ...], index: int | None = None) -> None:
        """A portion."""
        index = members.index(self.member) if index is None else index
        size_bytes = drafted(step).arena_bytes
        start, stop = (size_bytes * n // len(members) // 4096 * 4096 for n in (index, index + 1))
        assert self.arena is not None
        self.arena[start:stop] = bytes_of(step, size_bytes)[start:stop]

    def deposited(self, step: int, index: int, why: str = "", version: Version = V1) -> None:
        self.say(Deposited(step=step, version=version, index=index, why=why))

    def recall(self, step: int, root: str) -> bytes:
        self.say(Recall(step=step, root=root))
        message = self.heard(Recalled)
        fd = self.line.take_fd()
        try:
            found = digests(message.draft, memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ)))
            assert found.root == message.root == root
            return os.pread(fd, message.draft.arena_bytes, 0)
        finally:
            os.close(fd)

    def close(self) -> None:
        self.line.close()


def connected(address: str) -> socket.socket:
    def reach() -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect("\0" + address)
        except ConnectionRefusedError:
            sock.close()
            return None
        return sock

    found = wait_for(reach, "the vault to hear workers")
    assert found is not None
    return found


def save(step: int, *workers: Worker, urgency: Urgency = Urgency.DUE, version: Version = V1) -> None:
    """All of it, and what they hear of it."""
    members = tuple(worker.member for worker in workers)
    for worker in workers:
        worker.deposit(step, members, urgency, version)
    for worker in workers:
        worker.lent()
    for index, worker in enumerate(workers):
        worker.copy(step, members)
        worker.deposited(step, index, version=version)
    for worker in workers:
        assert worker.heard(Kept).step == step


def place(folder: Path, every: int = 1, keep_last: int | None = None) -> Place:
    return Place(url=str(folder), every=every, retention=Retention(last=keep_last))
