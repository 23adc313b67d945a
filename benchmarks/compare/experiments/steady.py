"""Experiment 1: what a healthy step costs beside plain DDP."""

import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from compare.experiment import LIMIT_S, Column, Entry, Experiment, Figures
from compare.experiments.rows import rows
from compare.runner import Run
from compare.story import Story
from compare.systems import System, Work
from compare.systems_ddp import DEFAULT as DDP

REPLICAS = 2
BLOCK = {"large": 4, "tiny": 60}
"""Steps at a time."""
ROUNDS = {"large": 14, "tiny": 14}
CONTROL = "DDP against itself"


def steady(size: str, system: System, folder: Path, repetition: int) -> Figures:
    """Both stand ready at once and train in turns, a block of steps each, in an order that changes."""
    chance = random.Random(f"steady {size} {repetition}")
    block = BLOCK[size]
    work = Work(size=size, replicas=REPLICAS, microbatches=REPLICAS, steps=10**6)
    with ExitStack() as stack:
        runs = {}
        for name, one in (("ddp", DDP), ("system", system)):
            runs[name] = stack.enter_context(Run(one, work, folder / name, in_turns=True))
        for run in runs.values():
            run.wait_started(lambda story: len(story.of("up")) >= REPLICAS)
        for number in range(ROUNDS[size] + 1):
            for name in chance.sample(sorted(runs), len(runs)):
                last = (number + 1) * block - 1
                runs[name].allow(last + 1)
                runs[name].wait(lambda story, last=last: is_done(story, last), LIMIT_S)
        return judged({name: blocks(run.story, block, ROUNDS[size]) for name, run in runs.items()})


def is_done(story: Story, last: int) -> bool:
    return sum(line.step == last for line in reversed(story.lines) if line.what == "commit") >= REPLICAS


def blocks(story: Story, block: int, rounds: int) -> list[float]:
    """Seconds a step of each block took, without its first step, which begins when somebody looks, and without the first
    block, in which much happens for the first time."""
    done: dict[int, float] = {}
    for line in story.commits:
        done[line.step] = max(line.at, done.get(line.step, 0.0))
    return [(done[(n + 1) * block - 1] - done[n * block]) / (block - 1) for n in range(1, rounds + 1)]


def judged(took: dict[str, list[float]]) -> Figures:
    pairs = list(zip(took["system"], took["ddp"], strict=True))
    return {
        "ratio": statistics.median(a / b for a, b in pairs),
        "more_ms": statistics.median(a - b for a, b in pairs) * 1e3,
        "step_ms": statistics.median(took["system"]) * 1e3,
        "ddp_ms": statistics.median(took["ddp"]) * 1e3,
    }


def _entries(size: str, systems: Sequence[System]) -> list[Entry]:
    run = partial(steady, size)
    control = Entry(name=CONTROL, settings="control", expected_s=25.0, run=partial(run, DDP))
    return [control, *rows(systems, run, best_s=30.0, default_s=30.0, without=("torchft release", DDP.name))]


EXPERIMENTS = [
    Experiment(
        name=f"steady-{size}",
        title=f"A healthy step, {parameters} parameters",
        claim=(
            "2 replicas, one microbatch each. The system and plain DDP stand ready at once and train in turns, "
            f"{BLOCK[size]} steps at a time, {ROUNDS[size]} times; each ratio is between neighbours, and a run's figure is "
            "the median of them. DDP against itself tells how much of a difference is noise. Regrow also gives every "
            "replica the mean loss of each step; the others agree on gradients alone."
        ),
        columns=(
            Column(title="step / step of DDP", key="ratio", digits=3, is_best="low"),
            Column(title="more than DDP, ms", key="more_ms", is_best="low"),
            Column(title="step, ms", key="step_ms", digits=1),
        ),
        entries=partial(_entries, size),
    )
    for size, parameters in (("large", "10.7 M"), ("tiny", "4.7 K"))
]
