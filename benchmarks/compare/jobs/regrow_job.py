"""A Regrow job: one lane for each microbatch of a step."""

import os

import torch
from model import batch, build, digest, loss_of
from task import Task

import regrow


def main() -> None:
    task = Task(int(os.environ["REGROW_REPLICA"][1:]))
    job = regrow.join(lanes=task.microbatches, seed=1)
    torch.manual_seed(1)
    model, optimizer = build(task.size)
    job.track(model=model, optimizer=optimizer)
    data = job.data(lambda step, lane, _: (lane, batch(task.size, step, lane)))
    task.up(0)
    for step in job.steps(task.steps, data):
        if step.live:
            task.begin(step.index)
        for lane, microbatch in step:
            step.backward(loss_of(model, microbatch))
            if step.live:
                task.batch(step.index, lane)
        optimizer.step()
        optimizer.zero_grad()
        if step.live:
            task.commit(step.index)
    task.end(task.steps, digest(model))


if __name__ == "__main__":
    main()
