"""A training script with a Checkpointer: SGD with dropout, deterministic, each step seeded by its number.

    saving.py FOLDER STEPS [FAULTS]

Says "resumed N", "step N" after each step and its save, and "digest D" at the end. It does not close the Checkpointer.
"""

import os
import sys

import torch

import regrow


def main() -> None:
    folder, steps, *faults = sys.argv[1:]
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        torch.distributed.init_process_group(
            "gloo", init_method=os.environ["MEETING"], rank=int(os.environ["RANK"]), world_size=2
        )
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    width = int(os.environ.get("WIDTH", "64"))
    model = torch.nn.Sequential(
        torch.nn.Linear(16, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(), torch.nn.Linear(width, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    checkpointer = regrow.checkpoint.Checkpointer(folder, every=5, shard_mb=1, _faults="".join(faults))
    objects = {"model": model, "optimizer": optimizer, "schedule": schedule}
    begun = checkpointer.restore(**objects)
    print(f"resumed {begun}", flush=True)
    for step in range((begun or 0) + 1, int(steps) + 1):
        torch.manual_seed(step)
        model(torch.randn(32, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        checkpointer.save(step, **objects)
        print(f"step {step}", flush=True)
    print(f"begun {checkpointer.report().begun}", flush=True)
    print(f"digest {digest(objects)}", flush=True)


def digest(objects: dict[str, object]) -> str:
    from regrow.state.tracked import Tracked

    tracked = Tracked()
    for name, thing in objects.items():
        tracked.add(name, thing)
    return tracked.digest()


if __name__ == "__main__":
    main()
