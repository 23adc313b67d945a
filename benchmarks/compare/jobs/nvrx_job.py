"""The training of nvidia-resiliency-ext under its ft_launcher: DistributedDataParallel, checkpoints as in plain DDP, and a
heartbeat to the rank's monitor after each step, as its documentation shows."""

import os

import torch
from ddp_job import restore, save
from ddp_step import compute
from model import build, digest, settle
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
from task import Task
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    settle()
    rank, replicas = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
    torch.distributed.init_process_group("gloo")
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
        monitor.send_heartbeat()
    task.end(task.steps, digest(model))
    monitor.shutdown_workload_monitoring()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
