"""`make demo`: train a small GPT with 4 replicas while replicas are killed, watch it live, and prove that nothing was lost.

Runs `regrow run examples/train_gpt.py` twice, undisturbed first; the second time it sends SIGKILL to a random replica every
few steps. Ends by comparing the digests of the final weights, optimizer state and schedule.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from regrow.core.records import Committed, Line, RosterMade, WorkerExited, WorkerStarted
from regrow.shell.journal import tail

SCRIPT = Path(__file__).with_name("train_gpt.py")
REGROW = Path(sys.executable).with_name("regrow")
TAIL_BYTES = 256 * 1024
EVENTS_SHOWN = 8


class Watched:
    """A running job, seen through its journals alone."""

    def __init__(self, folder: Path, replicas: int) -> None:
        self.journal = folder / "journal"
        self.replicas = [f"r{number}" for number in range(replicas)]
        self.pids: dict[str, int] = {}
        self.alive: set[str] = set()
        self.lanes: dict[str, tuple[int, ...]] = {}
        self.step = 0
        self.loss: float | None = None
        self.roster = "-"
        self.started_s = time.time()
        self.events: list[str] = []
        self._seen_ns = 0

    def look(self) -> None:
        lines = [line for who in ("agent", "coordinator") for line in self._tail(who)]
        for line in sorted((line for line in lines if line.ns > self._seen_ns), key=lambda line: line.ns):
            self._seen_ns = line.ns
            self._take(line)
        for name in self.pids:
            if name.split(".")[0] in self.alive:
                for line in self._tail(name)[-4:]:
                    if isinstance(line.what, Committed) and line.what.step >= self.step:
                        self.step, self.loss = line.what.step + 1, line.what.loss

    def _tail(self, who: str) -> list[Line]:
        return tail(self.journal, who, TAIL_BYTES) if (self.journal / f"{who}.jsonl").exists() else []

    def _take(self, line: Line) -> None:
        at = f"{line.at - self.started_s:6.2f} s"
        match line.what:
            case WorkerStarted(member=member, pid=pid):
                self.pids[str(member)] = pid
                self.alive.add(member.replica)
            case WorkerExited(member=member, how=how, clean=False):
                self.alive.discard(member.replica)
                self.lanes.pop(member.replica, None)
                self.events.append(f"{at}  {member} {how}")
            case RosterMade(version=version, seats=seats, why=why):
                self.roster = str(version)
                self.lanes = {seat.member.replica: seat.lanes for seat in seats}
                self.events.append(f"{at}  roster {version}: {why}")

    def newest_pid(self, replica: str) -> int | None:
        mine = [(int(name.split(".")[1]), pid) for name, pid in self.pids.items() if name.split(".")[0] == replica]
        return max(mine)[1] if mine else None


def picture(watched: Watched, steps: int, title: str) -> Group:
    table = Table(title=title, title_justify="left", expand=False)
    for column in ("replica", "pid", "state", "lanes"):
        table.add_column(column, min_width=9)
    for replica in watched.replicas:
        seated, alive = replica in watched.lanes, replica in watched.alive
        state = Text("training", "green") if seated else Text("growing back", "yellow") if alive else Text("dead", "red")
        lanes = " ".join(map(str, watched.lanes.get(replica, ()))) or "-"
        table.add_row(replica, str(watched.newest_pid(replica) or "-"), state, lanes)
    loss = f"loss {watched.loss:.4f}" if watched.loss is not None else ""
    done = 40 * watched.step // steps
    bar = Text("━" * done, "green").append("━" * (40 - done), "dim")
    head = Text(f"step {watched.step} of {steps}   roster {watched.roster}   {loss}")
    return Group(table, head, bar, *(Text(event, "dim") for event in watched.events[-EVENTS_SHOWN:]))


def train(folder: Path, args: argparse.Namespace, kills: int, console: Console) -> tuple[str, int]:
    """One job; returns its digest and how many replicas were killed."""
    command = [str(REGROW), "run", "--replicas", str(args.replicas), "--lanes", "8", "--run-dir", str(folder)]
    command += ["--restart-backoff", "0", str(SCRIPT), "--steps", str(args.steps)]
    log = folder.with_suffix(".txt")
    chance = random.Random(args.seed)
    targets = sorted(chance.sample(range(3, args.steps - 8), kills))
    title = f"{args.replicas} replicas, {kills} kills" if kills else f"{args.replicas} replicas, undisturbed"
    killed = 0
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        watched = Watched(folder, args.replicas)
        with Live(console=console, refresh_per_second=12) as live:
            while process.poll() is None:
                watched.look()
                if targets and watched.step >= targets[0] and len(watched.lanes) > 1:
                    targets.pop(0)
                    pid = watched.newest_pid(chance.choice(sorted(watched.lanes)))
                    if pid is not None and is_ours(pid, process.pid):
                        os.kill(pid, signal.SIGKILL)
                        killed += 1
                live.update(picture(watched, args.steps, title))
                time.sleep(0.02)
            watched.look()
            live.update(picture(watched, args.steps, title))
    digests = set(re.findall(r"digest (\w{64})", log.read_text(errors="replace")))
    if process.returncode != 0 or len(digests) != 1:
        console.print(log.read_text(errors="replace")[-3000:], markup=False)
        sys.exit(f"the job ended with code {process.returncode} and digests {digests or 'none'}: see {log}")
    return digests.pop(), killed


def is_ours(pid: int, parent: int) -> bool:
    """A pid from a journal may be gone and given to another by now: kill only a child of our own job."""
    try:
        return f"PPid:\t{parent}\n" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the kills")
    args = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="regrow-demo-") as folder:
        undisturbed, _ = train(Path(folder) / "undisturbed", args, 0, console)
        attacked, killed = train(Path(folder) / "attacked", args, args.kills, console)
        check = subprocess.run(
            [str(REGROW), "check", str(Path(folder) / "attacked")], capture_output=True, text=True, check=False
        )
    console.print(f"\nundisturbed      {undisturbed}\n{killed} times killed   {attacked}", highlight=False, soft_wrap=True)
    console.print(check.stdout.strip(), highlight=False)
    if undisturbed != attacked or check.returncode != 0:
        sys.exit("the weights differ, or an invariant is broken: this is a bug in Regrow")
    console.print("[green]The weights are the same, bit for bit.[/green]")


if __name__ == "__main__":
    main()
