"""Experiment 7: a kill every 10 s, beside an undisturbed run of the same steps."""

import random
import signal
from functools import partial
from pathlib import Path

from compare.experiment import LIMIT_S, OVER, Column, Experiment, Figures
from compare.experiments.moments import trained
from compare.experiments.rows import rows
from compare.runner import Run
from compare.story import Story, digests, kept, microbatches_kept, steps_lost, thrown_away
from compare.systems import System, Work

SIZE, REPLICAS, MICROBATCHES, SAVE_EVERY = "large", 2, 6, 10
STEPS = 100
FIRST_S, EVERY_S, LAST_S = 5.0, 10.0, 3.0


def churn(system: System, folder: Path, repetition: int) -> Figures:
    """Both runs, in an order that alternates."""
    order = (False, True) if repetition % 2 == 0 else (True, False)
    stories = {struck: one_run(system, folder / str(int(struck)), struck, repetition) for struck in order}
    return judged(stories[False], stories[True])


def one_run(system: System, folder: Path, struck: bool, repetition: int) -> Story:
    chance = random.Random(f"churn {repetition}")
    work = Work(size=SIZE, replicas=REPLICAS, microbatches=MICROBATCHES, steps=STEPS, save_every=SAVE_EVERY)
    with Run(system, work, folder) as run:
        story = run.wait_started(lambda story: trained(story, REPLICAS, 1))
        begun = min(line.at for line in story.commits)
        number = 0
        while not is_over(story := run.story, begun) and not run.has_ended():
            due = begun + FIRST_S + EVERY_S * number
            story = run.wait(lambda story, due=due: is_over(story, begun) or (struck and story.until >= due), or_ended=True)
            if (
                struck
                and not story.of("end")
                and not is_over(story, begun)
                and (alive := sorted(run.training().items(), key=_by_replica))
            ):
                pid, last = chance.choice(alive)
                run.strike(pid, signal.SIGKILL, last.replica)
            number += 1
        return run.story


def _by_replica(found: tuple[int, object]) -> int:
    return found[1].replica  # type: ignore[attr-defined]


def is_over(story: Story, begun: float) -> bool:
    """All replicas have ended, or one has and the others had time to, or the time is up."""
    ends = story.of("end")
    has_ended = len(ends) >= REPLICAS or (bool(ends) and story.until > ends[0].at + LAST_S)
    return has_ended or story.until > begun + LIMIT_S


def judged(calm: Story, churned: Story) -> Figures:
    """Useful steps a second of the struck run, over those of the undisturbed one."""
    has_ended = bool(churned.of("end"))
    return {
        "goodput": rate(churned) / rate(calm),
        "seconds": span(churned) if has_ended else OVER,
        "calm_seconds": span(calm),
        "kills": len(churned.strikes),
        "thrown": thrown_away(churned),
        "steps_lost": steps_lost(churned),
        "samples": microbatches_kept(churned) / max(1, len(kept(churned)) * MICROBATCHES),
        "equal": ("yes" if digests(churned) == digests(calm) else "NO") if has_ended else "did not finish",
    }


def span(story: Story) -> float:
    """From the first commit to the end, or to the end of looking."""
    ends = [line.at for line in story.of("end")]
    return (min(ends) if ends else story.until) - min(line.at for line in story.commits)


def rate(story: Story) -> float:
    return len(kept(story)) / span(story)


EXPERIMENTS = [
    Experiment(
        name="churn",
        title="A kill every 10 s",
        claim=(
            f"{STEPS} steps of 10.7 M parameters on 2 replicas, undisturbed and with a random one killed every "
            f"{EVERY_S:g} s, from {FIRST_S:g} s on. Goodput is useful committed steps a second over those of the run "
            "without kills beside it. A run that has not ended within 90 s is judged by what it has committed by then."
        ),
        columns=(
            Column(title="goodput", key="goodput", is_best="high"),
            Column(title="kills", key="kills", digits=0),
            Column(title="samples that are in the committed steps, of those that should be", key="samples", is_best="high"),
            Column(title="steps done again", key="steps_lost", digits=0, is_best="low"),
            Column(title="microbatches thrown away", key="thrown", digits=0, is_best="low"),
            Column(title="final weights equal those of the undisturbed run", key="equal"),
        ),
        entries=partial(rows, run=churn, best_s=110.0, default_s=110.0, without=("torchft release",)),
    ),
]
