"""About 10 M parameters that train until they are killed: what join.py measures."""

import argparse
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn as nn

import regrow

WIDTH, LAYERS = 1024, 10


def batches(size: int) -> Callable[[int, int, int], torch.Tensor]:
    def batch_of(step: int, lane: int, microbatch: int) -> torch.Tensor:
        return torch.sin(torch.arange(size * WIDTH, dtype=torch.float32) * (1.0 + step % 7 + lane)).view(size, WIDTH)

    return batch_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--late", type=float, default=0.0, help="seconds to sleep first")
    parser.add_argument("--die", type=Path, default=Path("never"), help="the pid that is to kill itself")
    parser.add_argument("--sent", type=Path, default=Path("never"), help="when it did")
    args = parser.parse_args()
    job = regrow.join(seed=1)
    time.sleep(args.late)
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    job.track(model=model, optimizer=optimizer)
    data = job.data(batches(args.batch))
    print(f"ready, parameters {sum(parameter.numel() for parameter in model.parameters())}", flush=True)
    for step in job.steps(10**9, data):
        for x in step:
            step.backward((model(x) - x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if args.die.exists() and args.die.read_text() == str(os.getpid()):
            args.die.unlink()
            args.sent.write_text(str(time.monotonic_ns()))
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
