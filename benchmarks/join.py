"""Claim: a lost replica grows back while the others train, at little cost to them; a shadow takes over at once.

A job of some replicas and about 10 M parameters. Again and again one that is not r0 gets a SIGKILL, between two steps (in
a lane, a lone survivor would wait for its successor, which is another matter), in jobs one after another:

    restarted  its next life starts
    spare      --spares 1: the model is built, the worker parked
    shadow     --spares 1 --shadow: a spectator takes over
    late       as restarted, but the script sleeps before it builds its model, so that steps without a successor stand
               right beside those with one
    grow       nobody is killed: `regrow scale` asks for one more, and then for one less, again and again

Medians over the kills, or the rounds of growth, from the journals, on one machine's monotonic clock. Steps are those of all
who were there all the time, each in milliseconds and with its own median; that of the worst of them counts, and the ratio is
the worst of theirs:

    full       seconds from the signal, or the wish, until the first step is committed in which all replicas had lanes
    step       steps before: with all replicas at work
    alone      with one lost, before its successor has a line to r0
    beside     from then on, while it loads, replays and is audited
    slowest    the longest of these
    after      steps with all replicas at work again; of growth, once the one that came has left again
    ratio      beside / alone, after the same kill; of growth beside / step, with the very same lanes
    back       after / step
    neighbour  the first ratio, of r0, where, instead of a successor, a process that has nothing to do with the job uses as
               much of a core for the same kind of work: what of the ratio is the machine's
    cpu        what the successor used of a core meanwhile
    spare_mb   what a parked spare holds in memory, as the kernel counts its own pages

and where `full` goes, each up to: seen (the exit is reaped), roster, attached (the successor has lines to the members), fed
(the snapshot is copied), loaded, audited, entered, committed.

    python benchmarks/join.py [--replicas 2] [--kills 10] [--batch 16] [--modes late,spare] [--json FILE]

With a core for each process: `--replicas 4 --kills 8 --modes grow,late`, some three minutes.
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
from importlib.metadata import version
from pathlib import Path

from join_steps import Facts, grown, measured, spread, steps

from regrow.core.records import Committed, ListenerAttached, RosterAdopted, RosterMade, WorkerExited, WorkerStarted
from regrow.shell.follower import Follower

HERE = Path(__file__).parent
REGROW = Path(sys.executable).with_name("regrow")
GOES_ON = ("--max-restarts", "100000", "--max-all-restarts", "100000", "--restart-backoff", "0")
MODES = {
    "restarted": GOES_ON,
    "spare": (*GOES_ON, "--spares", "1"),
    "shadow": (*GOES_ON, "--spares", "1", "--shadow"),
    "late": GOES_ON,
    "alone": ("--max-restarts", "0"),
    "grow": GOES_ON,
}
QUIET = 12
"""Steps at full strength before each kill."""
LATE_S = 4.0
DEADLINE_S = 180.0
TICKS = os.sysconf("SC_CLK_TCK")


def wait_for(condition: Callable[[], object], what: str) -> object:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > end:
            sys.exit(f"waited {DEADLINE_S:g} s in vain for {what}")
        time.sleep(0.05)
    return found


class Job:
    def __init__(self, folder: Path, mode: str, batch: int, replicas: int) -> None:
        self.folder = folder
        self.replicas = replicas
        lanes = 2 * replicas
        command = [REGROW, "run", "--replicas", replicas, "--lanes", lanes, "--run-dir", folder, *MODES[mode]]
        self.die, self.sent = folder.with_name("die"), folder.with_name("sent")
        command += [
            HERE / "join_job.py",
            "--die",
            self.die,
            "--sent",
            self.sent,
            "--batch",
            batch,
            "--late",
            LATE_S if mode == "late" else 0,
        ]
        self.log = folder.with_suffix(".txt")
        with self.log.open("wb") as out:
            self.process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT)
        self.parked = ""
        """A spare that waits."""
        self._followers: dict[str, Follower] = {}
        self._facts: dict[str, Facts] = {}

    def facts(self) -> dict[str, Facts]:
        """Read as they are added: to read all of them at each look would take the time of those that are measured."""
        if self.process.poll() is not None:
            sys.exit(f"the job ended: {self.log.read_text(errors='replace')[-2000:]}")
        for path in (self.folder / "journal").glob("*.jsonl"):
            follower = self._followers.setdefault(path.stem, Follower(path))
            self._facts.setdefault(path.stem, []).extend((line.ns, line.what) for line in follower.read())
        return self._facts

    def workers(self, since_ns: int = 0, more: int = 0) -> list[str] | None:
        """Those who have lanes, once all replicas, and so many more, do and a while has passed, and a spare is there where
        there is to be one."""
        facts = self.facts()
        made = [fact for ns, fact in facts.get("coordinator", ()) if isinstance(fact, RosterMade) and ns > since_ns]
        if not made:
            return None
        seats = {str(seat.member): seat.lanes for seat in made[-1].seats}
        working = [who for who, lanes in seats.items() if lanes]
        full = [
            fact for _, fact in facts.get("r0.0", ()) if isinstance(fact, Committed) and fact.attempt == made[-1].version
        ]
        is_full = len(working) == self.replicas + more and len(full) >= QUIET
        return working if is_full and self._is_spared(facts, seats) else None

    def _is_spared(self, facts: dict[str, Facts], seats: dict[str, tuple[int, ...]]) -> bool:
        if "--shadow" in self.process.args:
            return any(not lanes for lanes in seats.values())
        started = {str(fact.member) for _, fact in facts["agent"] if isinstance(fact, WorkerStarted)}
        gone = {str(fact.member) for _, fact in facts["agent"] if isinstance(fact, WorkerExited)}
        parked = [who for who in started - gone - seats.keys() if "ready" in self._output(who)]
        self.parked = max(parked, default="")
        return "--spares" not in self.process.args or bool(parked)

    def _output(self, who: str) -> str:
        path = self.folder / "output" / f"{who}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def scale(self, replicas: int) -> None:
        command = [REGROW, "scale", "--replicas", str(replicas), "--no-wait", str(self.folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)

    def pid(self, who: str) -> int:
        return next(
            fact.pid for _, fact in self.facts()["agent"] if isinstance(fact, WorkerStarted) and str(fact.member) == who
        )


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def own_mb(pid: int) -> float:
    """Without the pages that it shares with the process that it was forked from."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) / 1024


