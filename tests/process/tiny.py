"""The script the process tests attack: small, with everything that could part the replicas (dropout, AdamW, a schedule).

Writes the samples it was handed to used-<member>.txt in the run directory, so that a test can count them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn

import regrow


class Points(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 97

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.sin(torch.arange(16) * (index + 1.0))
        return x, x[:4] * x[4:8], index


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("--hold", help="STEP:N: from this step on, wait for rosters until one has N members")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes besides")
    parser.add_argument("--trail", action="store_true", help="print the digest at every step")
    parser.add_argument("--no-log", action="store_true", help="do not write down which samples were used")
    parser.add_argument("--child", action="store_true", help="start a process of its own, as a data loader does")
    args = parser.parse_args()

    job = regrow.join(lanes=6, microbatches_per_lane=args.microbatches, seed=5)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    job.track(model=model, optimizer=optimizer, schedule=schedule)
    data = job.data(Points(), batch_size=3)
    log = (lambda text: None) if args.no_log else open_log()
    if args.child:
        subprocess.Popen([sys.executable, "-c", "import signal\nwhile True: signal.pause()"])
    rosters = 0

    for step in job.steps(args.steps, data):
        if step.index == args.stop_at:
            job.stop()
        if args.trail:
            print(f"at {step.index} {job.digest()}")
        time.sleep(args.pace)
        for x, y, index in step:
            log(f"{step.index} {' '.join(str(int(i)) for i in index)}\n")
            step.backward((model(x) - y).square().mean())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if args.hold and step.index >= int(args.hold.split(":")[0]):
            rosters = wait_for_strength(int(args.hold.split(":")[1]), rosters)
        if step.reporter:
            print(f"step {step.index} loss {step.loss:.6f}", flush=True)

    print(f"digest {job.digest()}", flush=True)


def wait_for_strength(members: int, known: int) -> int:
    """Wait until everyone lost is back, or at least a roster newer than the known ones is there to be entered."""
    journal = Path(os.environ["REGROW_RUN_DIR"]) / "journal" / "coordinator.jsonl"
    deadline = time.monotonic() + 60
    while True:
        facts = [json.loads(line)["what"] for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
        rosters = [fact for fact in facts if fact["fact"] == "RosterMade"]
        if len(rosters[-1]["seats"]) == members or len(rosters) > (known or len(rosters)):
            return len(rosters)
        known = known or len(rosters)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no roster of {members} members")
        time.sleep(0.005)


def open_log():
    folder = os.environ.get("REGROW_RUN_DIR")
    if folder is None:
        return lambda text: None
    name = f"used-{os.environ['REGROW_REPLICA']}.{os.environ['REGROW_INCARNATION']}.txt"
    return (Path(folder) / name).open("a", buffering=1).write


if __name__ == "__main__":
    main()
