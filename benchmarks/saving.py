"""Claim: a job saves 1 GB beside training, and comes back from memory at half the speed of a memcpy.

A job of two replicas trains linear layers (fp32, AdamW) under `regrow run --checkpoint FOLDER`. Saves follow each other, so
that the vault is never idle. Then all of its workers get a SIGKILL at once, again and again, and it goes on from the host's
memory. Afterwards, with nothing else running, a plain writer writes as many bytes to an O_DIRECT file and fsyncs, and one
thread copies as many from memory to memory.

    waited     what a save has the optimizers wait, of both workers, per save; 0 where nobody noticed it
    whole      from the first word of a save until it is whole in memory, under a digest
    durable    from there until it is durable
    recalled   what a founder takes to load the state and to hold it to its digest
    back       from the signal until a step is committed again

    python benchmarks/saving.py FOLDER [--layers 20] [--saves 8] [--kills 4] [--batch 256] [--json FILE]
"""

import argparse
import json
import mmap
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from checkpoint import BLOCK_BYTES, plain

from regrow.core.records import Committed, Fact, SaveDurable, SaveWaited, StateKept, StateRecalled, WorkerStarted
from regrow.shell.follower import Follower

HERE = Path(__file__).parent
DEADLINE_S = 300.0
EVERY = 3
"""Steps from one save to the next."""
COPIES = 5


class Job:
    def __init__(self, folder: Path, layers: int, batch: int) -> None:
        self.folder = folder / "run"
        command = [sys.executable, "-m", "regrow.cli.main", "run", "--replicas", "2", "--lanes", "2"]
        command += ["--run-dir", str(self.folder), "--checkpoint", str(folder / "saved"), "--checkpoint-every", str(EVERY)]
        command += ["--keep-last", "1", str(HERE / "saving_job.py"), "--layers", str(layers), "--batch", str(batch)]
        self.log = folder / "output.txt"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        self._followers: dict[str, Follower] = {}
        self._facts: list[tuple[int, Fact]] = []

    def facts(self, *kinds: type, since_ns: int = 0) -> list[tuple[int, Fact]]:
        if self.process.poll() is not None:
            sys.exit(f"the job ended: {self.log.read_text(errors='replace')[-2000:]}")
        for path in (self.folder / "journal").glob("*.jsonl"):
            follower = self._followers.setdefault(path.stem, Follower(path))
            self._facts.extend((line.ns, line.what) for line in follower.read())
        return [(ns, fact) for ns, fact in self._facts if isinstance(fact, kinds) and ns > since_ns]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end_s:
                sys.exit(f"waited {DEADLINE_S:g} s in vain for {what}")
            time.sleep(0.05)

    def kill_all(self, workers: int) -> float:
        """Every worker of the newest lives; seconds until the job commits again."""
        pids = [fact.pid for _, fact in self.facts(WorkerStarted)[-workers:]]
        begun_ns = time.monotonic_ns()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.wait(lambda: len(self.facts(StateRecalled, since_ns=begun_ns)) >= workers, "founders that recall")
        last_ns = max(ns for ns, _ in self.facts(StateRecalled, since_ns=begun_ns))
        self.wait(lambda: self.facts(Committed, since_ns=last_ns), "a step after a loss of everybody")
        return (self.facts(Committed, since_ns=last_ns)[0][0] - begun_ns) / 1e9

    def end(self) -> None:
        self.process.kill()  # the last save is not measured
        self.process.wait()


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def memcpy_s(size_bytes: int) -> float:
    source, target = torch.ones(size_bytes, dtype=torch.uint8), torch.zeros(size_bytes, dtype=torch.uint8)
    begun_s = time.monotonic()
    target.copy_(source)
    return time.monotonic() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="on the disk that is measured; made, and removed afterwards")
    parser.add_argument("--layers", type=int, default=20, help="of 50 MB each, with their optimizer state")
    parser.add_argument("--saves", type=int, default=8)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line of JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.folder.mkdir(parents=True)
    job = Job(args.folder, args.layers, args.batch)
    job.wait(lambda: len(job.facts(SaveDurable)) > args.saves, "saves that are durable")
    durable = [fact for _, fact in job.facts(SaveDurable)][1:]
    kept = {fact.step: fact for _, fact in job.facts(StateKept)}
    waits = [fact for _, fact in job.facts(SaveWaited)]
    waited = [sum(fact.seconds for fact in waits if fact.step == each.step) / 2 for each in durable]
    size_bytes = durable[0].size_bytes
    backs = [job.kill_all(2) for _ in range(args.kills)]
    recalled = [fact.seconds for _, fact in job.facts(StateRecalled)]
    job.end()
    memory = mmap.mmap(-1, -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)
    memory[:] = os.urandom(BLOCK_BYTES) * (len(memory) // BLOCK_BYTES)
    plain_s = [plain(args.folder / "plain", memory, size_bytes) for _ in range(COPIES)]
    copies_s = [memcpy_s(size_bytes) for _ in range(COPIES)]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE)
    figures = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
        "commit": commit.stdout.strip(),
        "state_bytes": size_bytes,
        "saves": len(durable),
        "waited_s": summary(waited),
        "whole_s": summary([kept[fact.step].seconds for fact in durable]),
        "durable_s": summary([fact.seconds for fact in durable]),
        "recalled_s": summary(recalled),
        "back_s": summary(backs),
        "plain_s": summary(plain_s),
        "memcpy_s": summary(copies_s),
    }
    shutil.rmtree(args.folder)
    print(json.dumps(figures, indent=1))
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
