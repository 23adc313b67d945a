"""Fault-tolerant, elastic training for PyTorch.

    job = regrow.join(lanes=8, seed=0)
    job.track(model=model, optimizer=optimizer)
    data = job.data(dataset, batch_size=4)
    for step in job.steps(1000, data):
        for batch in step:
            step.backward(loss_fn(model(batch)))
        optimizer.step()

Importing this module is cheap and has no effects; torch is imported by join().
"""

from typing import TYPE_CHECKING

from regrow import checkpoint
from regrow.core.errors import (
    ConfigError,
    DataError,
    Fenced,
    HaltError,
    InfraError,
    Invariant,
    Mismatch,
    PeerError,
    PoisonError,
    RegrowError,
    StateError,
)
from regrow.core.release import RELEASE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from regrow.worker.job import Job, Strength
    from regrow.worker.step import Step

__version__ = RELEASE
__all__ = [
    "ConfigError",
    "DataError",
    "Fenced",
    "HaltError",
    "InfraError",
    "Invariant",
    "Job",
    "Mismatch",
    "PeerError",
    "PoisonError",
    "RegrowError",
    "StateError",
    "Step",
    "Strength",
    "checkpoint",
    "join",
]


def join(
    *,
    lanes: int | None = None,
    microbatches_per_lane: int = 1,
    seed: int = 0,
    threads: int = 1,
    skip: "Iterable[tuple[int, int]]" = (),
) -> "Job":
    """Take part in the job this process was started for by `regrow run`; alone, be a job of one. Seeds everything.

    lanes: how many parts a step has, whoever computes them (default: the --lanes flag, else 8).
    microbatches_per_lane: batches each lane adds up, in order.
    seed: decides the data's order and all randomness.
    threads: intra-op threads; part of the mathematics, so never derived from the machine.
    skip: (step, lane) pairs to leave out of their steps, for example those that a former run found to be poison.
    """
    from regrow.worker import entry
    from regrow.worker.job import join_job

    return join_job(
        entry.place, lanes=lanes, microbatches_per_lane=microbatches_per_lane, seed=seed, threads=threads, skip=skip
    )


def __getattr__(name: str) -> object:
    if name in ("Job", "Step", "Strength"):
        from regrow.worker import job

        return getattr(job, name)
    raise AttributeError(f"module 'regrow' has no attribute {name!r}")
