"""The agent: starts workers, watches them, ends them, and says so. One per host; it decides nothing.

    waiting (a delay, or the warm parent) ──> launching ──> running ──> gone

Every start ends in exactly one report, whatever happens on the way. When a worker ends its whole process group goes
with it, and only then is its end reported: nothing of it can speak any more.

While workers run, a lookout watches their stamps. Whoever hangs is reported, and is not killed before evidence is kept.

A worker that is not gone a moment after its SIGKILL (frozen, or inside a device driver) is reported all the same. A process
with a SIGKILL pending never returns to user mode: it cannot compute, write or speak again, whether it is thawed in a second
or in a year. What it still holds is memory, sockets and devices.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from regrow.agent.exits import Exit, describe, exit_code, is_kill
from regrow.agent.lookout import Lookout, Watched
from regrow.agent.oom import OomWatch
from regrow.agent.reaper import Reaper
from regrow.agent.relay import Output
from regrow.agent.sight import Sight
from regrow.agent.terminal import Terminal
from regrow.agent.warm_parent import WarmConfig, WarmParent
from regrow.core.errors import ConfigError, InfraError, Invariant
from regrow.core.hangs import Hang, HangConfig, Stall
from regrow.core.memory import Memory
from regrow.core.records import WorkerExited, WorkerStarted
from regrow.core.roster import Member
from regrow.shell.door import WorkerDoor
from regrow.shell.journal import Journal
from regrow.shell.orders import Answer, Order
from regrow.shell.stamp import Page

_CLOSE_S = 10.0
_RETRY_S = 0.02
_UNDEAD_S = 1.0
"""A dying process frees its memory first: a tenth of a second for each GB."""


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What every worker of this host runs."""

    script: Path
    argv: tuple[str, ...]
    cwd: Path
    output: Path
    """Folder of the workers' output files."""
    evidence: Path
    """Folder of what is kept of workers that hang; made with the first."""
    hangs: HangConfig = HangConfig()
    warm: WarmConfig = WarmConfig()


class _Worker(msgspec.Struct, kw_only=True):
    """A started member, until it is gone."""

    member: Member
    why: str
    timer: asyncio.TimerHandle | None = None
    """Set while the delay runs."""
    output: Output | None = None
    """Set once an order to launch it has gone out."""
    page: Page | None = None
    """Where it says how far it is; made and handed over with the order."""
    pid: int | None = None
    """Set once it runs."""
    doom: str | None = None
    """Why the agent ends it itself."""


