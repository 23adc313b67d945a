"""Adapt a frozen GPT with low-rank adapters. Alone: `python train_lora.py`. Among replicas:

    regrow run --replicas 4 examples/train_lora.py

Only the adapters are trained, so only their gradients travel. A replica that grows back is given the base too: it need not
find it on a disk.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from train_gpt import GPT, Text

import regrow


class LoRA(nn.Module):
    """A frozen linear layer plus a trained correction of low rank, which is zero at first."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * self.scale


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()

    job = regrow.join(lanes=6, seed=7)
    model = GPT(27, args.window, width=64, layers=2, heads=4, dropout=0.0).requires_grad_(False)
    for block in model.blocks:
        block.qkv = LoRA(block.qkv, args.rank, alpha=8.0)
        block.out = LoRA(block.out, args.rank, alpha=8.0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    job.track(model=model, optimizer=optimizer)
    data = job.data(Text(20_000, args.window), batch_size=args.batch_size)

    for step in job.steps(args.steps, data):
        for tokens, targets in step:
            step.backward(F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()))
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step.reporter and step.index % 10 == 9:
            print(f"step {step.index}: loss {step.loss:.4f}", flush=True)

    count = sum(parameter.numel() for parameter in trained)
    print(f"trained {count} of {sum(parameter.numel() for parameter in model.parameters())} parameters")
    print(f"digest {job.digest()}", flush=True)


if __name__ == "__main__":
    main()
