"""Experiment 6: with 1.2 GB of state one of two replicas is killed: what its way back costs the other."""

import signal
from functools import partial
from itertools import pairwise
from pathlib import Path

from compare.experiment import LIMIT_S, OVER, Column, Experiment, Figures
from compare.experiments.after import ENDED, strip
from compare.experiments.moments import committed_since, trained
from compare.experiments.rows import rows
from compare.runner import Run
from compare.story import Story, full_strength, left_in_health, steps_lost, usual_step
from compare.systems import System, Work

SIZE, REPLICAS, SAVE_EVERY, FIRST, STEPS_AFTER = "heavy", 2, 10, 12, 3
STATE_BYTES = 3 * 4 * 24 * 2048 * 2048


def join(system: System, folder: Path, repetition: int) -> Figures:
    work = Work(size=SIZE, replicas=REPLICAS, microbatches=2, steps=10**6, save_every=SAVE_EVERY)
    with Run(system, work, folder) as run:
        run.wait_started(lambda story: trained(story, REPLICAS, FIRST))
        pids = {last.replica: pid for pid, last in run.training().items()}
        strike = run.strike(pids[repetition % 2], signal.SIGKILL, repetition % 2)

        def is_whole(story: Story) -> bool:
            full = full_strength(story, strike, REPLICAS)
            return full is not None and committed_since(story, full) >= STEPS_AFTER

        story = run.wait(is_whole, LIMIT_S, or_ended=True)
        return judged(story, has_ended=run.has_ended())


def judged(story: Story, *, has_ended: bool) -> Figures:
    """The way back begins when the successor stands before its first step, or with the death, where a spare stood ready."""
    strike = story.strikes[0]
    usual = usual_step(story, strike.at)
    full = full_strength(story, strike, REPLICAS)
    if full is None:
        never = ENDED if has_ended else OVER
        return {"slowest": never, "full_s": never, "mb_per_s": None, "usual_step_s": usual, "steps_lost": steps_lost(story)}
    before = {line.pid for line in story.commits if line.at <= strike.at}
    came = {line.pid for line in story.commits if line.at > strike.at} - before
    begun = max([line.at for line in story.of("up") if line.pid in came and line.at > strike.at], default=strike.at)
    others = sorted({line.at for line in story.commits if line.pid != strike.pid})
    steps = [after - start for start, after in pairwise(others) if after > strike.at and start < full]
    return {
        "slowest": max(steps) / usual,
        "slowest_s": max(steps),
        "full_s": full - strike.at,
        "mb_per_s": None if left_in_health(story) else STATE_BYTES / 1e6 / (full - begun),
        "usual_step_s": usual,
        "steps_lost": steps_lost(story),
        "strip": strip(story, strike),
    }


EXPERIMENTS = [
    Experiment(
        name="join",
        title="A replica comes back to 1.2 GB of state",
        claim=(
            "2 replicas, 100.7 M parameters with AdamW's moments; one is killed. The slowest step of the others from the "
            "death to full strength, over the usual one; and the state's size over the time from when the successor stood "
            "before its first step (where a spare stood ready: from the death) to the first step that both had a part in; "
            "where all restart there is no such way: each reads the checkpoint."
        ),
        columns=(
            Column(title="slowest step / usual step", key="slowest", digits=1, is_best="low"),
            Column(title="slowest step, s", key="slowest_s", is_best="low"),
            Column(title="usual step, s", key="usual_step_s"),
            Column(title="full strength after, s", key="full_s", digits=1, is_best="low"),
            Column(title="MB/s", key="mb_per_s", digits=0, is_best="high"),
            Column(title="steps done again", key="steps_lost", digits=0, is_best="low"),
        ),
        entries=partial(rows, run=join, best_s=60.0, default_s=60.0, without=("torchft release",)),
    ),
]
