"""Experiment 5: the only replica that is up to date is killed while another heals from it."""

import signal
from functools import partial
from pathlib import Path

from compare.experiment import LIMIT_S, OVER, Column, Experiment, Figures
from compare.experiments.after import ENDED
from compare.experiments.moments import trained
from compare.experiments.rows import rows
from compare.runner import Run
from compare.story import Line, Story, steps_lost, usual_step
from compare.systems import System, Work

SIZE, REPLICAS, SAVE_EVERY, FIRST = "heavy", 2, 4, 7
STEPS_AFTER = 3
SPARE_S = 0.2
"""A spare that stands ready begins to heal at once."""


def lose(system: System, folder: Path, repetition: int) -> Figures:
    work = Work(size=SIZE, replicas=REPLICAS, microbatches=2, steps=10**6, save_every=SAVE_EVERY)
    with Run(system, work, folder) as run:
        run.wait_started(lambda story: trained(story, REPLICAS, FIRST + repetition % SAVE_EVERY))
        pids = {last.replica: pid for pid, last in run.training().items()}
        first, second = (pids[repetition % 2], pids[1 - repetition % 2])
        struck = run.strike(first, signal.SIGKILL, repetition % 2)
        story = run.wait(lambda story: heals(story, struck.at, {first, second}))
        has_healed_before = any(line.at > struck.at and line.pid not in (first, second) for line in story.commits)
        if second not in run.training():
            return {"what": "cannot happen: with the first all had ended, and they restart from the checkpoint"}
        last = run.strike(second, signal.SIGKILL, 1 - repetition % 2)
        story = run.wait(lambda story: goes_on(story, last.at), LIMIT_S, or_ended=True)
        has_saved = any((folder / "saved").iterdir())
        return judged(story, has_ended=run.has_ended(), has_saved=has_saved) | {"in_time": not has_healed_before}


def heals(story: Story, since: float, others: set[int]) -> bool:
    """Is somebody there to whom the state is given?"""
    news = [line for line in story.of("up") if line.pid not in others]
    trainers = {line.pid for line in story.commits}
    stands = any(line.at <= since and line.pid not in trainers for line in news) and story.until > since + SPARE_S
    return (
        stands or any(line.at > since for line in news) or any(pid in story.gone for pid in others if pid != _struck(story))
    )


def _struck(story: Story) -> int:
    return story.strikes[0].pid


def goes_on(story: Story, since: float) -> bool:
    return len({line.step for line in _later(story, since)}) >= STEPS_AFTER


def _later(story: Story, since: float) -> list[Line]:
    struck = {strike.pid for strike in story.strikes}
    return [line for line in story.commits if line.at > since and line.pid not in struck]


def judged(story: Story, *, has_ended: bool, has_saved: bool) -> Figures:
    last = story.strikes[-1]
    top = max(line.step for line in story.commits if line.at <= last.at)
    later = _later(story, last.at)
    if not later:
        what = f"it ends with an error{'' if has_saved else ', and nothing was saved'}" if has_ended else "it stands still"
        lost, pause = (None if has_saved else top + 1), ENDED if has_ended else OVER
    else:
        first = min(line.step for line in later)
        begun = min(line.at for line in later) - last.at
        lost = max(steps_lost(story), top + 1 - first)
        pause = max(0.0, begun - usual_step(story))
        what = "it begins again at step 0" if first == 0 else "it goes on from a saved state" if lost else "it goes on"
    return {"what": what, "lost": lost, "of": top + 1, "pause_s": pause}


EXPERIMENTS = [
    Experiment(
        name="lone",
        title="The only replica that is up to date is lost while another heals",
        claim=(
            "2 replicas, 1.2 GB of state. One is killed, and the other as soon as a successor stands before its first step, "
            "or a spare has begun to take over. Is committed progress lost?"
        ),
        columns=(
            Column(title="what happens", key="what"),
            Column(title="committed steps lost", key="lost", digits=0, is_best="low"),
            Column(title="of so many", key="of", digits=0),
            Column(title="until steps are committed again, s", key="pause_s", is_best="low"),
        ),
        entries=partial(rows, run=lose, best_s=60.0, default_s=60.0, without=("torchft release", "shadow")),
    ),
]
