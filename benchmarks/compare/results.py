"""The finished runs: a line of JSON for each, with the machine on which it was made."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from compare.plan import Key

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "results" / "compare"
ALIKE = ("cores", "processor", "memory_gib", "torch")
"""Runs on machines that differ in one of these have no place in one table."""


class Results:
    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, object]]:
        """Those of a machine like that of the newest run."""
        found = list(self._read())
        newest = max(found, key=lambda line: str(line["at"]), default=None)
        return [line for line in found if newest is not None and _kind(line["machine"]) == _kind(newest["machine"])]

    def took(self, here: dict[str, object]) -> dict[Key, float]:
        """Of each run that was finished on a machine like this one, how long it took. One that failed is tried again."""
        done = [line for line in self._read() if "failed" not in _figures(line) and _kind(line["machine"]) == _kind(here)]
        return {_key(line): float(str(line["took_s"])) for line in done}

    def add(self, key: Key, figures: dict[str, object], took_s: float, machine: dict[str, object]) -> None:
        experiment, name, settings, repetition = key
        line = {
            "experiment": experiment,
            "name": name,
            "settings": settings,
            "repetition": repetition,
            "took_s": round(took_s, 1),
            "figures": _rounded(figures),
            "machine": machine,
            "load": round(os.getloadavg()[0], 1),
            "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_cut = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a") as file:
            file.write("\n" * is_cut + json.dumps(line) + "\n")

    def _read(self) -> Iterator[dict[str, object]]:
        """Of each run its newest line. A line that an interruption has cut is no line."""
        found: dict[Key, dict[str, object]] = {}
        if self.path.exists():
            for row in self.path.read_text().splitlines():
                try:
                    line = json.loads(row)
                except json.JSONDecodeError:
                    continue
                found[_key(line)] = line
        yield from found.values()


def machine() -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(memory / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "commit": commit.stdout.strip(),
    }


def _processor() -> str:
    rows = [row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("model name")]
    return rows[0].partition(":")[2].strip() if rows else platform.machine()


def _kind(machine: object) -> list[object]:
    return [machine.get(name) for name in ALIKE] if isinstance(machine, dict) else []


def _figures(line: dict[str, object]) -> dict[str, object]:
    figures = line["figures"]
    return figures if isinstance(figures, dict) else {}


def _key(line: dict[str, object]) -> Key:
    return (str(line["experiment"]), str(line["name"]), str(line["settings"]), int(str(line["repetition"])))


def _rounded(value: object) -> object:
    match value:
        case bool():
            return value
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: _rounded(part) for key, part in value.items()}
        case list() | tuple():
            return [_rounded(part) for part in value]
        case _:
            return value
