"""The training of dlrover under dlrover-run: DistributedDataParallel, and either checkpoints as in plain DDP or, with
`--flash`, its flash checkpoint, as its documentation shows: often to shared memory, now and then also to disk."""

import copy
import os
import sys

import torch
from ddp_job import connect, restore, save
from ddp_step import compute
from model import build, digest, settle
from task import Task
from torch.nn.parallel import DistributedDataParallel

MEMORY_PER_DISK = 5
"""Saves to memory for each one to disk."""


class Files:
    def __init__(self, task: Task, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
        self._path = task.saved / "newest.pt"
        self._every = task.save_every if rank == 0 else 0
        self._model, self._optimizer = model, optimizer

    def restore(self) -> int:
        return restore(self._path, self._model, self._optimizer)

    def committed(self, step: int) -> None:
        if self._every and (step + 1) % self._every == 0:
            save(self._path, step, self._model, self._optimizer)


class Flash:
    def __init__(self, task: Task, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

        self._memory, self._disk = StorageType.MEMORY, StorageType.DISK
        self._checkpointer = DdpCheckpointer(str(task.saved))
        self._every = task.save_every
        self._model, self._optimizer = model, optimizer

    def restore(self) -> int:
        saved = self._checkpointer.load_checkpoint()
        if not saved:
            return 0
        # It lies in the shared memory that the next save writes to, and the optimizer would keep its tensors.
        self._model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        return int(saved["step"]) + 1

    def committed(self, step: int) -> None:
        done = step + 1
        if not self._every or done % max(1, self._every // MEMORY_PER_DISK):
            return
        kind = self._disk if done % self._every == 0 else self._memory
        state = {"step": step, "model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        self._checkpointer.save_checkpoint(done, state, storage_type=kind)


def main() -> None:
    settle()
    rank, replicas = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    connect()
    task = Task(rank)
    model, optimizer = build(task.size)
    saves = Flash(task, model, optimizer) if "--flash" in sys.argv else Files(task, model, optimizer, rank)
    first = saves.restore()
    parallel = DistributedDataParallel(model)
    task.up(first)
    for step in range(first, task.steps):
        task.begin(step)
        compute(parallel, task, step, replicas)
        optimizer.step()
        optimizer.zero_grad()
        task.commit(step)
        saves.committed(step)
    task.end(task.steps, digest(model))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
