"""Groups of processes: formation, collectives, and how they break.

As sockets behave: an operation completes at each member at its own time once all have arrived. When a member's end closes
(death, abort, error) the unfinished operations of the others break at once, hang until their own abort, or, when the bytes
were already there, still complete. So some may complete what others see fail.
"""

from typing import TYPE_CHECKING

from regrow.core.boundary import Row
from regrow.core.effects import Bound, Exchange, Reduce
from regrow.core.events import Bounded, Broken, Exchanged, FormationFailed, Formed, Reduced
from regrow.core.lanes import Node
from regrow.core.resolve import Statement
from regrow.core.roster import Member, Roster, Version
from regrow.sim import mathematics
from regrow.sim.slot import Slot, State

if TYPE_CHECKING:
    from regrow.sim.process import Process
    from regrow.sim.world import World

Collective = Exchange | Reduce | Bound


class Operation:
    """One collective: who has arrived, with what."""

    def __init__(self, kind: str, step: int | None) -> None:
        self.kind = kind
        self.step = step
        self.arrived: dict[Member, tuple[Collective, dict[Node, int]]] = {}
        self.slots: dict[Member, Slot] = {}


class Group:
    """The groups of one roster."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.version = roster.version
        self.size = len(roster.seats)
        self.forming: dict[Member, Process] = {}
        self.formed: set[Member] = set()
        self.closed: set[Member] = set()
        """Members whose end is closed: nothing new is ever completed with them."""
        self.operations: list[Operation] = []
        self.position: dict[Member, int] = {}
        self.slots: dict[Member, Slot] = {}
        """What each member's training thread is waiting for in this group, transfers included."""


