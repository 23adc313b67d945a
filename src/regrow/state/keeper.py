"""The thread that keeps a writer process, and hands it one save after the other.

A writer that dies is replaced, and given the same save again: its bytes still lie in the arena. A save of which nothing
is written for `patience_s` is given up, and its writer with it: it may be stuck in a store that never answers.
A training process with a Checkpointer has one of these, a vault one for each of its places.
"""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from regrow.core.checkpoint import Pointer
from regrow.core.draft import Draft
from regrow.core.errors import Harmed, InfraError, PeerError, StateError
from regrow.shell.backoff import Backoff
from regrow.shell.writing import (
    Copied,
    Failed,
    FromWriter,
    Persist,
    Persisted,
    Progress,
    Removing,
    Setting,
    Term,
    Undone,
    Unpruned,
    Void,
)
from regrow.state.copying import Copying
from regrow.wire.handover import Handover

_LIVES = 10
"""So many writers may die over one save."""
_FAREWELL_S = 5.0
"""A writer that is to end, and does not say that it still removes something, has so long."""
_LOOK_S = 0.5
"""So often the keeper looks whether its save is still wanted."""


class Superseded(InfraError):
    """It was given up for a newer save."""


class Held(Protocol):
    """An arena: it has a descriptor once the copy has begun."""

    @property
    def fd(self) -> int: ...


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """A state in an arena, or on its way there. What is there stays as it is until this save is over."""

    draft: Draft
    """Its term is 0 where the keeper's counts."""
    arena: Held
    copying: Copying
    patience_s: float | None = None
    """How long nothing of it may be written; None: as long as the keeper says."""
    root: str = ""
    """The digest of the state, where it is known: one that has another is Harmed, and not saved."""
    over: Callable[[Pointer | InfraError | StateError], None]
    """Called once, by the keeper's thread: it is durable, or why it was given up."""


class Ledger(Protocol):
    """Hears how saves get on, from the keeper's thread."""

    under_way: str
    """How the save that is being persisted gets on, in words."""

    def tried(self, step: int, attempt: int, why: str) -> None:
        """In vain: the store refused, and it will be tried again."""

    def bereaved(self, step: int, attempt: int, why: str) -> None:
        """Its writer died: the next one tries it again."""

    def noticed(self, what: str) -> None:
        """Something is wrong, and it was not a save."""


