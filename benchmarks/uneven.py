"""Claim: with one of two replicas slowed three times by a CPU quota, lanes dealt by measured speed make steps shorter.

Eight lanes, about 10 M parameters. r1 is put under a quota of a third of a core (cgroups, which takes root), and r0's steps
are measured in three jobs, in turns:

    even       no quota
    slowed     with the quota, lanes held even by the operator's word (--speed r0=1 --speed r1=1)
    dealt      with the quota, lanes dealt by what was measured

`predicted` is what the lanes say: the slowest share of the dealing that came out, over the slowest share of the even one.

    python benchmarks/uneven.py [--rounds 3] [--steps 30] [--json FILE]
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from regrow.core.records import Committed, RosterMade, WorkerStarted
from regrow.shell.journal import read

HERE = Path(__file__).parent
REGROW = Path(sys.executable).with_name("regrow")
LANES = 8
SLOWDOWN = 3
PERIOD_US = 20_000
DEADLINE_S = 180.0
MODES = {"even": (), "slowed": ("--speed", "r0=1", "--speed", "r1=1"), "dealt": ()}


def wait_for(condition: Callable[[], object], what: str) -> object:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > end:
            sys.exit(f"waited {DEADLINE_S:g} s in vain for {what}")
        time.sleep(0.05)
    return found


@contextmanager
def quota() -> Iterator[Callable[[int], None]]:
    """Puts a process, with all its threads, under a quota; takes the cgroup away at the end."""
    is_old = Path("/sys/fs/cgroup/cpu").is_dir()
    folder = Path("/sys/fs/cgroup/cpu" if is_old else "/sys/fs/cgroup") / f"regrow-uneven-{os.getpid()}"
    try:
        folder.mkdir()
        if is_old:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(PERIOD_US // SLOWDOWN))
        else:
            (folder / "cpu.max").write_text(f"{PERIOD_US // SLOWDOWN} {PERIOD_US}")
    except OSError as error:
        sys.exit(f"cannot make a cgroup with a CPU quota ({error.strerror}): run it as root, where cgroups can be written")
    try:
        yield lambda pid: (folder / "cgroup.procs").write_text(str(pid)) and None
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text(), "the slowed replica to be gone")
        folder.rmdir()


def facts(folder: Path, who: str, kind: type) -> list[tuple[int, object]]:
    journal = folder / "journal"
    lines = [line for each in read(journal) if each.who == who for line in each.lines] if journal.is_dir() else []
    return [(line.ns, line.what) for line in lines if isinstance(line.what, kind)]


def measure(mode: str, wanted: int) -> tuple[float, list[int]]:
    """Milliseconds of a step, once the dealing has settled, and the lanes of each replica."""
    with tempfile.TemporaryDirectory(prefix="regrow-uneven-") as name, quota() as slow:
        folder = Path(name) / "run"
        command = [REGROW, "run", "--replicas", "2", "--lanes", str(LANES), "--run-dir", folder, *MODES[mode]]
        with (Path(name) / "out.txt").open("wb") as out:
            job = subprocess.Popen([str(part) for part in [*command, HERE / "join_job.py"]], stdout=out, stderr=out)
        try:
            wait_for(lambda: len(facts(folder, "r0.0", Committed)) > 3, "the first steps")
            started = {str(fact.member): fact.pid for _, fact in facts(folder, "agent", WorkerStarted)}
            if mode != "even":
                slow(started["r1.0"])
            since_ns = time.monotonic_ns()
            if mode == "dealt":
                wait_for(lambda: len(facts(folder, "coordinator", RosterMade)) > 1, "lanes to be dealt anew")

            def settled() -> list[float]:
                made = facts(folder, "coordinator", RosterMade)[-1][1].version
                commits = [ns for ns, fact in facts(folder, "r0.0", Committed) if fact.attempt == made and ns > since_ns]
                return [(after - before) / 1e6 for before, after in pairwise(commits)]

            wait_for(lambda: len(settled()) >= wanted, f"{wanted} steps under one roster")
            seats = facts(folder, "coordinator", RosterMade)[-1][1].seats
            return statistics.median(settled()), [len(seat.lanes) for seat in seats]
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "uneven.json")
    args = parser.parse_args()
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    lanes: dict[str, list[int]] = {}
    for number in range(args.rounds):
        for mode in MODES:
            step_ms, lanes[mode] = measure(mode, args.steps)
            times[mode].append(step_ms)
            print(f"round {number + 1}, {mode}: {step_ms:.0f} ms a step, lanes {lanes[mode]}", flush=True)
    medians = {mode: round(statistics.median(values), 1) for mode, values in times.items()}
    longest = {mode: max(own[0], SLOWDOWN * own[1]) for mode, own in lanes.items()}
    found = {
        "claim": __doc__.splitlines()[0],
        "rounds": args.rounds,
        "median_ms": medians,
        "lanes": lanes,
        "dealt_over_slowed": round(medians["dealt"] / medians["slowed"], 3),
        "predicted": round(longest["dealt"] / longest["slowed"], 3),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()},
    }
    print(json.dumps(found, indent=2))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
