"""The pictures of docs/comparison.md: SVG, the same bytes for the same runs, legible on a light and on a dark page."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from compare.table import Row

INK = "#7d8590"
OURS, THEIRS, STRUCK = "#2f81f7", "#9a6700", "#cf222e"
WIDTH = 9.0
AFTER_S = {"kill": 20.0, "join": 30.0}


def draw(folder: Path, rows: Mapping[str, Sequence[Row]]) -> set[str]:
    """Those of which there are runs; their names."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("the pictures need matplotlib: pip install -c constraints.txt -e '.[compare]'") from None
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "regrow",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 9,
            **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    drawn = set()
    for name, experiment in (("kill", "kill-2-large"), ("join", "join")):
        if shown := [row for row in rows.get(experiment, ()) if strip_of(row)]:
            _strips(folder / f"{name}.svg", shown, AFTER_S[name])
            drawn.add(name)
    if shown := [row for row in rows.get("churn", ()) if row.values("goodput")]:
        _bars(folder / "churn.svg", shown)
        drawn.add("churn")
    return drawn


def strip_of(row: Row) -> list[list[float]]:
    """Of the run whose pause is the median: commits around the strike, replica by replica."""
    runs = sorted((run for run in row.runs if run.get("strip")), key=_order)
    strip = runs[len(runs) // 2]["strip"] if runs else []
    return strip if isinstance(strip, list) else []


def _order(run: Mapping[str, object]) -> float:
    value = run.get("pause_s", run.get("slowest_s"))
    return float(value) if isinstance(value, int | float) else float("inf")


def _strips(path: Path, rows: Sequence[Row], after_s: float) -> None:
    """A line of marks for each replica, one for each committed step: what is blank is time without progress."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(WIDTH, 0.6 + 0.42 * len(rows)))
    for number, row in enumerate(reversed(rows)):
        replicas = strip_of(row)
        height = 0.7 / len(replicas)
        for place, times in enumerate(replicas):
            bottom = number - 0.35 + place * height
            x = [part for at in times if at <= after_s for part in (at, at, None)]
            y = [part for at in times if at <= after_s for part in (bottom, bottom + 0.85 * height, None)]
            axes.plot(x, y, color=OURS if row.name == "Regrow" else THEIRS, linewidth=1.0)
    axes.axvline(0.0, color=STRUCK, linewidth=1.2)
    axes.set_yticks(range(len(rows)), [f"{row.name}, {row.settings}" for row in reversed(rows)])
    axes.set_xlim(-4.0, after_s)
    axes.set_xlabel("seconds from the kill; a mark is a committed step, a line a replica")
    _save(figure, axes, path)


def _bars(path: Path, rows: Sequence[Row]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(WIDTH, 0.6 + 0.36 * len(rows)))
    for number, row in enumerate(reversed(rows)):
        found = [float(str(one)) for one in row.values("goodput")]
        value = statistics.median(found)
        axes.barh(number, value, height=0.6, color=OURS if row.name == "Regrow" else THEIRS)
        axes.plot([min(found), max(found)], [number, number], color=INK, linewidth=1.5)
        axes.text(max(found) + 0.01, number, f"{value:.2f}", va="center")
    axes.set_yticks(range(len(rows)), [f"{row.name}, {row.settings}" for row in reversed(rows)])
    axes.set_xlim(0.0, 1.1)
    axes.set_xlabel("goodput: useful committed steps a second, over an undisturbed run of the same system")
    _save(figure, axes, path)


def _save(figure: object, axes: object, path: Path) -> None:
    import matplotlib.pyplot as plt

    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)  # type: ignore[attr-defined]
    axes.tick_params(left=False)  # type: ignore[attr-defined]
    figure.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})  # type: ignore[attr-defined]
    plt.close(figure)  # type: ignore[arg-type]
