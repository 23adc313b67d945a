"""A process that saves, and may die at a point: `saver.py FOLDER TERM FIRST LAST [FAULT]`. Without torch."""

import sys
from pathlib import Path

from regrow.core.draft import draft
from regrow.core.errors import Fenced
from regrow.core.roster import Member
from regrow.shell.faultpoint import arm
from regrow.state.archive import Archive
from regrow.state.local_store import LocalStore

SHARDS = 3


def main() -> None:
    folder, term, first, last, *fault = sys.argv[1:]
    archive = Archive(LocalStore(Path(folder)))
    for spec in fault:
        arm(spec, Member("saver", 0), Path(folder))
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(int(first), int(last) + 1):
        skeleton = ["list", [["tensor", [n, "int64", [64]]] for n in range(SHARDS)]]
        tensors = [(f"x{n}", "int64", (64,), 512) for n in range(SHARDS)]
        made = draft(step=step, term=int(term), mathematics={}, skeleton=skeleton, tensors=tensors, shard_bytes=512)
        arena = bytearray(made.arena_bytes)
        for offset in made.offsets:
            arena[offset : offset + 512] = step.to_bytes(8, "little") * 64
        try:
            pointer = archive.write(made, memoryview(arena))
        except Fenced as error:
            print(f"fenced {step} {error}", flush=True)
        else:
            print(f"saved {step} {pointer.number}", flush=True)
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main()
