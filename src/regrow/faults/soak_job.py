"""The script that a soak trains: small, with everything that could part the replicas (dropout, AdamW, clipping, a schedule).

Alone, `python -m regrow.faults.soak_job --steps N` prints the digest after N undisturbed steps. SIGUSR1 sends its main
thread into an endless loop, wherever it is.
"""

import argparse
import signal
import time
from types import FrameType

import torch
import torch.nn as nn

import regrow

LANES = 8


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 997

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.sin(torch.arange(16) * (index + 1.0))
        return x, x[:4] * x[4:8]


def main() -> None:
    parser = argparse.ArgumentParser(description="The script that a soak trains.")
    parser.add_argument("--steps", type=int, default=1_000_000_000)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a microbatch takes besides")
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    signal.signal(signal.SIGUSR1, spin)

    job = regrow.join(lanes=LANES, seed=args.seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(64), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    job.track(model=model, optimizer=optimizer, schedule=schedule)
    for step in job.steps(args.steps, job.data(Points(), batch_size=2)):
        for x, y in step:
            time.sleep(args.pace)
            step.backward((model(x) - y).square().mean())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step.index + 1 == args.steps:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # what a script does after its last step has no limit

    print(f"digest {job.digest()}", flush=True)


def spin(number: int, frame: FrameType | None) -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
