"""Whole simulated jobs whose replicas come and go at will."""

from collections import Counter

import msgspec
import pytest

from regrow.core.records import Fact, LaneComputed, WishNoted
from regrow.sim.faults import Fault, Faults
from regrow.sim.rules import THE_RULES
from regrow.sim.world import World

_AT = (60, 120, 180)
_STEPS = 20


def elastic(seed: int, kinds: tuple[str, ...]) -> tuple[str, Counter[tuple[int, int]], list[str]]:
    """One job with these wishes and time for them: its end, how often each lane was computed, and what became of them."""
    lanes: Counter[tuple[int, int]] = Counter()
    told: list[str] = []

    def journal(now: float, who: str, fact: Fact) -> None:
        if isinstance(fact, LaneComputed):
            lanes[fact.step, fact.lane] += 1
        if isinstance(fact, WishNoted):
            told.append(fact.state)

    world = World(seed, 0, THE_RULES, False, journal)
    world.plan = msgspec.structs.replace(world.plan, steps=_STEPS)
    planned = tuple(Fault(kind=kind, point="", nth=at, at_self=False) for kind, at in zip(kinds, _AT, strict=False))
    world.faults = Faults(world, planned)
    return world.run(), lanes, told


@pytest.mark.parametrize("kinds", [("leave",), ("scale", "scale", "scale"), ("migrate",), ("scale", "leave", "migrate")])
def test_nothing_is_computed_again_whoever_comes_and_goes(kinds: tuple[str, ...]) -> None:
    fates: Counter[str] = Counter()
    for seed in range(8, 400, 16):
        outcome, lanes, told = elastic(seed, kinds)
        assert outcome == "finished"
        assert set(lanes.values()) == {1}, f"seed {seed} computed a lane again"
        fates.update(told)
    assert fates["fulfilled"] == fates["granted"] - fates["overtaken"] > 20, fates
