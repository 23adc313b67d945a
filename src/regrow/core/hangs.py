"""Who hangs: a judgement over the stamps of one agent's workers.

Own work (data, a microbatch, adding, committing) is judged against a limit learned from the job's own times: `factor` times
the longest recent one of any worker, and at least the floor. A worker without experience of that phase has the first limit;
so have the user's code between the loops, compilations, collections and transfers, whose lengths say nothing about each
other. Start-up and busy work have limits of their own.

Whoever waits for others is a victim, however long it waits, and is never judged for it: the culprit it waits for is in own
work, and is. Unless what it waits for is there and it does not take it: the floor is limit enough for that. Or its own
process does not run: then its pulse stands still. A process that the kernel calls stopped or frozen cannot be at work at
all, so the floor is limit enough in any phase.

When everybody waits in collectives for longer than these ever took, and nobody is at work whom they could wait for, it is a
stall: a message was lost, or one of them only seems to wait. The same members are then given a new roster, which breaks
every collective. Whoever does not even wake from its own is the culprit.

Time in which the agent itself did not look is nobody's silence.
"""

from collections.abc import Sequence

import msgspec

from regrow.core.progress import Phase, Place, Stamped
from regrow.core.roster import Member

COLLECTIVES = frozenset({Phase.EXCHANGE, Phase.FLOW, Phase.REDUCE, Phase.BOUND})
WAITS = COLLECTIVES | {Phase.FETCH, Phase.SERVE, Phase.WAIT}
LEARNED = frozenset({Phase.DATA, Phase.MICROBATCH, Phase.TURN, Phase.MERGE, Phase.COMMIT})
_WARM = 2
"""Completed so often, a phase has taught something: the first time is not counted."""


class HangConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose. A limit of 0 is none."""

    factor: float = 3.0
    """0 switches every judgement off, for whoever stops processes with a debugger."""
    floor_s: float = 2.0
    """Longer than a scheduler, a page-out or a slow disk keeps a process away now and then on a busy machine."""
    first_s: float = 600.0
    startup_s: float = 600.0
    look_s: float = 0.025
    """How often the agent looks. A pause of four of these is the agent's own, and is not counted."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, as the agent sees it now."""

    member: Member
    stamped: Stamped
    standstill: str | None = None
    """"stopped" or "frozen", when the kernel says so."""


# Reasons: which limit was passed, with its numbers


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    longest_s: float
    factor: float
    floor_s: float

    def __str__(self) -> str:
        flags = f"--hang-factor {self.factor:g}, --hang-floor {self.floor_s:g}"
        return f"the longest recent one took {self.longest_s:.3g} s; {flags}"


class FirstOverdue(msgspec.Struct, frozen=True, kw_only=True):
    what: str

    def __str__(self) -> str:
        return f"{self.what}; --hang-first"


class StartOverdue(msgspec.Struct, frozen=True, kw_only=True):
    def __str__(self) -> str:
        return "its script has not entered a step; --startup-timeout"


class BusyOverdue(msgspec.Struct, frozen=True, kw_only=True):
    name: str

    def __str__(self) -> str:
        return f"job.busy({self.name!r}) promised at most that"


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    how: str

    def __str__(self) -> str:
        return f"the kernel says that it is {self.how}; --hang-floor"


class Deaf(msgspec.Struct, frozen=True, kw_only=True):
    """Its session thread does not run either: some C code holds the GIL."""

    longest_s: float

    def __str__(self) -> str:
        return f"none of its threads runs Python; its longest recent pause was {self.longest_s:.3g} s"


class Uncollected(msgspec.Struct, frozen=True, kw_only=True):
    """It waits for nobody any more, and does not know it: its main thread does not run."""

    def __str__(self) -> str:
        return "what it waited for is there, and it does not take it; --hang-floor"


class Unmoved(msgspec.Struct, frozen=True, kw_only=True):
    """The others woke when their groups were broken; this one did not."""

    def __str__(self) -> str:
        return "it did not wake when its group was broken; --hang-floor"


