"""The agent of the only host: starts processes, ends them, and proves their deaths."""

from typing import TYPE_CHECKING

from regrow.core.attendance import Task
from regrow.core.membership_events import Died, Hung, Stalled
from regrow.core.roster import Member
from regrow.sim.process import Process

if TYPE_CHECKING:
    from regrow.sim.world import World


_FLOOR_S = 2.0
_AGAIN_S = 1.0
_HANGS = "hangs"


class Agent:
    """Outlives coordinators: starts each incarnation at most once, reports every death to each of them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._started: set[Member] = set()
        self._cancelled: set[Member] = set()
        self._deaths: list[tuple[Member, str, bool]] = []
        self.processes: dict[Member, Process] = {}

    def start(self, member: Member, delay_s: float) -> None:
        if member not in self._started:
            self._started.add(member)
            self._world.timeline.after(delay_s + self._world.chance.soon_s(), None, self._boot, member)

    def _boot(self, member: Member) -> None:
        if member in self._cancelled:
            return
        process = self.processes[member] = Process(self._world, member)
        self._world.story.note("agent", f"started {member}")
        self._world.timeline.after(self._world.chance.work_s(), process, process.boot)

    def kill(self, member: Member, why: str) -> None:
        self._cancelled.add(member)
        # Now and then the order takes long: what is to be killed lives on as a zombie and must be fenced without it.
        delay_s = self._world.chance.soon_s() if self._world.chance.happens(0.7) else self._world.chance.between(1.0, 20.0)
        self._world.timeline.after(delay_s, None, self._kill, member, why)

    def _kill(self, member: Member, why: str) -> None:
        process = self.processes.get(member)
        if process is not None:
            if process.attendance.task is Task.GONE and why == _HANGS:
                self._world.referee.late_kills += 1
            process.die(f"killed by the agent: {why}")

    def watch(self, process: Process) -> None:
        """It hangs: seen after a while, and said again and again until it no longer does."""
        self._world.timeline.after(_FLOOR_S, None, self._look, process)

    def _look(self, process: Process) -> None:
        if process.alive and process.hung:
            self.accuse(process)
            self._world.timeline.after(_AGAIN_S, None, self._look, process)

    def accuse(self, process: Process) -> None:
        """Rightly or not."""
        self._world.timeline.after(self._world.chance.soon_s(), None, self._accuse, process.member)

    def stall(self) -> None:
        """Whether or not anybody waits."""
        self._world.timeline.after(self._world.chance.soon_s(), None, self._stall)

    def _stall(self) -> None:
        self._world.coordinator.take(Stalled(now=self._world.timeline.now, why="everybody waits"))

    def _accuse(self, member: Member) -> None:
        self._world.coordinator.take(Hung(now=self._world.timeline.now, member=member, why=_HANGS))

    def reap(self, process: Process, how: str, clean: bool) -> None:
        self._deaths.append((process.member, how, clean))
        self._report(process.member, how, clean)

    def report_all(self) -> None:
        for death in self._deaths:
            self._report(*death)

    def _report(self, member: Member, how: str, clean: bool) -> None:
        self._world.timeline.after(self._world.chance.soon_s(), None, self._tell, member, how, clean)

    def _tell(self, member: Member, how: str, clean: bool) -> None:
        self._world.coordinator.take(Died(now=self._world.timeline.now, member=member, how=how, clean=clean))
