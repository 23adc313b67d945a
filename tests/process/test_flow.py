"""Gradients that travel while backward makes the others: break it there, and end with the weights of an undisturbed run."""

from collections import Counter
from collections.abc import Callable

import pytest
from runs import Run, alone, prove, sparse
from test_attacks import DOUBLES, KILLS, Attack

pytestmark = pytest.mark.process

SMALL = ("--bucket-mb", "0.0004")
"""Every parameter of the script travels by itself."""
FLOWS = [
    Attack("first bucket added up", ("r1:bucket:step=3:bucket=0:SIGKILL",), "r1"),
    Attack("half of the buckets through", ("r1:bucket:step=3:bucket=2:SIGKILL",), "r1"),
    Attack("last bucket added up", ("r1:bucket:step=3:bucket=5:SIGKILL",), "r1"),
    Attack("the first member, half way", ("r0:bucket:step=3:bucket=2:SIGKILL",), "r0"),
    Attack(
        "two, one after the other", ("r1:bucket:step=3:bucket=1:SIGKILL", "r2:bucket:step=3:bucket=2:SIGKILL"), "r1 r2", 4
    ),
    Attack("another in the redo", ("r1:bucket:step=3:bucket=2:SIGKILL", "r2:bucket:step=3:nth=4:SIGKILL"), "r1 r2", 4),
    Attack("another resolving", ("r1:bucket:step=3:bucket=2:SIGKILL", "r2:resolve:roster=2:SIGKILL"), "r1 r2", 4),
    Attack("all but one", tuple(f"r{i}:bucket:step=3:bucket={i}:SIGKILL" for i in (0, 1, 2)), "r0 r1 r2", 4),
    Attack("an exception in the thread that reduces", ("r2:bucket:step=3:bucket=2:raise",), "r2"),
    Attack("the joiner, in its first bucket", ("r1:backward:step=2:SIGKILL", "r1.1:bucket:SIGKILL"), "r1 r1"),
]


@pytest.fixture(scope="module")
def halves() -> str:
    """The digest of the script alone, with two microbatches a lane."""
    return alone("--microbatches", "2")


@pytest.mark.parametrize("attack", FLOWS, ids=lambda attack: attack.name)
def test_a_death_between_two_buckets(attack: Attack, start: Callable[..., Run], halves: str) -> None:
    strike(attack, start, halves, 2)


def test_a_thread_that_reduces_and_hangs(start: Callable[..., Run], halves: str) -> None:
    """Its own training thread waits for it, and so do all others: nobody is to blame until one does not come back."""
    run = strike(Attack("hang", ("r1:bucket:step=3:bucket=2:hang",), ""), start, halves, 2)
    assert "r1.0 hangs in step 3 (flow)" in run.output and "r1.0 was ended" in run.output, run.output


@pytest.mark.parametrize("attack", sparse([*KILLS, *DOUBLES], 9), ids=lambda attack: attack.name)
def test_any_other_death_while_gradients_travel(attack: Attack, start: Callable[..., Run], reference: str) -> None:
    strike(attack, start, reference, 1)


def strike(attack: Attack, start: Callable[..., Run], expected: str, microbatches: int) -> Run:
    faults = [arg for fault in attack.faults for arg in ("--fault", fault)]
    script_args = ("--hold", f"5:{attack.replicas}", "--microbatches", str(microbatches))
    run = start("--replicas", str(attack.replicas), *SMALL, *faults, script_args=script_args)
    run.wait()
    prove(run, expected, deaths=Counter(attack.deaths.split()), microbatches=microbatches)
    return run
