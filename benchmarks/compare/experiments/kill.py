"""Experiment 2: one of several replicas is killed at a random moment."""

import random
import signal
from functools import partial
from pathlib import Path

from compare.experiment import Column, Experiment, Figures
from compare.experiments.after import after_strike
from compare.experiments.moments import trained
from compare.experiments.rows import rows
from compare.runner import Run
from compare.story import usual_step
from compare.systems import System, Work

SAVE_EVERY = 10
FIRST = 12
"""The first step at which it may be struck: a checkpoint is there."""


def kill(size: str, replicas: int, system: System, folder: Path, repetition: int) -> Figures:
    chance = random.Random(f"kill {size} {replicas} {repetition}")
    work = Work(size=size, replicas=replicas, microbatches=6, steps=10**6, save_every=SAVE_EVERY)
    with Run(system, work, folder) as run:
        story = run.wait_started(lambda story: trained(story, replicas, FIRST))
        moment = story.until + chance.random() * SAVE_EVERY * usual_step(story)
        run.wait(lambda story: story.until >= moment)
        pid, last = chance.choice(sorted(run.training().items(), key=lambda found: found[1].replica))
        strike = run.strike(pid, signal.SIGKILL, last.replica)
        return after_strike(run, strike)


COLUMNS = (
    Column(title="the others stand still, s", key="pause_s", is_best="low"),
    Column(title="full strength after, s", key="full_s", is_best="low"),
    Column(title="microbatches thrown away", key="thrown", digits=0, is_best="low"),
    Column(title="steps done again", key="steps_lost", digits=0, is_best="low"),
    Column(title="healthy processes that ended", key="exited", digits=0, is_best="low"),
    Column(title="its output names", key="blame"),
)

SIZES = {"large": "10.7 M parameters", "tiny": "4.7 K parameters"}
EXPERIMENTS = [
    Experiment(
        name=f"kill-{replicas}-{size}",
        title=f"SIGKILL of one of {replicas} replicas, {SIZES[size]}",
        claim=(
            f"A step has 6 microbatches, {6 // replicas} for each replica; those who save do so every {SAVE_EVERY} steps. "
            "The moment and the replica are random, and the same for all systems. Standing still is the longest time "
            "without a committed step until full strength, less the usual step of the same run."
        ),
        columns=COLUMNS,
        entries=partial(rows, run=partial(kill, size, replicas), best_s=best_s, default_s=default_s, without=without),
        in_quick=in_quick,
    )
    for replicas, size, best_s, default_s, without, in_quick in (
        (2, "large", 22.0, 60.0, (), True),
        (3, "large", 24.0, 40.0, ("torchft release",), False),
        (2, "tiny", 18.0, 30.0, ("torchft release",), False),
    )
]
