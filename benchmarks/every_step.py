"""Claim: with --every-step no committed step is lost, for at most 2 % of a step's time where a core is free.

Five jobs train the same model on the same machine: without any saving, again without any as a control, with --every-step,
the same with a neighbour (on this machine as well, over loopback), and with a full copy of the state in memory at each step
(--memory-every 1). They take turns in blocks of steps, in an order
that changes from round to round; whoever is not due waits. Ratios are taken within a round; the interval is a bootstrap over
the rounds. The training thread's own share, the time that it writes its log or waits for that, is measured in place.

Then a job of each of the two kinds that save is killed, all workers at once, and timed until it commits a step that it had
not: what that took, how long the state was loaded and records replayed, and how many steps were computed again.

    python benchmarks/every_step.py [--size large|tiny] [--replicas 2] [--rounds 100] [--kills 5] [--json FILE]
"""

import argparse
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from overhead import BATCH, STEPS, interval

from regrow.core.records import Committed, Fact, OriginTaken, RecordsReplayed, StateRecalled, WorkerStarted
from regrow.shell.journal import read

JOB = Path(__file__).with_name("every_step_job.py")
REGROW = Path(sys.executable).with_name("regrow")
KINDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "control": (),
    "every-step": ("--every-step",),
    "neighbour": ("--every-step", "--neighbour"),
    "full": ("--memory-every", "1"),
}
TOKEN = "7e57" * 16
NEIGHBOUR_MB = 8000
WARM_ROUNDS = 3
REPLAYED = 20
"""So many steps are committed before a job is killed."""
DEADLINE_S = 300.0
ENVIRON = {**os.environ, "REGROW_NEIGHBOUR_TOKEN": TOKEN}


class Job:
    """One `regrow run`, each replica on its own line where it is asked for blocks."""

    def __init__(self, folder: Path, kind: str, size: str, replicas: int, address: str = "") -> None:
        self.folder = folder / f"{kind}-{time.monotonic_ns()}"
        self.lines: list[IO[str]] = []
        self.keeper: subprocess.Popen[str] | None = None
        command = [REGROW, "run", "--replicas", replicas, "--run-dir", self.folder, "--hang-factor", 0, "--hang-first", 0]
        near = [self._keeper()] if kind == "neighbour" else []
        command += ["--restart-backoff", 0.01, *KINDS[kind], *near, JOB, address, kind, size, replicas, BATCH[size]]
        self.log = self.folder.with_suffix(".txt")
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=subprocess.STDOUT, env=ENVIRON)

    def _keeper(self) -> str:
        """A neighbour; where it listens."""
        command = [REGROW, "neighbour", "--listen", "127.0.0.1:0", "--memory-mb", NEIGHBOUR_MB, "--json"]
        self.keeper = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=ENVIRON)
        assert self.keeper.stdout is not None
        return str(json.loads(self.keeper.stdout.readline())["endpoint"])

    def block(self, steps: int) -> tuple[float, float]:
        """Seconds that a step takes, and those of them that the slowest replica was in its log."""
        for line in self.lines:
            line.write(f"{steps}\n")
            line.flush()
        said = [json.loads(line.readline()) for line in self.lines]
        return max(each["took_s"] for each in said) / steps, max(each["log_s"] for each in said) / steps

    def facts(self, *kinds: type[Fact]) -> list[tuple[int, Fact]]:
        """With the machine's monotonic clock."""
        if self.process.poll() is not None:
            sys.exit(f"the job ended: {self.log.read_text(errors='replace')[-2000:]}")
        journal = self.folder / "journal"
        lines = [line for account in read(journal, lenient=True) for line in account.lines] if journal.is_dir() else []
        return [(line.ns, line.what) for line in lines if isinstance(line.what, kinds)]

    def close(self) -> None:
        for process in (self.process, self.keeper):
            if process is not None:
                process.kill()
                process.wait()


