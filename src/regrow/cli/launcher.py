"""The process behind `regrow run`: one loop with the coordinator and the agent in it, from the first file to the exit code.

Importing this must not import torch: only the warm parent does, in a process of its own.
"""

import asyncio
import contextlib
import os
import signal
import socket
import traceback
from pathlib import Path
from typing import Any

import msgspec

from regrow.agent.agent import Agent, AgentConfig
from regrow.agent.exits import NEVER_JOINED, Exit
from regrow.agent.terminal import STDERR, Terminal
from regrow.agent.warm_parent import WarmConfig
from regrow.cli.liveness import born
from regrow.cli.run_dir import JobFile, RunDir
from regrow.coordinator.server import Server
from regrow.coordinator.store import Store
from regrow.core.errors import RegrowError
from regrow.core.hangs import Hang, HangConfig, Stall
from regrow.core.membership import MembershipConfig
from regrow.core.membership_effects import End, Lost, Made, Spared
from regrow.core.messages import Raised
from regrow.core.records import JobOpened
from regrow.core.roster import Endpoint, Member
from regrow.shell.door import WorkerDoor
from regrow.shell.journal import Journal

FINISHED, FAILED, USAGE, STATE_LOST, INFRA, BUG = 0, 1, 2, 3, 4, 70
_CODES = {"finished": FINISHED, "failed": FAILED, "state-lost": STATE_LOST, "bug": BUG}
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
    faults: str
    hangs: HangConfig = HangConfig()
    warm: WarmConfig = WarmConfig()


