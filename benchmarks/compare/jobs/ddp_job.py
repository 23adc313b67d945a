"""DistributedDataParallel under torchrun: rank 0 saves every so many steps, and all begin at the newest checkpoint."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from ddp_step import compute
from model import build, digest, settle
from task import Task
from torch.nn.parallel import DistributedDataParallel


def save(path: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Under another name first: a process that dies here leaves the checkpoint before it."""
    beside = path.with_suffix(f".{os.getpid()}")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, beside)
    beside.replace(path)


def restore(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The first step that is to be computed."""
    if not path.exists():
        return 0
    saved = torch.load(path, mmap=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"]) + 1


def connect() -> None:
    """With `--timeout-s=` collectives give up after so long; without, after torch's half an hour."""
    timeouts = [float(argument.partition("=")[2]) for argument in sys.argv if argument.startswith("--timeout-s=")]
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=timeouts[0]) if timeouts else None)


def main() -> None:
    settle()
    rank, replicas = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    connect()
    task = Task(rank)
    model, optimizer = build(task.size)
    newest = task.saved / "newest.pt"
    first = restore(newest, model, optimizer)
    parallel = DistributedDataParallel(model)
    task.up(first)
    for step in range(first, task.steps):
        task.begin(step)
        compute(parallel, task, step, replicas)
        optimizer.step()
        optimizer.zero_grad()
        task.commit(step)
        if rank == 0 and task.save_every and (step + 1) % task.save_every == 0:
            save(newest, step, model, optimizer)
    task.end(task.steps, digest(model))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
