"""From the finished runs to the cells of tables: pure functions."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from compare.experiment import Column, Experiment

CLEARLY = 0.02
"""A median that is better by less than this is not called better."""


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    settings: str
    runs: tuple[dict[str, object], ...]
    """The figures of each."""

    @property
    def failed(self) -> str:
        """Why it never trained; empty: it did, at least once."""
        words = [str(run["failed"]) for run in self.runs if "failed" in run]
        return words[0] if len(words) == len(self.runs) else ""

    @property
    def count(self) -> str:
        """Of its runs, and of those among them that did not train."""
        failed = sum("failed" in run for run in self.runs)
        return f"{len(self.runs)}, {failed} did not train" if failed and not self.failed else str(len(self.runs))

    def values(self, key: str) -> list[object]:
        return [run[key] for run in self.runs if run.get(key) is not None]


def rows_of(lines: Sequence[dict[str, object]], experiment: str, order: Sequence[tuple[str, str]]) -> list[Row]:
    """In the order of the systems; what is not among them comes last."""
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    for line in lines:
        figures = line["figures"]
        if line["experiment"] == experiment and isinstance(figures, dict):
            found.setdefault((str(line["name"]), str(line["settings"])), []).append(figures)
    place = {key: number for number, key in enumerate(order)}
    keys = sorted(found, key=lambda key: place.get(key, len(place)))
    return [Row(name=name, settings=settings, runs=tuple(found[name, settings])) for name, settings in keys]


def middle(row: Row, column: Column) -> float | None:
    """The median, a word ("> 90 s") counted as worse than any number; None: there is nothing to compare."""
    worst = -math.inf if column.is_best == "high" else math.inf
    values = [float(value) if isinstance(value, int | float) else worst for value in row.values(column.key)]
    return statistics.median(values) if values else None


def best_of(rows: Sequence[Row], column: Column) -> float | None:
    """None where nobody wins: nothing is compared, or all are alike."""
    found = [value for row in rows if row.settings != "control" and (value := middle(row, column)) is not None]
    if not column.is_best or len(set(found)) < 2:
        return None
    return min(found) if column.is_best == "low" else max(found)


def cell(row: Row, column: Column) -> str:
    values = row.values(column.key)
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    words = [str(value) for value in values if not isinstance(value, int | float)]
    parts = [
        f"{word} ({words.count(word)} of {len(values)})" if len(set(map(str, values))) > 1 else word
        for word in dict.fromkeys(words)
    ]
    if numbers:
        parts.insert(0, spread(numbers, column.digits))
    return "; ".join(parts) or "-"


def spread(numbers: Sequence[float], digits: int) -> str:
    text = [f"{value:.{digits}f}" for value in (statistics.median(numbers), min(numbers), max(numbers))]
    return text[0] if len(set(text)) == 1 else f"{text[0]} ({text[1]} to {text[2]})"


def table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    head = ["system", "settings", "runs", *(column.title for column in columns)]
    found = [head, ["---"] * len(head)]
    bests = {column.key: best_of(rows, column) for column in columns}
    for row in rows:
        start = [row.name, row.settings, row.count]
        if row.failed:
            found.append([*start, "did not train", *[""] * (len(columns) - 1)])
            continue
        cells = []
        for column in columns:
            text = cell(row, column)
            best = bests[column.key]
            is_best = best is not None and middle(row, column) == best and row.settings != "control"
            cells.append(f"**{text}**" if is_best else text)
        found.append([*start, *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in found)


@dataclass(frozen=True, kw_only=True)
class Beaten:
    """A column in which a row of ours is behind one of another system that was set up with as much care."""

    experiment: Experiment
    column: Column
    winner: Row
    ours: Row


def beaten(experiment: Experiment, rows: Sequence[Row], name: str) -> list[Beaten]:
    """Each row of ours beside the best of the others: default settings beside default ones, chosen ones beside such."""
    found = []
    for column in experiment.columns:
        sign = {"low": 1.0, "high": -1.0}.get(column.is_best)
        if sign is None:
            continue
        ranked = [(sign * value, row) for row in rows if (value := middle(row, column)) is not None]
        others = [pair for pair in ranked if not pair[1].name.startswith(name) and pair[1].settings != "control"]
        for mine, ours in ranked:
            peers = [pair for pair in others if (pair[1].settings == "default") == (ours.settings == "default")]
            best, winner = min(peers, key=lambda pair: pair[0], default=(math.inf, ours))
            is_ours = ours.name.startswith(name) and ours.settings != "control"
            if is_ours and best < mine and not math.isclose(best, mine, rel_tol=CLEARLY):
                found.append(Beaten(experiment=experiment, column=column, winner=winner, ours=ours))
    return found
