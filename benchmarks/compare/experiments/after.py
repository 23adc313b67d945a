"""What is asked of every system after a strike, whatever the strike was."""

from compare.blame import blamed
from compare.experiment import LIMIT_S, OVER, Figures
from compare.experiments.moments import committed_since
from compare.runner import Run
from compare.story import (
    Story,
    Strike,
    full_strength,
    left_in_health,
    longest_pause,
    silent_since,
    steps_lost,
    thrown_away,
    usual_step,
)

ENDED = "the job ended"
STEPS_AFTER = 5
"""At full strength: the picture shows them."""
STRIP_S = (4.0, 30.0)
"""Before and after the strike."""


def after_strike(run: Run, strike: Strike) -> Figures:
    """Waits until all replicas train again, and judges."""
    replicas = run.work.replicas

    def is_whole(story: Story) -> bool:
        full = full_strength(story, strike, replicas)
        return full is not None and committed_since(story, full) >= STEPS_AFTER

    story = run.wait(is_whole, LIMIT_S, or_ended=True)
    figures = judged(story, strike, replicas, has_ended=run.has_ended())
    healthy = {line.pid for line in story.lines if line.at <= strike.at} - {strike.pid}
    figures["blame"] = blamed(run.output, strike.pid, healthy, names_of(run, story))
    return figures


def judged(story: Story, strike: Strike, replicas: int, *, has_ended: bool) -> Figures:
    never = ENDED if has_ended else OVER
    full = full_strength(story, strike, replicas)
    pause = longest_pause(story, strike, full)
    stands = full is None and (has_ended or silent_since(story, strike) > LIMIT_S / 2)
    return {
        "pause_s": never if pause is None or stands else pause,
        "full_s": never if full is None else full - strike.at,
        "thrown": thrown_away(story),
        "steps_lost": steps_lost(story),
        "exited": len(left_in_health(story)),
        "usual_step_s": usual_step(story, strike.at),
        "strip": strip(story, strike),
    }


def strip(story: Story, strike: Strike) -> list[list[float]]:
    """Of each replica the commits around the strike, in seconds from it."""
    before, after = STRIP_S
    found: dict[int, list[float]] = {}
    for line in story.commits:
        if -before <= line.at - strike.at <= after:
            found.setdefault(line.replica, []).append(round(line.at - strike.at, 3))
    return [found[replica] for replica in sorted(found)]


def names_of(run: Run, story: Story) -> dict[int, str]:
    """How a system calls its processes, where that is not by their pid."""
    name = getattr(run.system, "name_of", None)
    return {line.pid: name(line.replica) for line in story.lines} if name else {}
