"""The checks: the ledger's promises after every fact, and what only the simulator can see.

- reference    every state and every committed gradient is that of the undisturbed run
- one-task     at most one thing is asked of a training thread, and each is answered once
- outcome      the job ends as it may: state-lost only when no living member holds the state, failed only for a cause
- liveness     once the faults stop, the job comes to an end
"""

from typing import TYPE_CHECKING, NoReturn

from regrow.core.effects import Commit
from regrow.core.invariants import Ledger
from regrow.core.membership_effects import End
from regrow.core.records import Fact, RosterMade, SeatTaken
from regrow.core.roster import NO_VERSION, Member, Roster, Version

if TYPE_CHECKING:
    from regrow.sim.process import Process
    from regrow.sim.world import World


class Foul(Exception):
    """A check failed: which, and what was seen."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class Undetectable(Exception):
    """A lone member committed a result that its own memory had corrupted: nobody was left to compare with."""


class Referee:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._ledger = Ledger(world.plan.lanes)
        self._rosters: dict[Version, Roster] = {}
        self._left_out: set[Member] = set()
        """Members some roster went on without."""
        self.raised = 0
        self.lost = 0
        self.stops = 0
        self.corruptions = 0
        self.late_kills = 0

    @property
    def rosters(self) -> int:
        return len(self._rosters)

    def fail(self, rule: str, what: str) -> NoReturn:
        raise Foul(rule, what)

    def fact(self, who: str, fact: Fact) -> None:
        for violation in self._ledger.observe(who, fact):
            raise Foul(violation.rule, violation.what)

    def made(self, roster: Roster, why: str) -> None:
        """Once per version: rosters count from the moment they are durable, or pushed, whichever comes first."""
        known = self._rosters.get(roster.version)
        if known is not None:
            if known != roster:
                self.fail("versions-grow", f"two rosters are called {roster.version}")
            return
        last = max(self._rosters, default=None)
        if last is not None:
            for member in self._rosters[last].members:
                # Accused wrongly while its word of having left was on its way: nobody will know that it has.
                was_accused = roster.cause == f"hung-{member}"
                if roster.seat(member) is None and (was_accused or not self._has_parted(member)):
                    self._left_out.add(member)
            for member in roster.members:
                # Whoever never saw a roster holds nothing and is a joiner like any other.
                if member in self._left_out and self._world.agent.processes[member].attendance.seen != NO_VERSION:
                    self.fail("one-life", f"{member} was left out, and is seated again in {roster.version}")
            self._left_out -= set(roster.members)
        self._rosters[roster.version] = roster
        seats = tuple(SeatTaken(member=s.member, founder=s.founder, lanes=s.lanes) for s in roster.seats)
        fact = RosterMade(version=roster.version, cause=roster.cause, why=why, floor=roster.floor, seats=seats)
        self.fact("coordinator", fact)

    def _has_parted(self, member: Member) -> bool:
        process = self._world.agent.processes[member]
        return process.parted is not None and process.parted.startswith("well")

    def committed(self, process: "Process", commit: Commit, is_alone: bool) -> None:
        if commit.digest != self._world.reference.digests[commit.step] and is_alone and self.corruptions:
            raise Undetectable
        if commit.digest != self._world.reference.digests[commit.step]:
            self.fail(
                "reference", f"{process.name} commits another gradient for step {commit.step} than the undisturbed run"
            )

    def state(self, process: "Process", step: int) -> None:
        if process.state != self._world.reference.states[step]:
            self.fail("reference", f"{process.name} has another state at step {step} than the undisturbed run")

    def ended(self, end: End) -> None:
        world = self._world
        processes = list(world.agent.processes.values())
        parted = [p for p in processes if p.parted is not None and p.parted.startswith("well")]
        holders = [p for p in processes if p.alive and p.attendance.holds_state and p.parted is None]
        holders = [p for p in holders if p.member not in self._left_out]
        match end.outcome:
            case "finished" | "stopped":
                if holders:
                    self.fail(
                        "outcome", f"{end.outcome}, but {holders[0].name} is still at step {holders[0].attendance.step}"
                    )
                if not parted:
                    self.fail("outcome", f"{end.outcome}, but nobody saw the end")
                stopped_early = any(p.attendance.step < world.plan.steps for p in parted)
                if stopped_early and not self.stops:
                    self.fail("outcome", "stopped early, but nobody asked for it")
            case "state-lost":
                # Whoever was left out of a durable roster may reach the end unheard: its copy does not count.
                kept = [p for p in parted if (p.alive or p.exited_clean) and p.member not in self._left_out]
                if holders or kept:
                    saved = (holders or kept)[0]
                    self.fail("outcome", f"state-lost ({end.why}), but {saved.name} holds step {saved.attendance.step}")
            case "failed":
                if not (self.raised or self.lost or self.late_kills):
                    self.fail("outcome", f"failed ({end.why}), but no cause was injected")
            case _:
                self.fail("outcome", f"unknown outcome {end.outcome}")
        for violation in self._ledger.settle():
            raise Foul(violation.rule, violation.what)

    def stuck(self, waited_s: float) -> NoReturn:
        world = self._world
        lines = [f"no end {waited_s:.0f} s after the last fault; coordinator {'up' if world.coordinator.up else 'down'}"]
        for p in world.agent.processes.values():
            if p.alive:
                a = p.attendance
                lines.append(f"{p.name}: step {a.step}, {a.task.value}, asked {p.task}, seen {a.seen}, parted {p.parted}")
        self.fail("liveness", "; ".join(lines))
