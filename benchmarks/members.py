"""Claim: what a step needs of the others stays small as members are added.

So many processes as there are members, on one machine, over loopback. Four things, each beside what plain torch.distributed
takes for the same on gloo, in turns within one run:

- boundary: everybody's row to everybody (gloo: all_gather of as many bytes);
- resolve: everybody's statement to everybody, and what follows from the table; nothing to compare it with;
- whole: a gradient of 64 KiB, summed in tree order by everybody (gloo: all_reduce);
- buckets: a gradient of 40 MB (gloo: all_reduce).

    python benchmarks/members.py [--members 2,4,8,16] [--rounds 50] [--bucket-mb 8] [--json FILE]
"""

import argparse
import json
import multiprocessing
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from regrow.collectives.group import TcpGroup
from regrow.collectives.line import Line
from regrow.collectives.reduce import Reduction, Terms
from regrow.core.boundary import ROW_BYTES
from regrow.core.lanes import cover, deal
from regrow.core.resolve import Statement, resolve
from regrow.core.roster import Endpoint, Member, Present, Version, compose
from regrow.state.gradient import Gradient, Pool
from regrow.state.layout import BUCKET_BYTES, Layout

LANES_EACH = 2
SMALL, LARGE = 1 << 14, 10_000_000
HEAVY = 5
"""So many times fewer rounds for the large gradient."""


def form(store: dist.Store, rank: int, size: int) -> TcpGroup:
    lines = {}
    with socket.create_server(("127.0.0.1", 0), backlog=size) as listener:
        store.set(f"port {rank}", str(listener.getsockname()[1]))
        for other in range(rank):
            there = socket.create_connection(("127.0.0.1", int(store.get(f"port {other}"))))
            there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there.sendall(bytes([rank]))
            lines[other] = Line(there)
        for _ in range(rank + 1, size):
            here = listener.accept()[0]
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            other = here.recv(1)[0]
            lines[other] = Line(here)
    return TcpGroup(rank, lines)


def _layout(flat: torch.Tensor, bucket_bytes: int) -> Layout:
    """In parameters of a quarter of a megabyte: a bucket is made of whole ones."""
    return Layout([(str(index), part) for index, part in enumerate(flat.split(1 << 16))], bucket_bytes)


class Cases:
    """What one member does, by name: ours, and gloo's."""

    def __init__(self, group: TcpGroup, bucket_bytes: int) -> None:
        self._group = group
        self._row = bytes(ROW_BYTES)
        self._shares = deal(group.size * LANES_EACH, group.size)
        members = [Member(f"r{rank:02}", 0) for rank in range(group.size)]
        seats = {member: Present(endpoint=Endpoint("", 0), founder=True) for member in members}
        self._roster = compose(Version(1, 2), seats, group.size * LANES_EACH, 3, "a death")
        self._statement = Statement(
            member=members[group.rank],
            holds_state=True,
            step=3,
            attempt=Version(1, 1),
            complete=False,
            digest=0,
            reporter=None,
            held=cover(group.size * LANES_EACH, self._shares[group.rank]),
            last=100,
            manifest=(),
        )
        self._flat = {count: torch.ones(count) for count in (SMALL, LARGE)}
        self._pools = {count: Pool(_layout(flat, bucket_bytes)) for count, flat in self._flat.items()}
        self._held = {count: self._gradient(pool) for count, pool in self._pools.items()}
        self._rows = [torch.zeros(ROW_BYTES, dtype=torch.uint8) for _ in range(group.size)]

    def _gradient(self, pool: Pool) -> Gradient:
        gradient = pool.take()
        gradient.absorb([torch.ones(view.shape) for view in gradient.views], 1.0, 0.0)
        return gradient

    def boundary(self) -> None:
        self._group.gather(self._row)

    def boundary_gloo(self) -> None:
        dist.all_gather(self._rows, self._rows[0])

    def resolve(self) -> None:
        rows = self._group.gather(msgspec.msgpack.encode(self._statement))
        resolve(self._roster, self._group.size * LANES_EACH, [msgspec.msgpack.decode(r, type=Statement) for r in rows])

    def whole(self) -> None:
        self._reduce(SMALL, 1 << 30)

    def whole_gloo(self) -> None:
        dist.all_reduce(self._flat[SMALL])

    def buckets(self) -> None:
        self._reduce(LARGE, 0)

    def buckets_gloo(self) -> None:
        dist.all_reduce(self._flat[LARGE])

    def _reduce(self, count: int, small_bytes: int) -> None:
        pool, lanes = self._pools[count], self._group.size * LANES_EACH
        holdings = tuple(cover(lanes, share) for share in self._shares)
        held = dict.fromkeys(holdings[self._group.rank], self._held[count])
        reduction = Reduction(Terms(pool.layout, lanes, 0, holdings), held, None, pool)
        reduction.run(self._group, small_bytes)
        pool.give(reduction.result)


NAMES = ("boundary", "boundary_gloo", "resolve", "whole", "whole_gloo", "buckets", "buckets_gloo")


def member(rank: int, size: int, port: int, rounds: int, bucket_bytes: int, parent: Connection) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=size)
    cases = Cases(form(store, rank, size), bucket_bytes)
    took: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(rounds + 1):
        for name in NAMES:
            if name.startswith("buckets") and number % HEAVY:
                continue
            play: Callable[[], None] = getattr(cases, name)
            dist.barrier()
            began = time.perf_counter()
            play()
            if number:
                took[name].append(time.perf_counter() - began)
    parent.send(took)
    dist.barrier()
    dist.destroy_process_group()


def measure(size: int, rounds: int, bucket_bytes: int) -> dict[str, float]:
    """Milliseconds, of the slowest member in each round; the median over rounds."""
    context = multiprocessing.get_context("spawn")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        here, there = context.Pipe()
        processes.append(context.Process(target=member, args=(rank, size, store.port, rounds, bucket_bytes, there)))
        processes[-1].start()
        pipes.append(here)
    said = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return {
        name: round(1e3 * statistics.median(max(times) for times in zip(*(each[name] for each in said), strict=True)), 3)
        for name in NAMES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", default="2,4,8,16")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--bucket-mb", type=float, default=BUCKET_BYTES / 2**20)
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line of JSON each")
    args = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print("ms       ", *(f"{name:>14}" for name in NAMES))
    for size in map(int, args.members.split(",")):
        found = measure(size, args.rounds, int(args.bucket_mb * 2**20))
        print(f"{size:3} members", *(f"{found[name]:14}" for name in NAMES), flush=True)
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps({"members": size, "rounds": args.rounds, **found, "machine": machine}) + "\n")


if __name__ == "__main__":
    main()
