"""docs/comparison.md and its pictures, from the finished runs."""

import re
from collections.abc import Sequence
from pathlib import Path

from compare import pictures
from compare.contestants import EXPERIMENTS, systems
from compare.experiment import Column, Experiment
from compare.reasons import REASONS
from compare.results import Results
from compare.systems_ddp import BEST as DDP
from compare.table import Row, beaten, cell, rows_of, table

OURS = "Regrow"
PICTURES = {"kill-2-large": "kill", "join": "join", "churn": "churn"}
HEADLINE = (
    ("a healthy step of 10.7 M parameters, over one of DDP", "steady-large", "ratio"),
    ("SIGKILL of one of 2: the other stands still, s", "kill-2-large", "pause_s"),
    ("until all train again, s", "kill-2-large", "full_s"),
    ("steps done again", "kill-2-large", "steps_lost"),
    ("SIGSTOP of one: the other stands still, s", "stop", "pause_s"),
    ("coordinator away for 10 s: training stands still, s", "coordinator-10s", "pause_s"),
    ("slowest step while one comes back to 1.2 GB, over a usual one", "join", "slowest"),
    ("goodput with a kill every 10 s", "churn", "goodput"),
    ("final weights are those of the undisturbed run", "churn", "equal"),
)


def write(results: Results, folder: Path) -> None:
    lines = results.lines()
    if not lines:
        raise SystemExit(f"there are no finished runs in {results.path}: run `make compare` first")
    drawn = pictures.draw(folder / "pictures", {name: rows_in(lines, name) for name in PICTURES})
    (folder / "comparison.md").write_text(page(lines, drawn))
    print(f"{folder / 'comparison.md'}: {len(lines)} runs")


def page(lines: Sequence[dict[str, object]], drawn: set[str]) -> str:
    parts = [
        "# Regrow beside other systems",
        "This page is written by `make compare` ([benchmarks/compare](../benchmarks/compare)) from the runs in "
        "[benchmarks/results/compare](../benchmarks/results/compare): all systems train the same model on the same data on "
        "one machine, and are struck in the same ways. Each figure is a ratio or a difference within one run: the median, "
        "and the lowest and highest in parentheses. The order of the systems changes from round to round. What has not "
        'happened 90 s after the strike is "> 90 s". Rows with default settings ran once. The best of a column is in bold.',
        machine_of(lines),
        "## In short",
        "With the best settings of each:",
        headline(lines),
        "## The systems",
        settings(),
        *(section(experiment, rows_in(lines, experiment.name), drawn) for experiment in EXPERIMENTS),
        "## Where another system is ahead",
        behind(lines),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def machine_of(lines: Sequence[dict[str, object]]) -> str:
    """The machine of the newest run, which those of all others are like."""
    newest = max(lines, key=lambda line: str(line["at"]))
    loads = sorted(float(str(line["load"])) for line in lines)
    machine = newest["machine"]
    assert isinstance(machine, dict)
    what = (
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, torch {machine['torch']} (CPU, gloo, loopback)"
    )
    commits = sorted({str(line["machine"]["commit"]) for line in lines if isinstance(line["machine"], dict)})
    days = sorted({str(line["at"])[:10] for line in lines})
    return (
        f"Machine: {what}. {len(lines)} runs, {' to '.join(dict.fromkeys((days[0], days[-1])))}, "
        f"at commit {', '.join(commits)}; load average at a run's end {loads[len(loads) // 2]:g} "
        f"({loads[0]:g} to {loads[-1]:g})."
    )


def headline(lines: Sequence[dict[str, object]]) -> str:
    """Measures as rows, systems as columns: for the README, too."""
    kinds = [
        ("Regrow", "best"),
        *((system.name, "best") for system in systems() if system.settings == "best" and system.name != OURS),
    ]
    shown = [kind for kind in kinds if any((line["name"], line["settings"]) == kind for line in lines)]
    found = [["", *(name for name, _ in shown)], ["---"] * (len(shown) + 1)]
    for title, experiment, key in HEADLINE:
        column = next((c for e in EXPERIMENTS if e.name == experiment for c in e.columns if c.key == key), None)
        rows = {(row.name, row.settings): row for row in rows_in(lines, experiment)}
        if column and rows:
            found.append([title, *("1" if _is_measure(kind, key) else _short(rows.get(kind), column) for kind in shown)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in found)


def _is_measure(kind: tuple[str, str], key: str) -> bool:
    """Healthy steps are measured in those of DDP."""
    return key == "ratio" and kind[0] == DDP.name


def _short(row: Row | None, column: Column) -> str:
    if row is None:
        return "-"
    return "did not train" if row.failed else re.sub(r" \([^()]* to [^()]*\)", "", cell(row, column))


def settings() -> str:
    found = [["system", "settings", "what was chosen"], ["---"] * 3]
    found += [[system.name, system.settings, system.explained] for system in systems()]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in found)
    missing = {f"- {system.name}: {reason}" for system in systems() if (reason := system.unavailable())}
    return text + ("\n\nNot there, and why:\n\n" + "\n".join(sorted(missing)) if missing else "")


def section(experiment: Experiment, rows: Sequence[Row], drawn: set[str]) -> str:
    if not rows:
        return ""
    parts = [f"## {experiment.title}", experiment.claim, table(rows, experiment.columns)]
    parts += [f"{row.name} ({row.settings}) did not train: `{_last(row.failed)}`" for row in rows if row.failed]
    picture = PICTURES.get(experiment.name)
    if picture in drawn:
        parts.append(f"![{experiment.title}](pictures/{picture}.svg)")
    return "\n\n".join(parts)


def _last(text: str) -> str:
    rows = [row for row in text.splitlines() if row.strip()]
    return rows[-1][:200].replace("`", "'") if rows else ""


def behind(lines: Sequence[dict[str, object]]) -> str:
    found = []
    for experiment in EXPERIMENTS:
        for one in beaten(experiment, rows_in(lines, experiment.name), OURS):
            winner, ours = (f"{row.name} ({row.settings}) {cell(row, one.column)}" for row in (one.winner, one.ours))
            where = (experiment.name, one.column.key)
            reason = REASONS.get((*where, one.ours.settings)) or REASONS.get(where, "Why is not known yet.")
            found.append(f"- {experiment.title}, {one.column.title}: {winner}, {ours}. {reason}")
    return "\n".join(found) or "Nowhere in these runs."


def rows_in(lines: Sequence[dict[str, object]], experiment: str) -> list[Row]:
    return rows_of(lines, experiment, [(system.name, system.settings) for system in systems()])
