"""The agent's end of a vault: starts the process, holds its memory open, asks it, and starts it again when it dies.

The generations are files in memory that this object made, so that they lie there whatever becomes of a vault. A question
that was open when one died is asked again of the next. Vaults that die one after the other are given up: training goes on,
without saves.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from regrow.agent.exits import describe
from regrow.agent.reaper import Reaper
from regrow.agent.vault_line import VaultLine
from regrow.core.completion import Completion
from regrow.core.errors import ConfigError, InfraError, PeerError
from regrow.core.records import VaultEnded, VaultStarted
from regrow.shell.backoff import Backoff
from regrow.shell.journal import Journal
from regrow.shell.vaulting import (
    Based,
    Finish,
    Finished,
    FromAgent,
    Held,
    Holds,
    Hurry,
    LogOpened,
    LogSpent,
    Opened,
    Renewed,
    Said,
    Seek,
    Setting,
    Sought,
    ToAgent,
    Unusable,
)

GENERATIONS = 3
_DEATHS = 10
"""In a row: after so many it is given up."""
_WELL_S = 30.0
"""A vault that has lived for so long, or has made a state safe, is not the next in a row."""
_FAREWELL_S = 5.0


class Custodian:
    """One for a job that saves. All methods on the loop's thread; none blocks it."""

    def __init__(
        self,
        setting: Setting,
        journal: Journal,
        say: Callable[[Said], None],
        loop: asyncio.AbstractEventLoop,
        reaper: Reaper,
    ) -> None:
        self._setting = setting
        self._journal = journal
        self._say = say
        self._loop = loop
        self._reaper = reaper
        self._memory: list[list[int]] = []
        """Of each generation, the descriptors of arena and label."""
        self._logs: dict[str, int] = {}
        """Of an every-step job, by member: the descriptor of its log."""
        self._line: VaultLine | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = Backoff()
        self._deaths = 0
        self._heard_s = 0.0
        """When this vault said something, the last time."""
        self._watch: asyncio.TimerHandle | None = None
        self._born_s = 0.0
        self._has_served = False
        """This vault made a state safe."""
        self._is_open = False
        """This vault takes questions."""
        self._is_closing = False
        self._opening: asyncio.Future[Opened | Unusable] = loop.create_future()
        self.held: dict[int, int] = {}
        """Of each place by its number, and of MEMORY, the newest step whose state is there."""
        self._hurry: Hurry | None = None
        self._question: FromAgent | None = None
        self._answer: asyncio.Future[Sought | Finished] = loop.create_future()
        self._searches = 0
        self._gone: asyncio.Future[None] = loop.create_future()
        """Done once there is no process, and will be none."""
        self._given_up = ""
        """Why there is no vault any more."""

    @property
    def pid(self) -> int | None:
        """None while there is no process."""
        return None if self._process is None else self._process.pid

    async def open(self) -> Opened:
        """Once this returns workers are heard. ConfigError when a place cannot be used."""
        for _ in range(GENERATIONS):
            self._memory.append([os.memfd_create(f"regrow-{what}", os.MFD_CLOEXEC) for what in ("arena", "label")])
        self._start()
        answer = await asyncio.shield(self._opening)
        if isinstance(answer, Unusable):
            raise ConfigError(answer.why)
        return answer

    async def seek(self, step: int | None = None, term: int = 0) -> Sought:
        """An origin, in memory. `term`: that of whoever asks."""
        self._searches += 1
        answer = await self._asked(Seek(number=self._searches, step=step, term=term))
        if isinstance(answer, Sought):
            return answer
        return Sought(number=self._searches, origin=None, mathematics={}, why=self._given_up)

    def hurry(self, by_s: float) -> None:
        """All that is to become durable must be so by then: on the host's monotonic clock."""
        self._hurry = Hurry(by_s=by_s)
        if self._is_open:
            self._send(self._hurry)

    async def finish(self, completion: Completion | None) -> tuple[str, ...]:
        """Once all that was taken is durable, or given up: what was, in words. The vault ends. `completion`: the job is
        finished, and marked so wherever its last state is."""
        if not self._has_opened:  # nobody was ever heard, so nothing was taken; and who asked to open is told why
            self.close()
            if self._process is not None:
                await self._wait_gone()
            return ()
        answer = await self._asked(Finish(completion=completion))
        self._is_closing = True
        await self._wait_gone()
        self.close()
        return answer.failures if isinstance(answer, Finished) else (self._given_up,)

    def close(self) -> None:
        """At once, whatever it is doing. Idempotent."""
        self._is_closing = True
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._hang_up()
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)  # not reaped yet, so this is its pid
        for fd in [*(fd for pair in self._memory for fd in pair), *self._logs.values()]:
            os.close(fd)
        self._memory.clear()
        self._logs.clear()

    @property
    def _has_opened(self) -> bool:
        """Some vault has: this one, or one before it."""
        opening = self._opening
        return opening.done() and opening.exception() is None and isinstance(opening.result(), Opened)

    async def _wait_gone(self) -> None:
        """Until there is no process, which writes into the run directory; not for ever."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._gone), _FAREWELL_S)

    async def _asked(self, question: FromAgent) -> Sought | Finished | None:
        """None: there is no vault any more."""
        if self._given_up:
            return None
        self._question, self._answer = question, self._loop.create_future()
        if self._is_open:
            self._send(question)
        try:
            return await self._answer
        except InfraError:
            return None

    def _start(self) -> None:
        """A vault, which finds what those before it left in memory."""
        self._born_s, self._has_served = time.monotonic(), False
        ours, theirs = socket.socketpair()
        memory = ",".join(f"{arena}:{label}" for arena, label in self._memory)
        logs = ",".join(f"{member}:{fd}" for member, fd in self._logs.items())
        command = [sys.executable, "-P", "-m", "regrow.agent.vault", str(theirs.fileno()), str(os.getpid()), memory, logs]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*command, msgspec.json.encode(self._setting).decode()],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *(fd for pair in self._memory for fd in pair), *self._logs.values()],
                    start_new_session=True,  # the terminal's Ctrl-C is for the launcher alone
                )
            except OSError as error:
                ours.close()
                self._died(f"cannot start ({error}): check the limits on processes")
                return
        pid = self._process.pid
        self._heard_s = time.monotonic()
        self._line = VaultLine(ours)
        self._journal.write(VaultStarted(pid=pid, incarnation=self._setting.incarnation))
        self._loop.add_reader(ours, self._hear)
        self._reaper.watch(pid, self._ended)
        self._listen(pid)

    def _listen(self, pid: int) -> None:
        """For signs of life. A vault that stands still would keep everybody waiting who saves."""
        if self._is_closing or pid != self.pid:
            return
        left_s = self._heard_s + self._setting.silence_s - time.monotonic()
        if left_s <= 0:
            self._say(Said(text=f"the vault was silent for {self._setting.silence_s:g} s, and is killed"))
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so this is its pid
        else:
            self._watch = self._loop.call_later(left_s, self._listen, pid)

    def _ended(self, status: int) -> None:
        assert self._process is not None
        pid, how = self._process.pid, describe(status)
        self._drain()  # what it said before it died counts: which memory to hold, above all
        self._hang_up()
        self._process.returncode = status  # reaped here: Popen must never wait for this pid, it may be another's by then
        self._process = None
        self._journal.write(VaultEnded(pid=pid, how=how))
        if not self._is_closing and not (self._opening.done() and isinstance(self._opening.result(), Unusable)):
            self._died(how)
        elif not self._gone.done():
            self._gone.set_result(None)

    def _died(self, how: str) -> None:
        was_well = self._has_served or time.monotonic() >= self._born_s + _WELL_S
        self._deaths = 1 if was_well else self._deaths + 1
        if self._deaths >= _DEATHS:
            self._give_up(how)
            return
        if self._deaths == 1:
            self._backoff = Backoff()
        self._say(Said(text=f"the vault {how}; it is started again, and saves that were on their way are made anew"))
        self._setting = msgspec.structs.replace(self._setting, incarnation=self._setting.incarnation + 1)
        self._timer = self._loop.call_later(self._backoff.delay_s(), self._start)

    def _give_up(self, how: str) -> None:
        self._given_up = f"the vault died {self._deaths} times in a row (the last time it {how}), and was given up"
        self._say(Said(text=f"{self._given_up}. Training goes on, and nothing is saved any more: see its journal"))
        error = InfraError(self._given_up)
        self._gone.set_result(None)
        for future in (self._opening, self._answer):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever awaits it still gets it; nobody need

    def _hear(self) -> None:
        line = self._line
        if line is None:
            return
        try:
            for payload in line.received():
                self._heard_s = time.monotonic()
                self._take(msgspec.json.decode(payload, type=ToAgent), line)
        except PeerError:
            self._hang_up()  # it is ending: the reaper says how

    def _drain(self) -> None:
        while (line := self._line) is not None and select.select([line], [], [], 0)[0]:
            self._hear()

    def _take(self, message: ToAgent, line: VaultLine) -> None:
        match message:
            case Opened(term=term):
                self._is_open = True
                self._setting = msgspec.structs.replace(self._setting, term=term)
                if not self._opening.done():
                    self.held = {place: step for place, step in enumerate(message.newest) if step is not None}
                    self._opening.set_result(message)
                if self._hurry is not None:
                    self._send(self._hurry)
                if self._question is not None:
                    self._send(self._question)
            case Unusable():
                if not self._opening.done():
                    self._opening.set_result(message)
            case Renewed(generation=number):
                fd = line.take_fd()
                if self._memory:
                    old, self._memory[number][0] = self._memory[number][0], fd
                    os.close(old)
                else:
                    os.close(fd)
            case LogOpened(member=member):
                self._hold(member, line.take_fd())
            case LogSpent(member=member):
                if member in self._logs:
                    os.close(self._logs.pop(member))
            case Based():
                self._setting = msgspec.structs.replace(self._setting, begins=False)
            case Sought() | Finished() if self._is_asked(message):
                self._question = None
                if not self._answer.done():
                    self._answer.set_result(message)
            case Held(place=place, step=step):
                self.held[place] = step
                self._has_served = True
            case Said():
                self._say(message)

    def _hold(self, member: str, fd: int) -> None:
        """Whatever becomes of the worker and of the vault, the log lies there."""
        if not self._memory:
            os.close(fd)  # all is over
            return
        older = self._logs.get(member)
        self._logs[member] = fd
        if older is not None:
            os.close(older)
        self._send(Holds(member=member))

    def _is_asked(self, answer: Sought | Finished) -> bool:
        """A search that nobody waits for any more may still be answered, while something else is asked."""
        match self._question, answer:
            case Seek(number=asked), Sought(number=answered):
                return asked == answered
            case Finish(), Finished():
                return True
        return False

    def _send(self, message: FromAgent) -> None:
        """A few bytes, which a fresh line always has room for."""
        if self._line is not None:
            with contextlib.suppress(PeerError):  # it is dead: the next one is asked
                self._line.send(message)

    def _hang_up(self) -> None:
        self._is_open = False
        if self._line is not None:
            with contextlib.suppress(ValueError):
                self._loop.remove_reader(self._line.fileno())
            self._line.close()
            self._line = None