class Keeper:
    def __init__(self, setting: Setting, patience_s: float, ledger: Ledger) -> None:
        self._setting = setting
        self._patience_s = patience_s
        self._ledger = ledger
        self._term = 0
        self._saves: queue.SimpleQueue[Save | _Ready | None] = queue.SimpleQueue()
        self._writer: _Writer | None = None
        self._writers = 0
        self._wait: _Wait | None = None
        """For the save at hand."""
        # The kernel ends the writer with the thread that started it: this one, which ends last.
        self._thread = threading.Thread(target=self._run, name="regrow-keeper", daemon=True)
        self._thread.start()

    def prepare(self) -> None:
        """Have a writer, so that the first save need not wait until it has started."""
        self._saves.put(_Ready())

    def persist(self, save: Save) -> None:
        self._saves.put(save)

    @property
    def idle_s(self) -> float:
        """For how long nothing was written of the save at hand; 0 where there is none."""
        wait = self._wait
        return 0.0 if wait is None else wait.idle_s

    def abandon(self, why: str) -> None:
        """The save at hand, soon: a newer one is wanted more."""
        wait = self._wait
        if wait is not None:
            wait.abandon(why)

    def take_term(self, term: int) -> None:
        """While no save is open: of all that come."""
        self._term = term

    def close(self, timeout_s: float | None = None) -> bool:
        """Once no save is open: ends the writer, which first removes what is to go. False: not in this time; ask again."""
        self._saves.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def let_go(self) -> None:
        """In a forked child: the writer ends when its connection does."""
        if self._writer is not None:
            self._writer.line.close()

    def _run(self) -> None:
        while (save := self._saves.get()) is not None:
            if isinstance(save, _Ready):
                with contextlib.suppress(OSError):  # the save that needs it says so
                    self._writer = self._writer or self._started()
                continue
            outcome: Pointer | InfraError | StateError
            try:
                outcome = self._persist(save)
            except (InfraError, StateError) as error:
                outcome = error
            except Exception as error:  # the edge of a thread: training would wait for it forever
                outcome = InfraError(f"step {save.draft.step} is not saved: {error!r}")
                outcome.__cause__ = error
            save.over(outcome)
        self._dismiss()

    def _persist(self, save: Save) -> Pointer:
        wait = self._wait = _Wait(save, self._patience_s if save.patience_s is None else save.patience_s)
        try:
            return self._persisted(wait)
        finally:
            self._wait = None

    def _persisted(self, wait: "_Wait") -> Pointer:
        backoff, deaths = Backoff(), 0
        while True:
            try:
                if self._writer is None:
                    self._writer = self._started()
                return self._follow(self._writer, wait)
            except (PeerError, OSError) as error:
                deaths += 1
                why = f"the writer of step {wait.step} died ({self._buried() or error})"
                self._ledger.bereaved(wait.step, deaths, why)
                if deaths == _LIVES:
                    raise InfraError(
                        f"step {wait.step} is not saved: {_LIVES} writers died over it; the last: {why}"
                    ) from error
                time.sleep(backoff.delay_s())

    def _follow(self, writer: "_Writer", wait: "_Wait") -> Pointer:
        """What the writer says until this save is durable."""
        self._ledger.under_way = wait.words()
        self._relay(writer, wait)
        while True:
            self._ledger.under_way = wait.words()
            payload = writer.line.receive(min(wait.left_s(), _LOOK_S))
            if payload is None:
                if wait.left_s():
                    continue
                self._buried()
                raise wait.lost()
            match msgspec.json.decode(payload, type=FromWriter):
                case Term(term=term):
                    self._term = term
                case Progress(size_bytes=size_bytes):
                    wait.progressed(size_bytes)
                case Failed(is_final=True) if wait.save.copying.error is not None:
                    raise wait.save.copying.error
                case Failed(why=why, is_final=True, is_harm=is_harm):
                    raise (Harmed if is_harm else StateError)(f"step {wait.step} is not saved: {why}")
                case Failed(attempt=attempt, why=why):
                    wait.failed(attempt, why)
                    self._ledger.tried(
                        wait.step, attempt, f"step {wait.step} cannot be saved yet, and is tried again: {why}"
                    )
                case Removing():
                    wait.stirred()
                case Unpruned(why=why) | Undone(why=why):
                    self._ledger.noticed(why)
                case Persisted(pointer=pointer):
                    return pointer

    def _relay(self, writer: "_Writer", wait: "_Wait") -> None:
        """Ask for the save, and tell how far its copy is until that is at its end."""
        copying = wait.save.copying
        there = copying.after(-1)
        if copying.error is not None:
            raise copying.error
        draft = wait.save.draft
        draft = msgspec.structs.replace(draft, term=draft.term or self._term)
        writer.line.send(msgspec.json.encode(Persist(draft=draft, root=wait.save.root)), wait.save.arena.fd)
        while there < copying.total_bytes:
            writer.line.send(msgspec.json.encode(Copied(size_bytes=there)))
            there = copying.after(there)
            wait.copied(there)
        end = Copied(size_bytes=there) if copying.error is None else Void(why=str(copying.error))
        writer.line.send(msgspec.json.encode(end))

    def _started(self) -> "_Writer":
        setting = msgspec.structs.replace(self._setting, incarnation=self._writers)
        self._writers += 1
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "regrow.agent.writer", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            process = subprocess.Popen(
                [*command, msgspec.json.encode(setting).decode()],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the terminal's Ctrl-C is for the script alone
            )
        return _Writer(process=process, line=Handover(ours, self._patience_s))

    def _buried(self) -> str:
        """Nothing of this writer runs any more, or ever again; how it ended."""
        writer, self._writer = self._writer, None
        if writer is None:
            return ""
        writer.line.close()
        try:
            status = writer.process.wait(0.2)
        except subprocess.TimeoutExpired:
            writer.process.kill()  # one that the kernel holds may stay a while, and never runs again
            return "killed"
        return f"exit status {status}"

    def _dismiss(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.line.shut_sending()
            end_s = self._hear_out(writer.line)
            writer.line.close()
            try:
                writer.process.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                writer.process.kill()
                writer.process.wait()

    def _hear_out(self, line: Handover) -> float:
        """What the writer says after its last save, until it ends; when it must have."""
        self._ledger.under_way = "old checkpoints are removed"
        end_s = time.monotonic() + _FAREWELL_S
        with contextlib.suppress(PeerError):
            while (payload := line.receive(max(0.0, end_s - time.monotonic()))) is not None:
                match msgspec.json.decode(payload, type=FromWriter):
                    case Removing():
                        end_s = time.monotonic() + _FAREWELL_S
                    case Unpruned(why=why) | Undone(why=why):
                        self._ledger.noticed(why)
                    case _:
                        break  # of a save that nobody waits for
        return end_s


class _Ready(msgspec.Struct, frozen=True):
    """Nothing is to be saved yet."""


class _Writer(msgspec.Struct, frozen=True, kw_only=True):
    process: "subprocess.Popen[bytes]"
    line: Handover


class _Wait:
    """For one save: how far it is, and how long nothing has happened."""

    def __init__(self, save: Save, patience_s: float) -> None:
        self.save = save
        self.step = save.draft.step
        self._patience_s = patience_s
        self._since_s = time.monotonic()
        self._copied_bytes = 0
        self._written_bytes = 0
        self._trouble = ""
        self._abandoned = ""

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._since_s

    def abandon(self, why: str) -> None:
        self._abandoned = why

    def left_s(self) -> float:
        return 0.0 if self._abandoned else max(0.0, self._since_s + self._patience_s - time.monotonic())

    def copied(self, size_bytes: int) -> None:
        """Nothing can be written before."""
        if size_bytes > self._copied_bytes:
            self._copied_bytes, self._since_s = size_bytes, time.monotonic()

    def progressed(self, size_bytes: int) -> None:
        """A try that comes no further than those before it is no progress."""
        if size_bytes > self._written_bytes:
            self._written_bytes, self._since_s = size_bytes, time.monotonic()

    def stirred(self) -> None:
        """The writer still removes what the save before this one made superfluous."""
        self._since_s = time.monotonic()

    def failed(self, attempt: int, why: str) -> None:
        self._trouble = f", try {attempt} failed: {why}"

    def lost(self) -> InfraError:
        if self._abandoned:
            return Superseded(self._abandoned)
        return InfraError(
            f"step {self.step} is given up: nothing of it was written for {self._patience_s:g} s ({self.words()}); see "
            "to the store, or raise patience_s"
        )

    def words(self) -> str:
        total = self.save.draft.arena_bytes
        return f"step {self.step}, {self._written_bytes / 1e6:.0f} of {total / 1e6:.0f} MB written{self._trouble}"