Reason = Unmoved | Uncollected | Overdue | FirstOverdue | StartOverdue | BusyOverdue | Standstill | Deaf


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict: this worker hangs."""

    member: Member
    place: Place
    silent_s: float
    limit_s: float
    reason: Reason

    def __str__(self) -> str:
        """As the end of a sentence that begins with the member."""
        return f"hangs {self.place}: silent for {self.silent_s:.2f} s, the limit is {self.limit_s:.2f} s ({self.reason})"


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict: these wait for one another, and none of them is known to be at fault."""

    members: tuple[Member, ...]
    silent_s: float
    limit_s: float

    def __str__(self) -> str:
        names = ", ".join(map(str, self.members))
        return f"{names} have waited for one another for {self.silent_s:.2f} s, the limit is {self.limit_s:.2f} s"


class _Watch(msgspec.Struct, kw_only=True):
    """What is to be taken off a worker's silence: time in which the agent did not look."""

    count: int = 0
    pulse_s: float = -1.0
    unseen_s: float = 0.0
    pulse_unseen_s: float = 0.0


class Hangs:
    """Remembers when the agent looked, and nothing else. Time arrives with each look."""

    def __init__(self, config: HangConfig) -> None:
        self.config = config
        self._looked_s: float | None = None
        self._watches: dict[Member, _Watch] = {}
        self._stalled_s = 0.0
        self._stalled: dict[Member, int] = {}
        """Who was in the last stall, and with which stamp."""

    def should_ask_kernel(self, now: float, stamped: Stamped) -> bool:
        """Is its pulse so still that it is worth to ask whether it is stopped?"""
        return self.config.factor > 0 and now - (stamped.pulse_s or stamped.since_s) > self.config.floor_s / 2

    def look(self, now: float, seen: Sequence[Seen]) -> list[Hang | Stall]:
        """Everyone who hangs now; or that nobody does, and yet nothing moves. Asked every `look_s`."""
        config = self.config
        paused_s = 0.0 if self._looked_s is None else now - self._looked_s
        away_s = paused_s - config.look_s if paused_s > 4 * config.look_s else 0.0
        self._looked_s = now
        self._watches = {one.member: self._watch(now, one, away_s) for one in seen}
        if config.factor <= 0:
            return []
        longest_s = _longest(seen)
        self._stalled_s += away_s
        verdicts = [self._judge(now, one, longest_s) or self._unmoved(now, one, seen) for one in seen]
        hangs: list[Hang | Stall] = [verdict for verdict in verdicts if verdict is not None]
        stall = None if hangs else self._stall(now, seen, longest_s)
        return hangs if stall is None else [stall]

    def _watch(self, now: float, one: Seen, away_s: float) -> _Watch:
        stamped = one.stamped
        watch = self._watches.get(one.member) or _Watch()
        if watch.count != stamped.count:
            watch.count = stamped.count
            # It began while nobody looked: at the latest now, and no earlier can be held against it.
            watch.unseen_s = min(away_s, max(0.0, now - _since(stamped)))
        else:
            watch.unseen_s += away_s
        if watch.pulse_s != stamped.pulse_s:
            watch.pulse_s = stamped.pulse_s
            watch.pulse_unseen_s = min(away_s, max(0.0, now - stamped.pulse_s))
        else:
            watch.pulse_unseen_s += away_s
        return watch

    def _judge(self, now: float, one: Seen, longest_s: dict[Phase, float]) -> Hang | None:
        config, stamped, watch = self.config, one.stamped, self._watches[one.member]
        silent_s = now - _since(stamped) - watch.unseen_s
        deaf_s = silent_s if stamped.pulse_s == 0 else now - stamped.pulse_s - watch.pulse_unseen_s
        if one.standstill is not None:
            return _over(one, min(silent_s, deaf_s), config.floor_s, Standstill(how=one.standstill))
        if stamped.collecting_since_s:
            return _over(one, silent_s, config.first_s, FirstOverdue(what="a garbage collection has no usual length"))
        if stamped.aside is Phase.BUSY:
            return _over(one, silent_s, stamped.at_most_s, BusyOverdue(name=stamped.name))
        if stamped.aside is not None:
            what = "finding a lane's place in its stream" if stamped.aside is Phase.SEEK else "a compilation"
            return _over(one, silent_s, config.first_s, FirstOverdue(what=f"{what} has no usual length"))
        phase = stamped.phase
        if phase is Phase.LEAVING:
            return None
        if phase is Phase.START:
            return _over(one, silent_s, config.startup_s, StartOverdue())
        if phase in WAITS:
            idle_s = min(silent_s, now - stamped.called_s - watch.unseen_s) if stamped.called_s else 0.0
            if idle_s > config.floor_s:
                return _over(one, idle_s, config.floor_s, Uncollected())
            limit_s = max(config.floor_s, config.factor * stamped.longest_pause_s)
            return _over(one, min(silent_s, deaf_s), limit_s, Deaf(longest_s=stamped.longest_pause_s))
        known = stamped.experience.get(phase)
        if phase not in LEARNED:
            return _over(one, silent_s, config.first_s, FirstOverdue(what="work between the loops has no usual length"))
        if known is None or known.completed < _WARM:
            return _over(one, silent_s, config.first_s, FirstOverdue(what="the first of its kind in this process"))
        longest = longest_s[phase]
        reason = Overdue(longest_s=longest, factor=config.factor, floor_s=config.floor_s)
        return _over(one, silent_s, max(config.floor_s, config.factor * longest), reason)

    def _stall(self, now: float, seen: Sequence[Seen], longest_s: dict[Phase, float]) -> Stall | None:
        waiting = [one for one in seen if one.stamped.phase in COLLECTIVES]
        # Whoever has not entered a step yet is no member, and whoever waits for a roster may not be one.
        others = {one.stamped.phase for one in seen} - COLLECTIVES - {Phase.START, Phase.WAIT}
        unmoved = [one for one in waiting if self._is_unmoved(one)]
        has_moved = any(one.member in self._stalled and not self._is_unmoved(one) for one in seen)
        if len(waiting) < 2 or others or (unmoved and has_moved):
            return None  # in the last case it is known who did not wake
        silences = {one.member: now - one.stamped.since_s - self._watches[one.member].unseen_s for one in waiting}
        limit_s = self.config.floor_s
        for one in waiting:
            known = one.stamped.experience.get(one.stamped.phase)
            is_known = known is not None and known.completed >= _WARM
            factored_s = (
                self.config.factor * longest_s[one.stamped.phase] if is_known else self.config.first_s or float("inf")
            )
            limit_s = max(limit_s, factored_s)
        silent_s = min(silences.values())
        if silent_s <= limit_s or (unmoved and now - self._stalled_s <= limit_s):
            return None
        # Said again while none moves: the coordinator may have been away, and nobody else can give them a new roster.
        self._stalled_s, self._stalled = now, {one.member: one.stamped.count for one in waiting}
        return Stall(members=tuple(sorted(silences)), silent_s=silent_s, limit_s=limit_s)

    def _is_unmoved(self, one: Seen) -> bool:
        return self._stalled.get(one.member) == one.stamped.count

    def _unmoved(self, now: float, one: Seen, seen: Sequence[Seen]) -> Hang | None:
        """If none moved, none was woken: there may have been no new roster, and nobody is to blame for that."""
        if not self._is_unmoved(one) or all(self._is_unmoved(other) for other in seen if other.member in self._stalled):
            return None
        return _over(one, now - self._stalled_s, self.config.floor_s, Unmoved())


def _since(stamped: Stamped) -> float:
    """When what it does now began."""
    if stamped.collecting_since_s:
        return stamped.collecting_since_s
    return stamped.since_s if stamped.aside is None else stamped.aside_since_s


def _longest(seen: Sequence[Seen]) -> dict[Phase, float]:
    longest: dict[Phase, float] = {}
    for one in seen:
        for phase, known in one.stamped.experience.items():
            if known.completed >= _WARM:
                longest[phase] = max(longest.get(phase, 0.0), known.longest_s)
    return longest


def _over(one: Seen, silent_s: float, limit_s: float, reason: Reason) -> Hang | None:
    if limit_s <= 0 or silent_s <= limit_s:
        return None
    return Hang(member=one.member, place=one.stamped.place, silent_s=silent_s, limit_s=limit_s, reason=reason)
