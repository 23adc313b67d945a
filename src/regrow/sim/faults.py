"""What goes wrong, and when: drawn from the seed before the job starts, or given by hand.

A fault is armed at a point (the nth time some event or effect passes) or at the nth event of all, whichever it is.
"""

from typing import TYPE_CHECKING

import msgspec

from regrow.core.attendance import Task
from regrow.core.events import StopAsked
from regrow.core.wishes import Wish
from regrow.sim.chance import Chance
from regrow.sim.grades import GRADES, Grade
from regrow.sim.process import Process

if TYPE_CHECKING:
    from regrow.sim.world import World

_KINDS = {
    "kill": 30,
    "kill-several": 6,
    "hang": 14,
    "accuse": 6,
    "crash-coordinator": 16,
    "crash-repeatedly": 6,
    "cut-agent": 8,
    "lose-agent": 1,
    "disconnect": 14,
    "cut-off": 12,
    "split": 8,
    "reset": 8,
    "cut-feed": 6,
    "kill-donor": 6,
    "other-bits": 10,
    "lag": 12,
    "raise": 5,
    "raise-for-good": 1,
    "stop": 3,
    "wish-stop": 1,
    "corrupt": 3,
}
_POINTS = (
    *("Formed", "Exchanged", "Adopt", "Fetch", "Fetched", "Serve", "Served", "Compute", "LaneDone", "Reduce", "Reduced"),
    *(
        "Bound",
        "Bounded",
        "Commit",
        "StepEntered",
        "Tell",
        "Hear",
        "Snap",
        "Load",
        "Loaded",
        "Recorded",
        "Form",
        "Abort",
        "Exchange",
        "Broken",
        "Leave",
        "RosterPushed",
    ),
)
_GRADE_POINTS = tuple(grade.name for grade in GRADES)
"""A joiner that has got so far, or one that is about to leave, does anything at all."""
_COORDINATOR_POINTS = ("Persist", "Made", "Send", "Start", "Kill", "Heard", "Died", "AgentCame", "StopRequested", "End")
_WISHES = ("scale", "scale", "leave", "migrate", "dismiss")
_MISHAPS = {"kill-all": 8, "accuse-last": 3, "kill-vault": 5, "save": 5, "lose-agent": 1, "kill": 4}
_SAVE_POINTS = ("", "Save", "Save", "SaveWished", "Commit", "StepEntered", "Bounded", "Exchange", "Leave")
_FOUNDING_POINTS = ("Unfounded", "Seek", "OriginCame", "Founded", "Recall", "Recalled")
"""What strikes jobs with a vault, and where."""
_AT_LOGS = {
    "kill-all": 10,
    "kill-members": 6,
    "kill": 6,
    "kill-several": 4,
    "accuse-last": 4,
    "harm": 8,
    "late-word": 4,
    "last-wish": 3,
    "crash-coordinator": 2,
}
_LOG_POINTS = ("Log", "Written", "Bound", "Bounded", "Exchanged", "Commit", "Recalled", "Replay", "Reread", "OriginCame")
"""What strikes every-step jobs besides."""
_AT_JOINERS = {
    "kill-donor": (Grade.LOADS,),
    "lag": (Grade.LOADS, Grade.REPLAYS, Grade.AUDITS),
    "other-bits": (Grade.WAITS, Grade.LOADS, Grade.AUDITS),
}
"""What strikes joiners alone, and at which grades."""
KINDS = tuple(dict.fromkeys((*_KINDS, *_WISHES, *_MISHAPS, *_AT_LOGS)))
_BAG = tuple(kind for kind, weight in _KINDS.items() for _ in range(weight))


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    point: str
    """The event or effect at which it strikes; "" for any event."""
    nth: int
    at_self: bool
    """Strikes the very process that passes the point, not any."""


def plan(chance: Chance, most: int) -> tuple[Fault, ...]:
    return tuple(_fault(chance) for _ in range(chance.whole(0, most)))


def _fault(chance: Chance) -> Fault:
    kind = chance.one_of(_BAG)
    if kind in _AT_JOINERS:
        return Fault(kind=kind, point=chance.one_of(_AT_JOINERS[kind]).name, nth=chance.whole(1, 4), at_self=True)
    if chance.happens(0.3):
        nth = 1 + int(chance.draw() ** 2 * 12)
        return Fault(kind=kind, point=chance.one_of(_GRADE_POINTS), nth=nth, at_self=chance.happens(0.7))
    if chance.happens(0.3):
        return Fault(kind=kind, point="", nth=1 + int(chance.draw() ** 2 * 500), at_self=False)
    on_coordinator = chance.happens(0.7 if kind.startswith("crash") else 0.1)
    point = chance.one_of(_COORDINATOR_POINTS if on_coordinator else _POINTS)
    return Fault(kind=kind, point=point, nth=1 + int(chance.draw() ** 2 * 30), at_self=chance.happens(0.6))


