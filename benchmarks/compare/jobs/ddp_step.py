"""One step of DistributedDataParallel up to the optimizer, the same in the jobs of all launchers that restart processes."""

import contextlib

from model import batch, loss_of
from task import Task
from torch.nn.parallel import DistributedDataParallel


def compute(parallel: DistributedDataParallel, task: Task, step: int, replicas: int) -> None:
    """Leaves the agreed gradient in `.grad`. Nothing else is agreed on: what a script would log would cost more."""
    share = task.share(replicas)
    for microbatch in share:
        # The reducer averages over ranks; each rank's gradient is the mean over its own microbatches.
        with contextlib.nullcontext() if microbatch == share[-1] else parallel.no_sync():
            (loss_of(parallel, batch(task.size, step, microbatch)) / len(share)).backward()
        task.batch(step, microbatch)
