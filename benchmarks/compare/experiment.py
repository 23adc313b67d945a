"""What an experiment is: its rows, how each is run, and the columns of its table.

A module in `experiments` offers `EXPERIMENTS`, a list of these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.systems import System

LIMIT_S = 90.0
"""After the strike, or of the whole run where nothing is struck: what has not happened by then is "> 90 s"."""

Figures = dict[str, object]
"""What one run found: numbers, words, lists. `OVER` where the limit came first, None where there is nothing to say."""

OVER = "> 90 s"
SHORT_S, SHORT_RUNS, LONG_RUNS = 20.0, 5, 3


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row: a system with its settings, or one way of saving."""

    name: str
    settings: str
    """`default` entries run once; all others several times."""
    expected_s: float
    """On a quiet machine, for the plan; what was measured before takes its place."""
    run: Callable[[Path, int], Figures]
    """In an empty folder, the how many-th repetition (from 0): it decides random moments, alike for all systems."""


@dataclass(frozen=True, kw_only=True)
class Column:
    title: str
    """With its unit."""
    key: str
    """In the figures."""
    digits: int = 2
    is_best: str = ""
    """`low` or `high`: the row that wins is shown in bold; empty: nobody wins in this column."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    """For ONLY: `kill-2`. A word that several begin with chooses them all."""
    title: str
    claim: str
    """What is measured and how, in a few sentences above the table."""
    columns: tuple[Column, ...]
    entries: Callable[[Sequence[System]], list[Entry]]
    in_quick: bool = True


def repetitions(entry: Entry, expected_s: float) -> int:
    if entry.settings == "default":
        return 1
    return SHORT_RUNS if expected_s < SHORT_S else LONG_RUNS
