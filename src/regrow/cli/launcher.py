"""The process behind `regrow run`: one loop with the agent in it, and with the coordinator unless that is elsewhere.

Importing this must not import torch: only the warm parent does, in a process of its own.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

import msgspec

from regrow.agent.agent import Agent, AgentConfig
from regrow.agent.coordinator_line import CoordinatorLine
from regrow.agent.exits import NEVER_JOINED, Exit
from regrow.agent.terminal import Terminal
from regrow.agent.warm_parent import WarmConfig
from regrow.cli.conclusion import CODES, conclude, conclude_saves, short
from regrow.cli.live import LiveView
from regrow.cli.liveness import born
from regrow.cli.run_dir import JobFile, ListeningFile, RunDir
from regrow.cli.safekeeping import Safekeeping
from regrow.cli.scene import Asked
from regrow.coordinator.server import Server
from regrow.coordinator.store import Store
from regrow.core.culprits import is_tidying
from regrow.core.errors import RegrowError
from regrow.core.hangs import Hang, HangConfig, Stall
from regrow.core.interval import CadenceConfig
from regrow.core.membership_config import MembershipConfig
from regrow.core.membership_effects import End
from regrow.core.messages import Enlist, Exited, HangSeen, Raised, Report, StallSeen, StopWanted
from regrow.core.order import DataFrom
from regrow.core.roster import Endpoint, Member
from regrow.shell.door import WorkerDoor
from regrow.shell.journal import Journal
from regrow.shell.vaulting import Place, Setting

_STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator asked for, checked."""

    script: Path
    argv: tuple[str, ...]
    run_dir: Path
    host: str
    port: int
    lanes: int | None
    """The flag; None leaves it to the script."""
    membership: MembershipConfig
    audit_every: int
    bucket_bytes: int
    join_queue_bytes: int
    grace_s: float
    faults: str
    places: tuple[Place, ...] = ()
    """Where checkpoints go, nearest first."""
    memory_every: int = 0
    """Steps from one copy in this host's memory to the next, beyond those for the places; 0: none, or on auto."""
    paces_memory: bool = False
    """It is on auto."""
    cadence: CadenceConfig = CadenceConfig()
    """What holds for all that is on auto."""
    log_bytes: int = 0
    """Of the logs of an every-step job; 0: it is none."""
    shard_bytes: int = 256_000_000
    patience_s: float = 120.0
    """A place gives a save up when nothing of it has become durable for so long."""
    coordinator: Endpoint | None = None
    """Where a coordinator of its own listens; None for one in this process."""
    token: str | None = None
    """That coordinator's, brought along; None when this run shares its run directory."""
    hangs: HangConfig = HangConfig()
    warm: WarmConfig = WarmConfig()
    is_live: bool = False
    """Show the live view: the terminal is a screen."""
    is_coloured: bool = False


class Coordination(Protocol):
    """The coordinator, in this process (Server) or at the end of a line (CoordinatorLine)."""

    @property
    def ended(self) -> asyncio.Future[End]: ...

    @property
    def raised(self) -> list[Raised]: ...

    def open(self) -> None: ...

    def report(self, report: Report) -> None: ...

    def end(self, end: End) -> None: ...

    async def close(self) -> None: ...


