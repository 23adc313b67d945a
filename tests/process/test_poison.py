"""Samples that kill whoever computes them: the lane is named, not the hosts, and the state outlives it."""

import json
from collections import Counter
from collections.abc import Callable

import pytest
from runs import LANES, Run, alone, prove, sparse

from regrow.core.lanes import Cell
from regrow.core.order import Plan
from regrow.core.records import Committed, Departed, JobEnded, LaneComputed, LanePoisoned, RosterMade, WorkerExited

pytestmark = pytest.mark.process

STEPS = 8
FEW = ("--steps", str(STEPS))
"""Fewer than would bring a sample back."""


def bad_sample() -> tuple[Cell, int]:
    """A sample of the fourth step that no other lane of these steps has."""
    plan = Plan(seed=5, lanes=LANES, microbatches_per_lane=1, batch_size=3, dataset_size=97)
    cells = [Cell(step, lane) for step in range(STEPS) for lane in range(LANES)]
    used = Counter(sample for cell in cells for sample in plan.samples(cell.step, cell.lane, 0))
    return next((c, s) for c in cells if c.step == 3 for s in plan.samples(c.step, c.lane, 0) if used[s] == 1)


CELL, BAD = bad_sample()
SKIP = ("--skip", json.dumps([[CELL.step, CELL.lane]]))


def prove_poison(run: Run, decision: str, deaths: int = 2) -> None:
    (found,) = {fact for _, fact in run.facts(LanePoisoned)}
    assert (found.cell, found.decision) == (CELL, decision), run.story()
    assert BAD in found.samples and len(found.samples) == 3
    exits = [fact for _, fact in run.facts(WorkerExited) if not fact.clean and fact.place is not None]
    died = [fact.member.replica for fact in exits if (fact.place.step, fact.place.lane) == (CELL.step, CELL.lane)]
    assert tuple(sorted(set(died))) == found.replicas and len(died) == deaths, run.story()
    assert f"{CELL} is poison: it killed {' and '.join(found.replicas)}" in run.output
    assert str(BAD) in run.output
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.fixture(scope="module")
def without() -> str:
    """The digest of a job of one that leaves the lane out from the start."""
    return alone(*FEW, *SKIP)


@pytest.mark.parametrize("replicas", sparse([2, 3], 2))
@pytest.mark.parametrize("action", ["kill", "segfault", "raise"])
def test_skipped_it_is_as_if_the_lane_had_been_left_out_from_the_start(
    replicas: int, action: str, start: Callable[..., Run], without: str
) -> None:
    run = start("--replicas", str(replicas), "--on-poison", "skip", script_args=(*FEW, "--poison", f"{BAD}:{action}"))
    assert run.wait() == 0, run.story()
    prove_poison(run, "skip", deaths=3 if action == "kill" else 2)
    assert set(run.digests()) == {without}, run.story()
    assert not any((fact.step, fact.lane) == (CELL.step, CELL.lane) for _, fact in run.facts(LaneComputed))


def test_a_sample_that_never_ends_is_poison_too(start: Callable[..., Run], without: str) -> None:
    run = start("--replicas", "3", "--on-poison", "skip", script_args=(*FEW, "--poison", f"{BAD}:spin"))
    assert run.wait() == 0, run.story()
    prove_poison(run, "skip")
    assert set(run.digests()) == {without}, run.story()


@pytest.mark.parametrize("save", [False, True])
def test_stopped_every_survivor_holds_the_state_before_the_step(
    save: bool, start: Callable[..., Run], digests: list[str]
) -> None:
    script_args = (*FEW, "--poison", f"{BAD}:segfault", *(("--save",) if save else ()))
    run = start("--replicas", "3", script_args=script_args)
    assert run.wait() == 1, run.story()
    prove_poison(run, "stop")
    (end,) = (fact for _, fact in run.facts(JobEnded))
    assert end.outcome == "failed" and "is poison" in end.why, end
    departed = [fact for _, fact in run.facts(Departed)]
    assert {(fact.step, fact.fault, fact.digest) for fact in departed} == {(CELL.step, "halt", digests[CELL.step])}
    assert max(fact.step for _, fact in run.facts(Committed)) == CELL.step - 1
    assert run.output.count(f"kept {digests[CELL.step]}") == (len(departed) if save else 0), run.story()
    assert ("catch regrow.PoisonError around the loop" in run.output) is not save
    run.wait_nothing_left({})


def test_two_kills_from_outside_are_no_poison(start: Callable[..., Run], reference: str) -> None:
    """Somebody kills a replica, and a moment later the one that took over its lane."""
    armed = f"forward:step={CELL.step}:lane={CELL.lane}:SIGKILL"
    run = start("--replicas", "3", "--fault", f"*:{armed}", "--fault", f"*:{armed}")
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter({"*": 2}))
    assert not run.facts(LanePoisoned)


def test_the_only_survivor_waits_for_another_before_it_touches_the_lane(start: Callable[..., Run], reference: str) -> None:
    """A lane that kills once is no poison. With two replicas the survivor must not risk the only copy of the state."""
    run = start("--replicas", "2", "--fault", f"*:forward:step={CELL.step}:lane={CELL.lane}:SIGKILL")
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter({"*": 1}))
    assert not run.facts(LanePoisoned)
    made = {fact.version: fact for _, fact in run.facts(RosterMade)}
    (attempt,) = {fact.attempt for _, fact in run.facts(Committed) if fact.step == CELL.step}
    assert len(made[attempt].seats) == 2 and [s.cell for s in made[attempt].suspects] == [CELL], run.story()


def test_lanes_left_out_by_the_script_are_left_out_everywhere(start: Callable[..., Run], without: str) -> None:
    run = start("--replicas", "3", "--fault", "r1:backward:step=3:SIGKILL", script_args=(*FEW, *SKIP))
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {without}, run.story()
    assert run.check().returncode == 0