class Agent:
    """`report` is called from the loop, as soon as a worker is gone; `accuse` while one hangs, again and again."""

    def __init__(
        self,
        config: AgentConfig,
        door: Callable[[Member], WorkerDoor],
        journal: Journal,
        terminal: Terminal,
        report: Callable[[Exit], None],
        accuse: Callable[[Hang | Stall], None],
    ) -> None:
        self._config = config
        self._door = door
        self._journal = journal
        self._terminal = terminal
        self._report = report
        self._seek: Callable[[int, int | None], None] | None = None
        self._loop = asyncio.get_running_loop()
        self.reaper = Reaper(self._loop)
        self._kin: Callable[[], Iterable[int]] = tuple
        self._mark = secrets.token_hex(8)
        self._oom = OomWatch()
        self._lookout = Lookout(config.hangs, config.evidence, journal, terminal, self.reaper, accuse)
        self._warm: WarmParent | None = None
        self._parents: list[WarmParent] = []
        """This one, and dead ones whose last workers may still have to say that they run."""
        self._workers: dict[Member, _Worker] = {}
        self._started: set[Member] = set()
        self._trailing: set[Output] = set()
        """Output of dead workers whose descriptors somebody still holds."""
        self._undead: dict[int, _Worker] = {}
        """Reported as gone, with a SIGKILL pending that they have not taken yet."""
        self._closing = False

    def keep(self, kin: Callable[[], Iterable[int]], seek: Callable[[int, int | None], None]) -> None:
        """There is a vault. Its processes, children of this one, are nothing that a worker left behind."""
        self._kin, self._seek = kin, seek

    async def open(self) -> None:
        """Once this returns, a start takes milliseconds. InfraError when the warm parent cannot start."""
        self.reaper.open()
        self.reaper.before_strangers(self._hear_warm)
        warm = self._heat()
        self._lookout.open(self._watched, self._investigated)
        await asyncio.shield(warm.ready)

    def start(self, member: Member, why: str, delay_s: float = 0.0) -> None:
        if member in self._started:
            return  # a coordinator that came back may ask again: an incarnation lives once
        self._started.add(member)
        worker = _Worker(member=member, why=why)
        self._workers[member] = worker
        worker.timer = self._loop.call_later(delay_s, self._due, worker)

    def kill(self, member: Member, why: str) -> None:
        """Its whole group: at once, or once the evidence of its hang is kept. The report comes when it is gone."""
        if member not in self._started:
            # The order to start it was lost with a line, and whoever gave it up waits for a proof that it is dead.
            self._started.add(member)
            self._workers[member] = _Worker(member=member, why=why)
        worker = self._workers.get(member)
        if worker is None:
            return
        worker.doom = why
        if worker.pid is not None:
            if self._closing or not self._lookout.is_investigating(member):
                self._strike(worker, worker.pid)
        elif worker.output is None:
            self._gone(worker, f"was ended before it started: {why}", None)

    def seek(self, number: int, step: int | None) -> None:
        """A saved state, for the coordinator: reported once it lies in memory."""
        if self._seek is None:
            raise Invariant("a job without a vault was asked for a saved state")
        self._seek(number, step)

    def look(self) -> list[Sight]:
        """Everyone that was started and is not gone."""
        sights: list[Sight] = []
        for worker in self._workers.values():
            stamped = worker.page.read() if worker.page is not None else None
            sights.append(
                Sight(
                    member=worker.member,
                    starts_s=worker.timer.when() if worker.timer is not None else None,
                    pid=worker.pid,
                    stamped=stamped,
                    is_hung=stamped is not None and self._lookout.has_accused(worker.member, stamped.count),
                    is_doomed=worker.doom is not None,
                )
            )
        return sights

    @property
    def warm_pid(self) -> int | None:
        return self._warm.pid if self._warm is not None else None

    async def end_workers(self) -> None:
        """All of them and what they left, and wait until they are gone; nobody starts any more."""
        if not self._closing:
            self._lookout.close()
        self._closing = True
        for member in list(self._workers):
            self.kill(member, "the job is over")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while self._workers or self._is_trailing:
                    self._sweep_strangers()
                    await asyncio.sleep(0.005)

    async def close(self) -> None:
        """End everything below this process but its kin, and wait until it is gone."""
        await self.end_workers()
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self._warm is not None:
                    self._warm.close()
                    await self._warm.gone
                while self._sweep_strangers():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pass
        if left := ", ".join(str(pid) for pid in _children()):
            self._terminal.say(
                f"processes {left} do not die (frozen, or in a device driver): they never run again, look at them with ps"
            )
        for output in list(self._trailing):
            output.close()
        self.reaper.close()
        self._oom.close()

    # Starting

    def _heat(self) -> WarmParent:
        warm = WarmParent(self._config.warm, self._mark, self._loop, self.reaper, self._answered)
        self._warm = warm
        self._parents = [parent for parent in self._parents if parent.is_open] + [warm]
        warm.ready.add_done_callback(lambda ready: self._became_ready(warm) if not ready.exception() else None)
        warm.gone.add_done_callback(lambda _: self._cooled(warm))
        return warm

    def _became_ready(self, warm: WarmParent) -> None:
        with contextlib.suppress(BrokenPipeError):
            for worker in self._workers.values():
                if worker.pid is not None:
                    warm.order(Order(do="remember", pid=worker.pid))
        for worker in list(self._workers.values()):
            if worker.timer is None and worker.output is None:
                self._launch(worker, warm)

    def _cooled(self, warm: WarmParent) -> None:
        """The warm parent died: its workers live on, the next ones come from another."""
        if self._closing or warm is not self._warm:
            return
        self._warm = None
        if warm.ready.exception() is None:
            self._terminal.say(f"the warm parent (pid {warm.pid}) died: no worker is hurt, another one starts")
            self._heat_or_fail()
        else:
            self._fail_waiting(str(warm.ready.exception()))

    def _heat_or_fail(self) -> None:
        try:
            self._heat()
        except InfraError as error:
            self._fail_waiting(str(error))

    def _fail_waiting(self, why: str) -> None:
        for worker in list(self._workers.values()):
            if worker.timer is None and worker.output is None:
                self._gone(worker, f"could not be started: {why}", None)

    def _due(self, worker: _Worker) -> None:
        worker.timer = None
        if self._warm is None:
            self._heat_or_fail()
        elif self._warm.ready.done() and not self._warm.ready.exception():
            self._launch(worker, self._warm)

    def _launch(self, worker: _Worker, warm: WarmParent) -> None:
        member = worker.member
        try:
            prefix = f"[{member.replica}] "
            worker.output = Output(self._config.output / f"{member}.log", prefix, self._loop, self._terminal)
            worker.page = worker.page or Page(str(member))
        except OSError as error:
            self._gone(worker, f"could not be started: {error}", None)
            return
        order = Order(
            do="launch",
            member=str(member),
            environ={**self._door(member).to_environ(), "PYTHONHASHSEED": "0"},
            cwd=str(self._config.cwd),
            script=str(self._config.script),
            argv=self._config.argv,
        )
        try:
            warm.order(order, [*worker.output.writers, worker.page.fd])
        except BrokenPipeError:
            # It has just died, or has a queue of orders: the order never reached it, so this is still the first start.
            output, worker.output = worker.output, None
            output.close()
            worker.timer = self._loop.call_later(_RETRY_S, self._due, worker)
        except ConfigError as error:
            self._gone(worker, f"could not be started: {error}", None)
        else:
            # Once nobody holds its output it is gone, whatever became of it on the way.
            worker.output.when_ended(lambda: self._vanished(worker))
            worker.output.hand_over()

    def _hear_warm(self) -> None:
        for parent in self._parents:
            parent.hear()

    def _answered(self, answer: Answer) -> None:
        worker = next((worker for worker in self._workers.values() if str(worker.member) == answer.member), None)
        if worker is None:
            if answer.what == "started":
                raise Invariant(f"the warm parent started {answer.member}, which nobody waits for")
            return
        if answer.what == "failed":
            self._gone(worker, f"could not be started: {answer.why}", None)
            return
        worker.pid = answer.pid
        self._oom.began(answer.pid)
        self.reaper.watch(answer.pid, lambda status: self._ended(worker, status))
        fact = WorkerStarted(member=worker.member, pid=answer.pid, host=socket.gethostname(), why=worker.why)
        self._journal.write(fact)
        if worker.doom is not None:
            self._strike(worker, answer.pid)

    # Ending

    def _watched(self) -> list[Watched]:
        """Those that run and are not doomed."""
        return [
            Watched(member=worker.member, pid=worker.pid, page=worker.page)
            for worker in self._workers.values()
            if worker.pid is not None and worker.page is not None and worker.doom is None
        ]

    def _investigated(self, member: Member) -> None:
        worker = self._workers.get(member)
        if worker is not None and worker.doom is not None and worker.pid is not None:
            self._strike(worker, worker.pid)

    def _strike(self, worker: _Worker, pid: int) -> None:
        _kill_group(pid)
        self._loop.call_later(_UNDEAD_S, self._give_up, worker, pid)

    def _give_up(self, worker: _Worker, pid: int) -> None:
        if self._workers.get(worker.member) is not worker:
            return
        self._undead[pid] = worker
        self._terminal.say(
            f"{worker.member} (pid {pid}) has not died {_UNDEAD_S:g} s after SIGKILL (frozen, or in a device driver): "
            "it never runs again, but keeps its memory and devices until it is gone"
        )
        self._gone(worker, f"was ended: {worker.doom}", None)

    def _ended(self, worker: _Worker, status: int) -> None:
        assert worker.pid is not None, "only a running worker is watched"
        _kill_group(worker.pid)
        how = describe(status) if worker.doom is None else f"was ended: {worker.doom}"
        self._undead.pop(worker.pid, None)
        starved = self._oom.ended(worker.pid, status, is_ours=worker.doom is not None)
        if starved is not None:
            self._gone(worker, starved.how, None, memory=starved.memory)
        else:
            self._gone(worker, how, exit_code(status), struck=worker.doom is None and is_kill(status))
        if self._warm is not None:
            with contextlib.suppress(BrokenPipeError):
                self._warm.order(Order(do="forget", pid=worker.pid))

    def _vanished(self, worker: _Worker) -> None:
        """Its output ended. A running worker may have closed it; one that never said that it runs is dead."""
        if worker.output is not None:
            self._trailing.discard(worker.output)
            worker.output.close()
        if self._workers.get(worker.member) is worker and worker.pid is None:
            self._hear_warm()
            if worker.pid is None:
                doom = f"was ended before it started: {worker.doom}" if worker.doom else "was lost while starting"
                self._gone(worker, doom, None)

    def _gone(
        self, worker: _Worker, how: str, code: int | None, *, memory: Memory | None = None, struck: bool = False
    ) -> None:
        if self._workers.pop(worker.member, None) is None:
            return
        if worker.timer is not None:
            worker.timer.cancel()
        self._lookout.forget(worker.member)
        pid = worker.pid or 0
        cause = f"died-{worker.member}"
        place = worker.page.read().place if worker.page is not None else None
        clean = code == 0
        fact = WorkerExited(member=worker.member, pid=pid, how=how, clean=clean, cause=cause, place=place, memory=memory)
        self._journal.write(fact)
        self._report(Exit(member=worker.member, how=how, clean=clean, code=code, place=place, struck=struck))
        if worker.page is not None:
            worker.page.close()
        if worker.output is not None:
            worker.output.drain()
            if worker.output.is_open and worker.pid is not None:
                self._trailing.add(worker.output)
            else:
                worker.output.close()

    @property
    def _is_trailing(self) -> bool:
        undead = [worker.output for worker in self._undead.values()]
        return any(output.is_open for output in self._trailing if output not in undead)

    def _sweep_strangers(self) -> bool:
        """Kill what workers left behind outside their groups; true while there is any that can die."""
        known = {worker.pid for worker in self._workers.values()} | {self._warm.pid if self._warm else None, *self._kin()}
        strangers = [pid for pid in _children() if pid not in known and pid not in self._undead]
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.reaper.reap()
        return bool(strangers)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Direct children: an orphan of any depth becomes one, this process being a subreaper."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found
