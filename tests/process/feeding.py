"""Training fed in one of several ways: `feeding.py WAY`. Every way draws random numbers as it makes its data."""

import argparse

import torch
import torch.nn as nn
from tiny import wait_for_strength

import regrow

Batch = tuple[torch.Tensor, torch.Tensor]


def batch_of(step: int, lane: int, microbatch: int) -> Batch:
    x = torch.sin(torch.arange(48).reshape(3, 16) * (step * 12 + lane * 2 + microbatch + 1.0)) + torch.rand(3, 16)
    return x, x[:, :4] * x[:, 4:8]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["function"])
    parser.add_argument("--hold", type=int, default=0, help="wait for so many members from the seventh step on")
    args = parser.parse_args()
    job = regrow.join(lanes=6, microbatches_per_lane=2, seed=5)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job.track(model=model, optimizer=optimizer)
    data = job.data(batch_of)
    for step in job.steps(9, data):
        for x, y in step:
            step.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if args.hold and step.index >= 6:
            wait_for_strength(args.hold, step.index)
        if step.reporter:
            print(f"step {step.index} loss {step.loss:.6f}", flush=True)
    print(f"digest {job.digest()}", flush=True)


if __name__ == "__main__":
    main()