def measure(size: str, replicas: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as name, socket.socket(socket.AF_UNIX) as server:
        folder = Path(name)
        server.bind(str(folder / "blocks"))
        server.listen(len(KINDS) * replicas)
        server.settimeout(120.0)
        jobs = {kind: Job(folder, kind, size, replicas, str(folder / "blocks")) for kind in KINDS}
        try:
            for _ in range(len(KINDS) * replicas):
                line = server.accept()[0].makefile("rw")
                jobs[json.loads(line.readline())["kind"]].lines.append(line)
            for number in range(-WARM_ROUNDS, rounds):
                for kind in rng.sample(list(KINDS), len(KINDS)):
                    found = jobs[kind].block(STEPS[size])
                    if number >= 0:
                        took[kind].append(found)
                if number >= 0 and (number + 1) % 50 == 0:
                    print(f"  {number + 1} of {rounds} rounds", file=sys.stderr, flush=True)
        finally:
            for job in jobs.values():
                job.close()
    return took


def wait_for(condition: Callable[[], object], what: str) -> object:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > end:
            sys.exit(f"waited {DEADLINE_S:g} s in vain for {what}")
        time.sleep(0.01)
    return found


def restore(kind: str, size: str, replicas: int, kills: int) -> dict[str, object]:
    """Of a job that is killed again and again."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as name:
        job = Job(Path(name), kind, size, replicas)
        try:
            goal = REPLAYED
            for number in range(kills):
                wait_for(lambda goal=goal: committed(job) >= goal, f"{goal} steps")
                rows.append(killed(job, number))
                goal = committed(job) + REPLAYED
                print(f"  {kind}: kill {number + 1} of {kills}: {rows[-1]['back s']:.2f} s", file=sys.stderr, flush=True)
        finally:
            job.close()
    medians = {key: round(statistics.median(row[key] for row in rows), 4) for key in rows[0]}
    return {"kills": kills, "median": medians, "worst back s": round(max(row["back s"] for row in rows), 3)}


def committed(job: Job) -> int:
    return max((fact.step + 1 for _, fact in job.facts(Committed)), default=0)


def killed(job: Job, number: int) -> dict[str, float]:
    """All workers, at once; what came of it."""
    pids = list({str(fact.member): fact.pid for _, fact in job.facts(WorkerStarted)}.values())
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGSTOP)
    reached, sent_ns = committed(job), time.monotonic_ns()
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)

    def back() -> int | None:
        new = [ns for ns, fact in job.facts(Committed) if ns > sent_ns and fact.step >= reached and fact.by != "record"]
        return min(new, default=None)

    back_ns = wait_for(back, "a step that had not been committed")
    assert isinstance(back_ns, int)
    taken = [fact for _, fact in job.facts(OriginTaken)][number]
    recalled = [fact.seconds for ns, fact in job.facts(StateRecalled) if ns > sent_ns]
    replayed = [fact.seconds for ns, fact in job.facts(RecordsReplayed) if ns > sent_ns]
    return {
        "back s": (back_ns - sent_ns) / 1e9,
        "loaded s": max(recalled, default=0.0),
        "replayed s": max(replayed, default=0.0),
        "records": taken.records,
        "steps again": max(0, reached - taken.through),
    }


def report(size: str, replicas: int, took: dict[str, list[tuple[float, float]]]) -> dict[str, object]:
    found: dict[str, object] = {"claim": str(__doc__).splitlines()[0], "size": size, "replicas": replicas}
    found["rounds"] = len(took["none"])
    for kind in KINDS:
        found[f"{kind} step ms"] = round(statistics.median(step for step, _ in took[kind]) * 1e3, 3)
    for kind in ("control", "every-step", "neighbour", "full"):
        pairs = [(step, none) for (step, _), (none, _) in zip(took[kind], took["none"], strict=True)]
        found[f"{kind} / none"] = [round(value, 4) for value in interval([a / b for a, b in pairs])]
        found[f"{kind} - none ms"] = [round(value * 1e3, 4) for value in interval([a - b for a, b in pairs])]
    for kind in ("every-step", "neighbour"):
        where = "the log" if kind == "every-step" else "the log and waiting for the neighbour"
        found[f"training thread in {where} ms"] = [round(v * 1e3, 4) for v in interval([log for _, log in took[kind]])]
        found[f"training thread in {where} / step"] = round(statistics.median(log / step for step, log in took[kind]), 5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=STEPS, default="large")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line of JSON each")
    args = parser.parse_args()
    found = report(args.size, args.replicas, measure(args.size, args.replicas, args.rounds))
    kinds = ("every-step", "full") if args.kills else ()
    found["restore"] = {kind: restore(kind, args.size, args.replicas, args.kills) for kind in kinds}
    found["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=JOB.parent
    )
    found["commit"] = commit.stdout.strip()
    print(json.dumps(found, indent=2))
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
