"""tiny.py, except that one replica's first life asks for more memory than there is.

    hog.py MODE [tiny's arguments]

kill: touches ever more memory, until the kernel's out-of-memory killer ends it. raise, torch: is given a limit of address
space a little above what it has, and asks for more, of Python or of torch. both: as raise, in two replicas at one line.
"""

import os
import resource
import sys
from pathlib import Path

import tiny
import torch

VICTIMS = {"kill": ("r1",), "raise": ("r1",), "torch": ("r1",), "both": ("r1", "r2")}
MIB = 1 << 20


def run_out(mode: str) -> None:
    if mode == "kill":
        held = []
        while True:
            held.append(bytearray(b"x") * (16 * MIB))
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + 64 * MIB, resource.RLIM_INFINITY))
    if mode == "torch":
        torch.empty(1 << 30, dtype=torch.uint8)
    else:
        bytearray(1 << 30)


class Points(tiny.Points):
    calls = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        Points.calls += 1
        if Points.calls == 7 and os.environ.get("REGROW_INCARNATION") == "0" and os.environ["REGROW_REPLICA"] in victims:
            run_out(mode)
        return super().__getitem__(index)


if __name__ == "__main__":
    mode = sys.argv.pop(1)
    victims = VICTIMS[mode]
    tiny.Points = Points
    tiny.main()
