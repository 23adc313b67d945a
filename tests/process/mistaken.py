"""A training script that makes one mistake, chosen by name; with "none" it trains well.

Lines on which a mistake raises end with its name as a comment, so that a test can look up their number.
"""

import importlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn

import regrow

mistake = sys.argv[1]
me = os.environ.get("REGROW_REPLICA", "solo")
is_second = me == "r1"
is_joiner = os.environ.get("REGROW_INCARNATION", "0") != "0"

if mistake == "import":
    importlib.import_module("a_module_that_does_not_exist")  # import
if mistake == "before join":
    raise ValueError("mine")  # before join


def wait_for(fact: str, who: str) -> None:
    journal = Path(os.environ["REGROW_RUN_DIR"]) / "journal" / f"{who}.jsonl"
    deadline = time.monotonic() + 60
    while f'"{fact}"' not in journal.read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{who} never noted {fact}")
        time.sleep(0.005)


lanes = int(sys.argv[2]) if len(sys.argv) > 2 else None
job = regrow.join(seed=5) if lanes is None else regrow.join(lanes=lanes, seed=5)
if mistake == "join twice":
    regrow.join()  # join twice
if mistake == "weights":
    torch.manual_seed(int(me[1:]))
width = 3 if (mistake == "shape" and is_second) or (mistake == "joiner" and is_joiner) else 2
model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))
if mistake == "dtype" and is_second:
    model = model.double()
if mistake == "name" and is_second:
    model = nn.ModuleDict({"first": model})
make = torch.optim.LBFGS if mistake == "LBFGS" else torch.optim.SGD
optimizer = make(model.parameters(), lr=0.1)
job.track(model=model, optimizer=optimizer)  # LBFGS
size = {"empty dataset": 0, "dataset": 9 if is_second else 8}.get(mistake, 8)
data = job.data([torch.ones(4) * i for i in range(size)], batch_size=1)  # empty dataset

forward = model
if mistake == "tuned kernels":
    forward = torch.compile(model, mode="max-autotune")
if mistake == "recompilations":
    torch._dynamo.config.cache_size_limit = 2
    forward = torch.compile(model, backend="eager")

for step in job.steps(8, data):
    here = mistake if step.index >= 2 else "none"
    if here == "break out":
        break
    if here == "exit":
        sys.exit(0)
    for batch in step:
        if mistake == "recompilations":
            batch = batch.expand(2 + step.index, 4)
        loss = forward(batch).square().mean()
        if mistake == "other bits" and is_joiner:
            step.skip()
            continue
        if here == "in a lane":
            raise ValueError("mine")  # in a lane
        if here == "break":
            break
        if here == "parameter":
            with torch.no_grad():
                model[0].weight.mul_(0.5)
        if here != "no backward":
            step.backward(loss)
        if here == "step in the loop":
            optimizer.step()  # step in the loop
        if here == "two backwards":
            step.backward(loss)  # two backwards
    if here == "between":
        raise ValueError("mine")  # between
    if here == "closure":
        optimizer.step(lambda: 0.0)  # closure
    if here == "local rate" and is_second:
        optimizer.param_groups[0]["lr"] = 0.2
    if here == "local value" and is_second:
        model[1].bias.data.add_(0.5)
    optimizer.step()
    optimizer.zero_grad()
    if mistake in ("joiner", "other bits") and step.index == 4:
        wait_for("ListenerAttached", f"{me}.0")  # so that the job does not end before its joiner has come
    if mistake in ("joiner", "other bits") and step.index == 6:
        wait_for("ReplicaLost", "coordinator")  # a step on, it was offered the state, and the record of this one
    if here == "reporter" and step.reporter:
        raise ValueError("mine")  # reporter

print(f"lanes {job.lanes}", flush=True)
print(f"digest {job.digest()}", flush=True)
