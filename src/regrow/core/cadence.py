"""When each tier on auto is due: intervals (core.interval) that follow what is seen of the job.

It hears the vault's facts with the time of each: when a state was kept, what that cost, how long places took, what was lost.
A vault that is started again hears the journal of the one before it, and goes on from there.

Which loss counts for which tier. Of a loss that leaves one replica the peers are the answer: no tier is needed, and none is
counted. When all are lost the host's memory answers. What takes the memory along (the run is killed, the host is gone) the
places answer, and this job sees none of it: it is over. So what memory has answered speaks for the places: the host stayed.
They are counted a loss where memory had nothing whole. An operator's word (`mtbf_s`) holds for all tiers: who knows how
often a job is lost seldom knows how often the host goes with it, and to save too often is the cheaper mistake.

One tier paces the others: the copy in memory, or the soonest place where memory is not on auto. What is saved for it the
others take along, each its whole number of copies, since the copy is what training pays for.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence

from regrow.core.interval import CadenceConfig, Interval, Loss, Toil, chosen, expected, in_copies
from regrow.core.origin import BEGINNING
from regrow.core.origin import MEMORY as THIS_MEMORY
from regrow.core.records import Fact, IntervalChosen, OriginFound, SaveCosted, SaveDurable, SaveFailed, StateKept
from regrow.core.save_story import MEMORY

_SAMPLES = 7
_REMEMBERED = 16
_NEWS = 0.25
"""An interval that has moved by this share is told."""
_TOLD_AGAIN = 50
"""So is every one after so many saves: whoever reads the end of a journal finds it there."""


class _Tier:
    """What was seen of one that is on auto."""

    def __init__(self) -> None:
        self.last_s: float | None = None
        """When it took a state last."""
        self.durable_s: deque[float] = deque(maxlen=_SAMPLES)
        self.losses = 0
        self.told: Interval | None = None


class Cadence:
    """Of the tiers of one host that are on auto: memory, or the URLs of places."""

    def __init__(self, tiers: Sequence[str], config: CadenceConfig) -> None:
        self._config = config
        self._tiers = {where: _Tier() for where in tiers}
        self._kept_s: deque[float] = deque(maxlen=_SAMPLES)
        """How long copies took to be whole in memory: no tier can be faster."""
        self._costs: deque[float] = deque(maxlen=_SAMPLES)
        self._made_s: dict[int, float] = {}
        """When the copy of a state was begun, by its step."""
        self._begun_s: float | None = None
        self._untold = 0

    # What happens

    def begin(self, now_s: float) -> None:
        """Training has. The first one counts: no interval has begun before."""
        if self._begun_s is None:
            self._begun_s = now_s

    def took(self, where: str, made_s: float) -> None:
        """This tier takes the state whose copy was begun at that time."""
        if where in self._tiers:
            self._tiers[where].last_s = max(made_s, self._since_s(where))

    def hear(self, fact: Fact, now_s: float) -> None:
        """A fact of the vault."""
        match fact:
            case StateKept(step=step, seconds=seconds):
                self.begin(now_s - seconds)
                self._kept_s.append(seconds)
                self._untold += 1
                self._remember(step, now_s - seconds)
                self.took(MEMORY, now_s - seconds)
            case SaveCosted(seconds=seconds):
                self._costs.append(seconds)
            case SaveDurable(step=step, url=url, seconds=seconds) if url in self._tiers:
                self._tiers[url].durable_s.append(seconds)
                self.took(url, self._made_s.get(step, now_s - seconds))
            case SaveFailed(url=url, is_final=True):
                self.took(url, now_s)
            case OriginFound(where=where):
                self._found(where, now_s)
            case IntervalChosen():
                self.begin(now_s)

    def _found(self, where: str, now_s: float) -> None:
        """A state for founders: everybody was lost, unless nobody has trained yet and the job begins with it."""
        if self._begun_s is not None:
            has_stayed = where in (THIS_MEMORY, BEGINNING)  # the logs lead on from there, and lie in memory as well
            for name, tier in self._tiers.items():
                if name == MEMORY or not has_stayed:
                    tier.losses += 1
        self.took(MEMORY, now_s)

    def _remember(self, step: int, made_s: float) -> None:
        self._made_s[step] = made_s
        while len(self._made_s) > _REMEMBERED:
            del self._made_s[next(iter(self._made_s))]

    # What follows

    def intervals(self, now_s: float) -> dict[str, Interval]:
        """Of each tier on auto."""
        found = {where: chosen(self._toil(where, tier), self._loss(tier, now_s), self._config) for where, tier in self._all}
        pacer = _pacer(found)
        return {where: one if where == pacer else in_copies(one, found[pacer].seconds) for where, one in found.items()}

    def next_s(self, now_s: float) -> float | None:
        """When a save is due. None: never, as far as is known; before training has begun, or without a tier on auto."""
        if self._begun_s is None or not self._tiers:
            return None
        intervals = self.intervals(now_s)
        pacer = _pacer(intervals)
        return self._since_s(pacer) + intervals[pacer].seconds

    def takes(self, where: str, made_s: float) -> bool:
        """Does this place take the state whose copy was begun at that time? Half a copy's interval early is near enough."""
        interval = self.intervals(made_s)[where]
        return made_s >= self._since_s(where) + interval.seconds - interval.seconds / interval.copies / 2

    def news(self, now_s: float) -> dict[str, Interval]:
        """Intervals that are no longer what was told of them. They count as told from here on."""
        if self._begun_s is None or not self._tiers:
            return {}
        is_due, intervals = self._untold >= _TOLD_AGAIN, self.intervals(now_s)
        found = {where: one for where, one in intervals.items() if is_due or _is_news(one, self._tiers[where].told)}
        for where, one in found.items():
            self._tiers[where].told = one
        if is_due:
            self._untold = 0
        return found

    @property
    def _all(self) -> list[tuple[str, _Tier]]:
        return list(self._tiers.items())

    def _since_s(self, where: str) -> float:
        """The moment from which its interval counts."""
        last_s, begun_s = self._tiers[where].last_s, self._begun_s
        return max(-math.inf if last_s is None else last_s, -math.inf if begun_s is None else begun_s)

    def _toil(self, where: str, tier: _Tier) -> Toil:
        kept_s, own_s = _usual(self._kept_s), _usual(tier.durable_s)
        is_known = bool(self._costs) and (where == MEMORY or bool(tier.durable_s))
        return Toil(cost_s=_typical(self._costs), durable_s=max(kept_s, own_s), is_known=is_known)

    def _loss(self, tier: _Tier, now_s: float) -> Loss:
        seen_s = 0.0 if self._begun_s is None else max(0.0, now_s - self._begun_s)
        return expected(tier.losses, seen_s, self._config)


def _pacer(intervals: dict[str, Interval]) -> str:
    """Memory where it is on auto: whatever is saved lies there first, so it can be asked for most often."""
    return MEMORY if MEMORY in intervals else min(intervals, key=lambda where: intervals[where].seconds)


def _typical(samples: Sequence[float]) -> float:
    """One that is out of line counts for nothing, but of two the lower one: the first save makes much for the first time."""
    return statistics.median_low(samples) if samples else 0.0


def _usual(samples: Sequence[float]) -> float:
    """So here, but of two the higher one: what a tier can do is not what it did once."""
    return statistics.median_high(samples) if samples else 0.0


def _is_news(now: Interval, told: Interval | None) -> bool:
    if told is None or (now.bound, now.copies) != (told.bound, told.copies):
        return True
    return abs(now.seconds - told.seconds) > _NEWS * told.seconds or now.loss.count != told.loss.count
