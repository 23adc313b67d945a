"""The checks: the ledger's promises after every fact, and what only the simulator can see.

- reference    every state and every committed gradient is that of the undisturbed run
- poison       a lane is called poison only of replicas that died in it; nobody computes a suspect as the last holder
- one-task     at most one thing is asked of a training thread, and each is answered once
- budget       no replica is restarted more often than it may be, whatever becomes of the coordinator
- outcome      the job ends as it may: state-lost only when no living member holds the state, failed only for a cause
- liveness     once the faults stop, the job comes to an end
- joins        whoever is ready for an empty place has it before long: within so many steps, while nothing goes wrong
- wishes       what was granted holds before long, or something has overtaken it; nobody comes back who has left; nobody
               computes in a job that waits
"""

from typing import TYPE_CHECKING, NoReturn

from regrow.core.effects import Commit, Compute
from regrow.core.invariants import Ledger
from regrow.core.lanes import Cell, missing
from regrow.core.membership_effects import End, Poisoned, WishTold
from regrow.core.records import Fact, RosterMade, SeatTaken
from regrow.core.roster import NO_VERSION, Member, Roster, Version
from regrow.core.staff import Staff

_GRANTED_S = 60.0
"""Once the faults stop, a wish holds within this."""
_GRANTED_STEPS = 3
"""And within the commits of so many steps, however slow they are: boundaries seat the successor and let the leaver go."""
_JOIN_STEPS = 25
"""So does a join, counted in the steps that the others commit."""

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
        self._ledger = Ledger(world.plan.lanes, every_step=world.plan.logs)
        self._rosters: dict[Version, Roster] = {}
        self._left_out: set[Member] = set()
        """Members some roster went on without."""
        self._restarts: dict[str, list[float]] = {}
        self._died_in: dict[Cell, dict[Member, bool]] = {}
        """Whether it was struck by chance."""
        self._poisoned: set[Cell] = set()
        self._wishes: dict[int, tuple[float, int, WishTold]] = {}
        """Granted and not held yet; since when, and since which step."""
        self.last_wish = 0
        """Of those that were granted, whether or not that could be said."""
        self._comes: dict[Member, int] = {}
        """Who waits for an empty place, and since which step."""
        self._idle: dict[Member, int] = {}
        """Who listens though no place is empty, and since which step."""
        self._top = -1
        self.raised = 0
        self.lost = 0
        self.stops = 0
        self.corruptions = 0
        self.late_kills = 0
        self.is_agent_lost = False
        self.is_stop_durable = False

    @property
    def top(self) -> int:
        """The newest step that anybody has committed, since the job was founded last; -1: none."""
        return self._top

    @property
    def is_poisoned(self) -> bool:
        return bool(self._poisoned)

    def roster(self, version: Version) -> Roster:
        """As it was made, whatever its members make of it."""
        return self._rosters[version]

    @property
    def rosters(self) -> int:
        return len(self._rosters)

    @property
    def planned(self) -> int:
        return sum(roster.base is not None for roster in self._rosters.values())

    def may_come(self, member: Member) -> bool:
        """Has the job begun, and no roster ever had a seat for it?"""
        return bool(self._rosters) and all(roster.seat(member) is None for roster in self._rosters.values())

    @property
    def is_entering(self) -> bool:
        """Is the newest roster a planned one that not all its members act under?"""
        roster = self._rosters[max(self._rosters)] if self._rosters else None
        if roster is None or roster.base is None:
            return False
        acting = [self._world.agent.processes[member].attendance.acting for member in roster.members]
        return any(a is None or a.version < roster.version for a in acting)

    @property
    def seated(self) -> tuple[Member, ...]:
        """Everybody whose word may count by now."""
        return self._seated(self._rosters[max(self._rosters)]) if self._rosters else ()

    @property
    def is_recalling(self) -> bool:
        """Was the job founded from a saved state that not all its founders have recalled?"""
        roster = self._rosters[max(self._rosters)] if self._rosters else None
        processes = self._world.agent.processes
        founders = [processes[seat.member] for seat in roster.seats if seat.founder] if roster is not None else []
        is_open = roster is not None and roster.origin is not None
        return is_open and any(p.alive and not p.attendance.holds_state for p in founders)

    def fail(self, rule: str, what: str) -> NoReturn:
        raise Foul(rule, what)

    def fact(self, who: str, fact: Fact) -> None:
        """As it would stand in a journal."""
        self._world.journal(self._world.timeline.now, who, fact)
        for violation in self._ledger.observe(who, fact):
            raise Foul(violation.rule, violation.what)

    def started(self, member: Member) -> None:
        """A coordinator that crashes may put a start off after it was counted: so half a window is looked at."""
        if member.incarnation == 0:
            return
        now, budget = self._world.timeline.now, self._world.budget
        recent = [at for at in self._restarts.get(member.replica, []) if now - at < budget.window_s / 2]
        self._restarts[member.replica] = [*recent, now]
        if len(recent) >= budget.max_restarts:
            self.fail("budget", f"{member} starts, the limit of {budget.max_restarts} restarts was reached before")

    def made(self, roster: Roster, why: str, staff: Staff | None) -> None:
        """Once per version: rosters count from the moment they are durable, or pushed, whichever comes first."""
        known = self._rosters.get(roster.version)
        if known is not None:
            if known != roster:
                self.fail("versions-grow", f"two rosters are called {roster.version}")
            return
        last = max(self._rosters, default=None)
        if last is not None:
            before = self._seated(self._rosters[last])
            cause = roster.cause.removeprefix("died-")
            # A roster that waits goes on once it is known that nobody else will come; a founding, once all are proven dead.
            is_awaited = self._rosters[last].waits or (roster.origin is not None and roster.version.term > last.term)
            if cause != roster.cause and cause not in map(str, before) and not is_awaited:
                self.fail("unnoticed", f"{cause} had no seat, yet its death led to roster {roster.version}")
            for member in before:
                if roster.base is not None:
                    break  # whoever leaves as planned may still be needed, until all have entered it
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
        if staff is not None:
            self._watch_places(roster, staff)
        seats = tuple(
            SeatTaken(member=s.member, founder=s.founder, lanes=s.lanes, spectates=s.spectates) for s in roster.seats
        )
        fact = RosterMade(
            version=roster.version,
            cause=roster.cause,
            why=why,
            floor=roster.floor,
            seats=seats,
            skips=roster.skips,
            suspects=roster.suspects,
            halt=roster.halt,
            shrinks=roster.shrinks,
            base=roster.base,
            waits=roster.waits,
            origin=None if roster.origin is None else roster.origin.step,
            places=staff.places if staff is not None else (),
            target=staff.target if staff is not None else 0,
        )
        self.fact("coordinator", fact)

    def _watch_places(self, roster: Roster, staff: Staff) -> None:
        """Nobody looks on while a place is empty."""
        if roster.base is not None:
            return
        processes, idle = self._world.agent.processes, set(staff.stays) - set(staff.moving)
        idle -= {seat.member.replica for seat in roster.seats if not seat.spectates}
        idle &= {member.replica for member in roster.members if not processes[member].is_dismissed}
        working = sum(not seat.spectates for seat in roster.seats)
        if idle and working < staff.target:
            self.fail("wishes", f"{sorted(idle)} look on in {roster.version}, though {working} of {staff.target} work")

    def _seated(self, roster: Roster) -> tuple[Member, ...]:
        base = self._rosters.get(roster.base) if roster.base is not None else None
        return tuple(sorted({*roster.members, *(base.members if base is not None else ())}))

    def died(self, member: Member, cell: Cell, struck: bool) -> None:
        died = self._died_in.setdefault(cell, {})
        died[member] = died.get(member, True) and struck

    def poisoned(self, poisoned: Poisoned) -> None:
        cell, replicas = poisoned.poison.cell, poisoned.poison.replicas
        self._poisoned.add(cell)
        died = self._died_in.get(cell, {})
        if len(replicas) < 2 or not set(replicas) <= {member.replica for member in died}:
            self.fail("poison", f"{cell} is called poison of {replicas}, but {list(died)} died in it")
        if len(died) == 2 and any(died.values()):
            self.fail("poison", f"{cell} is called poison of two deaths, one of them by chance")

    def wished(self, told: WishTold) -> None:
        world = self._world
        if told.wish.kind == "save":
            return  # nobody remembers it: whoever asked looks for the save
        if told.state == "granted":
            self._wishes[told.wish.number] = world.timeline.now, self._top, told
        else:
            if told.state == "overtaken" and told.wish.number == self.last_wish and not self.lost:
                self.fail("wishes", f"{told.wish} is called overtaken, but nothing was wished since and nobody was lost")
            self._wishes.pop(told.wish.number, None)

    def computes(self, process: "Process", work: Compute) -> None:
        """The last who holds the state must not compute a lane that somebody is known to have died in."""
        if work.is_audit:
            return
        cell = Cell(work.step, work.lane)
        acting = process.attendance.acting
        assert acting is not None, "nobody computes before a roster was adopted"
        roster = self._rosters[acting.version]
        if roster.waits:
            self.fail("wishes", f"{process.name} computes {cell}, but its job waits: {roster.waits}")
        if len(roster.seats) == 1 and cell.lane in roster.suspected(cell.step):
            self.fail("aside", f"{process.name} computes {cell}, in which others died, and is the last to hold the state")

    def _has_parted(self, member: Member) -> bool:
        process = self._world.agent.processes[member]
        return process.parted is not None and process.parted.startswith("well")

    def _has_handed_over(self, process: "Process") -> bool:
        """It cannot say whether the others went on without it, and none of them is left, or all were left out."""
        handed, processes = process.attendance.handed, self._world.agent.processes
        return bool(handed) and not any(processes[member].alive and member not in self._left_out for member in handed)

    def committed(self, process: "Process", commit: Commit, is_alone: bool) -> None:
        plan = self._world.plan
        left_out = missing(plan.lanes, [node for nodes in commit.holdings for node in nodes])
        if left_out and not plan.shrinks and not {Cell(commit.step, lane) for lane in left_out} <= self._poisoned:
            self.fail("reference", f"{process.name} commits step {commit.step} without lanes {sorted(left_out)}")
        expected = process.line.digest(commit.step, left_out or frozenset())
        if commit.digest != expected and is_alone and self.corruptions:
            raise Undetectable
        if commit.digest != expected:
            self.fail(
                "reference", f"{process.name} commits another gradient for step {commit.step} than the undisturbed run"
            )

        self._world.custody.passed(process, commit)
        if commit.step > self._top:
            self._top = commit.step
            self._watch_joins(commit.step)
            self._world.custody.committed(commit.step)

    def founded(self, step: int) -> None:
        """The job goes on from the state of this step, whatever was committed."""
        self._top, self._comes = step - 1, {}

    def _watch_joins(self, step: int) -> None:
        world, roster = self._world, self._rosters[max(self._rosters)]
        staff = world.coordinator.staff
        is_full = staff is None or sum(not seat.spectates for seat in roster.seats) >= staff.target
        self._watch_listeners(step, roster, is_needed=not is_full or bool(staff and staff.moving))
        if staff is None or is_full or self.stops or world.timeline.now < world.faults.quiet_s:
            self._comes = {}
            return
        free = [p for p in world.agent.processes.values() if p.alive and roster.seat(p.member) is None]
        ready = [p.member for p in free if p.wire.connection is not None and p.parted is None and not p.is_dismissed]
        self._comes = {m: self._comes.get(m, step) for m in ready if m.replica in staff.stays and m not in self._left_out}
        for member, since in self._comes.items():
            if step - since > _JOIN_STEPS:
                self.fail("joins", f"{member} waits for an empty place since step {since}, and step {step} is committed")

    def _watch_listeners(self, step: int, roster: Roster, is_needed: bool) -> None:
        """Members feed whoever listens: nobody does so for ever without being needed."""
        world = self._world
        if is_needed or world.plan.shadow or self.stops or world.timeline.now < world.faults.quiet_s:
            self._idle = {}
            return
        free = [p for p in world.agent.processes.values() if p.alive and roster.seat(p.member) is None]
        self._idle = {p.member: self._idle.get(p.member, step) for p in free if p.attendance.listens and p.parted is None}
        for member, since in self._idle.items():
            if step - since > _JOIN_STEPS:
                self.fail("joins", f"{member} listens since step {since}, and nobody needs it at step {step}")

    def state(self, process: "Process", step: int) -> None:
        states = process.line.states
        if step >= len(states) or process.state != states[step]:
            self.fail("reference", f"{process.name} has another state at step {step} than the undisturbed run")

    def ended(self, end: End) -> None:
        world = self._world
        for since_s, since_step, told in self._wishes.values():
            waited_s = world.timeline.now - max(since_s, world.faults.quiet_s)
            if waited_s > _GRANTED_S and self._top - since_step >= _GRANTED_STEPS:
                self.fail("wishes", f"{told.wish} was granted {waited_s:.0f} s ago, and does not hold")
        processes = list(world.agent.processes.values())
        parted = [p for p in processes if p.parted is not None and p.parted.startswith("well")]
        holders = [p for p in processes if p.alive and p.attendance.holds_state and p.parted is None]
        holders = [p for p in holders if p.member not in self._left_out and not self._has_handed_over(p)]
        world.losses.ended(end)
        match end.outcome:
            case "finished" | "stopped":
                if holders:
                    self.fail(
                        "outcome", f"{end.outcome}, but {holders[0].name} is still at step {holders[0].attendance.step}"
                    )
                if not parted:
                    self.fail("outcome", f"{end.outcome}, but nobody saw the end")
                if late := [p.name for p in parted if p.was_struck and p.member in self.seated]:
                    self.fail("outcome", f"{end.outcome}, but {late[0]} was killed after its last step")
                stopped_early = any(p.attendance.step < world.plan.steps for p in parted)
                if end.outcome == "finished" and self.is_stop_durable:
                    self.fail("outcome", "finished, but the operator's stop was heard and made durable")
                if stopped_early and not self.stops:
                    self.fail("outcome", "stopped early, but nobody asked for it")
            case "state-lost":
                # Whoever was left out of a durable roster may reach the end unheard: its copy does not count.
                kept = [p for p in parted if (p.alive or p.exited_clean) and p.member not in self._left_out]
                # Nobody is left who could tell the coordinator that the end was reached.
                if holders or (kept and not self.is_agent_lost):
                    saved = (holders or kept)[0]
                    self.fail("outcome", f"state-lost ({end.why}), but {saved.name} holds step {saved.attendance.step}")
            case "failed":
                is_explained = self._world.custody.is_refused or world.losses.is_given_up
                if not (self.raised or self.lost or self.late_kills or self.is_agent_lost or self._poisoned or is_explained):
                    self.fail("outcome", f"failed ({end.why}), but no cause was injected")
            case _:
                self.fail("outcome", f"unknown outcome {end.outcome}")
        world.custody.ended(end)
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