class Launcher:
    """Runs one job. Make it inside the loop's main task."""

    def __init__(self, plan: Plan, terminal: Terminal) -> None:
        self._plan = plan
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._run_dir = RunDir(plan.run_dir)
        self._is_shared = plan.coordinator is not None and plan.token is None
        """The run directory is a coordinator's, and stays its own."""
        self._endpoint = plan.coordinator or Endpoint(plan.host, plan.port)
        self._stop: signal.Signals | None = None
        self._stopped = asyncio.Event()
        self._hurried = asyncio.Event()
        """Nothing is waited for any more."""
        self._is_open = False
        self._line: CoordinatorLine | None = None
        self._safe: Safekeeping | None = None

    async def run(self) -> int:
        job_file = self._job_file()
        self._token = self._run_dir.claim(job_file) if self._is_shared else self._run_dir.create(job_file, self._plan.token)
        with contextlib.ExitStack() as held:
            try:
                journal = Journal(self._run_dir.journal, "agent")
                self._agent = self._make_agent(journal)
                if self._plan.membership.keeps:
                    self._safe = self._make_safe(journal)
                if self._plan.coordinator is None:
                    self._coordination = await self._coordinate_here(held)
                else:
                    self._coordination = self._coordinate_there(self._plan.coordinator, journal)
            except (RegrowError, OSError):
                self._undo()  # nothing ran: the same command must work once the cause is mended
                raise
            return await self._run_open()

    def _make_agent(self, journal: Journal) -> Agent:
        plan = self._plan
        config = AgentConfig(
            script=plan.script,
            argv=plan.argv,
            cwd=Path.cwd(),
            output=self._run_dir.output,
            evidence=self._run_dir.evidence,
            hangs=plan.hangs,
            warm=plan.warm,
        )
        return Agent(config, self._door, journal, self._terminal, self._exited, self._accused)

    def _make_safe(self, journal: Journal) -> Safekeeping:
        plan = self._plan
        return Safekeeping(
            plan.membership,
            Setting(
                run_dir=str(self._run_dir.path),
                address=f"regrow-vault-{secrets.token_hex(16)}",
                places=plan.places,
                patience_s=plan.patience_s,
                shard_bytes=plan.shard_bytes,
                memory_every=plan.memory_every,
                paces_memory=plan.paces_memory,
                cadence=plan.cadence,
                faults=plan.faults,
            ),
            self._agent,
            journal,
            self._terminal.say,
            lambda sought: self._coordination.report(sought),
        )

    async def _coordinate_here(self, held: contextlib.ExitStack) -> Coordination:
        store = Store(self._run_dir.path)
        held.callback(store.close)
        journal = Journal(self._run_dir.journal, "coordinator")
        say = self._terminal.say
        server = Server(self._enlist(), store, journal, self._agent, say, say)
        self._endpoint = await server.listen(self._plan.host, self._plan.port, self._token)
        pid = os.getpid()
        note = ListeningFile(endpoint=self._endpoint, host=socket.gethostname(), pid=pid, born=born(pid))
        self._run_dir.note_listening(note)
        return server

    def _coordinate_there(self, endpoint: Endpoint, journal: Journal) -> Coordination:
        self._line = CoordinatorLine(endpoint, self._token, self._enlist(), self._agent, journal, self._terminal.say)
        return self._line

    def _undo(self) -> None:
        if self._is_shared:
            self._run_dir.release()
        else:
            self._run_dir.remove()

    async def _run_open(self) -> int:
        shown = short(self._run_dir.path)
        self._terminal.say(f"run directory {shown}; look at it with: regrow status {shown}", is_routine=True)
        self._loop.set_exception_handler(self._crashed)
        for number in _STOPPED:
            self._loop.add_signal_handler(number, self._signalled, number)
        view = self._open_view() if self._plan.is_live else None
        unsaved: tuple[str, ...] = ()
        try:
            await self._begin()
            end = await self._coordination.ended
        except RegrowError as error:
            self._coordination.end(End(outcome="failed", why=str(error)))
            raise
        finally:
            unsaved = await self._conclude_saves()
            await self._agent.close()
            await self._coordination.close()
            for number in _STOPPED:
                self._loop.remove_signal_handler(number)
            if view is not None:
                view.close()
                self._loop.remove_signal_handler(signal.SIGCONT)
            if not self._is_open and (self._line is not None or self._safe is not None):
                self._undo()
        conclude(self._terminal, end, self._coordination.raised, short(self._run_dir.path))
        code = conclude_saves(self._terminal, end, unsaved, short(self._run_dir.path))
        if code is not None:
            return code
        if end.outcome == "stopped":
            return _STOPPED[self._stop or signal.SIGINT]
        return CODES[end.outcome]

    async def _conclude_saves(self) -> tuple[str, ...]:
        """Whoever could save is gone: wait until what was saved is durable, unless everything is to end at once."""
        if self._safe is None:
            return ()
        await self._agent.end_workers()
        finishing = asyncio.create_task(self._safe.finish())
        hurrying = asyncio.create_task(self._hurried.wait())
        await asyncio.wait({finishing, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not finishing.done():
            finishing.cancel()
            await asyncio.gather(finishing, return_exceptions=True)
        unsaved = ("it was stopped at once",) if finishing.cancelled() else finishing.result()
        await self._safe.close()
        return unsaved

    def _open_view(self) -> LiveView:
        membership = self._plan.membership
        asked = Asked(
            job=self._run_dir.path.name,
            replicas=membership.replicas,
            budget=membership.budget,
            began_s=time.monotonic(),
        )
        line = self._line
        view = LiveView(
            asked,
            self._run_dir,
            self._agent,
            self._terminal,
            lambda: line is not None and line.is_away,
            self._plan.is_coloured,
        )
        view.open()
        self._loop.add_signal_handler(signal.SIGCONT, self._terminal.displaced)
        return view

    async def _begin(self) -> None:
        warming = asyncio.create_task(self._warm_up())
        stopping = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({warming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not warming.done():
            warming.cancel()
            self._coordination.end(End(outcome="stopped", why="stopped before the first worker started"))
            return
        warming.result()
        self._is_open = True
        self._coordination.open()

    async def _warm_up(self) -> None:
        if self._line is not None:
            await self._line.reach()
        await self._agent.open()
        if self._safe is not None:
            await self._safe.open()

    def _job_file(self) -> JobFile:
        return JobFile(
            job=self._run_dir.path.name,
            command=(str(self._plan.script), *self._plan.argv),
            cwd=str(Path.cwd()),
            replicas=self._plan.membership.replicas,
            lanes=self._plan.lanes,
            host=socket.gethostname(),
            pid=os.getpid(),
            born=born(os.getpid()),
            budget=self._plan.membership.budget,
            min_replicas=self._plan.membership.min_replicas,
            coordinator=None if self._plan.coordinator is None else str(self._plan.coordinator),
            checkpoints=tuple(place.url for place in self._plan.places),
            keeps=self._plan.membership.keeps,
            every_step=self._plan.membership.logs,
        )

    def _enlist(self) -> Enlist:
        command = (str(self._plan.script), *self._plan.argv)
        agent = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        return Enlist(agent=agent, job=self._run_dir.path.name, command=command, config=self._plan.membership)

    def _door(self, member: Member) -> WorkerDoor:
        safe = self._safe
        return WorkerDoor(
            member=member,
            coordinator=self._endpoint,
            token=self._token,
            run_dir=self._run_dir.path,
            host=self._plan.host,
            lanes=self._plan.lanes,
            audit_every=self._plan.audit_every,
            bucket_bytes=self._plan.bucket_bytes,
            join_queue_bytes=self._plan.join_queue_bytes,
            grace_s=self._plan.grace_s,
            vault="" if safe is None else safe.address,
            saves=() if safe is None else safe.saves,
            shard_bytes=self._plan.shard_bytes,
            log_bytes=self._plan.log_bytes,
            data_from=DataFrom() if safe is None else safe.data_from,
            faults=self._plan.faults,
        )

    # What happens meanwhile

    def _exited(self, exit: Exit) -> None:
        if self._coordination.ended.done():
            return
        if not exit.clean:
            self._terminal.say(f"{exit.member} {exit.how}", is_routine=is_tidying(exit.how))
        self._coordination.report(
            Exited(
                member=exit.member,
                how=exit.how,
                clean=exit.clean,
                place=exit.place,
                struck=exit.struck,
                never_joined=exit.code == NEVER_JOINED,
            )
        )

    def _accused(self, verdict: Hang | Stall) -> None:
        if isinstance(verdict, Stall):
            self._coordination.report(StallSeen(why=str(verdict)))
        else:
            why = f"hangs {verdict.place}"
            self._coordination.report(HangSeen(member=verdict.member, why=why, place=verdict.place))

    def _signalled(self, number: signal.Signals) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        if self._stop is not None:
            self._out_of_time(End(outcome="stopped", why=f"stopped at once by a second {name}"))
            return
        self._stop = number
        self._stopped.set()
        if self._is_open:
            within = f" within {self._plan.grace_s:g} s" if number == signal.SIGTERM else ""
            self._terminal.say(f"{name}: stopping at the next boundary{within}; once more stops at once")
            self._coordination.report(StopWanted())
            if number == signal.SIGTERM:  # whoever sent it may be about to take the machine away
                why = f"SIGTERM, and no boundary passed within the {self._plan.grace_s:g} s of --grace"
                self._loop.call_later(self._plan.grace_s, self._out_of_time, End(outcome="stopped", why=why))

    def _out_of_time(self, end: End) -> None:
        self._hurried.set()
        self._coordination.end(end)

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        story = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self._terminal.say(f"a bug in Regrow, please report it: {context['message']}\n{story}")
        self._coordination.end(End(outcome="bug", why=f"{context['message']}: {error!r}"))
