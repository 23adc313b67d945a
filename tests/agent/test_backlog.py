"""What gives way at a place that fails, and what does not."""

import os
from collections.abc import Iterator

import pytest
from vaults import V1, drafted

from regrow.agent.backlog import Backlog
from regrow.agent.generation import Generation, Label
from regrow.core.saves import Urgency
from regrow.state.pieces import digests

PATIENCE_S = 120.0


@pytest.fixture
def generations() -> Iterator[list[Generation]]:
    fds = [os.memfd_create("regrow-test") for _ in range(6)]
    yield [Generation(number, *fds[2 * number : 2 * number + 2]) for number in range(3)]
    for fd in fds:
        os.close(fd)


def labelled(step: int) -> Label:
    made = drafted(step)
    found = digests(made, memoryview(bytes(made.arena_bytes)))
    return Label(draft=made, digests=found, version=V1, inode=0, lasts=(), takers=())


def at_work(generations: list[Generation], *urgencies: Urgency) -> Backlog:
    """Steps 1, 2, 3; the first is at work."""
    backlog = Backlog(PATIENCE_S)
    for step, (generation, urgency) in enumerate(zip(generations, urgencies, strict=False), 1):
        backlog.take(labelled(step), generation, urgency)
    backlog.is_at_work = True
    return backlog


def steps(backlog: Backlog) -> list[int]:
    return [taken.draft.step for taken in backlog.superseded()]


DUE, ASKED, LAST = Urgency.DUE, Urgency.ASKED, Urgency.LAST


def test_a_place_that_is_slow_keeps_all_that_it_took(generations: list[Generation]) -> None:
    backlog = at_work(generations, DUE, DUE, DUE)
    assert not backlog.press(idle_s=9.9, has_refused=False)
    assert steps(backlog) == [] and not backlog.is_in_vain(1000.0)
    assert backlog.first is not None and backlog.patience_s(backlog.first) == PATIENCE_S


def test_one_that_wants_only_the_newest_keeps_that_and_what_is_at_work(generations: list[Generation]) -> None:
    backlog = Backlog(PATIENCE_S, gives_way=True)
    for step, (generation, urgency) in enumerate(zip(generations, (DUE, ASKED, DUE), strict=True), 1):
        backlog.take(labelled(step), generation, urgency)
    backlog.is_at_work = True
    assert steps(backlog) == [2] and backlog.newest.draft.step == 3 and backlog.newest.urgency is ASKED
    assert not backlog.is_failing and backlog.patience_s(backlog.newest) == PATIENCE_S


@pytest.mark.parametrize(("idle_s", "has_refused"), [(10.0, False), (0.0, True)])
def test_one_that_stalls_or_refuses_keeps_what_is_at_work_and_the_newest(
    generations: list[Generation], idle_s: float, has_refused: bool
) -> None:
    backlog = at_work(generations, DUE, DUE, DUE)
    assert backlog.press(idle_s, has_refused)
    assert steps(backlog) == [2] and (backlog.newest.draft.step, len(backlog)) == (3, 2)
    assert not backlog.press(idle_s, has_refused), "it is said once"


def test_after_a_save_was_given_up_nothing_but_the_newest_is_tried_with_little_patience_that_grows(
    generations: list[Generation],
) -> None:
    backlog = at_work(generations, DUE, DUE, DUE)
    backlog.failed(is_the_place=True)
    assert steps(backlog) == [2]
    patiences = []
    for _ in range(4):
        patiences.append(backlog.patience_s(backlog.newest))
        backlog.take(labelled(9), generations[0], DUE)
        backlog.failed(is_the_place=True)
    assert patiences == [10.0, 20.0, 40.0, 80.0]


def test_what_was_asked_for_has_all_patience_and_hands_it_on_to_what_takes_its_place(generations: list[Generation]) -> None:
    backlog = at_work(generations, DUE, ASKED, DUE)
    backlog.failed(is_the_place=True)
    assert steps(backlog) == [2]
    assert backlog.newest.urgency is ASKED and backlog.patience_s(backlog.newest) == PATIENCE_S
    backlog.is_at_work = True
    backlog.take(labelled(4), generations[0], DUE)
    assert not backlog.is_in_vain(1000.0)


def test_a_try_in_vain_gives_way_only_where_that_frees_memory(generations: list[Generation]) -> None:
    backlog = at_work(generations, DUE, DUE, DUE)
    backlog.press(10.0, has_refused=False)
    assert steps(backlog) == [2]
    assert not backlog.is_in_vain(39.0) and backlog.is_in_vain(40.0), "it may be slow"
    backlog.failed(is_the_place=True)
    backlog.is_at_work = True
    assert not backlog.is_in_vain(1000.0), "there is nothing newer"
    backlog.take(labelled(4), generations[0], DUE)
    assert not backlog.is_in_vain(0.9) and backlog.is_in_vain(1.0)


@pytest.mark.parametrize("is_harm", [False, True])
def test_a_success_ends_it_and_harmed_memory_is_not_the_places_fault(generations: list[Generation], is_harm: bool) -> None:
    backlog = at_work(generations, DUE, DUE, LAST)
    if is_harm:
        backlog.failed(is_the_place=False)
    else:
        backlog.press(10.0, has_refused=False)
        backlog.succeeded()
    assert not backlog.is_failing and steps(backlog) == []
