"""The process behind `regrow run`: one loop with the agent in it, and with the coordinator unless that is elsewhere.

Importing this must not import torch: only the warm parent does, in a process of its own.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

import msgspec

from regrow.agent.agent import Agent, AgentConfig
from regrow.agent.coordinator_line import CoordinatorLine
from regrow.agent.exits import NEVER_JOINED, Exit
from regrow.agent.notices import NoticeWatch
from regrow.agent.terminal import Terminal
from regrow.agent.warm_parent import WarmConfig
from regrow.cli.conclusion import (
    FINISHED,
    INTERRUPTED,
    conclude,
    conclude_safety,
    conclude_saves,
    exit_code,
    is_to_go_on,
    short,
)
from regrow.cli.keeping import Neighbour
from regrow.cli.live import LiveView
from regrow.cli.liveness import born
from regrow.cli.run_dir import JobFile, ListeningFile, RunDir, digest_of
from regrow.cli.safekeeping import Safekeeping
from regrow.cli.scene import Asked
from regrow.coordinator.server import Server
from regrow.coordinator.store import Store
from regrow.core.completion import Completion
from regrow.core.culprits import is_tidying
from regrow.core.errors import RegrowError
from regrow.core.hangs import Hang, HangConfig, Stall
from regrow.core.interval import CadenceConfig
from regrow.core.membership_config import MembershipConfig
from regrow.core.membership_effects import End
from regrow.core.messages import Enlist, Exited, HangSeen, Raised, Report, StallSeen, StopWanted
from regrow.core.neighbour import PATIENCE_S
from regrow.core.notices import NoticeConfig
from regrow.core.order import DataFrom
from regrow.core.records import NoticeSeen
from regrow.core.roster import Endpoint, Member
from regrow.shell.door import WorkerDoor
from regrow.shell.journal import Journal
from regrow.shell.vaulting import Place, Setting

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MARGIN_S = 1.0
"""So much before the time is up all is to be done: who takes the machine away may be punctual."""
_STUCK_S = 5.0
"""A vault that has not ended so long after its time is not waited for."""


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
    notices: NoticeConfig = NoticeConfig()
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
    neighbour: Neighbour | None = None
    """One of the places, which keeps these logs as well."""
    shard_bytes: int = 256_000_000
    patience_s: float = 120.0
    """A place gives a save up when nothing of it was written for so long."""
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
        self._script = digest_of(plan.script)
        self._endpoint = plan.coordinator or Endpoint(plan.host, plan.port)
        self._signals = 0
        """Ctrl-C and SIGTERM, how often."""
        self._stop = ""
        """Who has it stopped, first."""
        self._by_s: float | None = None
        """When the machine may be gone, with all that is on it."""
        self._reached = 0
        """The job has committed every step below this one, by where workers were seen last."""
        self._stopped = asyncio.Event()
        self._hurried = asyncio.Event()
        """Nothing is waited for any more."""
        self._is_open = False
        self._line: CoordinatorLine | None = None
        self._safe: Safekeeping | None = None

    async def run(self) -> int:
        membership, done = self._plan.membership, self._run_dir.completion()
        is_open = membership.resumes and membership.resume_step is None and not membership.new_mathematics
        if done is not None and is_open and done.is_of(self._command, self._script):
            self._terminal.say(f"the job finished: {done.words}")
            return FINISHED
        job_file = self._job_file()
        self._token = self._run_dir.claim(job_file) if self._is_shared else self._run_dir.create(job_file, self._plan.token)
        with contextlib.ExitStack() as held:
            try:
                journal = self._journal = Journal(self._run_dir.journal, "agent")
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
            warm=msgspec.structs.replace(plan.warm, ignores=plan.notices.signal),
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
            (self._command, self._script),
            self._agent,
            journal,
            self._terminal.say,
            lambda sought: self._coordination.report(sought),
            plan.neighbour,
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
        watch = self._watch_notices()
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._signalled, number)
        view = self._open_view() if self._plan.is_live else None
        unsaved: tuple[str, ...] = ()
        completion: Completion | None = None
        try:
            await self._begin()
            end = await self._coordination.ended
            completion = self._completion() if self._is_open and end.outcome == "finished" else None
        except RegrowError as error:
            self._coordination.end(End(outcome="failed", why=str(error)))
            raise
        finally:
            unsaved = await self._conclude_saves(completion)
            await self._agent.close()
            await self._coordination.close()
            watch.close()
            for number in _SIGNALS:
                self._loop.remove_signal_handler(number)
            if view is not None:
                view.close()
                for number in (signal.SIGTSTP, signal.SIGCONT):
                    self._loop.remove_signal_handler(number)
            if not self._is_open and (self._line is not None or self._safe is not None):
                self._undo()
        if completion is not None and not unsaved:
            step = self._reached if self._safe is None else self._safe.safety(self._reached).reached
            self._run_dir.mark_finished(msgspec.structs.replace(completion, step=step))
        safety = None if self._safe is None else self._safe.safety(self._reached)
        # Nobody here wanted a job to stop that did: its workers were told to, one by one.
        is_interrupted = self._by_s is not None or (end.outcome == "stopped" and not self._stop)
        goes_on = is_to_go_on(end, safety, is_interrupted)
        conclude(self._terminal, end, self._coordination.raised, short(self._run_dir.path), goes_on)
        code = conclude_saves(self._terminal, end, unsaved, short(self._run_dir.path))
        if safety is not None and self._is_open:
            conclude_safety(self._terminal, end, safety)
        if not self._is_open and end.outcome == "stopped" and self._by_s is not None and self._plan.places:
            return INTERRUPTED  # nothing ran: what is safe was not looked at, and is what it was
        return exit_code(end, safety, code, is_interrupted)

    def _watch_notices(self) -> NoticeWatch:
        config = self._plan.notices
        watch = NoticeWatch(config, self._loop, self._noticed, self._terminal.say)
        watch.open()
        if config.signal:
            self._loop.add_signal_handler(signal.Signals[config.signal], self._noticed, f"there is a {config.signal}")
        return watch

    def _completion(self) -> Completion:
        return Completion(
            job=self._run_dir.path.name,
            step=0,
            root="",
            command=self._command,
            script=self._script,
            made_unix_s=time.time(),
        )

    @property
    def _command(self) -> tuple[str, ...]:
        return (str(self._plan.script), *self._plan.argv)

    async def _conclude_saves(self, completion: Completion | None) -> tuple[str, ...]:
        """Whoever could save is gone: wait until what was saved is durable, unless everything is to end at once."""
        if self._safe is None:
            return ()
        await self._agent.end_workers()
        finishing = asyncio.create_task(self._safe.finish(completion))
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
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._loop.add_signal_handler(signal.SIGCONT, self._terminal.displaced)
        return view

    def _suspend(self) -> None:
        """Ctrl-Z: the view is gone before the shell writes, and comes back below that."""
        self._terminal.step_aside()
        for number in (signal.SIGTSTP, signal.SIGCONT):
            self._loop.remove_signal_handler(number)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # to this thread: it has stopped when the call returns
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._loop.add_signal_handler(signal.SIGCONT, self._terminal.displaced)
        self._terminal.come_back()

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
        if self._safe is not None and self._safe.is_done:
            assert self._safe.finished is not None
            self._coordination.end(End(outcome="finished", why=self._safe.finished.words))
            return
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
            command=self._command,
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
        agent = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        return Enlist(agent=agent, job=self._run_dir.path.name, command=self._command, config=self._plan.membership)

    def _door(self, member: Member) -> WorkerDoor:
        safe, near = self._safe, self._plan.neighbour
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
            neighbour="" if near is None else near.address.url,
            neighbour_token="" if near is None else near.token,
            neighbour_patience_s=PATIENCE_S if near is None else near.patience_s,
            neighbour_claim=0 if safe is None else safe.claim,
            data_from=DataFrom() if safe is None else safe.data_from,
            faults=self._plan.faults,
        )

    # What happens meanwhile

    def _exited(self, exit: Exit) -> None:
        if exit.place is not None and exit.place.step is not None:
            self._reached = max(self._reached, exit.place.step)
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
        self._signals += 1
        if self._signals > 1:
            self._hurried.set()
            self._coordination.end(End(outcome="stopped", why=f"stopped at once by a second {name}"))
            return
        if number == signal.SIGTERM:  # whoever sent it may be about to take the machine away
            self._limit(name, self._plan.grace_s, "--grace")
        within = f" within {self._plan.grace_s:g} s" if number == signal.SIGTERM else ""
        self._begin_stop(name, f"{name}: stopping at the next boundary{within}; once more stops at once")

    def _noticed(self, what: str) -> None:
        """This machine will be taken away."""
        within_s = self._plan.notices.within_s
        self._journal.write(NoticeSeen(what=what, within_s=within_s))
        self._limit("a notice", within_s, "--notice-within")
        self._begin_stop("a notice", f"a notice ({what}): stopping at the next boundary within {within_s:g} s")

    def _begin_stop(self, name: str, text: str) -> None:
        is_first, self._stop = not self._stop, self._stop or name
        self._stopped.set()
        if self._is_open:
            self._terminal.say(text)
            if is_first:
                self._coordination.report(StopWanted())

    def _limit(self, name: str, within_s: float, flag: str) -> None:
        """By then the job must have ended, and all that is to outlive it be durable. The earliest of several counts."""
        by_s = time.monotonic() + within_s
        if self._by_s is not None and self._by_s <= by_s:
            return
        self._by_s, last_s = by_s, within_s - min(_MARGIN_S, within_s / 10)
        if self._safe is not None:
            self._safe.hurry(time.monotonic() + last_s)
        why = f"{name}, and no boundary passed within the {within_s:g} s of {flag}"
        self._loop.call_later(last_s, self._coordination.end, End(outcome="stopped", why=why))
        self._loop.call_later(within_s + _STUCK_S, self._hurried.set)

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        story = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self._terminal.say(f"a bug in Regrow, please report it: {context['message']}\n{story}")
        self._coordination.end(End(outcome="bug", why=f"{context['message']}: {error!r}"))
