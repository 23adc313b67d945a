"""Experiment 8: a state of about 1 GB is saved, by turns with torch.save; then one bit of what was written is flipped."""

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from compare.environments import DLROVER, TORCHSNAPSHOT, Environment
from compare.experiment import LIMIT_S, OVER, Column, Entry, Experiment, Figures
from compare.systems import System

JOB = Path(__file__).parents[1] / "jobs" / "saving_job.py"
LAYERS = 20
"""Of 50 MB each, with their optimizer state."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """One row: a way of jobs/saving_job.py, and the environment in which it runs; None: that of Regrow."""

    way: str
    name: str
    settings: str
    fsyncs: str
    environment: Environment | None = None
    is_durable: bool = True


SAVINGS = (
    Saving(way="regrow", name="Regrow Checkpointer", settings="as in the README", fsyncs="itself"),
    Saving(way="torch.save", name="torch.save", settings="control", fsyncs="by the harness"),
    Saving(way="dcp", name="DCP save", settings="blocking", fsyncs="by the harness"),
    Saving(way="dcp-async", name="DCP async_save", settings="default", fsyncs="itself"),
    Saving(way="dcp-async-reused", name="DCP async_save", settings="reused stager", fsyncs="itself"),
    Saving(
        way="torchsnapshot",
        name="torchsnapshot",
        settings="async_take",
        fsyncs="by the harness",
        environment=TORCHSNAPSHOT,
    ),
    Saving(
        way="flash-memory",
        name="dlrover flash checkpoint",
        settings="memory",
        fsyncs="never durable",
        environment=DLROVER,
        is_durable=False,
    ),
    Saving(
        way="flash-disk",
        name="dlrover flash checkpoint",
        settings="disk",
        fsyncs="by the harness",
        environment=DLROVER,
    ),
)


class Failed(Exception):
    """A way could not save or its job ended without an answer."""


def save(saving: Saving, folder: Path, repetition: int) -> Figures:
    folder.mkdir(parents=True)
    kept = folder / "kept"
    try:
        found = answer(saving, kept, "measure")
    except subprocess.TimeoutExpired:
        return {"blocked_s": OVER, "fsyncs": saving.fsyncs}
    except Failed as error:
        return {"failed": str(error)}
    figures = judged(found["pairs"], is_durable=saving.is_durable)
    return {**figures, "fsyncs": saving.fsyncs, "flip": flipped(saving, kept, found["digest"])}


def judged(pairs: list[list[dict[str, float]]], *, is_durable: bool) -> Figures:
    """Of saves that stood side by side with one of torch.save."""
    median = statistics.median
    figures: Figures = {
        "blocked_s": median(mine["blocked_s"] for mine, _ in pairs),
        "blocked_ratio": median(mine["blocked_s"] / other["blocked_s"] for mine, other in pairs),
        "reference_s": median(other["durable_s"] for _, other in pairs),
    }
    if is_durable:
        figures["durable_s"] = median(mine["durable_s"] for mine, _ in pairs)
        figures["durable_ratio"] = median(mine["durable_s"] / other["durable_s"] for mine, other in pairs)
    return figures


def flipped(saving: Saving, kept: Path, digest: str) -> str:
    """What a fresh process says when one bit in the middle of the largest file is another."""
    if not saving.is_durable:
        return "-"
    if answer(saving, kept, "restore").get("digest") != digest:
        return "is not restored even when whole"
    path = max((path for path in kept.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    flip(path)
    found = answer(saving, kept, "restore")
    if "error" in found:
        return "noticed"
    return "NOT noticed" if found["digest"] != digest else "not read"


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))


def answer(saving: Saving, kept: Path, what: str) -> dict[str, object]:
    """The job's last line. It runs in a process group of its own, with which all that it has started is ended."""
    told = kept.parent / f"{what}.txt"
    python = sys.executable if saving.environment is None else saving.environment.python
    process = subprocess.Popen(
        [python, str(JOB), saving.way, str(kept), what, f"--layers={LAYERS}"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=kept.parent,
        stdout=told.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.wait(timeout=LIMIT_S)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    output = told.read_text(errors="replace")
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(f"{saving.name} ({saving.settings}), {what}: {output[-1500:]}")
    return dict(json.loads(lines[-1]))


def _entries(systems: Sequence[System]) -> list[Entry]:
    return [
        Entry(name=saving.name, settings=saving.settings, expected_s=35.0, run=partial(save, saving))
        for saving in SAVINGS
        if saving.environment is None or saving.environment.is_ready()
    ]


EXPERIMENTS = [
    Experiment(
        name="checkpoint",
        title="A checkpoint of 1 GB",
        claim=(
            "One process trains a stack of linear layers (fp32, AdamW: 1.0 GB of state) on one thread and saves while it "
            "trains, by turns with torch.save, which is the reference of each ratio. Blocked: the call, and what the next "
            "optimizer step waits for. Durable: from the call until the bytes are fsynced; who does that is said. Then one "
            "bit in the middle of the largest file is flipped, and a fresh process restores it."
        ),
        columns=(
            Column(title="blocked, s", key="blocked_s", digits=3, is_best="low"),
            Column(title="blocked / torch.save", key="blocked_ratio", digits=3, is_best="low"),
            Column(title="durable, s", key="durable_s", is_best="low"),
            Column(title="durable / torch.save", key="durable_ratio", is_best="low"),
            Column(title="fsynced", key="fsyncs"),
            Column(title="a flipped bit", key="flip"),
        ),
        entries=_entries,
    )
]