class Launcher:
    """Runs one job. Make it inside the loop's main task."""

    def __init__(self, plan: Plan, terminal: Terminal) -> None:
        self._plan = plan
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._run_dir = RunDir(plan.run_dir)
        self._token = ""
        self._endpoint = Endpoint(plan.host, plan.port)
        self._stop: signal.Signals | None = None
        self._stopped = asyncio.Event()
        self._is_open = False

    async def run(self) -> int:
        plan = self._plan
        self._token = self._run_dir.create(self._job_file())
        with contextlib.ExitStack() as held:
            try:
                store = Store(self._run_dir.path)
                held.callback(store.close)
                self._journal = Journal(self._run_dir.journal, "coordinator")
                self._agent = Agent(
                    AgentConfig(
                        script=plan.script,
                        argv=plan.argv,
                        cwd=Path.cwd(),
                        output=self._run_dir.output,
                        evidence=self._run_dir.evidence,
                        hangs=plan.hangs,
                        warm=plan.warm,
                    ),
                    self._door,
                    Journal(self._run_dir.journal, "agent"),
                    self._terminal,
                    self._exited,
                    self._accused,
                )
                self._server = Server(plan.membership, store, self._journal, self._agent, self._noticed, self._terminal.say)
                self._endpoint = await self._server.listen(plan.host, plan.port, self._token)
            except (RegrowError, OSError):
                self._run_dir.remove()  # nothing ran: the same command must work once the cause is mended
                raise
            return await self._run_open()

    async def _run_open(self) -> int:
        shown = _short(self._run_dir.path)
        self._terminal.say(f"run directory {shown}; look at it with: regrow status {shown}")
        self._loop.set_exception_handler(self._crashed)
        for number in _STOPPED:
            self._loop.add_signal_handler(number, self._signalled, number)
        try:
            await self._begin()
            end = await self._server.ended
        except RegrowError as error:
            self._server.end(End(outcome="failed", why=str(error)))
            raise
        finally:
            await self._agent.close()
            await self._server.close()
            for number in _STOPPED:
                self._loop.remove_signal_handler(number)
        self._conclude(end)
        if end.outcome == "stopped":
            return _STOPPED[self._stop or signal.SIGINT]
        return _CODES[end.outcome]

    async def _begin(self) -> None:
        warming = asyncio.create_task(self._agent.open())
        stopping = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({warming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not warming.done():
            warming.cancel()
            self._server.end(End(outcome="stopped", why="stopped before the first worker started"))
            return
        warming.result()
        if self._plan.lanes is not None:
            self._journal.write(self._opened(self._plan.lanes))
        self._is_open = True
        self._server.open()

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
        )

    def _opened(self, lanes: int) -> JobOpened:
        command = (str(self._plan.script), *self._plan.argv)
        replicas = self._plan.membership.replicas
        return JobOpened(job=self._run_dir.path.name, replicas=replicas, lanes=lanes, command=command)

    def _door(self, member: Member) -> WorkerDoor:
        return WorkerDoor(
            member=member,
            coordinator=self._endpoint,
            token=self._token,
            run_dir=self._run_dir.path,
            host=self._plan.host,
            lanes=self._plan.lanes,
            faults=self._plan.faults,
        )

    # What happens meanwhile

    def _exited(self, exit: Exit) -> None:
        if self._server.ended.done():
            return
        # Once a job runs, one script that ends too early is a replica's trouble, not the job's.
        is_stranger = not self._server.has_joined(exit.member) and not self._server.is_founded
        script = self._plan.script.name
        if exit.code == NEVER_JOINED and is_stranger:
            why = f"{script} never called regrow.join(): call it before building the model (see the README's script)"
            self._server.end(End(outcome="failed", why=why))
        elif exit.clean and is_stranger:
            why = f"{script} ended before its first step: after regrow.join() it must loop over job.steps(...)"
            self._server.end(End(outcome="failed", why=why))
        else:
            if not exit.clean:
                self._terminal.say(f"{exit.member} {exit.how}")
            self._server.died(exit.member, exit.how, exit.clean, exit.place)

    def _accused(self, verdict: Hang | Stall) -> None:
        if isinstance(verdict, Stall):
            self._server.stalled(str(verdict))
        else:
            self._server.hung(verdict.member, f"hangs {verdict.place}")

    def _noticed(self, notice: Made | Lost | Spared) -> None:
        if isinstance(notice, Spared):
            self._terminal.say(f"{notice.member} is left alone: {notice.why}")
            return
        if isinstance(notice, Lost):
            self._terminal.say(f"the job goes on without {notice.replica}: {notice.why}")
            return
        roster = notice.roster
        names = ", ".join(str(member) for member in roster.members)
        self._terminal.say(f"roster {roster.version} ({notice.why}): {names}")
        if roster.version.n == 1:
            lanes = sum(len(seat.lanes) for seat in roster.seats)
            if self._plan.lanes is None:
                self._journal.write(self._opened(lanes))
                warn_idle(self._terminal, len(roster.seats), lanes)

    def _signalled(self, number: signal.Signals) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        if self._stop is not None:
            self._server.end(End(outcome="stopped", why=f"stopped at once by a second {name}"))
            return
        self._stop = number
        self._stopped.set()
        if self._is_open:
            self._terminal.say(f"{name}: stopping at the next boundary; once more stops at once")
            self._server.request_stop()

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        story = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self._terminal.say(f"a bug in Regrow, please report it: {context['message']}\n{story}")
        self._server.end(End(outcome="bug", why=f"{context['message']}: {error!r}"))

    # The end

    def _conclude(self, end: End) -> None:
        if end.outcome in ("failed", "state-lost"):
            first = end.first or (self._server.raised[0] if self._server.raised else None)
            if first is not None:
                self._show(first, [raised for raised in self._server.raised if raised is not first])
        words = {
            "finished": f"the job finished: {end.why}",
            "stopped": f"the job was stopped: {end.why}",
            "failed": f"the job failed: {end.why}",
            "bug": f"the job was ended: {end.why}",
            "state-lost": (
                f"the training state is lost: {end.why}.\n"
                "Regrow never restarts from initial weights by itself. Look for the cause in the output above and in "
                f"{_short(self._run_dir.output)}, then start a new run; more --replicas make this less likely."
            ),
        }
        self._terminal.say(words[end.outcome])

    def _show(self, first: Raised, others: list[Raised]) -> None:
        self._terminal.say(f"the first failure, {_place(first)}:")
        prefix = f"[{first.member.replica}] "
        text = "".join(f"{prefix}{line}\n" for line in first.traceback.splitlines())
        self._terminal.write(STDERR, text.encode(errors="replace"))
        if others:
            self._terminal.say("also: " + "; ".join(f"{raised.kind}, {_place(raised)}" for raised in others))


def warn_idle(terminal: Terminal, replicas: int, lanes: int) -> None:
    if replicas > lanes:
        terminal.say(f"warning: {replicas} replicas share {lanes} lanes: {replicas - lanes} of them will compute nothing")


def _place(raised: Raised) -> str:
    where = "" if raised.step is None else f" in step {raised.step}"
    lane = "" if raised.lane is None else f", lane {raised.lane}"
    return f"{raised.member}{where}{lane} at {raised.place}"


def _short(path: Path) -> str:
    """As the user would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
