"""tiny.py's training with one way to hang, or to look like it. What is odd happens in r1's first life alone.

The mathematics is that of tiny.py in every mode, so the digests are equal.
"""

import argparse
import ctypes
import gc
import os
import threading
import time

import torch
import torch.nn as nn
from tiny import Points, open_log, wait_for_strength

import regrow

AT = 4
"""The step in which it happens: by then every phase is known."""
IS_R0 = os.environ.get("REGROW_REPLICA") == "r0"
IS_ODD = (os.environ.get("REGROW_REPLICA"), os.environ.get("REGROW_INCARNATION")) == ("r1", "0")


def endless_python_loop() -> None:
    number = 0
    while True:
        number += 1


def endless_c_loop_with_the_gil() -> None:
    while True:
        ctypes.PyDLL(None).sleep(3600)


def deadlocked_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


class Lingers:
    """In a cycle, it makes the full collection that frees it take seconds, with the GIL held."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._cycle = self

    def __del__(self) -> None:
        ctypes.PyDLL(None).usleep(int(self._seconds * 1e6))


def collect_for(seconds: float) -> None:
    Lingers(seconds)
    gc.collect()


class Loading(torch.utils.data.Dataset):
    """tiny.py's data, behind a loader that one day never answers."""

    def __init__(self, hangs: bool) -> None:
        self._points = Points()
        self._hangs = hangs
        self.step = 0

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        if self._hangs and self.step == AT:
            loader_that_never_answers()
        return self._points[index]


def loader_that_never_answers() -> None:
    reader, _ = os.pipe()
    os.read(reader, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    mode = args.mode if IS_ODD or args.mode in ("evaluation", "compile") else "none"
    if mode == "start":
        deadlocked_lock()

    job = regrow.join(lanes=6, seed=5)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    job.track(model=model, optimizer=optimizer, schedule=schedule)
    loading = Loading(mode == "loader")
    data = job.data(loading, batch_size=3)
    log = open_log()
    forward = torch.compile(model, backend=slow_compiler(args.seconds)) if mode == "compile" else model

    for step in job.steps(args.steps, data):
        loading.step = step.index
        for x, y, index in step:
            log(f"{step.index} {' '.join(str(int(i)) for i in index)}\n")
            if (mode == "slow-first" and step.index == 0) or (args.mode == "slow-peer" and IS_R0 and step.index == AT):
                time.sleep(args.seconds)
            if step.index == AT:
                act(mode, args.seconds)
            step.backward((forward(x) - y).square().mean())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step.index == AT and mode == "evaluation":
            time.sleep(args.seconds)
        if step.index == AT and mode == "compile":
            torch._dynamo.reset()  # the next microbatch compiles anew, seconds long, in a phase that took milliseconds
        if step.index == AT and mode == "busy":
            with job.busy("evaluate", at_most_s=args.seconds):
                deadlocked_lock()
        if step.live and step.index > AT and "REGROW_RUN_DIR" in os.environ:
            wait_for_strength(3, step.index)
        if step.reporter:
            print(f"step {step.index} loss {step.loss:.6f}", flush=True)

    print(f"digest {job.digest()}", flush=True)


def act(mode: str, seconds: float) -> None:
    match mode:
        case "python":
            endless_python_loop()
        case "c":
            endless_c_loop_with_the_gil()
        case "lock":
            deadlocked_lock()
        case "collect":
            collect_for(seconds)


def slow_compiler(seconds: float):
    def compiler(graph, inputs):
        time.sleep(seconds)
        return graph.forward

    return compiler


if __name__ == "__main__":
    main()
