"""The agent of the only host: starts processes, ends them, and proves their deaths."""

from typing import TYPE_CHECKING

import msgspec

from regrow.core.attendance import Task
from regrow.core.membership_effects import Kill, Seek, Start
from regrow.core.membership_events import Died, Hung, OriginCame, Stalled, StopRequested
from regrow.core.origin import Origin
from regrow.core.progress import Phase, Place
from regrow.core.records import WorkerExited, WorkerStarted
from regrow.core.roster import Member
from regrow.sim.process import Process

if TYPE_CHECKING:
    from regrow.sim.world import World

_AWAY_MOST_S = 3.0
"""Shorter than the lease: on one machine an agent that stays away for longer is dead."""


class _Line:
    """One connection to a coordinator. Closed once, never opened again; what was under way on it is lost."""

    def __init__(self) -> None:
        self.open = True
        self.up_s = 0.0
        self.down_s = 0.0


_FLOOR_S = 2.0
_AGAIN_S = 1.0
_HANGS = "hangs"


class Agent:
    """Outlives coordinators: starts each incarnation at most once, and tells each of them all that it has to report."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._started: set[Member] = set()
        self._cancelled: set[Member] = set()
        self._reports: list[Died | None] = []
        """Deaths in their order; None is the operator's wish to stop."""
        self._slow: set[Member] = set()
        """Whoever is to be killed and lives on for long."""
        self._line: _Line | None = None
        self.alive = True
        self.processes: dict[Member, Process] = {}

    # The line

    def connect(self) -> None:
        world = self._world
        if self._line is not None or not self.alive:
            return
        if not world.coordinator.up:
            world.timeline.after(world.chance.between(0.05, 0.5), None, self.connect)
            return
        self._line = _Line()
        world.story.note("agent", "on the line")
        # In any order: nothing may rest on it, and between several hosts there would be none.
        for report in self._world.chance.some_of(self._reports, len(self._reports)):
            self._send(report)
        world.coordinator.agent_came()

    def cut(self) -> None:
        """The line is lost, with whatever was under way in either direction."""
        if self._line is None:
            return
        self._line.open = False
        self._line = None
        self._world.coordinator.agent_gone()
        self._world.timeline.after(self._world.chance.between(0.01, _AWAY_MOST_S), None, self.connect)

    def perish(self) -> None:
        """kill -9 of the agent: its workers die with it, and nobody reports that."""
        self.alive = False
        self._world.referee.is_agent_lost = True
        self.cut()
        self._world.vault.perish()
        for process in list(self.processes.values()):
            process.die("died with the agent")

    def _send(self, report: Died | None) -> None:
        line = self._line
        if line is None:
            return  # told with the next connection
        for _ in range(2 if self._world.chance.happens(0.1) else 1):
            line.up_s = max(line.up_s, self._world.timeline.now + self._world.chance.soon_s())
            self._world.timeline.after(line.up_s - self._world.timeline.now, None, self._tell, line, report)

    def _tell(self, line: _Line, report: Died | None) -> None:
        if not line.open:
            return
        now = self._world.timeline.now
        if report is None:
            self._world.coordinator.take(StopRequested(now=now))
            return
        self._world.coordinator.buried(msgspec.structs.replace(report, now=now))

    def order(self, order: Start | Kill | Seek) -> None:
        """From the coordinator, which says it again on the next line."""
        line = self._line
        if line is not None:
            line.down_s = max(line.down_s, self._world.timeline.now + self._world.chance.soon_s())
            self._world.timeline.after(line.down_s - self._world.timeline.now, None, self._obey, line, order)

    def _obey(self, line: _Line, order: Start | Kill | Seek) -> None:
        if not line.open or not self.alive:
            return
        if isinstance(order, Start):
            self._start(order.member, order.delay_s)
        elif isinstance(order, Seek):
            self._world.vault.seek(order, lambda origin, terms: self._found(order.number, origin, terms))
        else:
            self._doom(order.member, order.why)

    def _found(self, number: int, origin: Origin | None, terms: dict[str, str]) -> None:
        """Told on the present line or not at all: then it is asked for again on the next one."""
        line, world = self._line, self._world
        if line is None:
            return
        why = "" if origin is not None else "nothing is whole"
        came = OriginCame(now=0.0, number=number, origin=origin, mathematics=terms, why=why)
        for _ in range(2 if world.chance.happens(0.2) else 1):
            line.up_s = max(line.up_s, world.timeline.now + world.chance.soon_s())
            world.timeline.after(line.up_s - world.timeline.now, None, self._tell_found, line, came)

    def _tell_found(self, line: _Line, came: OriginCame) -> None:
        if line.open:
            self._world.coordinator.found(msgspec.structs.replace(came, now=self._world.timeline.now))

    # Processes

    def _start(self, member: Member, delay_s: float) -> None:
        if member not in self._started:
            self._started.add(member)
            self._world.referee.started(member)
            self._world.timeline.after(delay_s + self._world.chance.soon_s(), None, self._boot, member)

    def _boot(self, member: Member) -> None:
        if member in self._cancelled or not self.alive:
            self._report(Died(now=0.0, member=member, how="was ended before it started", clean=False))
            return
        process = self.processes[member] = Process(self._world, member)
        self._world.story.note("agent", f"started {member}")
        self._world.referee.fact("agent", WorkerStarted(member=member, pid=0, host="host", why=""))
        self._world.timeline.after(self._world.chance.work_s(), process, process.boot)

    def _doom(self, member: Member, why: str) -> None:
        self._cancelled.add(member)
        if member not in self._started:
            self._started.add(member)  # the order to start it was lost with a line, and it is to be proven dead
            self._report(Died(now=0.0, member=member, how="was ended before it started", clean=False))
            return
        # Now and then the order takes long: what is to be killed lives on as a zombie and must be fenced without it.
        is_fast = member not in self._slow and self._world.chance.happens(0.7)
        delay_s = self._world.chance.soon_s() if is_fast else self._world.chance.between(1.0, 20.0)
        self._world.timeline.after(delay_s, None, self._kill, member, why)

    def lag(self, process: Process) -> None:
        """An order to kill it will take long."""
        self._slow.add(process.member)

    def _kill(self, member: Member, why: str) -> None:
        process = self.processes.get(member)
        if process is not None:
            if process.attendance.task is Task.GONE and why == _HANGS:
                self._world.referee.late_kills += 1
            process.die(f"killed by the agent: {why}")

    # Reports
    def watch(self, process: Process) -> None:
        """It hangs: seen after a while, and said again and again until it no longer does."""
        self._world.timeline.after(_FLOOR_S, None, self._look, process)

    def _look(self, process: Process) -> None:
        if process.alive and process.hung:
            self.accuse(process)
            self._world.timeline.after(_AGAIN_S, None, self._look, process)

    def accuse(self, process: Process) -> None:
        """Rightly or not."""
        place = None
        if process.lane is not None:
            place = Place(step=process.lane.step, lane=process.lane.lane, phase="microbatch")
            self._world.referee.died(process.member, process.lane, struck=False)
        self._judge(Hung(now=0.0, member=process.member, why=_HANGS, place=place))

    def stall(self) -> None:
        """Whether or not anybody waits."""
        self._judge(Stalled(now=0.0, why="everybody waits"))

    def _judge(self, verdict: Hung | Stalled) -> None:
        """Told on the present line or not at all: it is judged again."""
        if self._line is not None:
            self._world.timeline.after(self._world.chance.soon_s(), None, self._say, self._line, verdict)

    def _say(self, line: _Line, verdict: Hung | Stalled) -> None:
        if line.open:
            self._world.coordinator.take(msgspec.structs.replace(verdict, now=self._world.timeline.now))

    # Reports

    def reap(self, process: Process, how: str, clean: bool, struck: bool) -> None:
        place = None
        if process.lane is not None:
            place = Place(step=process.lane.step, lane=process.lane.lane, phase="microbatch")
            self._world.referee.died(process.member, process.lane, struck)
        elif process.parted is not None and process.parted.startswith("well"):
            place = Place(step=process.attendance.step, lane=None, phase=Phase.LEAVING.value)
        cause = f"died-{process.member}"
        fact = WorkerExited(member=process.member, pid=0, how=how, clean=clean, cause=cause, place=place)
        self._world.referee.fact("agent", fact)
        self._report(Died(now=0.0, member=process.member, how=how, clean=clean, place=place, struck=struck))

    def stop(self) -> None:
        self._report(None)

    def _report(self, report: Died | None) -> None:
        if self.alive:
            self._reports.append(report)
            self._send(report)
