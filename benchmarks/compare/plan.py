"""Which runs are due, in which order, and how long they will take: pure functions over the experiments and what is done.

One round after the other: in the first every entry runs once, first those with the best settings; in each further one those
that are to run more often. The order of the systems within an experiment changes from round to round, so that no system
always comes after a certain other. When the time is not enough for all, the last rounds fall away.
"""

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compare.experiment import SHORT_RUNS, Entry, Experiment, repetitions

Key = tuple[str, str, str, int]
"""Experiment, name, settings, repetition."""
Table = Sequence[tuple[Experiment, Sequence[Entry]]]
NOT_QUICK = ("default", "shadow")


@dataclass(frozen=True, kw_only=True)
class Due:
    experiment: Experiment
    entry: Entry
    repetition: int

    @property
    def key(self) -> Key:
        return (self.experiment.name, self.entry.name, self.entry.settings, self.repetition)


def rounds(table: Table, measured: dict[Key, float]) -> list[list[Due]]:
    """All runs, round by round."""
    found = []
    for number in range(SHORT_RUNS):
        due = [
            Due(experiment=experiment, entry=entry, repetition=number)
            for experiment, entries in table
            for entry in turned(entries, f"{experiment.name} {number}")
            if number < repetitions(entry, expected_s(experiment, entry, measured))
        ]
        due.sort(key=lambda one: one.entry.settings == "default")
        if due:
            found.append(due)
    return found


def quick(table: Table) -> list[tuple[Experiment, Sequence[Entry]]]:
    """What a quick look needs."""
    return [
        (experiment, [entry for entry in entries if entry.settings not in NOT_QUICK])
        for experiment, entries in table
        if experiment.in_quick
    ]


def turned(entries: Sequence[Entry], seed: str) -> list[Entry]:
    return random.Random(seed).sample(entries, len(entries))


def affordable(all_rounds: list[list[Due]], measured: dict[Key, float], budget_s: float) -> list[Due]:
    """What fits, in this order. Time that was spent on it already is part of the sum."""
    chosen: list[Due] = []
    spent = 0.0
    for due in all_rounds:
        for one in due:
            cost = measured.get(one.key, expected_s(one.experiment, one.entry, measured))
            if spent + cost <= budget_s:
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
