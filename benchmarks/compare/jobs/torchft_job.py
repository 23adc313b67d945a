"""The training of torchft, in the idiom of its documentation: a Manager, its DistributedDataParallel and its Optimizer.

One process is one replica group; torchrun starts it and starts it again. All wait for each other before the very first
step, so that an undisturbed run begins at full strength; a replica that comes back finds the others there.

The Manager averages over the replicas that take part, so each computes its own share of the microbatches and nobody takes
over that of a lost one. With `--best` the settings that systems_torchft.py explains.
"""

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from model import batch, build, digest, loss_of, settle
from task import Task
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing import HTTPTransport


def wait_for_all(folder: Path, replica: int, replicas: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(replica)).touch()
    while len(list(folder.iterdir())) < replicas:
        time.sleep(0.005)


def manager_for(replica: int, is_best: bool, collective_s: float, **state: object) -> Manager:
    if not is_best:
        return Manager(pg=ProcessGroupGloo(), min_replica_size=1, replica_id=f"replica{replica}", **state)
    return Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=collective_s)),
        min_replica_size=1,
        replica_id=f"replica{replica}",
        init_sync=False,
        connect_timeout=timedelta(seconds=2),
        quorum_retries=600,
        checkpoint_transport=HTTPTransport(timeout=timedelta(seconds=60), num_chunks=8),
        **state,
    )


def save(path: Path, manager: Manager, state: dict[str, object]) -> None:
    """Under another name first: a process that dies here leaves the checkpoint before it."""
    beside = path.with_suffix(f".{os.getpid()}")
    torch.save({"manager": manager.state_dict(), **state}, beside)
    beside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--collective-s", type=float, default=60.0)
    args, _ = parser.parse_known_args()
    replica = int(os.environ["REPLICA_GROUP_ID"])
    task = Task(replica)
    settle()
    model, inner = build(task.size)

    def state() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load(saved: dict[str, object]) -> None:
        model.load_state_dict(saved["model"])
        inner.load_state_dict(saved["optimizer"])

    manager = manager_for(replica, args.best, args.collective_s, state_dict=state, load_state_dict=load)
    newest = task.saved / "newest.pt"
    if newest.exists():
        saved = torch.load(newest)
        load(saved)
        manager.load_state_dict(saved["manager"])
    parallel = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    inner.register_step_post_hook(lambda *_: task.commit(manager.current_step() - 1))
    share = list(task.share())
    task.up(manager.current_step())
    wait_for_all(task.folder / "up", replica, task.replicas)
    while manager.current_step() < task.steps:
        step = manager.current_step()
        task.begin(step)
        optimizer.zero_grad()
        for microbatch in share[:-1]:
            with parallel.no_sync():
                (loss_of(parallel, batch(task.size, step, microbatch)) / len(share)).backward()
            task.batch(step, microbatch)
        (loss_of(parallel, batch(task.size, step, share[-1])) / len(share)).backward()
        task.batch(step, share[-1])
        optimizer.step()
        done = manager.current_step()
        if task.save_every and done > step and done % task.save_every == 0 and manager.participating_rank() == 0:
            save(newest, manager, state())
    task.end(manager.current_step(), digest(model))
    manager.shutdown(wait=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
