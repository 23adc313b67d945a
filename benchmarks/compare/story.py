"""What happened in one run, and what it means: pure functions over the step logs, the strikes and the deaths.

All systems train in step: nobody begins the next step before all have finished this one. So a step that is committed after a
later one was is a step done again, and whatever was done of it before was for nothing.
"""

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Line:
    """Of a step log; jobs/steplog.py says what each `what` means."""

    at: float
    what: str
    replica: int
    pid: int
    step: int
    microbatch: int = -1
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Strike:
    at: float
    what: str
    """`SIGKILL`, `SIGSTOP`, `hang`."""
    pid: int
    replica: int = -1
    """-1: not a training process."""


@dataclass(frozen=True, kw_only=True)
class Story:
    lines: Sequence[Line]
    """In the order of time."""
    until: float
    """When nobody looked any more."""
    strikes: Sequence[Strike] = ()
    gone: dict[int, float] = field(default_factory=dict)
    """When processes ended: training processes, and what the harness started."""

    def of(self, what: str) -> list[Line]:
        return [line for line in self.lines if line.what == what]

    @property
    def commits(self) -> list[Line]:
        return self.of("commit")


@dataclass(frozen=True, kw_only=True)
class Done:
    """A step as one process did it, from its beginning to its commit."""

    at: float
    pid: int
    replica: int
    step: int
    microbatches: int
    epoch: int
    """How many times the job had gone back before."""


def done(story: Story) -> list[Done]:
    found: list[Done] = []
    finished: Counter[int] = Counter()
    top, epoch = -1, 0
    seen: set[tuple[int, int]] = set()
    for line in story.lines:
        match line.what:
            case "begin":
                finished[line.pid] = 0
            case "batch":
                finished[line.pid] += 1
            case "commit":
                if line.step < top or (line.replica, line.step) in seen:
                    epoch += 1
                    seen.clear()
                    top = line.step
                seen.add((line.replica, line.step))
                top = max(top, line.step)
                found.append(
                    Done(
                        at=line.at,
                        pid=line.pid,
                        replica=line.replica,
                        step=line.step,
                        microbatches=finished.pop(line.pid, 0),
                        epoch=epoch,
                    )
                )
    return found


def kept(story: Story) -> dict[int, list[Done]]:
    """Of each step the doing that counts in the end."""
    last: dict[int, list[Done]] = defaultdict(list)
    for one in done(story):
        if last[one.step] and last[one.step][0].epoch < one.epoch:
            last[one.step].clear()
        last[one.step].append(one)
    # Steps above those to which the job went back at last, and which it has not reached again, are lost.
    newest = max((group[0].epoch for group in last.values()), default=0)
    top = max((step for step, group in last.items() if group[0].epoch == newest), default=-1)
    return {step: group for step, group in sorted(last.items()) if step <= top}


def usual_step(story: Story, before: float | None = None) -> float:
    """Seconds from one commit of a process to its next, the median over all that were undisturbed."""
    end = min([strike.at for strike in story.strikes], default=story.until) if before is None else before
    gaps = [gap for times in _times(line for line in story.commits if line.at < end).values() for gap in _gaps(times)]
    return statistics.median(gaps)


def longest_pause(story: Story, strike: Strike, end: float | None = None) -> float | None:
    """The longest time without a commit by anybody but the struck one, from the strike to `end` or until nobody looked any
    more, less the usual step; None: there was no commit any more."""
    others = sorted({line.at for line in story.commits if line.pid != strike.pid})
    begun = others[max(bisect_right(others, strike.at) - 1, 0) :]
    if len(begun) < 2:
        return None
    stop = end if end is not None else story.until
    gaps = [after - before for before, after in pairwise(begun) if before <= stop]
    return max(0.0, max(gaps) - usual_step(story, strike.at))


def silent_since(story: Story, strike: Strike) -> float:
    """How long before the end of looking the last commit was: a job that never went on has only this."""
    return story.until - max((line.at for line in story.commits if line.pid != strike.pid), default=strike.at)


def full_strength(story: Story, strike: Strike, replicas: int) -> float | None:
    """When the first step since was committed of which so many processes computed a part, the struck one not among them."""
    parts: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for one in done(story):
        if one.at > strike.at and one.pid != strike.pid and one.microbatches:
            group = parts[one.epoch, one.step]
            group[one.pid] = one.at
            if len(group) >= replicas:
                return max(group.values())
    return None


def microbatches_kept(story: Story) -> int:
    return sum(one.microbatches for group in kept(story).values() for one in group)


def thrown_away(story: Story) -> int:
    """Microbatches that were finished, and are in no step that counts; those of steps still under way do not count here."""
    under_way: Counter[int] = Counter()
    for line in story.lines:
        if line.what in ("begin", "commit"):
            under_way[line.pid] = 0
        elif line.what == "batch":
            under_way[line.pid] += 1
    alive = sum(count for pid, count in under_way.items() if pid not in story.gone and not _is_struck(story, pid))
    return len(story.of("batch")) - microbatches_kept(story) - alive


def steps_lost(story: Story) -> int:
    """Committed steps that were computed again, or have yet to be."""
    whole = kept(story)
    again = {(one.epoch, one.step) for one in done(story)} - {(group[0].epoch, step) for step, group in whole.items()}
    return len({step for _, step in again})


def left_in_health(story: Story) -> list[int]:
    """Processes that ended after the first strike, though nobody had struck them."""
    if not story.strikes:
        return []
    trained = {line.pid for line in story.lines if line.at <= story.strikes[0].at}
    struck = {strike.pid for strike in story.strikes}
    return sorted(pid for pid in trained - struck if story.strikes[0].at < story.gone.get(pid, story.until) < story.until)


def digests(story: Story) -> set[str]:
    return {line.digest for line in story.of("end")}


def _times(lines: Iterable[Line]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for line in lines:
        found[line.pid].append(line.at)
    return found


def _gaps(times: list[float]) -> list[float]:
    """Without the first step, in which much happens for the first time."""
    return [after - before for before, after in pairwise(times[1:])]


def _is_struck(story: Story, pid: int) -> bool:
    return any(strike.pid == pid for strike in story.strikes)