def strike(job: Job) -> dict[str, float]:
    working = wait_for(job.workers, "all replicas to be at work")
    victim = next(who for who in working if who != "r0.0")
    pid = job.pid(victim)
    held = {"worker_mb": own_mb(pid)} | ({"spare_mb": own_mb(job.pid(job.parked))} if job.parked else {})
    job.die.write_text(str(pid))
    sent_ns = int(wait_for(lambda: job.sent.exists() and job.sent.read_text(), "it to die"))
    job.sent.unlink()
    used = watched(job, sent_ns)
    wait_for(lambda: job.workers(sent_ns), "all replicas to be back")
    return measured(job.facts(), [who for who in working if who != victim], sent_ns, used) | held


def grow(job: Job) -> dict[str, float]:
    """One more, and again one less."""
    stay = wait_for(job.workers, "all replicas to be at work")
    asked_ns = time.monotonic_ns()
    job.scale(job.replicas + 1)
    used = watched(job, asked_ns)
    wait_for(lambda: job.workers(asked_ns, more=1), "one more to be at work")
    left_ns = time.monotonic_ns()
    job.scale(job.replicas)
    wait_for(lambda: job.workers(left_ns), "it to have left")
    return grown(job.facts(), stay, asked_ns, left_ns, used)


def watched(job: Job, sent_ns: int) -> float:
    """What the successor used of a core between its first line to a member and its roster."""

    def joiner() -> tuple[str, int] | None:
        attached = [f for ns, f in job.facts().get("r0.0", ()) if ns > sent_ns and isinstance(f, ListenerAttached)]
        return (who := str(attached[-1].listener.member), job.pid(who)) if attached else None

    def back() -> object:
        return job.workers(sent_ns) or joiner()

    found = wait_for(back, "a successor to listen, or a shadow to take over")
    if not isinstance(found, tuple):
        return 0.0
    who, pid = found
    begun_s, begun_cpu_s = time.monotonic(), cpu_s(pid)
    wait_for(lambda: any(isinstance(fact, RosterAdopted) for _, fact in job.facts().get(who, ())), "it to enter")
    return (cpu_s(pid) - begun_cpu_s) / (time.monotonic() - begun_s)


