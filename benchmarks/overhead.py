"""Claim: a healthy step costs what it costs under DistributedDataParallel.

Three sets of processes train the same model on the same machine: Regrow, DDP, and DDP again as a control. They take turns
in blocks of steps, in an order that changes from round to round; whoever is not due waits. A block takes as long as its
slowest replica. Ratios are taken within a round, so that what the machine does meanwhile hits both sides; the interval is
a bootstrap over the rounds. The control tells how much of a ratio is noise.

    python benchmarks/overhead.py [--size large|tiny] [--replicas 2] [--rounds 200] [--json FILE]
"""

import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

JOB = Path(__file__).with_name("overhead_job.py")
REGROW = Path(sys.executable).with_name("regrow")
KINDS = ("regrow", "ddp", "control")
STEPS = {"large": 2, "tiny": 40}
BATCH = {"large": 8, "tiny": 2}
WARM_ROUNDS = 3
RESAMPLES = 4000


class Sets:
    """The three sets of processes, each replica on its own line."""

    def __init__(self, folder: Path, size: str, replicas: int) -> None:
        self.replicas = replicas
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "blocks"))
        self._server.listen(3 * replicas)
        self._server.settimeout(120.0)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: dict[str, list[IO[str]]] = {kind: [] for kind in KINDS}
        common = (size, str(replicas), str(BATCH[size]))
        run = [str(REGROW), "run", "--replicas", str(replicas), "--run-dir", str(folder / "run"), "--hang-first", "0"]
        self._start([*run, str(JOB), str(folder / "blocks"), "regrow", *common], {}, folder / "regrow.txt")
        for kind in KINDS[1:]:
            port = _free_port()
            for rank in range(replicas):
                command = [sys.executable, str(JOB), str(folder / "blocks"), kind, *common, "--rank", str(rank)]
                environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                self._start(command, environ, folder / f"{kind}-{rank}.txt")
        for _ in range(3 * replicas):
            line = self._server.accept()[0].makefile("rw")
            self._lines[json.loads(line.readline())["kind"]].append(line)

    def block(self, kind: str, steps: int) -> float:
        """Seconds a step of this set takes."""
        for line in self._lines[kind]:
            line.write(f"{steps}\n")
            line.flush()
        return max(json.loads(line.readline())["took_s"] for line in self._lines[kind]) / steps

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, command: list[str], environ: dict[str, str], output: Path) -> None:
        with output.open("wb") as file:
            started = subprocess.Popen(command, env={**os.environ, **environ}, stdout=file, stderr=subprocess.STDOUT)
        self._processes.append(started)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(size: str, replicas: int, rounds: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as folder:
        sets = Sets(Path(folder), size, replicas)
        try:
            for number in range(-WARM_ROUNDS, rounds):
                for kind in rng.sample(KINDS, len(KINDS)):
                    seconds = sets.block(kind, STEPS[size])
                    if number >= 0:
                        took[kind].append(seconds)
                if number >= 0 and (number + 1) % 50 == 0:
                    print(f"  {number + 1} of {rounds} rounds", file=sys.stderr, flush=True)
        finally:
            sets.close()
    return took


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """The median, and the 95 % bootstrap interval around it."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def report(size: str, replicas: int, took: dict[str, list[float]]) -> dict[str, object]:
    found: dict[str, object] = {"size": size, "replicas": replicas, "rounds": len(took["ddp"])}
    for kind in KINDS:
        found[f"{kind} step ms"] = round(statistics.median(took[kind]) * 1e3, 3)
    for kind in ("regrow", "control"):
        pairs = list(zip(took[kind], took["ddp"], strict=True))
        found[f"{kind} / ddp"] = [round(value, 4) for value in interval([a / b for a, b in pairs])]
        found[f"{kind} - ddp ms"] = [round(value * 1e3, 4) for value in interval([a - b for a, b in pairs])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=STEPS, default="large")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line of JSON each")
    args = parser.parse_args()
    found = report(args.size, args.replicas, measure(args.size, args.replicas, args.rounds))
    found["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(json.dumps(found, indent=2))
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
