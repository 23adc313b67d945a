"""Experiment 3: one of two replicas does not go on, though its process lives."""

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

SIZE, REPLICAS, SAVE_EVERY, FIRST = "large", 2, 10, 12


def stop(system: System, folder: Path, repetition: int) -> Figures:
    """SIGSTOP: no thread of it runs any more."""
    chance = random.Random(f"stop {repetition}")
    work = Work(size=SIZE, replicas=REPLICAS, microbatches=6, steps=10**6, save_every=SAVE_EVERY)
    with Run(system, work, folder) as run:
        story = run.wait_started(lambda story: trained(story, REPLICAS, FIRST))
        moment = story.until + chance.random() * SAVE_EVERY * usual_step(story)
        run.wait(lambda story: story.until >= moment)
        pid, last = chance.choice(sorted(run.training().items(), key=lambda found: found[1].replica))
        return after_strike(run, run.strike(pid, signal.SIGSTOP, last.replica))


def sleep(system: System, folder: Path, repetition: int) -> Figures:
    """Its training thread sleeps for ever in a microbatch, while other threads live on."""
    chance = random.Random(f"sleep {repetition}")
    hang = f"{chance.randrange(REPLICAS)}:{FIRST + chance.randrange(SAVE_EVERY)}"
    work = Work(size=SIZE, replicas=REPLICAS, microbatches=6, steps=10**6, save_every=SAVE_EVERY, hang=hang)
    with Run(system, work, folder) as run:
        story = run.wait_started(lambda story: bool(story.of("hang")))
        return after_strike(run, run.hung(story.of("hang")[0]))


COLUMNS = (
    Column(title="the others stand still, s", key="pause_s", is_best="low"),
    Column(title="full strength after, s", key="full_s", is_best="low"),
    Column(title="microbatches thrown away", key="thrown", digits=0, is_best="low"),
    Column(title="steps done again", key="steps_lost", digits=0, is_best="low"),
    Column(title="healthy processes that ended", key="exited", digits=0, is_best="low"),
    Column(title="its output names", key="blame"),
)

EXPERIMENTS = [
    Experiment(
        name="stop",
        title="SIGSTOP of one of 2 replicas",
        claim="As a kill, but the process stands still instead: its connections stay open, and nobody is told.",
        columns=COLUMNS,
        entries=partial(rows, run=stop, best_s=30.0, default_s=105.0, without=("torchft release",)),
    ),
    Experiment(
        name="sleep",
        title="A hang: one of 2 replicas sleeps for ever in a microbatch",
        claim=(
            "Its training thread sleeps, a helper thread lives on, and the process looks alive to the kernel: a deadlock, "
            "or a data loader that never answers."
        ),
        columns=COLUMNS,
        entries=partial(rows, run=sleep, best_s=30.0, default_s=105.0, without=("torchft release",)),
    ),
]
