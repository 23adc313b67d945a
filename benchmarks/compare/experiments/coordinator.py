"""Experiment 4: whoever decides who takes part is killed, and started again with the same command."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from compare.experiment import LIMIT_S, OVER, Column, Entry, Experiment, Figures
from compare.experiments.after import ENDED
from compare.experiments.moments import committed_since, trained
from compare.experiments.rows import rows
from compare.runner import Run
from compare.story import Line, Story, full_strength, left_in_health, longest_pause, silent_since, steps_lost, usual_step
from compare.systems import System, Work
from compare.systems_regrow import BEST as REGROW

SIZE, REPLICAS, SAVE_EVERY, FIRST = "tiny", 2, 10, 12
STEPS_AFTER = 20
WAITED_S = 1.0
QUICK_BELOW_S = 5.0
STARTUP_S = 20.0
"""So long is waited for what the command starts anew, where it is the command that starts the replicas."""
SETTLED_S = 5.0
"""After its return: whoever only notices then shows it."""


@contextmanager
def training(away_s: float, system: System, folder: Path, repetition: int) -> Iterator[Run]:
    """At a random moment, the same for all systems."""
    chance = random.Random(f"coordinator {away_s} {repetition}")
    work = Work(size=SIZE, replicas=REPLICAS, microbatches=6, steps=10**6, save_every=SAVE_EVERY)
    with Run(system, work, folder) as run:
        story = run.wait_started(lambda story: trained(story, REPLICAS, FIRST))
        moment = story.until + chance.random() * SAVE_EVERY * usual_step(story)
        run.wait(lambda story: story.until >= moment)
        yield run


def spare(away_s: float, folder: Path, repetition: int) -> Figures:
    """Nobody is killed: what the count of steps comes to by itself."""
    with training(away_s, REGROW, folder, repetition) as run:
        begun = run.story.until
        story = run.wait(lambda story: story.until >= begun + away_s)
        steps = committed_since(story, begun)
        return {"who": "nobody", "what": "training goes on", "steps_away": share(steps, story, begun, away_s)}


def share(steps: int, story: Story, since: float, away_s: float) -> float:
    return steps / max(1.0, away_s / usual_step(story, since))


def lose(away_s: float, system: System, folder: Path, repetition: int) -> Figures:
    with training(away_s, system, folder, repetition) as run:
        name = "coordinator" if "coordinator" in run.names else run.names[0]
        strike = run.kill_command(name)
        run.wait(lambda story: story.until >= strike.at + away_s, or_ended=False)
        before = committed_since(run.story, strike.at)
        run.start(name)
        back = run.story.until

        def goes_on(story: Story) -> bool:
            full = full_strength(story, strike, REPLICAS)
            waited = story.until - back
            has_shown = name == "coordinator" or bool(newcomers(story)) or waited > STARTUP_S
            return full is not None and has_shown and waited > SETTLED_S and committed_since(story, back) >= STEPS_AFTER

        story = run.wait(goes_on, LIMIT_S, or_ended=True)
        return judged(story, away_s, before, who=name, has_ended=run.has_ended())


def newcomers(story: Story) -> list[Line]:
    """Commits by processes that had not trained before the strike."""
    before = {line.pid for line in story.commits if line.at <= story.strikes[0].at}
    return [line for line in story.commits if line.pid not in before]


def judged(story: Story, away_s: float, steps_away: int, *, who: str, has_ended: bool) -> Figures:
    strike = story.strikes[0]
    pause = longest_pause(story, strike)
    stands = has_ended or pause is None or silent_since(story, strike) > LIMIT_S / 2
    exited = left_in_health(story)
    new = newcomers(story)
    is_twice = bool(new) and any(line.at > new[0].at for line in story.commits if line.pid not in {one.pid for one in new})
    if stands:
        what = "it ends" if has_ended else "all end, and none begins again" if exited else "it stands still"
    elif is_twice:
        what = "a second set of processes trains beside the first"
    elif exited:
        what = f"all end, and begin again at step {new[0].step}" if new else "healthy processes end"
    else:
        what = "training waits, and goes on" if pause > WAITED_S else "training goes on"
    return {
        "who": "a process of its own" if who == "coordinator" else "the process that started the replicas",
        "what": what,
        "pause_s": (ENDED if has_ended else OVER) if stands else pause,
        "steps_away": share(steps_away, story, strike.at, away_s),
        "exited": len(exited),
        "steps_lost": None if is_twice else steps_lost(story),
    }


def _entries(away_s: float, default_s: float, systems: Sequence[System]) -> list[Entry]:
    best_s = 22.0 + away_s
    control = Entry(name="Regrow, nobody killed", settings="control", expected_s=best_s, run=partial(spare, away_s))
    without = ("torchft release", "shadow")
    return [*rows(systems, partial(lose, away_s), best_s=best_s, default_s=default_s, without=without), control]


EXPERIMENTS = [
    Experiment(
        name=f"coordinator-{away_s:g}s",
        title=f"The coordinator is killed, and back after {away_s:g} s",
        claim=(
            "The lighthouse, master or coordinator where it is a process of its own, else the process that started the "
            "replicas and holds the rendezvous. 2 replicas, 4.7 K parameters."
        ),
        columns=(
            Column(title="what was killed", key="who"),
            Column(title="what happens", key="what"),
            Column(title="training stands still, s", key="pause_s", is_best="low"),
            Column(title="steps while it is away, of those usual in the time", key="steps_away", is_best="high"),
            Column(title="healthy training processes that ended", key="exited", digits=0, is_best="low"),
            Column(title="steps done again", key="steps_lost", digits=0, is_best="low"),
        ),
        in_quick=away_s < QUICK_BELOW_S,
        entries=partial(_entries, away_s, default_s),
    )
    for away_s, default_s in ((2.0, 60.0), (10.0, 70.0))
]
