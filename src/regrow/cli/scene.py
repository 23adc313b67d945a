"""What the live view shows: a pure function of the facts so far, the workers' stamps and the time.

`Known` takes the facts as they come; `scene` makes of them, and of what the agent sees, what is worth knowing now.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from regrow.agent.sight import Sight
from regrow.core.budget import BudgetConfig
from regrow.core.progress import Phase, Stamped
from regrow.core.records import Committed, Line, ReplicaLost, RestartPlanned, RosterMade, WorkerExited, WorkerStarted
from regrow.core.roster import NO_VERSION, Member

Mood = Literal["well", "coming", "ill", "out"]
"""Takes part; is on its way; hangs or was just lost; takes no part any more."""

_LONG_S = 2.0
"""What takes longer than this is told with how long it takes."""
_PACE_S = 10.0
_PACE_STEPS = 5
"""The rate is that of the last ten seconds, and of at least so many steps where one takes seconds."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator asked for."""

    job: str
    replicas: tuple[str, ...]
    budget: BudgetConfig
    began_s: float


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    clock: str
    """When, as people read it."""
    text: str
    is_routine: bool


class ReplicaScene(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Of its newest member, or of the replica before there is one."""
    pid: int | None
    lanes: tuple[int, ...] | None
    """None without a seat, or when the rosters cannot be read here."""
    state: str
    mood: Mood


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    step: int | None
    """So many are committed; None before the first roster."""
    steps: int | None
    loss: float | None
    """NaN when it is not finite."""
    rate: float | None
    """Steps per second."""
    elapsed_s: float
    restarts: int
    max_restarts: int
    is_coordinator_away: bool
    waits: str = ""
    """Why nobody computes; empty when somebody does."""
    replicas: tuple[ReplicaScene, ...]
    happenings: tuple[Happening, ...]


class Pace:
    """How fast steps go by, from when the count was seen to change."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def see(self, now_s: float, step: int) -> None:
        if not self._seen or step > self._seen[-1][1]:
            self._seen.append((now_s, step))
        while len(self._seen) > _PACE_STEPS and self._seen[1][0] < now_s - _PACE_S:
            self._seen.popleft()

    def rate(self, now_s: float) -> float | None:
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        each_s = (last_s - first_s) / (last - first)
        # A step that takes longer than those before counts as soon as it does: a job at a standstill has no rate of old.
        overdue_s = max(0.0, now_s - last_s - each_s)
        return (last - first) / (last_s - first_s + overdue_s)


class Known:
    """What the facts have said so far."""

    def __init__(self) -> None:
        self.lanes: dict[Member, tuple[int, ...]] = {}
        self.places: tuple[str, ...] = ()
        """The replicas that are to work; empty before the first roster."""
        self.waits = ""
        self.steps: int | None = None
        self.committed: int | None = None
        """How many steps."""
        self.loss: float | None = None
        self.lost: set[str] = set()
        self.exited: dict[str, WorkerExited] = {}
        """Of each replica, its newest exit."""
        self.restarted_s: dict[Member, float] = {}
        self._version = NO_VERSION

    def take(self, line: Line) -> None:
        match line.what:
            case RosterMade(version=version, seats=seats, floor=floor, steps=steps) if version > self._version:
                self._version, self.places, self.waits = version, line.what.places, line.what.waits
                self.lanes = {seat.member: seat.lanes for seat in seats}
                self.steps = self.steps if steps is None else steps
                self.committed = max(self.committed or 0, floor)
            case Committed(step=step, loss=loss) if step >= (self.committed or 0):
                self.committed, self.loss = step + 1, math.nan if loss is None else loss
            case ReplicaLost(replica=replica):
                self.lost.add(replica)
            case RestartPlanned(member=member):
                self.restarted_s.setdefault(member, line.ns / 1e9)
            case WorkerStarted(member=member) if member.incarnation > 0:
                self.restarted_s.setdefault(member, line.ns / 1e9)
            case WorkerExited(member=member):
                self.exited[member.replica] = line.what

    def restarts(self, since_s: float) -> int:
        return sum(at > since_s for at in self.restarted_s.values())


def scene(
    now_s: float,
    asked: Asked,
    known: Known,
    pace: Pace,
    sights: Sequence[Sight],
    happenings: Sequence[Happening],
    is_coordinator_away: bool,
) -> Scene:
    stamps = [sight.stamped.place.step for sight in sights if sight.stamped is not None]
    reached = [step for step in (*stamps, known.committed) if step is not None]
    step = max(reached, default=None)
    if step is not None:
        pace.see(now_s, step)
    newest = {sight.member.replica: sight for sight in sorted(sights, key=lambda sight: sight.member)}
    return Scene(
        job=asked.job,
        step=step,
        steps=known.steps,
        loss=known.loss,
        rate=pace.rate(now_s),
        elapsed_s=now_s - asked.began_s,
        restarts=known.restarts(now_s - asked.budget.window_s),
        max_restarts=asked.budget.max_all_restarts,
        is_coordinator_away=is_coordinator_away,
        waits=known.waits,
        replicas=tuple(_replica(now_s, name, newest, known, is_coordinator_away) for name in _names(asked, known, newest)),
        happenings=tuple(happenings),
    )


def _names(asked: Asked, known: Known, newest: Mapping[str, Sight]) -> list[str]:
    """Those that are to work, are given up or live: whoever has left as planned is not worth a row."""
    wanted = known.places or asked.replicas
    return list(dict.fromkeys([*wanted, *sorted(known.lost), *newest]))


def _replica(now_s: float, name: str, newest: Mapping[str, Sight], known: Known, is_away: bool) -> ReplicaScene:
    sight = newest.get(name)
    if sight is None:
        exited = known.exited.get(name)
        state, mood = _absence(name, exited, known, is_away)
        return ReplicaScene(name=str(exited.member) if exited else name, pid=None, lanes=None, state=state, mood=mood)
    state, mood = _presence(now_s, sight)
    lanes = known.lanes.get(sight.member)
    return ReplicaScene(name=str(sight.member), pid=sight.pid, lanes=lanes, state=state, mood=mood)


def _absence(name: str, exited: WorkerExited | None, known: Known, is_away: bool) -> tuple[str, Mood]:
    if name in known.lost:
        return "given up", "out"
    if exited is None:
        return "starting", "coming"
    if exited.clean:
        return "finished", "out"
    then = ", not replaced while the coordinator is away" if is_away else ""
    return f"{exited.how}{then}", "ill"


def _presence(now_s: float, sight: Sight) -> tuple[str, Mood]:
    is_first = sight.member.incarnation == 0
    if sight.is_doomed and not sight.is_hung:
        return "being ended", "ill"
    if sight.starts_s is not None and sight.starts_s - now_s >= 0.1:
        return f"{'starting' if is_first else 'restarting'} in {sight.starts_s - now_s:.1f} s", "coming"
    if sight.pid is None or sight.stamped is None:
        return "starting" if is_first else "restarting", "coming"
    stamped = sight.stamped
    if sight.is_hung:
        then = ", being ended" if sight.is_doomed else ""
        return f"hung {stamped.place}{_since(now_s, stamped)}{then}", "ill"
    if stamped.phase is Phase.START and stamped.aside is None:
        return (
            f"{'starting' if is_first else 'restarting'}: its script before the first step{_since(now_s, stamped)}",
            "coming",
        )
    mood: Mood = "coming" if stamped.phase is Phase.FETCH else "well"
    return f"{_doing(stamped)}{_since(now_s, stamped)}", mood


def _doing(stamped: Stamped) -> str:
    place = stamped.place
    step = "" if place.step is None else f" step {place.step}"
    lane = "" if place.lane is None else f" lane {place.lane}"
    match stamped.aside or stamped.phase:
        case Phase.DATA:
            return f"fetching data of{step}{lane}" if step else "fetching data"
        case Phase.MICROBATCH | Phase.TURN | Phase.MERGE:
            return f"computing{step}{lane}"
        case Phase.COMMIT:
            return f"committing{step}"
        case Phase.REDUCE | Phase.FLOW:
            return f"adding up{step} with the others"
        case Phase.EXCHANGE | Phase.BOUND:
            return f"waiting for the others in{step}" if step else "waiting for the others"
        case Phase.FETCH:
            return "waiting for the state from its donor"
        case Phase.SERVE:
            return "giving its state to a joiner"
        case Phase.HEAL:
            return "loading the state" if stamped.phase is Phase.FETCH else "preparing a transfer of the state"
        case Phase.WAIT:
            return "waiting for a roster"
        case Phase.BETWEEN:
            return f"between the loops,{step}" if step else "between the loops"
        case Phase.BUSY:
            return f"busy: {stamped.name}" if stamped.name else "busy"
        case Phase.COMPILE:
            return f"compiling in{step}{lane}" if step else "compiling"
        case Phase.SEEK:
            return f"finding its place in the data of{step}{lane}" if step else "finding its place in the data"
        case Phase.LEAVING:
            return "leaving"
        case Phase.START:
            return "starting"


def _since(now_s: float, stamped: Stamped) -> str:
    took_s = now_s - (stamped.aside_since_s if stamped.aside is not None else stamped.since_s)
    return f" for {took_s:.0f} s" if took_s >= _LONG_S else ""
