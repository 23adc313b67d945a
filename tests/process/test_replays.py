"""What a log keeps is all of a step: positions of lanes in their data, buffers, metrics, lanes' presence. All workers of an
every-step job are killed, and however it is fed and trained it goes on where it was, on the same bits."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from runs import HERE, Run, alone, is_stopped, kill_together, sparse, wait_for
from styles import STYLES

from regrow.core.records import Committed, OriginTaken, WorkerExited

pytestmark = pytest.mark.process

Start = Callable[..., Run]
FEEDING, TRAINING = HERE / "feeding.py", HERE / "styles.py"
LAST = 9
"""In this step they are killed, all of them, once all have logged it."""
FLAGS = ("--replicas", "3", "--every-step", "--fault", f"*:passed:step={LAST}:SIGSTOP")
BASES = {"from a state": ("--memory-every", "4"), "from the beginning": ()}
"""What the records follow."""
FEEDS = [(way, workers, base) for way in ("shards", "dealt", "samples", "function") for workers in "20" for base in BASES]
WAYS = [
    (style, base)
    for style in (
        "a convolutional net with batch norm",
        "fp16 with a scaler",
        "frozen and unfrozen",
        "a GAN",
        "schedulers",
        "average of weights",
        "parameters without gradient",
        "torch.compile",
    )
    for base in BASES
]
assert {style for style, _ in WAYS} <= STYLES.keys()


@cache
def reference(script: Path, *arguments: str) -> str:
    return alone(*arguments, script=script)


def kill_all(run: Run) -> int:
    """As soon as one stands still behind the boundary; so many steps were committed by then."""
    wait_for(lambda: any(is_stopped(pid) for pid in run.pids().values()), f"somebody to stand still in step {LAST}")
    reached = max(fact.step for _, fact in run.facts(Committed)) + 1
    kill_together(run.pids().values())
    return reached


def prove(run: Run, reached: int, digest: str) -> None:
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {digest}, run.story()
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert taken.records > 0 and taken.through >= max(reached, LAST + 1), run.story()
    attempts: dict[int, set[str]] = {}
    for _, fact in run.facts(Committed):
        if fact.by != "record":
            attempts.setdefault(fact.step, set()).add(str(fact.attempt))
    assert all(len(found) == 1 for found in attempts.values()), f"a step was computed again\n{run.story()}"
    assert len([fact for _, fact in run.facts(WorkerExited) if not fact.clean]) == 3, run.story()
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.parametrize("feed", sparse(FEEDS, len(FEEDS)), ids=" ".join)
def test_fed_in_any_way_no_sample_is_used_twice_or_left_out(start: Start, feed: tuple[str, str, str]) -> None:
    """Where a lane stands in its stream is committed with the step, and so it lies in the log."""
    way, workers, base = feed
    run = start(*FLAGS, *BASES[base], script=FEEDING, script_args=(way, "--workers", workers))
    prove(run, kill_all(run), reference(FEEDING, way))


@pytest.mark.parametrize("trained", sparse(WAYS, len(WAYS)), ids=" ".join)
def test_trained_in_any_way_the_replay_has_the_same_bits(start: Start, trained: tuple[str, str]) -> None:
    style, base = trained
    run = start(*FLAGS, *BASES[base], script=TRAINING, script_args=(style,))
    prove(run, kill_all(run), reference(TRAINING, style))
