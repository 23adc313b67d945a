"""Claim: a member of one subtree needs as much memory as one of DistributedDataParallel.

Two replicas train a model that is nothing but parameters (SGD without momentum, a batch of one row), so that what a process
needs beyond its start is parameters, gradients, and what the data parallelism adds. The highest resident memory of a process
after a few steps, less that before the model was made, in units of one gradient.

    python benchmarks/memory.py [--million 40] [--json FILE]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REGROW = Path(sys.executable).with_name("regrow")
STEPS = 4
KINDS = {
    "plain": "one process, no data parallelism",
    "ddp": "DistributedDataParallel",
    "ddp view": "the same with gradient_as_bucket_view",
    "regrow 1x1": "one lane a replica, one microbatch a lane",
    "regrow 1x2": "one lane a replica, two microbatches a lane",
    "regrow 4x1": "four lanes a replica",
    "regrow ragged": "seven lanes for two replicas",
}


def highest_bytes() -> int:
    with open("/proc/self/status") as file:
        return 1024 * int(next(line for line in file if line.startswith("VmHWM")).split()[1])


def train(kind: str, million: float) -> None:
    import torch

    torch.set_num_threads(1)
    rank, width = int(os.environ.get("RANK", "0")), 1024
    layers = max(1, round(million * 1e6 / width / width))
    if kind.startswith("regrow"):
        import regrow

        lanes, microbatches = {"1x1": (2, 1), "1x2": (2, 2), "4x1": (8, 1), "ragged": (7, 1)}[kind.split()[1]]
        job = regrow.join(lanes=lanes, microbatches_per_lane=microbatches, seed=0)
    elif kind != "plain":
        torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    start = highest_bytes()
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    if kind.startswith("regrow"):
        job.track(model=model, optimizer=optimizer)
        data = job.data(lambda step, lane, microbatch: torch.ones(1, width))
        for step in job.steps(STEPS, data):
            for batch in step:
                step.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    else:
        wrapped = model
        if kind != "plain":
            wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view="view" in kind)
        for _ in range(STEPS):
            wrapped(torch.ones(1, width)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    gradient = 4 * width * width * layers
    print(f"needs {(highest_bytes() - start) / gradient:.2f} gradients", flush=True)


def measure(kind: str, million: float) -> float:
    """The most that a replica needs."""
    me = [str(Path(__file__)), "--kind", kind, "--million", str(million)]
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as folder:
        if kind.startswith("regrow"):
            run = [str(REGROW), "run", "--plain", "--audit-every", "0", "--replicas", "2", "--run-dir", f"{folder}/run"]
            said = subprocess.run([*run, *me], capture_output=True, text=True, check=True).stdout
        else:
            there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29621"}
            started = [
                subprocess.Popen(
                    [sys.executable, *me], stdout=subprocess.PIPE, text=True, env={**os.environ, **there, "RANK": str(rank)}
                )
                for rank in range(1 if kind == "plain" else 2)
            ]
            said = "".join(process.communicate()[0] for process in started)
    return max(float(number) for number in re.findall(r"needs ([\d.]+) gradients", said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", type=float, default=40, help="parameters")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line of JSON")
    args = parser.parse_args()
    if args.kind:
        train(args.kind, args.million)
        return
    found = {}
    for kind, what in KINDS.items():
        found[kind] = measure(kind, args.million)
        print(f"{kind:14} {found[kind]:5.2f}  {what}", flush=True)
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps({"million parameters": args.million, "in gradients": found}) + "\n")


if __name__ == "__main__":
    main()
