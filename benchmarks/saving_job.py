"""The job saving.py watches: linear layers under AdamW, 50 MB of state each."""

import argparse
import os

import torch

import regrow

WIDTH = 2048

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, required=True)
parser.add_argument("--batch", type=int, required=True)
args = parser.parse_args()

job = regrow.join(seed=1)
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(args.layers)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
job.track(model=model, optimizer=optimizer)


def microbatch(step: int, lane: int, number: int) -> torch.Tensor:
    return torch.randn(args.batch, WIDTH)


for step in job.steps(1_000_000, job.data(microbatch)):
    for batch in step:
        step.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if step.index == 0:
        print(f"ready {os.getpid()}", flush=True)