class Groups:
    """All groups of a job."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._chance = world.chance
        self._groups: dict[Version, Group] = {}
        self._blocked: set[frozenset[Member]] = set()

    def group(self, version: Version) -> Group:
        return self._groups[version]

    # Formation

    def form(self, process: "Process", roster: Roster) -> None:
        group = self._groups.get(roster.version)
        if group is None:
            group = self._groups[roster.version] = Group(roster)
        elif group.roster != roster:
            self._world.referee.fail("versions-grow", f"two rosters are called {roster.version}")
        group.forming[process.member] = process
        process.groups.append(group)
        if group.closed or self._is_split(group):
            self._doom(process, group)
        elif len(group.forming) == group.size:
            for other in group.forming.values():
                self._world.timeline.after(self._chance.soon_s(), other, self._form, other, group)

    def _form(self, process: "Process", group: Group) -> None:
        if process.member in group.closed or process.member in group.formed:
            return
        if (group.closed or self._is_split(group)) and not self._chance.happens(0.4):
            self._doom(process, group)
            return
        group.formed.add(process.member)
        process.feed(Formed(version=group.version))

    def _doom(self, process: "Process", group: Group) -> None:
        """A peer is gone, or cannot be reached: fails in a while, or hangs until the abort."""
        if self._is_split(group) or self._chance.happens(0.5):
            self._world.timeline.after(self._chance.between(0.05, 3.0), process, self._fail, process, group)

    def _fail(self, process: "Process", group: Group) -> None:
        # An aborted formation may still report, late: old news must do no harm.
        late = process.member in group.closed and not self._chance.happens(0.3)
        if process.member in group.formed or late:
            return
        self.close(process.member, group)
        process.feed(FormationFailed(version=group.version, why="a peer could not be reached"))

    # Collectives

    def arrive(self, process: "Process", effect: Collective) -> None:
        member, group = process.member, self._groups[effect.version]
        kind = type(effect).__name__
        match effect:
            case Reduce(step=step):
                at: int | None = step
            case Bound(row=row):
                at = row.step
            case _:
                at = None
        index = group.position.get(member, 0)
        group.position[member] = index + 1
        if index == len(group.operations):
            group.operations.append(Operation(kind, at))
        operation = group.operations[index]
        if (operation.kind, operation.step) != (kind, at):
            what = f"{member} is in {kind} of step {at}, others in {operation.kind} of step {operation.step}"
            self._world.referee.fail("same-collective", what)
        operation.arrived[member] = (effect, dict(process.partials) if kind == "Reduce" else {})
        slot = Slot(process, group.version)
        operation.slots[member] = group.slots[member] = process.slot = slot
        if member in group.closed:
            self.break_in(slot, self._chance.between(0.001, 2.0))
        elif len(operation.arrived) == group.size:
            self._ripe(group, operation)
        elif group.closed:
            self.maybe_break(slot)

    def _ripe(self, group: Group, operation: Operation) -> None:
        """All have arrived. With an end closed since, the bytes of a gather may be there; a reduce needs everyone twice."""
        for member, slot in operation.slots.items():
            if slot.state is not State.WAITING:
                continue
            if group.closed and (operation.kind == "Reduce" or not self._chance.happens(0.4)):
                self.maybe_break(slot)
                continue
            slot.state = State.DUE
            self._world.timeline.after(self._chance.soon_s(), slot.process, self._complete, group, operation, member)

    def _complete(self, group: Group, operation: Operation, member: Member) -> None:
        slot = operation.slots[member]
        if slot.state is not State.DUE:
            return
        process = slot.process
        slot.state = State.OVER
        group.slots.pop(member, None)
        effects = [operation.arrived[other][0] for other in group.roster.members]
        match operation.kind:
            case "Exchange":
                table: tuple[Statement, ...] = tuple(e.statement for e in effects if isinstance(e, Exchange))
                process.witnesses = sum(statement.holds_state for statement in table)
                process.answer(Exchanged(version=group.version, table=table))
            case "Bound":
                rows: tuple[Row, ...] = tuple(e.row for e in effects if isinstance(e, Bound))
                process.answer(Bounded(version=group.version, rows=rows))
            case _:
                gradient = process.suffer(self._reduce(group, operation))
                process.keep_result(operation.step or 0, group.version, gradient)
                process.answer(Reduced(version=group.version, digest=mathematics.digest(gradient)))

    def _reduce(self, group: Group, operation: Operation) -> int:
        plans = {e.holdings for e, _ in operation.arrived.values() if isinstance(e, Reduce)}
        if len(plans) != 1:
            self._world.referee.fail("one-plan", f"the members of {group.version} reduce by {len(plans)} different plans")
        parts = []
        for member, nodes in zip(group.roster.members, plans.pop(), strict=True):
            partials = operation.arrived[member][1]
            for node in nodes:
                if node not in partials:
                    what = f"{member} should hold {node} of step {operation.step}, it holds {[str(n) for n in partials]}"
                    self._world.referee.fail("held", what)
                parts.append((node, partials[node]))
        return mathematics.reduced(self._world.plan.lanes, parts)

    # Breaking

    def abort(self, process: "Process", below: Version) -> None:
        for group in [g for g in process.groups if g.version < below]:
            process.groups.remove(group)
            slot = group.slots.get(process.member)
            self.close(process.member, group)
            # A completion and an abort may cross: now and then the completion wins.
            if slot is not None and not (slot.state is State.DUE and self._chance.happens(0.2)):
                self.break_in(slot, self._chance.soon_s())

    def leave(self, process: "Process") -> None:
        """The process is gone: all its ends close."""
        for group in process.groups:
            self.close(process.member, group)

    def close(self, member: Member, group: Group) -> None:
        if member in group.closed:
            return
        group.closed.add(member)
        for other, process in list(group.forming.items()):
            if other in group.closed:
                continue
            if other not in group.formed:
                self._doom(process, group)
            slot = group.slots.get(other)
            if slot is not None:
                slot.peer_closed(member, self)

    def maybe_break(self, slot: Slot) -> None:
        if slot.state is State.DUE and self._chance.happens(0.4):
            return
        if self._chance.happens(0.6):
            self.break_in(slot, self._chance.soon_s())
        elif slot.state is State.DUE:
            slot.state = State.HANGING

    def break_in(self, slot: Slot, delay_s: float) -> None:
        if slot.state in (State.BREAKING, State.OVER):
            return
        slot.state = State.BREAKING
        self._world.timeline.after(delay_s, slot.process, self._broke, slot)

    def _broke(self, slot: Slot) -> None:
        process = slot.process
        slot.state = State.OVER
        group = self._groups[slot.version]
        group.slots.pop(process.member, None)
        self.close(process.member, group)
        process.answer(Broken(version=slot.version, why="a peer went away"))

    # Faults of the network between members

    def reset(self, process: "Process") -> None:
        """The process's connections to its peers are reset, though everyone lives."""
        for group in process.groups[-1:]:
            self.close(process.member, group)
            self._time_out(process)
            if process.member not in group.formed:
                self._world.timeline.after(self._chance.soon_s(), process, self._lose, process, group)

    def _lose(self, process: "Process", group: Group) -> None:
        """Its formation fails for good, unless a newer roster has come."""
        if group in process.groups:
            process.feed(FormationFailed(version=group.version, why="connections were reset"))

    def split(self, one: "Process", other: "Process") -> None:
        """These two cannot reach each other from now on."""
        self._blocked.add(frozenset((one.member, other.member)))
        for group in one.groups:
            if group.roster.seat(other.member) is not None:
                for process in (one, other):
                    self.close(process.member, group)
                    self._time_out(process)
                    if group in process.groups and process.member not in group.formed:
                        self._world.timeline.after(self._chance.between(0.05, 5.0), process, self._lose, process, group)

    def heal(self, one: "Process", other: "Process") -> None:
        self._blocked.discard(frozenset((one.member, other.member)))

    def are_split(self, one: Member, other: Member) -> bool:
        return frozenset((one, other)) in self._blocked

    def _time_out(self, process: "Process") -> None:
        if process.slot is not None and process.groups and process.member in self._groups[process.slot.version].closed:
            self.break_in(process.slot, self._chance.between(0.05, 5.0))

    def _is_split(self, group: Group) -> bool:
        if not self._blocked:
            return False
        members = set(group.roster.members)
        return any(pair <= members for pair in self._blocked)
