"""A learning rate that follows the lanes present: for jobs that keep their pace when replicas are lost.

    regrow run --replicas 4 --on-loss shrink examples/train_shrink.py --scale sqrt

With `--on-loss shrink` the lanes of a lost replica are left out until it is back, so a step's batch is smaller for a while.
A smaller batch wants a smaller learning rate: in proportion to it (linear), or to its square root.
"""

import argparse
import json

import torch
import torch.nn as nn

import regrow

LEARNING_RATE = 3e-3
POWER = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}


class Spirals(torch.utils.data.Dataset):
    """Two spirals in the plane, and which one a point is on."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        turn = torch.tensor(index // 2 / 1000.0)
        angle = 6.0 * turn + torch.pi * (index % 2)
        noise = torch.randn(2, generator=torch.Generator().manual_seed(index)) * 0.02
        return torch.stack((turn * angle.cos(), turn * angle.sin())) + noise, torch.tensor(index % 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--scale", choices=POWER, default="sqrt", help="how the learning rate follows the lanes present")
    parser.add_argument("--skip", type=json.loads, default=[], help="JSON list of [step, lane] to leave out: replays a run")
    args = parser.parse_args()

    job = regrow.join(lanes=8, seed=0, skip=args.skip)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    job.track(model=model, optimizer=optimizer)
    data = job.data(Spirals(), batch_size=16)

    def follow(strength: regrow.Strength) -> None:
        """Set, never multiply: a replica that comes back is told again."""
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (strength.lanes_present / strength.lanes) ** POWER[args.scale]

    job.on_roster(follow)

    for step in job.steps(args.steps, data):
        for points, spiral in step:
            step.backward(nn.functional.cross_entropy(model(points), spiral))
        optimizer.step()
        optimizer.zero_grad()
        if step.reporter and step.index % 10 == 9:
            rate = optimizer.param_groups[0]["lr"]
            print(f"step {step.index} loss {step.loss:.4f} lanes {step.lanes_present}/{job.lanes} lr {rate:.5f}", flush=True)
    print(f"digest {job.digest()}", flush=True)


if __name__ == "__main__":
    main()
