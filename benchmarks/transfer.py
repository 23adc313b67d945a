"""Claim: a joiner receives state faster than from the live memory of one donor, and training waits for a copy alone.

The goal is 1 GB/s for 1.2 GB of state over loopback, from one, two or three donors.

A model of 100 M parameters and AdamW's moments; donors and joiner are processes of one machine. The joiner has built the
model and holds no moments, as a joiner's script does: two thirds of what it receives into is memory that it never touched.
`again` is the same with moments there. Beside it, in turns within one run, the transfer of one donor that sends from live
memory while its training waits (`whole`). Figures are medians over the rounds:

    fetch      GB/s until every byte has come and is known to be right (whole: has come)
    loaded     GB/s until it is the joiner's state, its digest checked
    peak       the joiner's highest memory meanwhile beyond what it holds afterwards, in units of the state
    waits      milliseconds for which a donor's training waits: for its copy (whole: for digest and transfer)
    page       microseconds of the joiner's time in the kernel for each page that it touched for the first time, receiving
               included: 2 or 3 where the machine has the memory. A virtual machine that gives free memory back to its
               host has to get it again page by page, which costs 10 and more, and then this decides about `fetch`

    python benchmarks/transfer.py [--million 100] [--rounds 5] [--donors 1,2,3] [--json FILE]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import resource
import secrets
import statistics
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import torch

from regrow.core.messages import Ask, Want
from regrow.core.roster import Endpoint, Member, Version
from regrow.state.tracked import Tracked
from regrow.wire.tcp import Connection, listen
from regrow.worker import donor, healing
from regrow.worker.replica import Replica
from regrow.worker.stripes import Fetching

TOKEN = secrets.token_hex(32)
JOINER = Member("joiner", 0)
WIDTH = 4096
FIGURES = ("fetch", "loaded", "peak", "waits", "page")
MANY_PAGES = 10_000


def build(million: float, is_trained: bool) -> Replica:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = max(1, round(million * 1e6 / WIDTH / WIDTH))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tracked = Tracked()
    tracked.add("model", model)
    tracked.add("optimizer", optimizer)
    replica = Replica(tracked, steps=1)
    if is_trained:
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
        optimizer.zero_grad()
    return replica


def donate(million: float, token: str, parent: Pipe) -> None:
    replica, striped, whole = build(million, True), donor.Donor(), healing.Donor()
    loop = asyncio.new_event_loop()

    async def peer(connection: Connection) -> None:
        match await connection.receive():
            case Want() as want:
                striped.answer(*connection.detach(), want)
            case Ask() as ask:
                await whole.answer(connection, ask)

    async def serve() -> None:
        listener = await listen("127.0.0.1", 0, token, peer, print)
        parent.send(listener.endpoint)

    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(serve(), loop).result()
    while True:
        kind, count = parent.recv()
        if kind not in ("drop", "whole"):
            replica.measure()
            replica.prepare().join()  # as members do in the step before
        began = time.perf_counter()
        if kind == "drop":
            striped.drop(str(count))
        elif kind != "whole":
            striped.hold(str(count), replica.snap(0))
            parent.send(time.perf_counter() - began)
        else:
            offer, views = replica.offer(0)
            parent.send(None)
            serving = whole.serve(Version(1, count), (JOINER,), offer, views)
            asyncio.run_coroutine_threadsafe(serving, loop).result()
            parent.send(time.perf_counter() - began)


def resident_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        return 1024 * int(next(line for line in file if line.startswith(field)).split()[1])


def us_a_page(before: resource.struct_rusage, after: resource.struct_rusage) -> float:
    pages = after.ru_minflt - before.ru_minflt
    return 1e6 * (after.ru_stime - before.ru_stime) / pages if pages > MANY_PAGES else 0.0


class Joiner:
    """This process."""

    def __init__(self, million: float, donors: dict[Member, tuple[Endpoint, Pipe]]) -> None:
        self._replica = build(million, False)
        self._donors = donors
        self._count = 0

    def measure(self, kind: str, size: int) -> tuple[float, ...]:
        self._count += 1
        donors = dict(list(self._donors.items())[:size])
        if kind != "again":
            self._replica.tracked.objects["optimizer"].state.clear()
        for _, pipe in donors.values():
            pipe.send((kind, self._count))
        waits = [pipe.recv() for _, pipe in donors.values()]
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        spent = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter()
        received = self._fetch(kind, {member: endpoint for member, (endpoint, _) in donors.items()})
        came = time.perf_counter()
        page_us = us_a_page(spent, resource.getrusage(resource.RUSAGE_SELF))
        self._replica.take(received)
        loaded = time.perf_counter()
        if kind == "whole":
            waits = [pipe.recv() for _, pipe in donors.values()]
        else:
            for _, pipe in donors.values():
                pipe.send(("drop", self._count))
        size_bytes = received.size_bytes
        del received
        peak = (resident_bytes("VmHWM") - resident_bytes("VmRSS")) / size_bytes
        return size_bytes / 1e9 / (came - began), size_bytes / 1e9 / (loaded - began), peak, 1e3 * max(waits), page_us

    def _fetch(self, kind: str, endpoints: dict[Member, Endpoint]) -> healing.Received:
        if kind != "whole":
            return Fetching(JOINER, TOKEN, endpoints, str(self._count), 0).run(self._replica.place)
        ask = Ask(member=JOINER, version=Version(1, self._count), step=0)
        return asyncio.run(healing.fetch(next(iter(endpoints.values())), TOKEN, ask))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", type=float, default=100, help="parameters; the state is three times as many floats")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--donors", default="1,2,3")
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line of JSON")
    args = parser.parse_args()
    sizes = [int(size) for size in args.donors.split(",")]
    context = multiprocessing.get_context("spawn")
    donors, processes = {}, []
    for number in range(max(sizes)):
        here, there = context.Pipe()
        processes.append(context.Process(target=donate, args=(args.million, TOKEN, there), daemon=True))
        processes[-1].start()
        donors[Member(f"r{number}", 0)] = (here.recv(), here)
    joiner = Joiner(args.million, donors)
    cases = [("whole", 1), *((kind, size) for size in sizes for kind in ("stripes", "again"))]
    found: dict[str, list[tuple[float, ...]]] = {f"{kind} {size}": [] for kind, size in cases}
    for number in range(args.rounds + 1):
        for kind, size in cases:
            figures = joiner.measure(kind, size)
            if number:  # the first touches memory that no later one has to make
                found[f"{kind} {size}"].append(figures)
    print(f"{'':10}", *(f"{name:>8}" for name in FIGURES))
    medians = {}
    for name, rounds in found.items():
        medians[name] = {
            figure: [round(statistics.median(times), 2), round(min(times), 2), round(max(times), 2)]
            for figure, times in zip(FIGURES, zip(*rounds, strict=True), strict=True)
        }
        print(f"{name:10}", *(f"{medians[name][figure][0]:8.2f}" for figure in FIGURES), flush=True)
    for process in processes:
        process.kill()
    if args.json:
        machine = (
            f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        )
        said = {
            "million parameters": args.million,
            "rounds": args.rounds,
            "median, least, most": medians,
            "machine": machine,
            "load": os.getloadavg()[0],
        }
        with args.json.open("a") as file:
            file.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
