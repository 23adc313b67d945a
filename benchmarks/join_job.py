"""About 10 M parameters that train until they are killed: what join.py measures."""

import torch
import torch.nn as nn

import regrow

WIDTH, LAYERS, BATCH = 1024, 10, 16


def batch_of(step: int, lane: int, microbatch: int) -> torch.Tensor:
    return torch.sin(torch.arange(BATCH * WIDTH, dtype=torch.float32) * (1.0 + step % 7 + lane)).view(BATCH, WIDTH)


def main() -> None:
    job = regrow.join(seed=1)
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    job.track(model=model, optimizer=optimizer)
    data = job.data(batch_of)
    print(f"ready, parameters {sum(parameter.numel() for parameter in model.parameters())}", flush=True)
    for step in job.steps(10**9, data):
        for x in step:
            step.backward((model(x) - x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