def neighbour(batch: int, replicas: int, share: float, rounds: int) -> list[float]:
    """r0's steps alone with a stranger at work, over those without, round by round."""
    ratios = []
    with tempfile.TemporaryDirectory(prefix="regrow-join-") as folder:
        job = Job(Path(folder) / "run", "alone", batch, replicas)
        try:
            victim = next(who for who in wait_for(job.workers, "all to be at work") if who != "r0.0")
            os.kill(job.pid(victim), signal.SIGKILL)
            for _ in range(rounds):
                quiet = window(job)
                stranger = subprocess.Popen(
                    [sys.executable, HERE / "join_neighbour.py", "--share", str(share)], stdout=subprocess.PIPE
                )
                try:
                    assert stranger.stdout is not None
                    stranger.stdout.readline()  # it works
                    ratios.append(window(job) / quiet)
                finally:
                    stranger.kill()
                    stranger.wait()
        finally:
            job.process.send_signal(signal.SIGKILL)
            job.process.wait()
    return ratios


def window(job: Job) -> float:
    """Milliseconds of r0's next steps."""
    start = time.monotonic_ns()

    def since() -> list[float]:
        commits = [(ns, fact) for ns, fact in job.facts()["r0.0"] if isinstance(fact, Committed)]
        return list(steps(commits, start, time.monotonic_ns()))[1:]

    wait_for(lambda: len(since()) >= QUIET, "some steps alone")
    return statistics.median(since())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="of each mode; rounds of growth")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="samples of a microbatch: how long a step takes")
    parser.add_argument("--modes", default="restarted,spare,shadow,late")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "join.jsonl", help="a line is added to it")
    args = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for mode in args.modes.split(","):
        with tempfile.TemporaryDirectory(prefix="regrow-join-") as folder:
            job = Job(Path(folder) / "run", mode, args.batch, args.replicas)
            rows: list[dict[str, float]] = []
            try:
                for number in range(args.kills):
                    rows.append(grow(job) if mode == "grow" else strike(job))
                    print(f"{mode}, {number + 1} of {args.kills}: {rows[-1]['full']:.2f} s", flush=True)
            finally:
                job.process.send_signal(signal.SIGKILL)
                job.process.wait()
            names = list(dict.fromkeys(name for row in rows for name in row))
            found[mode] = {name: spread([row[name] for row in rows if name in row]) for name in names}
            print("  ".join(f"{name} {middle:g} ({low:g} to {high:g})" for name, (middle, low, high) in found[mode].items()))
    if "late" in found:
        share = found["late"]["cpu"][0]
        found["late"]["neighbour"] = spread(neighbour(args.batch, args.replicas, share, args.kills))
        print(f"a stranger that uses {share} of a core: {found['late']['neighbour']}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE)
    report = {
        "claim": __doc__.splitlines()[0],
        "kills": args.kills,
        "replicas": args.replicas,
        "batch": args.batch,
        "median, lowest, highest": found,
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "torch": version("torch"),
            "kernel": platform.release(),
        },
        "commit": commit.stdout.strip(),
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    with args.json.open("a") as out:
        out.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
