"""What a simulated job has been through: counted, never judged. What a campaign has not seen, it has not tested."""

from collections import Counter
from typing import TYPE_CHECKING

from regrow.core.attendance import Task
from regrow.core.membership_effects import Unfounded, WishTold
from regrow.core.roster import Member
from regrow.sim.grades import GRADES, Grade

if TYPE_CHECKING:
    from regrow.sim.process import Process
    from regrow.sim.world import World

SIGHTS = (
    "a join finished",
    "a joiner was healed",
    *(f"a joiner was lost: {grade}" for grade in GRADES if grade is not Grade.LEAVES),
    "a leaver was lost",
    "two joiners listened at once",
    "a donor was lost during a load",
    "the coordinator crashed while a joiner that had lost a donor listened",
    "a queue overflowed",
    "a listener took too little",
    "a listener went on without a peer",
    "a joiner with other bits was refused",
    "the coordinator crashed while a joiner listened",
    "the coordinator crashed before all had entered a planned roster",
    "the coordinator crashed while somebody was told to end",
    "the coordinator crashed when a queue had overflowed",
    "a spectator was lost",
    "a save became whole",
    "a save was void",
    "somebody was left alone with the state",
    "a last save was completed by others",
    "the vault was killed with a save under way",
    "everybody was lost",
    "everybody was lost before the job was founded again",
    "everybody was lost before all founders had entered",
    "the coordinator crashed while an origin was sought",
    "the coordinator crashed before all founders had entered",
    "a job was founded from a saved state",
    "a job was founded so again",
    "a job without progress was given up",
    "a halted job saved its state",
    "parts were written for the absent",
    "a job was founded with records to replay",
    "a job was founded so from its own beginning",
    "a founder has records to replay",
    "a founder was lost while it replayed",
    "a founder was spent",
    "memory was harmed in an every-step job",
    "a log spoke of steps behind one that was harmed",
    "a job was resumed by another run",
    "other mathematics were refused",
    "other mathematics were taken by the operator's word",
    *(
        f"{kind}: {fate}"
        for kind in ("scale", "leave", "migrate")
        for fate in ("fulfilled", "failure", "the coordinator crashed", "fulfilled after it")
    ),
)
"""All there is to be seen."""


class Sights:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.counts: Counter[str] = Counter()
        self._wishes: dict[int, WishTold] = {}
        """Granted, and nothing has become of them yet."""
        self._disturbed: set[tuple[int, str]] = set()
        """Wishes, and by what."""
        self._bereaved: set[Member] = set()
        """Joiners that lost a donor while they loaded."""
        self.is_founding = False
        """Everybody is lost, and no origin was taken yet."""

    def see(self, sight: str) -> None:
        assert sight in SIGHTS, f"{sight!r} is not in the list: nobody would miss it"
        self.counts[sight] += 1

    def lost(self, process: "Process") -> None:
        """It is dead, and was not done."""
        grade = process.grade
        if grade is Grade.LEAVES:
            self.see("a leaver was lost")
        elif grade is not None:
            self.see(f"a joiner was lost: {grade}")
        if process.attendance.is_replaying:
            self.see("a founder was lost while it replayed")
        if joiners := self._world.feeds.joiners(process):
            self.see("a donor was lost during a load")
            self._bereaved |= joiners
        acting = process.attendance.acting
        seat = acting.seat(process.member) if acting is not None else None
        if seat is not None and seat.spectates:
            self.see("a spectator was lost")
        self._disturb("failure")

    def crashed(self) -> None:
        """The coordinator."""
        living = [process for process in self._world.agent.processes.values() if process.alive]
        if any(process.attendance.listening for process in living):
            self.see("the coordinator crashed while a joiner listened")
        if any(process.attendance.listening and process.member in self._bereaved for process in living):
            self.see("the coordinator crashed while a joiner that had lost a donor listened")
        if any(process.is_dismissed and process.attendance.task is not Task.GONE for process in living):
            self.see("the coordinator crashed while somebody was told to end")
        if any(process.attendance.has_overflowed for process in living):
            self.see("the coordinator crashed when a queue had overflowed")
        if self._world.referee.is_entering:
            self.see("the coordinator crashed before all had entered a planned roster")
        if self._world.coordinator.sought is not None:
            self.see("the coordinator crashed while an origin was sought")
        if self._world.referee.is_recalling:
            self.see("the coordinator crashed before all founders had entered")
        self._disturb("the coordinator crashed")

    def unfounded(self, unfounded: Unfounded) -> None:
        self.see("everybody was lost")
        self.is_founding = True

    def founded(self, foundings: int, differences: tuple[str, ...]) -> None:
        self.is_founding = False
        self.see("a job was founded from a saved state")
        if foundings > 1:
            self.see("a job was founded so again")
        if differences:
            self.see("other mathematics were taken by the operator's word")

    def all_killed(self) -> None:
        """At once."""
        if self.is_founding:
            self.see("everybody was lost before the job was founded again")
        if self._world.referee.is_recalling:
            self.see("everybody was lost before all founders had entered")

    def wished(self, told: WishTold) -> None:
        number, kind = told.wish.number, told.wish.kind
        if kind == "save":
            return
        if told.state == "granted":
            self._wishes[number] = told
        elif told.state == "fulfilled" and self._wishes.pop(number, None) is not None:
            self.see(f"{kind}: fulfilled")
            if any(number == each for each, _ in self._disturbed):
                self.see(f"{kind}: fulfilled after it")
        else:
            self._wishes.pop(number, None)

    def _disturb(self, how: str) -> None:
        for number, told in self._wishes.items():
            if (number, how) not in self._disturbed:
                self._disturbed.add((number, how))
                self.see(f"{told.wish.kind}: {how}")
