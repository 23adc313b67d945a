"""The rows of an experiment that every system takes part in."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from compare.experiment import Entry, Figures
from compare.systems import System


def rows(
    systems: Sequence[System],
    run: Callable[[System, Path, int], Figures],
    *,
    best_s: float,
    default_s: float = 0.0,
    without: Iterable[str] = (),
) -> list[Entry]:
    """`default_s`: how long a run with default settings takes; 0: none is made. `without` these names or settings."""
    expected = {"default": default_s}
    return [
        Entry(
            name=system.name,
            settings=system.settings,
            expected_s=expected.get(system.settings, best_s),
            run=partial(run, system),
        )
        for system in systems
        if expected.get(system.settings, best_s) and not {system.name, system.settings} & set(without)
    ]
