"""Training fed in one of several ways: `feeding.py WAY`. Every way draws random numbers as it makes its data.

With --marks FOLDER data workers leave their pids there, and r1's may be told to hang.
"""

import argparse
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn as nn
from tiny import wait_for_strength

import regrow

Batch = tuple[torch.Tensor, torch.Tensor]
ME = f"{os.environ.get('REGROW_REPLICA', 'alone')}.{os.environ.get('REGROW_INCARNATION', 0)}"


class Marks:
    """What data workers leave behind."""

    def __init__(self, folder: Path | None, hangs: bool) -> None:
        self._folder, self._hangs, self._trainer = folder, hangs, os.getpid()

    def reading(self, index: int) -> Batch:
        if self._folder and os.getpid() != self._trainer:
            (self._folder / f"{ME}-{os.getpid()}").touch()
            if index == 7 and self._hangs and not (self._folder / "hung").exists():
                (self._folder / "hung").write_text(str(os.getpid()))
                signal.pause()
        return sample(index)


class Augmented(torch.utils.data.Dataset):
    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def __len__(self) -> int:
        return 61

    def __getitem__(self, index: int) -> Batch:
        return self._marks.reading(index)


class Dealt(torch.utils.data.IterableDataset):
    """Plain: an order drawn anew in each epoch, of which every lane takes its part."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def __iter__(self) -> Iterator[Batch]:
        order = list(range(61))
        random.shuffle(order)
        for index in order:
            yield self._marks.reading(index)


class Shards:
    """Split by itself; a stream says where it is."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def for_lane(self, lane: int, lanes: int) -> "Shard":
        return Shard(self._marks, lane, lanes)


class Shard:
    def __init__(self, marks: Marks, lane: int, lanes: int) -> None:
        self._marks, self._at, self._lanes = marks, torch.tensor(lane), lanes

    def __iter__(self) -> "Shard":
        return self

    def __next__(self) -> Batch:
        if self._at >= 61:
            raise StopIteration
        self._at += self._lanes
        return self._marks.reading(int(self._at))

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._at = state["at"]


def sample(index: int) -> Batch:
    x = torch.sin(torch.arange(16) * (index + 1.0)) + 0.1 * torch.randn(16) * random.random()
    return x, x[:4] * x[4:8]


def deadly(step: int, lane: int, microbatch: int) -> Batch:
    if (step, lane) == (3, 2):
        os.kill(os.getpid(), signal.SIGSEGV)
    return batch_of(step, lane, microbatch)


def batch_of(step: int, lane: int, microbatch: int) -> Batch:
    x = torch.sin(torch.arange(48).reshape(3, 16) * (step * 12 + lane * 2 + microbatch + 1.0)) + torch.rand(3, 16)
    return x, x[:, :4] * x[:, 4:8]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["function", "deadly", "samples", "dealt", "shards"])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--marks", type=Path)
    parser.add_argument("--hang", action="store_true", help="in r1's first life a data worker hangs, once")
    parser.add_argument("--skip", type=json.loads, default=[], help="JSON: lanes to leave out, as [step, lane] pairs")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--wait-for", type=Path, help="do not leave the fourth step before this file exists")
    parser.add_argument("--hold", type=int, default=0, help="wait for so many members from the seventh step on")
    args = parser.parse_args()
    job = regrow.join(lanes=6, microbatches_per_lane=2, seed=5, skip=args.skip)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job.track(model=model, optimizer=optimizer)
    options = {"num_workers": args.workers, "timeout_s": args.timeout}
    marks = Marks(args.marks, args.hang and ME == "r1.0")
    match args.way:
        case "function":
            data = job.data(batch_of, **options)
        case "deadly":
            data = job.data(deadly, **options)
        case "samples":
            data = job.data(Augmented(marks), batch_size=3, **options)
        case "dealt":
            data = job.data(Dealt(marks), batch_size=3, **options)
        case "shards":
            data = job.data(Shards(marks), batch_size=3, **options)
    for step in job.steps(args.steps, data):
        for x, y in step:
            step.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        while args.wait_for and step.index == 3 and not args.wait_for.exists():
            time.sleep(0.005)
        if args.hold and step.live and step.index >= 6:
            wait_for_strength(args.hold, step.index)
        if step.reporter:
            print(f"step {step.index} loss {step.loss:.6f}", flush=True)
    print(f"digest {job.digest()}", flush=True)


if __name__ == "__main__":
    main()
