"""A random soak: jobs whose replicas are killed at random moments, alone and in bursts, until enough were killed.

    python tests/process/soak.py --kills 200 [--seed N]

One replica of each job, drawn anew, is spared, so that the state survives; everything else is fair game, joiners and donors
included. Every job ends with the digest of the script alone, a clean check and every sample used once. The times are not
reproducible, the choices are: a failure prints its seed and keeps its run directory.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from runs import Run, alone, prove

from regrow.core.records import WorkerExited, WorkerStarted

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)
STEPS = 300


def attack(run: Run, chance: random.Random, replicas: int, most: int) -> Counter[str]:
    """Kill until the job ends or enough were killed; returns who died how often."""
    spared = f"r{chance.randrange(replicas)}"
    died: Counter[str] = Counter()
    while run.process.poll() is None and died.total() < most:
        burst = chance.choice((1, 1, 1, 2, replicas - 1))
        gone = {str(fact.member) for _, fact in run.facts(WorkerExited, "agent")}
        alive = [fact for _, fact in run.facts(WorkerStarted, "agent") if str(fact.member) not in gone]
        targets = [fact for fact in alive if fact.member.replica != spared]
        for fact in chance.sample(targets, min(burst, len(targets))):
            if _is_child(fact.pid, run.process.pid):
                os.kill(fact.pid, chance.choice(SIGNALS))
                died[fact.member.replica] += 1
        time.sleep(chance.expovariate(1 / chance.choice((0.03, 0.15, 0.5))))
    return died


def _is_child(pid: int, parent: int) -> bool:
    """Pids are used again: kill only what this very job started."""
    try:
        return f"PPid:\t{parent}\n" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def soak(kills: int, seed: int, folder: Path, reference: str) -> int:
    done = number = 0
    while done < kills:
        chance = random.Random(f"{seed}-{number}")
        replicas = chance.choice((2, 3, 4))
        place = folder / str(number)
        place.mkdir()
        limits = ("--restart-backoff", "0", "--max-restarts", "100000", "--max-job-restarts", "100000")
        run = Run(place, "--replicas", str(replicas), *limits, script_args=("--steps", str(STEPS)))
        died = attack(run, chance, replicas, kills - done)
        run.wait()
        exits = Counter(
            fact.member.replica
            for _, fact in run.facts(WorkerExited)
            if not fact.clean and not fact.how.startswith("was ended")
        )
        # A replica that is killed after its last step may leave what the script does there undone: that is exit code 1.
        prove(run, reference, deaths=exits, steps=STEPS, code=1 if "after its last step" in run.output else 0)
        done += exits.total()
        print(f"job {number}: {replicas} replicas, {exits.total()} of {died.total()} hits, {done} kills so far", flush=True)
        number += 1
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="regrow-soak-"))
    try:
        jobs = soak(args.kills, args.seed, folder, alone("--steps", str(STEPS)))
    except AssertionError as error:
        sys.exit(f"{error}\nseed {args.seed}; the run directories are in {folder}")
    print(f"{args.kills} kills in {jobs} jobs: every digest equal, every check clean")


if __name__ == "__main__":
    main()
