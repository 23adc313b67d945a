"""What a founding and a save take, as it is measured."""

from regrow.worker.expense import Expense


def test_before_a_step_was_measured_nothing_is_known() -> None:
    assert Expense(startup_s=1.0, state_bytes=10).costs(10) is None


def test_sizes_speak_until_something_was_measured() -> None:
    expense = Expense(startup_s=2.0, state_bytes=6_000_000_000)
    expense.stepped(0.05, 0.5)
    costs = expense.costs(100_000_000)
    assert costs is not None
    assert (costs.load_s, costs.replay_s, costs.save_s, costs.step_s) == (6.0, 0.1, 0.0, 0.5)
    expense.loaded(0.5)
    expense.replayed(100, 2.0)
    expense.replayed(0, 9.0)
    costs = expense.costs(100_000_000)
    assert costs is not None and (costs.load_s, costs.replay_s) == (3.5, 0.02)


def test_one_long_step_does_not_speak_for_the_others() -> None:
    expense = Expense(startup_s=0.0, state_bytes=0)
    for seconds in (0.001, 900.0, 0.001):
        expense.stepped(seconds, 2 * seconds)
    costs = expense.costs(0)
    assert costs is not None and (costs.replay_s, costs.step_s) == (0.001, 0.002)


def test_a_save_costs_what_training_stood_still_for_it() -> None:
    expense = Expense(startup_s=0.0, state_bytes=0)
    expense.stepped(1.0, 1.0)
    for wait_s in (3.0, 2.0):
        expense.began_save(0.5)
        expense.waited(wait_s)
    costs = expense.costs(0)
    assert costs is not None and costs.save_s == 2.5, "the last one's"