def wishes(chance: Chance, most: int) -> tuple[Fault, ...]:
    """What the operator asks for, at any event; now and then the coordinator crashes in the middle of it."""
    asked = [
        Fault(kind=chance.one_of(_WISHES), point="", nth=40 + int(chance.draw() * 400), at_self=False)
        for _ in range(chance.whole(1, most))
    ]
    if chance.happens(0.3):
        asked.append(Fault(kind="crash-coordinator", point="WishTold", nth=chance.whole(1, 2), at_self=False))
    return tuple(asked)


def mishaps(chance: Chance, most: int) -> tuple[Fault, ...]:
    """What befalls saves, and those who are to begin again from one."""
    bag = [kind for kind, weight in _MISHAPS.items() for _ in range(weight)]
    planned = [_mishap(chance, chance.one_of(bag)) for _ in range(chance.whole(0, most))]
    if any(fault.kind == "kill-all" for fault in planned):
        planned += [_aftermath(chance) for _ in range(chance.whole(0, 2))]
    return tuple(planned)


def _mishap(chance: Chance, kind: str) -> Fault:
    point = chance.one_of(_SAVE_POINTS)
    most = 400 if point == "" else 25
    return Fault(kind=kind, point=point, nth=1 + int(chance.draw() * most), at_self=chance.happens(0.6))


def _aftermath(chance: Chance) -> Fault:
    """In the middle of the founding that follows."""
    kind = chance.one_of(("crash-coordinator", "crash-coordinator", "kill-all", "kill-vault", "crash-repeatedly", "kill"))
    point = chance.one_of(_FOUNDING_POINTS)
    return Fault(kind=kind, point=point, nth=chance.whole(1, 2), at_self=chance.happens(0.5))


def losses(chance: Chance, most: int) -> tuple[Fault, ...]:
    """What befalls those who write ahead, and those who replay it."""
    bag = [kind for kind, weight in _AT_LOGS.items() for _ in range(weight)]
    return tuple(_loss(chance, chance.one_of(bag)) for _ in range(chance.whole(0, most)))


def _loss(chance: Chance, kind: str) -> Fault:
    nth = 1 + int(chance.draw() ** 2 * 40)
    point, is_own = chance.one_of(_LOG_POINTS), chance.happens(0.7)
    if kind == "late-word":
        point, is_own = "Reduce", True
    if kind == "kill-members":
        point, nth = chance.one_of((Grade.LOADS, Grade.REPLAYS, Grade.AUDITS)).name, chance.whole(1, 2)
    return Fault(kind=kind, point=point, nth=nth, at_self=is_own)


def overflows(chance: Chance) -> tuple[Fault, ...]:
    """A joiner is slow until it has no room left; the coordinator crashes at that very moment, or soon after."""
    slow = Fault(kind="lag", point=chance.one_of((Grade.LOADS, Grade.REPLAYS)).name, nth=1, at_self=True)
    crash = Fault(kind="crash-coordinator", point="Overran", nth=1, at_self=False)
    return slow, crash


