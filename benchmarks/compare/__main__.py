"""Runs the comparison, from where it was interrupted, and writes docs/comparison.md.

ONLY=kill     experiments whose name begins with this; several with commas
SYSTEMS=ddp   systems whose name has this in it, upper or lower case; several with commas
MINUTES=75    at most so long in all: when it is not enough, there are fewer repetitions
QUICK=1       once each, best settings, at most 38 minutes; results of its own, and a page in runs/compare
REPORT=1      nothing is run, and the page is written again; REPORT=readme prints the table that stands in the README
"""

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compare.contestants import EXPERIMENTS, systems
from compare.environments import make_all
from compare.plan import Due, Key, Table, affordable, expected_s, left_s, quick, rounds
from compare.report import headline, write
from compare.results import FOLDER, Results, machine
from compare.runner import NotStarted, sweep
from compare.strangers import wait_alone

ROOT = Path(__file__).resolve().parents[2]
DOCS, QUICK_PAGE = ROOT / "docs", ROOT / "runs" / "compare"
MINUTES, QUICK_MINUTES = 75.0, 38.0
GRACE_S = 60.0
"""What a budget may be exceeded by."""


def main() -> None:
    is_quick = bool(os.environ.get("QUICK"))
    results = Results(FOLDER / ("quick.jsonl" if is_quick else "runs.jsonl"))
    report = os.environ.get("REPORT", "")
    if not report:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what runs is ended on the way out
        if found := sweep():
            say(f"{found} processes of a comparison that was killed are ended")
        make_all()
        budget_s = 60.0 * float(os.environ.get("MINUTES", QUICK_MINUTES if is_quick else MINUTES))
        run(results, budget_s, is_quick)
    if report == "readme":
        print(headline(results.lines()))
    else:
        write(results, QUICK_PAGE if is_quick else DOCS)


def run(results: Results, budget_s: float, is_quick: bool) -> None:
    table = quick(chosen()) if is_quick else chosen()
    here = machine()
    measured = results.took(here)
    planned = rounds(table, measured)
    due = affordable(planned[:1] if is_quick else planned, measured, budget_s)
    todo = [one for one in due if one.key not in measured]
    print_plan(table, due, todo, measured)
    end = time.monotonic() + budget_s - sum(measured.get(one.key, 0.0) for one in due)
    late = 0
    for number, one in enumerate(todo):
        if time.monotonic() + expected_s(one.experiment, one.entry, measured) > end + GRACE_S:
            late += 1
            continue
        wait_alone(say)
        left = left_s(todo[number:], measured)
        say(f"[{number + 1} of {len(todo)}, {clock(left)} left] {label(one)} ...", end=" ")
        begun = time.monotonic()
        figures = attempt(one)
        took = time.monotonic() - begun
        results.add(one.key, figures, took, here)
        measured[one.key] = took
        say(f"{took:.0f} s: {short(figures)}")
    if late:
        say(f"the runs took longer than planned: {late} of them did not fit into {clock(budget_s)}; MINUTES gives more time")


def attempt(one: Due) -> dict[str, object]:
    """A system that fails is a result, and no reason to stop."""
    folder = Path(tempfile.mkdtemp(prefix="compare-"))
    try:
        return one.entry.run(folder / "run", one.repetition)
    except NotStarted as error:
        return {"failed": str(error)}
    except Exception:  # whatever it is, the others are not to suffer, and it is tried again by the next call
        return {"failed": traceback.format_exc()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def chosen() -> Table:
    """The experiments and entries that were asked for; systems that cannot run here are left out and named in the report."""
    only = [word for word in os.environ.get("ONLY", "").split(",") if word]
    names = [word.lower() for word in os.environ.get("SYSTEMS", "").split(",") if word]
    runnable = [system for system in systems() if not system.unavailable()]
    table = []
    for experiment in EXPERIMENTS:
        if not only or any(experiment.name.startswith(word) for word in only):
            entries = [
                entry
                for entry in experiment.entries(runnable)
                if not names or any(name in entry.name.lower() for name in names)
            ]
            table.append((experiment, entries))
    if not table:
        sys.exit(f"ONLY={','.join(only)}: there is no such experiment; there are {', '.join(e.name for e in EXPERIMENTS)}")
    return table


def print_plan(table: Table, due: list[Due], todo: list[Due], measured: dict[Key, float]) -> None:
    for system in systems():
        if reason := system.unavailable():
            say(f"left out: {system.name} ({system.settings}): {reason}")
    for experiment, entries in table:
        own = [one for one in due if one.experiment is experiment]
        rest = [one for one in todo if one.experiment is experiment]
        time_left = clock(left_s(rest, measured))
        say(f"{experiment.name:18} {len(entries):3} rows  {len(own):3} runs, {len(rest):3} to do, {time_left}")
    say(f"{len(todo)} runs, {clock(left_s(todo, measured))}")


def label(one: Due) -> str:
    return f"{one.experiment.name}, {one.entry.name}, {one.entry.settings}, {one.repetition + 1}"


def short(figures: dict[str, object]) -> str:
    words = [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in figures.items()
        if not isinstance(value, list)
    ]
    return ", ".join(words)[:300]


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


if __name__ == "__main__":
    main()
