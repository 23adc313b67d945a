"""Which runs are due, in which order, and how long they will take: pure functions over the experiments and what is done.

One round after the other: in the first every entry runs once, in each further one those that are to run more often. The
order of the systems within an experiment changes from round to round, so that no system always comes after a certain other.
When the time is not enough for all, the last rounds fall away.
"""

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compare.experiment import LONG_RUNS, SHORT_RUNS, Entry, Experiment, repetitions

Key = tuple[str, str, str, int]
"""Experiment, name, settings, repetition."""


@dataclass(frozen=True, kw_only=True)
class Due:
    experiment: Experiment
    entry: Entry
    repetition: int

    @property
    def key(self) -> Key:
        return (self.experiment.name, self.entry.name, self.entry.settings, self.repetition)


def rounds(
    table: Sequence[tuple[Experiment, Sequence[Entry]]], measured: dict[Key, float], *, at_most: int = 0
) -> list[list[Due]]:
    """All runs, round by round; `at_most` so many repetitions of each, 0: as many as an entry's length asks for."""
    found = []
    for number in range(max(SHORT_RUNS, LONG_RUNS)):
        due = []
        for experiment, entries in table:
            turned = list(entries)
            random.Random(f"{experiment.name} {number}").shuffle(turned)
            for entry in turned:
                wanted = repetitions(entry, expected_s(experiment, entry, measured))
                if number < (min(wanted, at_most) if at_most else wanted):
                    due.append(Due(experiment=experiment, entry=entry, repetition=number))
        if due:
            found.append(due)
    return found


def affordable(all_rounds: list[list[Due]], measured: dict[Key, float], budget_s: float) -> list[Due]:
    """As many as fit: the first round whole, of the others what comes first. What is done already is part of the sum."""
    chosen: list[Due] = []
    spent = 0.0
    for number, due in enumerate(all_rounds):
        for one in due:
            cost = measured.get(one.key, expected_s(one.experiment, one.entry, measured))
            if number and spent + cost > budget_s:
                continue
            chosen.append(one)
            spent += cost
    return chosen


def expected_s(experiment: Experiment, entry: Entry, measured: dict[Key, float]) -> float:
    """What earlier runs of this entry took, or what its author expects."""
    took = [
        seconds
        for (name, system, settings, _), seconds in measured.items()
        if (name, system, settings) == (experiment.name, entry.name, entry.settings)
    ]
    return statistics.median(took) if took else entry.expected_s


def left_s(due: Iterable[Due], measured: dict[Key, float]) -> float:
    return sum(expected_s(one.experiment, one.entry, measured) for one in due if one.key not in measured)
