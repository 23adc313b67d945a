"""Intervals against a dumb search for the least loss, and what moves them away from it."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.advice import Question, advise
from regrow.core.interval import (
    LEAST_COST_S,
    CadenceConfig,
    Interval,
    Loss,
    Toil,
    best_s,
    chosen,
    effective,
    expected,
    in_copies,
)

CONFIG = CadenceConfig()
H, DAY = 3600.0, 86_400.0


def toil(cost_s: float, durable_s: float = 0.0) -> Toil:
    return Toil(cost_s=cost_s, durable_s=durable_s, is_known=True)


def once_in(mtbf_s: float) -> Loss:
    return Loss(mtbf_s=mtbf_s, basis="given")


def lost(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """Of the time that it takes to get so much done, the share that was for nothing. Over all losses that may come: the work
    of one interval is tried again until none comes within it."""
    tries = math.exp(min(700.0, interval_s / mtbf_s))
    spent_s = mtbf_s * (tries - 1)  # the mean time until an interval has passed without a loss
    return 1 - (interval_s - cost_s) / spent_s


def dumb_best(cost_s: float, mtbf_s: float) -> float:
    """The least loss of a thousand intervals, each 2 % longer than the one before."""
    tried = [cost_s * 1.001 + cost_s * 1e-3 * 1.02**n for n in range(2000)]
    return min(lost(interval_s, cost_s, mtbf_s) for interval_s in tried if interval_s < 60 * mtbf_s)


@given(st.floats(0.001, 1000), st.floats(-6, 0.5))
def test_the_interval_loses_hardly_more_than_the_best_that_a_search_finds(cost_s: float, exponent: float) -> None:
    mtbf_s = cost_s / 10**exponent
    found = lost(best_s(cost_s, mtbf_s), cost_s, mtbf_s)
    assert found <= dumb_best(cost_s, mtbf_s) + 0.005


@given(st.floats(0.001, 100), st.floats(10, 1e7))
def test_what_is_effective_is_what_is_not_lost(cost_s: float, mtbf_s: float) -> None:
    interval_s = best_s(cost_s, mtbf_s)
    if interval_s < 100 * mtbf_s:
        assert effective(interval_s, cost_s, mtbf_s, 0.0) == pytest.approx(1 - lost(interval_s, cost_s, mtbf_s), abs=1e-6)
    assert effective(interval_s, cost_s, mtbf_s, 5.0) < effective(interval_s, cost_s, mtbf_s, 0.0)
    assert effective(interval_s, cost_s, 1e-3, 5.0) == 0.0


def test_where_saves_are_cheap_it_is_youngs_interval() -> None:
    assert best_s(0.5, 3 * H) == pytest.approx(math.sqrt(2 * 0.5 * 3 * H), rel=0.01)
    assert best_s(100.0, 10.0) == 110.0, "beyond Daly's series: the time between losses"


costs = st.floats(0, 1e4)
times = st.floats(0, 1e5)
means = st.floats(1, 1e9)


@given(costs, times, means, st.floats(0.001, 0.5), st.floats(1, 1e5))
def test_an_interval_keeps_to_the_tier_the_limit_and_the_budget_in_this_order(
    cost_s: float, durable_s: float, mtbf_s: float, overhead: float, limit_s: float
) -> None:
    config = CadenceConfig(overhead=overhead, limit_s=limit_s)
    found = chosen(toil(cost_s, durable_s), once_in(mtbf_s), config)
    assert found.seconds >= durable_s * 2
    assert found.seconds <= max(limit_s, durable_s * 2)
    assert found.share <= overhead * 1.0000001 or found.seconds in (limit_s, durable_s * 2)
    by_bound = {
        "optimum": best_s(max(cost_s, LEAST_COST_S), mtbf_s),
        "budget": max(cost_s, LEAST_COST_S) / overhead,
        "limit": limit_s,
        "tier": durable_s * 2,
    }
    assert found.seconds == by_bound[found.bound]


@given(costs, times, means, st.floats(1, 10))
def test_dearer_saves_and_rarer_losses_never_shorten_it(cost_s: float, durable_s: float, mtbf_s: float, more: float) -> None:
    found = chosen(toil(cost_s, durable_s), once_in(mtbf_s), CONFIG).seconds
    assert chosen(toil(cost_s * more, durable_s), once_in(mtbf_s), CONFIG).seconds >= found * 0.999999
    assert chosen(toil(cost_s, durable_s * more), once_in(mtbf_s), CONFIG).seconds >= found * 0.999999
    assert chosen(toil(cost_s, durable_s), once_in(mtbf_s * more), CONFIG).seconds >= found * 0.999999


def test_each_bound_has_a_case() -> None:
    cases = {
        "optimum": (toil(0.1), 3 * H, math.sqrt(2 * 0.1 * 3 * H)),
        "budget": (toil(10.0), H, 1000.0),
        "limit": (toil(10.0), 1000 * DAY, 3600.0),
        "tier": (toil(0.1, 100.0), H, 200.0),
    }
    for bound, (known, mtbf_s, seconds) in cases.items():
        found = chosen(known, once_in(mtbf_s), CONFIG)
        assert found.bound == bound and found.seconds == pytest.approx(seconds, rel=0.01)


@given(st.floats(1, 1e4), st.floats(1, 1e4), st.sampled_from(["optimum", "budget", "limit", "tier"]))
def test_a_place_takes_whole_copies_near_its_own_interval_and_beyond_no_limit(
    seconds: float, copy_s: float, bound: str
) -> None:
    one = msgspec.structs.replace(chosen(toil(1.0), once_in(DAY), CONFIG), seconds=seconds, bound=bound)
    found: Interval = in_copies(one, copy_s)
    assert found.seconds == found.copies * copy_s and found.copies >= 1
    assert found.seconds > 0.79 * seconds or bound == "limit"
    assert found.seconds < seconds + copy_s
    assert bound != "limit" or found.copies == 1 or found.seconds <= seconds


def test_what_is_said_of_losses_holds_and_else_each_one_that_is_seen_weighs_as_much_as_the_prior() -> None:
    assert expected(5, DAY, CadenceConfig(mtbf_s=60.0)) == Loss(mtbf_s=60.0, basis="given", count=5, seen_s=DAY)
    assert expected(0, 0.0, CONFIG) == Loss(mtbf_s=DAY, basis="assumed")
    assert expected(0, 3 * DAY, CONFIG).mtbf_s == 4 * DAY
    assert expected(3, 3 * DAY, CONFIG) == Loss(mtbf_s=DAY, basis="measured", count=3, seen_s=3 * DAY)


def test_advice_on_paper_follows_what_is_asked() -> None:
    question = Question(params=7e9, replicas=64, mtbf_s=3 * H, bytes_per_s=5e9)
    found = advise(question)
    memory, place = found.tiers
    assert found.size_bytes == 84_000_000_000
    assert memory.interval.toil.cost_s == pytest.approx(84e9 / 64 / 10e9)
    assert memory.interval.seconds == pytest.approx(math.sqrt(2 * 0.13125 * 3 * H), rel=0.01)
    assert place.interval.toil.durable_s == pytest.approx(16.8)
    assert place.redone_s == pytest.approx(place.interval.seconds / 2 + 16.8)
    assert memory.effective > place.effective > 0.97
    slow = advise(msgspec.structs.replace(question, bytes_per_s=0.5e9)).tiers[1].interval
    assert (slow.bound, slow.copies) == ("tier", 7) and slow.seconds == pytest.approx(7 * memory.interval.seconds)
    assert advise(msgspec.structs.replace(question, replicas=1)).tiers[0].interval.bound == "budget"
