"""What overhead.py times: the same training as a Regrow job or under DistributedDataParallel, a block of steps on request.

It asks a socket for blocks: the orchestrator names one set of processes at a time, while the others wait.
"""

import argparse
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from train_gpt import GPT, Text

SIZES = {"large": {"width": 384, "layers": 6, "heads": 6}, "tiny": {"width": 16, "layers": 1, "heads": 2}}
WINDOW = 32
SEED = 1


class Blocks:
    """One line to the orchestrator: it says how many steps are due, and hears how long they took."""

    def __init__(self, address: str, kind: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._file = self._socket.makefile("rw")
        self._say({"kind": kind, "rank": rank})
        self._left = 0
        self._began = 0.0

    def step_begins(self) -> bool:
        """False when there is nothing more to do."""
        if self._left == 0:
            line = self._file.readline()
            self._left = int(line) if line else 0
            if self._left == 0:
                return False
            self._began = time.perf_counter()
        return True

    def step_ended(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._say({"took_s": time.perf_counter() - self._began})

    def _say(self, what: dict[str, object]) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()


def build(size: str) -> tuple[GPT, torch.optim.Optimizer, Text]:
    model = GPT(27, window=WINDOW, dropout=0.0, **SIZES[size])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), Text(20_000, WINDOW)


def loss_of(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def run_regrow(address: str, size: str, replicas: int, batch_size: int) -> None:
    import regrow

    job = regrow.join(lanes=replicas, seed=SEED)
    model, optimizer, text = build(size)
    job.track(model=model, optimizer=optimizer)
    data = job.data(text, batch_size=batch_size)
    blocks = Blocks(address, "regrow", int(os.environ["REGROW_REPLICA"][1:]))
    for step in job.steps(10**9, data):
        if not blocks.step_begins():
            os._exit(0)  # the orchestrator ends the job; there is no last step to agree on
        for batch in step:
            step.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
        blocks.step_ended()


def run_ddp(address: str, kind: str, size: str, rank: int, replicas: int, batch_size: int) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.distributed.init_process_group("gloo", rank=rank, world_size=replicas)
    torch.manual_seed(SEED)
    model, optimizer, text = build(size)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    blocks = Blocks(address, kind, rank)
    for batch in _batches(text, rank, replicas, batch_size):
        if not blocks.step_begins():
            os._exit(0)
        loss = loss_of(ddp, batch)
        loss.backward()
        # Regrow gives every replica the mean of the loss; scripts under DDP that log it reduce it as well.
        agreed = loss.detach()
        torch.distributed.all_reduce(agreed)
        optimizer.step()
        optimizer.zero_grad()
        blocks.step_ended()


def _batches(text: Text, rank: int, replicas: int, batch_size: int) -> Iterator[list[torch.Tensor]]:
    sampler = torch.utils.data.DistributedSampler(text, replicas, rank, seed=SEED)
    while True:
        with contextlib.suppress(StopIteration):
            yield from torch.utils.data.DataLoader(text, batch_size, sampler=sampler, drop_last=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("kind")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("replicas", type=int)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("--rank", type=int, default=0)
    args = parser.parse_args()
    if args.kind == "regrow":
        run_regrow(args.address, args.size, args.replicas, args.batch_size)
    else:
        run_ddp(args.address, args.kind, args.size, args.rank, args.replicas, args.batch_size)
