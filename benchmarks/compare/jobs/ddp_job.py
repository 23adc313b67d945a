"""DistributedDataParallel under torchrun: rank 0 saves every so many steps, and all begin at the newest checkpoint."""

import contextlib
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from model import batch, build, digest, loss_of, settle
from task import Task


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


def main() -> None:
    settle()
    rank, replicas = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeouts = [float(argument.partition("=")[2]) for argument in sys.argv if argument.startswith("--timeout-s=")]
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=timeouts[0]) if timeouts else None)
    task = Task(rank)
    model, optimizer = build(task.size)
    newest = task.saved / "newest.pt"
    first = restore(newest, model, optimizer)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    share = task.share(replicas)
    task.up(first)
    for step in range(first, task.steps):
        task.begin(step)
        agreed = torch.zeros(())
        for microbatch in share:
            # The reducer averages over ranks; each rank's gradient is the mean over its own microbatches.
            with contextlib.nullcontext() if microbatch == share[-1] else ddp.no_sync():
                loss = loss_of(ddp, batch(task.size, step, microbatch)) / len(share)
                loss.backward()
            agreed += loss.detach()
            task.batch(step, microbatch)
        torch.distributed.all_reduce(agreed)  # every replica knows the loss of the step, as it does under Regrow
        optimizer.step()
        optimizer.zero_grad()
        task.commit(step)
        if rank == 0 and task.save_every and (step + 1) % task.save_every == 0:
            save(newest, step, model, optimizer)
    task.end(task.steps, digest(model))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
