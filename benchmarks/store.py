"""Claim: a file is durable in a local store within 1.3 times the time of a plain O_DIRECT writer.

1 GB from an mmap arena, fsync included: LocalStore.put, as a checkpoint's writer calls it (a page of header, then the body,
not a multiple of a page), against a loop of os.write on an O_DIRECT file that is opened, written and fsynced and promises
nothing more. In turns within one run, the order alternating; each into a new file, removed afterwards outside of the time.

    python benchmarks/store.py [--mb 1000] [--rounds 7] [--folder .] [--json FILE]
"""

import argparse
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from regrow.state.local_store import LocalStore

PLAIN_BLOCK_BYTES = 8 << 20
HEADER = bytes(4096)


def arena(size_bytes: int) -> memoryview:
    view = memoryview(mmap.mmap(-1, size_bytes))
    random = os.urandom(1 << 20)
    for start in range(0, size_bytes, len(random)):
        piece = view[start : start + len(random)]
        piece[:] = random[: len(piece)]
    return view


def plain(folder: Path, body: memoryview) -> None:
    """No header, no tail, no name to make durable."""
    fd = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
    for start in range(0, len(body) // 4096 * 4096, PLAIN_BLOCK_BYTES):
        os.write(fd, body[start : min(start + PLAIN_BLOCK_BYTES, len(body) // 4096 * 4096)])
    os.fsync(fd)
    os.close(fd)


def put(folder: Path, body: memoryview) -> None:
    LocalStore(folder).put("step/shard", [memoryview(HEADER), body])


def timed(write: Callable[[Path, memoryview], None], folder: Path, body: memoryview) -> float:
    place = Path(tempfile.mkdtemp(dir=folder))
    start_s = time.perf_counter()
    write(place, body)
    took_s = time.perf_counter() - start_s
    shutil.rmtree(place)
    os.sync()
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    body = arena(options.mb * 1_000_000 + 8)
    ways = {"put": put, "plain": plain}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name in sorted(ways, reverse=bool(number % 2)):
            took_s = timed(ways[name], options.folder, body)
            if number:  # the first round warms both up
                took[name].append(took_s)
    ratios = [mine / plain for mine, plain in zip(took["put"], took["plain"], strict=True)]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "megabytes": options.mb,
        "rounds": options.rounds,
        "seconds, median, least, most": {
            name: [round(figure, 3) for figure in (statistics.median(times), min(times), max(times))]
            for name, times in took.items()
        },
        "put / plain, median, least, most": [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))],
        "goal": 1.3,
        "load": [round(load, 2) for load in os.getloadavg()],
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()},
        "commit": commit.stdout.strip(),
    }
    print(json.dumps(result))
    if options.json:
        with options.json.open("a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
