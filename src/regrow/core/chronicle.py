"""The facts of a whole job, found by what they are about: a member, a roster, a cause.

Journals are merged by roster, step and cause, never by clock. Any of them may be missing, begin late (rotated), end in the
middle (killed, or still being written) or have gaps: what is not there is answered with None or an empty list.
"""

from collections.abc import Iterable, Mapping, Set

import msgspec

from regrow.core.records import (
    Committed,
    DataWorkerReplaced,
    Departed,
    GroupsBroke,
    JobEnded,
    JobOpened,
    LaneComputed,
    LanePoisoned,
    Line,
    OriginTaken,
    RecordsReplayed,
    ReplicaLost,
    RestartPlanned,
    RosterAdopted,
    RosterMade,
    SnapshotLoaded,
    StateFetched,
    StateRecalled,
    WorkerExited,
    WorkerHung,
    WorkerRaised,
    WorkerStarted,
)
from regrow.core.roster import NO_VERSION, Member, Version
from regrow.core.save_story import Saves


class Life(msgspec.Struct, kw_only=True):
    """What one member's own journal says."""

    adopted: dict[Version, Line] = {}
    entered: dict[Version, Line] = {}
    """Adopted with the state in hand; for a joiner, once it was healed."""
    fetched: dict[Version, StateFetched] = {}
    donors: tuple[Member, ...] = ()
    """Who gave it the state that it has."""
    computed: list[tuple[Version, int, int]] = []
    """Under which roster, of which step, which lane."""
    progress_ns: list[int] = []
    """When a lane was computed or a step committed."""
    broke: set[Version] = set()
    step: int | None = None
    """The step it was at last."""
    committed: int = 0
    departed: Departed | None = None


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A roster, and what was known when it was made."""

    line: Line
    roster: RosterMade
    lost: frozenset[str]
    """Replicas that had been given up."""

    @property
    def members(self) -> frozenset[Member]:
        return frozenset(seat.member for seat in self.roster.seats)


class Chronicle:
    def __init__(self, journals: Mapping[str, Iterable[Line]], incomplete: Set[str] = frozenset()) -> None:
        self.incomplete = frozenset(incomplete)
        self.lives: dict[str, Life] = {}
        self.rosters: list[Made] = []
        self.opened: JobOpened | None = None
        self.ended: Line | None = None
        self.end: JobEnded | None = None
        self.started: dict[Member, Line] = {}
        self.exited: dict[Member, tuple[Line, WorkerExited]] = {}
        self.raised: dict[Member, tuple[Line, WorkerRaised]] = {}
        self.hung: dict[Member, tuple[Line, WorkerHung]] = {}
        self.poisoned: list[LanePoisoned] = []
        self.data_workers: list[tuple[Line, DataWorkerReplaced]] = []
        self.blaming: list[tuple[Line, SnapshotLoaded]] = []
        """Loads in which a donor was found wrong."""
        self.planned: dict[Member, RestartPlanned] = {}
        self.lost: dict[str, tuple[Line, ReplicaLost]] = {}
        self.taken: dict[Version, tuple[Line, OriginTaken]] = {}
        """Of the rosters by which the job was founded from a saved state."""
        self.recalled: dict[Version, list[StateRecalled]] = {}
        self.replayed: dict[Version, list[RecordsReplayed]] = {}
        self.saves = Saves()
        self.first: Line | None = None
        self.last: Line | None = None
        for who, lines in journals.items():
            life, acting = self.lives.setdefault(who, Life()), NO_VERSION
            for line in lines:
                self.first = line if self.first is None or line.ns < self.first.ns else self.first
                self.last = line if self.last is None or line.ns > self.last.ns else self.last
                acting = self._of_member(life, acting, line)
                self._of_job(line)
                self.saves.hear(line)
        self._founders = {seat.member for made in self.rosters for seat in made.roster.seats if seat.founder}
        for who, life in self.lives.items():
            for version, line in life.adopted.items():
                if version not in life.entered and self._holds_state(who, version):
                    life.entered[version] = line

    def _of_member(self, life: Life, acting: Version, line: Line) -> Version:
        match line.what:
            case RosterAdopted(version=version, step=step):
                life.adopted[version] = line
                life.step = step
                return version
            case StateFetched(version=version, step=step):
                life.fetched[version] = line.what
                life.donors = (line.what.donor,)
                life.entered[version] = line
                life.step = step
            case SnapshotLoaded(step=step, donors=donors):
                life.step, life.donors = step, donors
            case LaneComputed(step=step, lane=lane):
                life.computed.append((acting, step, lane))
                life.progress_ns.append(line.ns)
                life.step = step
            case Committed(step=step):
                life.progress_ns.append(line.ns)
                life.step = step + 1
                life.committed += 1
            case GroupsBroke(version=version):
                life.broke.add(version)
            case Departed(step=step):
                life.departed = line.what
                life.step = step
        return acting

    def _of_job(self, line: Line) -> None:
        match line.what:
            case JobOpened():
                self.opened = line.what
            case RosterMade():
                self.rosters.append(Made(line=line, roster=line.what, lost=frozenset(self.lost)))
            case WorkerStarted(member=member):
                self.started[member] = line
            case WorkerExited(member=member):
                self.exited[member] = (line, line.what)
            case WorkerRaised(member=member):
                self.raised.setdefault(member, (line, line.what))
            case WorkerHung(member=member):
                self.hung.setdefault(member, (line, line.what))
            case LanePoisoned() if line.what not in self.poisoned:
                self.poisoned.append(line.what)
            case DataWorkerReplaced():
                self.data_workers.append((line, line.what))
            case SnapshotLoaded() if line.what.blamed:
                self.blaming.append((line, line.what))
            case RestartPlanned(member=member):
                self.planned[member] = line.what
            case ReplicaLost(replica=replica):
                self.lost.setdefault(replica, (line, line.what))
            case OriginTaken(version=version):
                self.taken[version] = (line, line.what)
            case StateRecalled(version=version):
                self.recalled.setdefault(version, []).append(line.what)
            case RecordsReplayed(version=version):
                self.replayed.setdefault(version, []).append(line.what)
            case JobEnded():
                self.ended, self.end = line, line.what

    def _holds_state(self, who: str, version: Version) -> bool:
        """When it adopted this roster: as a founder, healed before, or come in by a planned one."""
        if any(str(member) == who for member in self._founders) or who in self.incomplete:
            return True
        life, planned = self.lives[who], {made.roster.version for made in self.rosters if made.roster.base is not None}
        return any(found <= version for found in [*life.fetched, *(life.adopted.keys() & planned)])

    def life(self, member: Member) -> Life | None:
        return self.lives.get(str(member))

    def refounding(self, member: Member) -> int | None:
        """The roster, as an index, by which the job was founded again after this member and all others were lost."""
        last = max((index for index, made in enumerate(self.rosters) if member in made.members), default=None)
        if last is None:
            return None
        later = range(last + 1, len(self.rosters))
        return next((index for index in later if self.rosters[index].roster.version in self.taken), None)

    @property
    def replicas(self) -> frozenset[str]:
        seated = {member.replica for made in self.rosters for member in made.members}
        opened = self.opened.replicas if self.opened is not None else {member.replica for member in self.started}
        return frozenset(seated.union(opened))

    @property
    def lanes(self) -> int:
        """Of a step; 0 when nobody says."""
        if self.opened is not None:
            return self.opened.lanes
        return sum(len(seat.lanes) for seat in self.rosters[0].roster.seats) if self.rosters else 0

    @property
    def steps(self) -> int:
        """How many steps the job is known to have committed."""
        return max((life.step for life in self.lives.values() if life.step is not None), default=0)

    def is_settled(self, made: Made) -> bool:
        """Did everyone in it learn what became of the step in doubt? A journal that is not whole is not held against it."""
        version = made.roster.version
        for member in made.members:
            life = self.life(member)
            if life is not None and version not in life.adopted and str(member) not in self.incomplete:
                return False
        return True

    def wanted(self, made: Made) -> frozenset[str]:
        """The replicas that were to work when it was made, and had not been given up."""
        return frozenset(made.roster.places or self.replicas) - made.lost

    def full_ns(self, made: Made) -> int | None:
        """When every replica that was to work had entered it; None when that never came to be."""
        if not self.wanted(made) <= {member.replica for member in made.members}:
            return None
        times: list[int] = []
        for member in made.members:
            life = self.life(member)
            if life is not None and made.roster.version in life.entered:
                times.append(life.entered[made.roster.version].ns)
            elif life is not None and str(member) not in self.incomplete:
                return None
        return max(times, default=None)
