"""The promises, as checks over the facts of a job.

A Ledger is fed facts, process by process in their own order, processes in any order; the same object checks simulations
after every event and real journals afterwards. docs/invariants.md explains each in prose.

- one-gradient     every member that commits a step commits the same bytes, of the same attempt
- each-lane-once   the holdings of a commit list each lane exactly once, each computed by the member that held it
- versions-grow    rosters are made, received and adopted in growing order
- steps-go-on      a member's commits follow one another; nobody starts behind the job
- testimony        every roster keeps a member of the one before, or is founded from a saved state under a new term, which
                   is said; and no other saved state is begun from
- same-again       a step that is computed again after such a founding has the result that it had before
- no-step-lost     an every-step job is founded behind every step that it had committed
- own-fault        no process ends because of another's fault
- one-end          members that saw the end hold the same state, at the same step
- samples-once     a lane's samples are the same places in the stream, whoever computes it, and tile it
"""

from itertools import pairwise

import msgspec

from regrow.core.lanes import lanes_in, missing
from regrow.core.origin import LOGS, MEMORY
from regrow.core.records import (
    Committed,
    Departed,
    Fact,
    Gap,
    JobOpened,
    LaneComputed,
    OriginPassedOver,
    OriginTaken,
    RosterAdopted,
    RosterMade,
    RosterReceived,
    SnapshotLoaded,
    StateFetched,
    StateRecalled,
    WorkerRaised,
)
from regrow.core.roster import NO_VERSION, Member, Version


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A broken promise, and the facts that show it, in the order that tells the story."""

    rule: str
    what: str
    story: tuple[tuple[str, Fact], ...]


class _Life(msgspec.Struct, kw_only=True):
    """What is known of one process."""

    received: Version = NO_VERSION
    adopted: Version = NO_VERSION
    commits: dict[int, Committed] = {}
    next_step: int | None = None
    computed: dict[tuple[int, int], LaneComputed] = {}


class Ledger:
    """Collects facts; `observe` returns what a fact breaks at once, `settle` what only the whole can show."""

    def __init__(self, lanes: int | None = None, every_step: bool = False) -> None:
        self._lanes = lanes
        self._is_every_step = every_step
        self._is_harmed = False
        """The vault said so: of its memory, or of a log."""
        self._lives: dict[str, _Life] = {}
        self._rosters: dict[Version, RosterMade] = {}
        self._last_made: RosterMade | None = None
        self._commits: dict[tuple[int, int], tuple[str, Committed]] = {}
        """By step and term: a job that was founded again may come to a step a second time."""
        self._taken: list[OriginTaken] = []
        self._data_from = (0, 0)
        self._positions: dict[tuple[int, int], tuple[str, LaneComputed]] = {}
        self._lane_size: int | None = None
        self._ends: dict[int, tuple[str, Departed]] = {}
        """The first of each founding."""
        self.incomplete: set[str] = set()
        """Processes whose earliest facts were rotated away: their absence proves nothing."""

    def observe(self, who: str, fact: Fact) -> list[Violation]:
        match fact:
            case JobOpened():
                self._lanes = fact.lanes if self._lanes is None else self._lanes
                self._is_every_step |= fact.every_step
            case OriginPassedOver(where=where):
                self._is_harmed |= where in (MEMORY, LOGS)
            case RosterMade():
                return self._made(who, fact)
            case RosterReceived(version=version):
                life = self._life(who)
                if version <= life.received:
                    return [_broken("versions-grow", f"{who} took {version} after {life.received}", (who, fact))]
                life.received = version
            case RosterAdopted():
                return self._adopted(who, fact)
            case OriginTaken():
                self._taken.append(fact)
                self._data_from = fact.data_from
            case StateRecalled():
                return self._recalled(who, fact)
            case StateFetched(step=step) | SnapshotLoaded(step=step):
                self._life(who).next_step = step
            case LaneComputed():
                return self._computed(who, fact)
            case Committed():
                return self._committed(who, fact)
            case Departed(fault=None | "halt"):
                return self._departed(who, fact)
            case WorkerRaised(kind=kind) if kind.rpartition(".")[2] in ("PeerError", "Invariant"):
                return [_broken("own-fault", f"{fact.member} ended because of {kind}", (who, fact))]
            case Gap():
                self.incomplete.add(who)
                self._life(who).next_step = None
        return []

    def settle(self) -> list[Violation]:
        """Once every fact is in: does each holder of a lane show that it computed it?"""
        found: list[Violation] = []
        found += self._compared()
        found += self._given_up()
        for (step, _), (who, commit) in sorted(self._commits.items()):
            roster = self._rosters.get(commit.attempt)
            if roster is None:
                continue  # the coordinator's early facts were rotated away, or it was killed before writing this one
            found += self._counted(who, commit)
            for seat, nodes in zip(roster.seats, commit.holdings, strict=False):
                holder = str(seat.member)
                if holder in self.incomplete:
                    continue
                missing = [lane for lane in sorted(lanes_in(nodes)) if (step, lane) not in self._life(holder).computed]
                if missing:
                    what = f"step {step} counts lanes {missing} as held by {holder}, which never computed them"
                    found.append(_broken("each-lane-once", what, (who, commit)))
        return found

    def _compared(self) -> list[Violation]:
        """What was committed in several terms. Where they had other lanes, they have other states from there on."""
        found: list[Violation] = []
        is_apart = False
        ours = sorted(self._commits.items())
        for ((step, term), (who, before)), ((later_step, later), (other, after)) in pairwise(ours):
            if step != later_step:
                continue
            story = ((who, before), (other, after))
            between = [taken for taken in self._taken if term < taken.version.term <= later and taken.through <= step]
            is_apart |= _lanes_of(before) != _lanes_of(after) or any(taken.differences for taken in between)
            if not between:
                what = f"step {step} was committed in term {term} and in term {later}, and no saved state was taken between"
                found.append(_broken("one-gradient", what, *story))
            elif before.digest != after.digest and not is_apart:
                found.append(_broken("same-again", f"step {step} came out otherwise when it was computed again", *story))
        return found

    def _given_up(self) -> list[Violation]:
        """What was committed, and was no part of the state that the job went on with."""
        if not self._is_every_step or self._is_harmed:
            return []
        found: list[Violation] = []
        for (step, term), (who, commit) in sorted(self._commits.items()):
            backs = [taken for taken in self._taken if term < taken.version.term and taken.through <= step]
            if backs:
                what = f"step {step} was committed, and the job was founded again at step {backs[0].through}"
                found.append(_broken("no-step-lost", what, (who, commit), ("coordinator", backs[0])))
        return found

    def _life(self, who: str) -> _Life:
        return self._lives.setdefault(who, _Life())

    def _made(self, who: str, made: RosterMade) -> list[Violation]:
        last, self._last_made = self._last_made, made
        self._rosters[made.version] = made
        if self._lanes is None:
            self._lanes = sum(len(seat.lanes) for seat in made.seats)
        if last is None:
            return []
        if made.version <= last.version:
            what = f"roster {made.version} was made after {last.version}"
            return [_broken("versions-grow", what, (who, last), (who, made))]
        is_said = any(last.version < taken.version <= made.version for taken in self._taken)
        if made.origin is not None and (is_said or "coordinator" in self.incomplete):
            return []  # nobody is left who could, and it is said what the job goes back to
        # Whether a planned roster was entered by anybody is not known: those of its base can testify as well.
        base = self._rosters.get(last.base) if last.base is not None else None
        before = {seat.member for roster in (last, base) if roster is not None for seat in roster.seats}
        if not {seat.member for seat in made.seats} & before:
            what = f"roster {made.version} keeps nobody of {last.version}: nobody can testify what was committed"
            return [_broken("testimony", what, (who, last), (who, made))]
        return []

    def _adopted(self, who: str, fact: RosterAdopted) -> list[Violation]:
        life = self._life(who)
        if fact.version <= life.adopted:
            return [_broken("versions-grow", f"{who} adopted {fact.version} after {life.adopted}", (who, fact))]
        life.adopted = fact.version
        roster = self._rosters.get(fact.version)
        if roster is not None and fact.step < roster.floor:
            what = f"{who} goes on at step {fact.step}, but the job had reached {roster.floor}"
            return [_broken("steps-go-on", what, (who, roster), (who, fact))]
        return []

    def _recalled(self, who: str, fact: StateRecalled) -> list[Violation]:
        self._life(who).next_step = fact.step
        if "coordinator" in self.incomplete or any((t.step, t.root) == (fact.step, fact.digest) for t in self._taken):
            return []
        what = f"{who} begins from a saved state of step {fact.step}, and the job took none such"
        return [_broken("testimony", what, (who, fact))]

    def _computed(self, who: str, fact: LaneComputed) -> list[Violation]:
        self._life(who).computed[(fact.step, fact.lane)] = fact
        size = fact.stop - fact.start
        if self._lane_size is None:
            self._lane_size = size
        if self._lanes is not None:
            from_step, from_place = self._data_from
            start = from_place + ((fact.step - from_step) * self._lanes + fact.lane) * self._lane_size
            if (fact.start, size) != (start, self._lane_size):
                what = f"lane {fact.lane} of step {fact.step} used {fact.start}..{fact.stop}, not {start}.."
                return [_broken("samples-once", what, (who, fact))]
        return []

    def _committed(self, who: str, fact: Committed) -> list[Violation]:
        found: list[Violation] = []
        life = self._life(who)
        if life.next_step is None and who not in self.incomplete:
            life.next_step = 0
        if life.next_step is not None and fact.step != life.next_step:
            what = f"{who} committed step {fact.step}, its next was {life.next_step}"
            found.append(_broken("steps-go-on", what, (who, fact)))
        life.next_step = fact.step + 1
        found += self._counted(who, fact)
        other_who, other = self._commits.setdefault((fact.step, fact.attempt.term), (who, fact))
        if (other.digest, other.attempt, other.holdings) != (fact.digest, fact.attempt, fact.holdings):
            what = f"step {fact.step} was committed with different results by {other_who} and {who}"
            found.append(_broken("one-gradient", what, (other_who, other), (who, fact)))
        return found

    def _counted(self, who: str, fact: Committed) -> list[Violation]:
        nodes = [node for held in fact.holdings for node in held]
        if self._lanes is None:
            return []
        absent = missing(self._lanes, nodes)
        roster = self._rosters.get(fact.attempt)
        if absent and roster is not None:
            skipped = {cell.lane for cell in roster.skips if cell.step == fact.step}
            absent = frozenset() if roster.shrinks else absent - skipped
        # Without its roster nobody can say whether a lane was left out by decision: settle looks again.
        if absent is None or (absent and roster is not None):
            what = f"step {fact.step} counts {[str(node) for node in nodes]} for {self._lanes} lanes"
            return [_broken("each-lane-once", what, (who, fact))]
        return []

    def _departed(self, who: str, fact: Departed) -> list[Violation]:
        # What is founded from a saved state may end with another one, where lanes are left out.
        foundings = sum(taken.version <= self._life(who).adopted for taken in self._taken)
        first_who, first = self._ends.setdefault(foundings, (who, fact))
        if (first.step, first.digest) != (fact.step, fact.digest):
            what = f"{first_who} ended at step {first.step} with {first.digest}, {who} at {fact.step} with {fact.digest}"
            return [_broken("one-end", what, (first_who, first), (who, fact))]
        return []


def _lanes_of(fact: Committed) -> frozenset[int]:
    return frozenset(lanes_in(node for nodes in fact.holdings for node in nodes))


def _broken(rule: str, what: str, *story: tuple[str, Fact]) -> Violation:
    return Violation(rule=rule, what=what, story=story)


def member_of(who: str) -> Member | None:
    """The member a process name stands for; None for agents and coordinators."""
    replica, dot, incarnation = who.rpartition(".")
    return Member(replica, int(incarnation)) if dot and incarnation.isdigit() else None
