"""How fast each replica computes a lane, and when that is reason enough to deal the lanes anew.

A worker's Gauge times its steps and says what is worth telling. The coordinator's Speeds turns it into weights: whole
numbers, by which lanes are dealt at the next planned roster. Both are slow to change their mind: a roster costs little, but
lanes that move take their data, and often a compilation, with them.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median

import msgspec

from regrow.core.lanes import deal_by_weight

NORMAL = 100
"""The weight of a replica of normal speed, or of which nothing is known."""


class SpeedConfig(msgspec.Struct, frozen=True, kw_only=True):
    fixed: dict[str, float] = {}
    """By the operator's word, 1 being normal: these replicas are not measured."""
    gain: float = 0.15
    """A step must become so much shorter for lanes to move."""
    gain_s: float = 0.01
    """And by so many seconds: what is shorter is noise."""
    rest_steps: int = 20
    """Steps between two times that they do."""


class Gauge:
    """A worker's: the seconds that a lane takes here, by the middle one of the last steps."""

    def __init__(self, *, least: int = 5, change: float = 0.1, every: int = 50) -> None:
        self._least = least
        self._change = change
        self._every = every
        self._seen: deque[float] = deque(maxlen=2 * least - 1)
        """An odd number: the middle one was really seen, and is none between slow and fast."""
        self._told_s: float | None = None
        self._since = 0

    def computed(self, lanes: int, seconds: float) -> float | None:
        """The lanes computed here in a step took so long. Returns the seconds a lane takes, when the coordinator should
        know: at first, when it has changed, and now and then, since a coordinator may have been restarted."""
        if lanes < 1:
            return None
        self._seen.append(seconds / lanes)
        self._since += 1
        if len(self._seen) < self._least:
            return None
        lane_s = median(self._seen)
        is_new = self._told_s is None or abs(lane_s - self._told_s) > self._change * self._told_s
        if not is_new and self._since < self._every:
            return None
        self._told_s, self._since = lane_s, 0
        return lane_s


class Speeds:
    """The coordinator's. `weights` is what an earlier one had decided on."""

    def __init__(self, config: SpeedConfig, weights: Mapping[str, int] | None = None) -> None:
        self._config = config
        self._fixed = {name: max(1, round(NORMAL * speed)) for name, speed in config.fixed.items()}
        self._weights: dict[str, int] = {**(weights or {}), **self._fixed}
        self._lane_s: dict[str, float] = {}
        self._step = 0
        self.has_news = False
        """Something was heard since it was last reconsidered."""
        self._dealt: int | None = None
        """The step at which lanes moved last."""

    @property
    def weights(self) -> dict[str, int]:
        """Of replicas that are not of normal speed."""
        return {name: weight for name, weight in self._weights.items() if weight != NORMAL}

    def weight(self, replica: str) -> int:
        return self._weights.get(replica, NORMAL)

    def hear(self, replica: str, lane_s: float, step: int) -> None:
        self._step = max(self._step, step)
        if lane_s > 0:
            self._lane_s[replica] = lane_s
            self.has_news = True

    def reconsider(self, working: Mapping[str, int], lanes: int) -> str | None:
        """Given how many lanes each has that works: why they should be dealt anew, by the weights that hold from now on.
        None when a step would not become so much shorter, or they moved a moment ago."""
        self.has_news = False
        known = {name: self._lane_s[name] for name in working if name in self._lane_s and name not in self._fixed}
        if len(known) + sum(name in self._fixed for name in working) < len(working) or len(known) < 2:
            return None
        if self._dealt is not None and self._step < self._dealt + self._config.rest_steps:
            return None
        normal_s = median(known.values())
        measured = {name: max(1, round(NORMAL * normal_s / lane_s)) for name, lane_s in known.items()}
        weights = {name: measured.get(name, self._fixed.get(name, NORMAL)) for name in working}
        dealt = dict(zip(weights, deal_by_weight(lanes, list(weights.values())), strict=True))
        lane_s = {name: normal_s * NORMAL / weight for name, weight in weights.items()}
        now_s = max(count * lane_s[name] for name, count in working.items())
        then_s = max(len(own) * lane_s[name] for name, own in dealt.items())
        if then_s > min(now_s * (1 - self._config.gain), now_s - self._config.gain_s):
            return None
        self._weights.update(measured)
        self._dealt = self._step
        slowest = max(known, key=lambda name: known[name])
        others_s = median(lane_s for name, lane_s in known.items() if name != slowest)
        return f"lanes are dealt by speed: one takes {known[slowest] / others_s:.1f} times as long on {slowest} as elsewhere"