class Faults:
    """Strikes as planned."""

    def __init__(self, world: "World", planned: tuple[Fault, ...]) -> None:
        self._world = world
        self._passed: dict[str, int] = {}
        self._armed: dict[str, list[Fault]] = {}
        for fault in planned:
            self._armed.setdefault(fault.point, []).append(fault)
        self._doomed: set[Process] = set()
        """Killed once they have written ahead."""
        self.struck: list[str] = []
        self.quiet_s = 0.0
        """When the last fault is over."""

    def passed(self, point: str, process: Process | None) -> None:
        if point == "Log" and process in self._doomed:
            process.die("killed by signal 9", struck=True)
        if not self._armed:
            return
        self._pass("", process)
        self._pass(point, process)
        if process is not None and (grade := process.grade) is not None:
            self._pass(grade.name, process)

    def _pass(self, point: str, process: Process | None) -> None:
        armed = self._armed.get(point)
        if armed is None:
            return
        count = self._passed[point] = self._passed.get(point, 0) + 1
        for fault in [f for f in armed if f.nth == count]:
            armed.remove(fault)
            self._strike(fault, process if fault.at_self else None)

    def _strike(self, fault: Fault, process: Process | None) -> None:
        world, chance = self._world, self._world.chance
        living = [p for p in world.agent.processes.values() if p.alive]
        if process is None or not process.alive:
            process = chance.one_of(living) if living else None
        world.story.note(
            "FAULT", f"{fault.kind} {process.name if process else ''} (at {fault.point or 'any event'} {fault.nth})"
        )
        self.struck.append(fault.kind)
        span_s = chance.between(0.05, 4.0) if chance.happens(0.5) else chance.between(4.0, 25.0)
        self.quiet_s = max(self.quiet_s, world.timeline.now + span_s)
        match fault.kind:
            case "crash-coordinator":
                world.coordinator.crash(span_s)
            case "crash-repeatedly":
                world.coordinator.crash(span_s / 4)
                for _ in range(chance.whole(1, 4)):
                    world.timeline.after(chance.between(0.0, span_s), None, world.coordinator.crash, span_s / 4)
                self.quiet_s += span_s
            case "cut-agent":
                world.agent.cut()
            case "lose-agent":
                world.agent.perish()
            case "stop":
                world.referee.stops += 1
                world.agent.stop()
            case "scale":
                self._wish(Wish(kind="scale", replicas=chance.whole(0, 7)))
            case "save":
                self._wish(Wish(kind="save"))
            case "kill-vault":
                world.vault.kill(span_s / 4)
            case "harm":
                world.vault.spoil()
                if chance.happens(0.7):
                    world.timeline.after(chance.between(0.01, 1.0), None, self._kill_all, False)
            case "late-word" if process is not None:
                # It is given up, does not hear of it, and the others are lost: what it holds may be in their rows.
                process.hang(chance.between(1.5, 2.5))
                process.wire.block(span_s, loud=False)
                world.timeline.after(0.5, None, world.agent.accuse, process)
                world.agent.lag(process)
                world.timeline.after(chance.between(0.5, 0.6), None, self._kill_all, False)
            case "last-wish" if process is not None:
                # A wish to stop that stands in its log, and in no row; or in all rows, and nobody lives to end the job.
                world.referee.stops += 1
                process.feed(StopAsked())
                if chance.happens(0.5):
                    self._doomed.add(process)
                else:
                    nth = self._passed.get("Stopped", 0) + 1
                    everybody = Fault(kind="kill-all", point="Stopped", nth=nth, at_self=False)
                    self._armed.setdefault("Stopped", []).append(everybody)
            case "accuse-last" if process is not None:
                world.agent.accuse(process)
                world.timeline.after(chance.between(0.1, 1.0), None, self._kill_all, False)
            case "kill-members":
                self._kill_all(False)
            case "kill-all":
                self._kill_all(chance.happens(0.5))
                if chance.happens(0.4):
                    world.timeline.after(chance.between(0.1, span_s), None, self._kill_all, chance.happens(0.5))
            case "leave" | "migrate":
                replicas = sorted({member.replica for member in world.agent.processes}) or ["r0"]
                self._wish(Wish(kind=fault.kind, replica=chance.one_of(replicas)))
            case _ if process is not None:
                self._hit(fault.kind, process, living, span_s)

    def _kill_all(self, strikes_everybody: bool) -> None:
        """Or every member: those who wait for a seat live on, and so do those who were evicted."""
        self._world.sights.all_killed()
        members = self._world.referee.seated
        for process in [p for p in self._world.agent.processes.values() if p.alive]:
            if strikes_everybody or process.member in members:
                self._kill(process)

    def _wish(self, wish: Wish) -> None:
        """Heard once the coordinator has done all that it has just decided."""
        self._world.timeline.after(0.0, None, self._world.coordinator.wish, wish)

    def _hit(self, kind: str, process: Process, living: list[Process], span_s: float) -> None:
        world, chance = self._world, self._world.chance
        match kind:
            case "kill":
                self._kill(process)
            case "kill-several":
                for victim in chance.some_of(living, chance.whole(2, 4)):
                    self._kill(victim)
            case "hang":
                process.hang(span_s)
                if chance.happens(0.6):  # else it is seen by its lease alone
                    world.agent.watch(process)
            case "accuse":
                if chance.happens(0.7):
                    world.agent.accuse(process)
                else:
                    world.agent.stall()
            case "disconnect":
                process.wire.cut()
            case "cut-off":
                process.wire.block(span_s, loud=chance.happens(0.5))
            case "split":
                other = chance.one_of(living)
                if other is not process:
                    world.groups.split(process, other)
                    world.timeline.after(span_s, None, world.groups.heal, process, other)
            case "dismiss":
                process.dismiss(span_s)
                if chance.happens(0.2):
                    for other in living:  # the whole machine
                        other.dismiss(span_s)
            case "corrupt":
                process.is_faulty = True
            case "reset":
                world.groups.reset(process)
            case "cut-feed":
                world.feeds.cut()
            case "kill-donor":
                donors = world.feeds.donors(process)
                self._kill(chance.one_of(donors) if donors else process)
            case "lag":
                process.lag(span_s)
            case "other-bits":
                listening = process.attendance.listening
                is_audited = listening is not None and listening.is_audited
                process.is_odd = world.referee.may_come(process.member) and not is_audited
            case "raise":
                process.raise_error("step", chance.one_of(("train.py:1", "train.py:2", "train.py:3")))
            case "raise-for-good":
                process.raise_error(chance.one_of(("replica", "job")), "train.py:4")
            case "wish-stop":
                world.referee.stops += 1
                process.feed(StopAsked())

    def _kill(self, process: Process) -> None:
        if process.attendance.task is Task.GONE:
            self._world.referee.late_kills += 1
        process.die("killed by signal 9", struck=True)
