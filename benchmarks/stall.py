"""Claim: after a SIGKILL the survivors have resolved the step in doubt within 50 ms (3 replicas, about 10 M parameters).

The phases as the journals record them on one machine's monotonic clock; each is the slowest survivor's:

    seen       the signal is sent .. the agent has reaped the process (the kernel frees its memory meanwhile)
    roster     .. the coordinator has made the new roster durable
    received   .. the last survivor has it
    aborted    .. the last survivor has broken its old groups
    formed     .. the new groups stand
    resolved   .. the last survivor has seen the resolve table and knows what is left to compute

    python benchmarks/stall.py [--kills 20] [--json FILE]
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from regrow.core.lanes import lanes_in
from regrow.core.records import (
    Fact,
    GroupsAborted,
    GroupsFormed,
    LaneComputed,
    Line,
    RosterAdopted,
    RosterMade,
    RosterReceived,
    WorkerExited,
    WorkerStarted,
)
from regrow.core.roster import Version
from regrow.shell.journal import tail

HERE = Path(__file__).parent
REGROW = Path(sys.executable).with_name("regrow")
SURVIVORS = ("r0.0", "r2.0")
PHASES = ("seen", "roster", "received", "aborted", "formed", "resolved")
TAIL_BYTES = 512 * 1024
DEADLINE_S = 120.0


def wait_for(condition: Callable[[], object], what: str) -> object:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > end:
            sys.exit(f"waited {DEADLINE_S:g} s in vain for {what}")
        time.sleep(0.002)
    return found


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [REGROW, "run", "--replicas", "3", "--lanes", "6", "--run-dir", folder]
        command += ["--restart-backoff", "0", "--max-restarts", "100000", HERE / "stall_job.py"]
        self.log = folder.with_suffix(".txt")
        with self.log.open("wb") as out:
            self.process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT)

    def lines(self, who: str) -> list[Line]:
        if self.process.poll() is not None:
            sys.exit(f"the job ended: {self.log.read_text(errors='replace')[-2000:]}")
        journal = self.folder / "journal"
        return tail(journal, who, TAIL_BYTES) if (journal / f"{who}.jsonl").exists() else []

    def standing(self, life: int) -> tuple[int, int] | None:
        """The pid of this life of r1 and the step it stands still in."""
        log = self.folder / "output" / f"r1.{life}.log"
        rows = [row for row in log.read_text().splitlines() if row.startswith("standing ")] if log.exists() else []
        pids = [line.what.pid for line in self.lines("agent") if _is_start(line.what, life)]
        return (pids[0], int(rows[0].split()[1])) if rows and pids else None

    def waiting(self, step: int) -> bool:
        """Have the survivors computed all their lanes of this step?"""
        made = [line.what for line in self.lines("coordinator") if isinstance(line.what, RosterMade)][-1]
        wanted = {str(seat.member): set(seat.lanes) for seat in made.seats}
        return all(wanted[who] <= self._held(who, step) for who in SURVIVORS)

    def _held(self, who: str, step: int) -> set[int]:
        facts = [line.what for line in self.lines(who)]
        kept = {
            lane for fact in facts if isinstance(fact, RosterAdopted) and fact.step == step for lane in lanes_in(fact.keep)
        }
        return kept | {fact.lane for fact in facts if isinstance(fact, LaneComputed) and fact.step == step}


def _is_start(fact: Fact, life: int) -> bool:
    return isinstance(fact, WorkerStarted) and str(fact.member) == f"r1.{life}"


def phases(job: Job, life: int, sent_ns: int) -> dict[str, float]:
    """Milliseconds of each phase of this death."""

    def exited(line: Line) -> bool:
        return isinstance(line.what, WorkerExited) and str(line.what.member) == f"r1.{life}"

    def first(who: str, matches: Callable[[Line], bool]) -> Line | None:
        return next((line for line in job.lines(who) if line.ns > sent_ns and matches(line)), None)

    seen = wait_for(lambda: first("agent", exited), f"the death of r1.{life}")
    made = wait_for(lambda: first("coordinator", lambda line: isinstance(line.what, RosterMade)), "a roster")
    version: Version = made.what.version

    def last(kind: type[Fact], field: str) -> int:
        def of(who: str) -> Line | None:
            return first(who, lambda line: isinstance(line.what, kind) and getattr(line.what, field) == version)

        return max(wait_for(lambda who=who: of(who), f"{kind.__name__} of {who}").ns for who in SURVIVORS)

    marks = [sent_ns, seen.ns, made.ns, last(RosterReceived, "version"), last(GroupsAborted, "below")]
    marks += [last(GroupsFormed, "version"), last(RosterAdopted, "version")]
    return {name: (stop - start) / 1e6 for name, start, stop in zip(PHASES, marks, marks[1:], strict=False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "stall.json")
    args = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="regrow-stall-") as folder:
        job = Job(Path(folder) / "run")
        try:
            for life in range(args.kills):
                pid, step = wait_for(lambda life=life: job.standing(life), f"r1.{life} to stand still")
                wait_for(lambda step=step: job.waiting(step), "the survivors to wait")
                sent_ns = time.monotonic_ns()
                os.kill(pid, signal.SIGKILL)
                rows.append(phases(job, life, sent_ns))
                print(f"kill {life + 1} of {args.kills}: {sum(rows[-1].values()):.1f} ms", flush=True)
            parameters = int(job.log.read_text().split("parameters ")[1].split()[0])
        finally:
            job.process.send_signal(signal.SIGKILL)
            job.process.wait()
    report(rows, parameters, args.json)


def report(rows: list[dict[str, float]], parameters: int, path: Path) -> None:
    table = {name: [row[name] for row in rows] for name in PHASES} | {"sum": [sum(row.values()) for row in rows]}
    print(f"\n{'phase':10}{'median ms':>10}{'min':>8}{'max':>8}")
    for name, values in table.items():
        print(f"{name:10}{statistics.median(values):10.1f}{min(values):8.1f}{max(values):8.1f}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE)
    found = {
        "claim": __doc__.splitlines()[0],
        "kills": len(rows),
        "replicas": 3,
        "parameters": parameters,
        "median_ms": {name: round(statistics.median(values), 2) for name, values in table.items()},
        "spread_ms": {name: [round(min(values), 2), round(max(values), 2)] for name, values in table.items()},
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()},
        "commit": commit.stdout.strip(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
