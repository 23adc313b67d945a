"""Restarts: counted in a window, ever later, never beyond the limit."""

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.budget import Budget, BudgetConfig, Exhausted, Restart

CONFIG = BudgetConfig(max_restarts=3, max_all_restarts=4, window_s=100.0, backoff_s=1.0, backoff_cap_s=3.0)


def restart(delay_s: float, used: int, job_used: int | None = None) -> Restart:
    return Restart(delay_s=delay_s, used=used, limit=3, job_used=job_used or used, job_limit=4, window_s=100.0)


def test_the_first_restart_is_at_once_and_each_further_one_later() -> None:
    budget = Budget(CONFIG)
    assert [budget.spend("r0", float(t)) for t in range(3)] == [restart(0.0, 1), restart(1.0, 2), restart(2.0, 3)]
    assert isinstance(budget.spend("r0", 3.0), Exhausted)


def test_the_window_forgets() -> None:
    budget = Budget(CONFIG)
    for t in range(3):
        budget.spend("r0", float(t))
    assert budget.spend("r0", 200.0) == restart(0.0, 1)


def test_a_successor_counts_on() -> None:
    before = Budget(CONFIG)
    before.spend("r0", 0.0)
    before.spend("r1", 50.0)
    after = Budget(CONFIG, before.spent)
    assert after.spend("r0", 60.0) == restart(1.0, 2, 3)
    assert after.spend("r0", 120.0) == restart(1.0, 2, 3), "the first one is out of the window by now"


def test_times_of_a_clock_that_began_anew_count_from_now_on() -> None:
    budget = Budget(CONFIG, {"r0": (5000.0, 5001.0, 5002.0)})
    assert isinstance(budget.spend("r0", 1.0), Exhausted)
    assert isinstance(budget.spend("r0", 100.0), Exhausted)
    assert budget.spend("r0", 101.0) == restart(0.0, 1)


def test_the_job_has_a_limit_of_its_own() -> None:
    budget = Budget(CONFIG)
    for i in range(4):
        assert isinstance(budget.spend(f"r{i}", 0.0), Restart)
    assert isinstance(budget.spend("r9", 0.0), Exhausted)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 60)), max_size=40))
def test_never_more_than_the_limits_within_a_window(spends: list[tuple[str, float]]) -> None:
    """The dumb count: keep every grant, look back."""
    budget, granted, now = Budget(CONFIG), [], 0.0
    for replica, pause_s in spends:
        now += pause_s
        recent = [(r, t) for r, t in granted if now - t < CONFIG.window_s]
        mine = sum(r == replica for r, _ in recent)
        allowed = mine < CONFIG.max_restarts and len(recent) < CONFIG.max_all_restarts
        answer = budget.spend(replica, now)
        assert isinstance(answer, Restart) == allowed
        if isinstance(answer, Restart):
            assert answer.delay_s <= CONFIG.backoff_cap_s
            granted.append((replica, now))
