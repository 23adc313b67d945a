"""Who else uses the machine: a comparison measured beside another job says nothing."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

LIMIT_CORES = 0.2
WINDOW_S = 1.0


class Process(NamedTuple):
    ticks: int
    """Of CPU that it has used since it was started."""
    command: str


class Stranger(NamedTuple):
    pid: int
    cores: float
    command: str


def now() -> list[Stranger]:
    before = processes()
    time.sleep(WINDOW_S)
    return strangers(before, processes(), WINDOW_S)


def wait_alone(say: Callable[[str], None], look: Callable[[], list[Stranger]] = now) -> None:
    """Until nobody else uses more than a share of a core: between two runs, when nothing of the comparison is there."""
    told: set[int] = set()
    while found := look():
        for one in found:
            if one.pid not in told:
                say(f"process {one.pid} uses {one.cores:.1f} cores: waiting until it is done, or end it: {one.command}")
                told.add(one.pid)


def strangers(before: Mapping[int, Process], after: Mapping[int, Process], seconds: float) -> list[Stranger]:
    """Those who used more than their share in this time, the busiest first. Who was not there before counts from nothing."""
    per_second = os.sysconf("SC_CLK_TCK")
    used = {pid: one.ticks - (before[pid].ticks if pid in before else 0) for pid, one in after.items() if pid != os.getpid()}
    found = [Stranger(pid, ticks / per_second / seconds, after[pid].command) for pid, ticks in used.items()]
    return sorted((one for one in found if one.cores > LIMIT_CORES), key=lambda one: -one.cores)


def processes() -> dict[int, Process]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue  # it is gone
            user, system = rest.split()[11:13]
            found[int(folder.name)] = Process(int(user) + int(system), words[:200] or name)
    return found
