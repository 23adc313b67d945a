"""One step of DistributedDataParallel up to the optimizer, the same in the jobs of all launchers that restart processes."""

import contextlib

import torch
from model import batch, loss_of
from task import Task
from torch.nn.parallel import DistributedDataParallel


def compute(parallel: DistributedDataParallel, task: Task, step: int, replicas: int) -> None:
    """Leaves the agreed gradient in `.grad`. Every replica learns the loss of the step, as it does under Regrow."""
    share = task.share(replicas)
    agreed = torch.zeros(())
    for microbatch in share:
        # The reducer averages over ranks; each rank's gradient is the mean over its own microbatches.
        with contextlib.nullcontext() if microbatch == share[-1] else parallel.no_sync():
            loss = loss_of(parallel, batch(task.size, step, microbatch)) / len(share)
            loss.backward()
        agreed += loss.detach()
        task.batch(step, microbatch)
    torch.distributed.all_reduce(agreed)
