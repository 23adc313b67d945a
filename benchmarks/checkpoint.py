"""Claim: saving 1 GB of state blocks the training thread for at most a tenth of what the best of torch's own ways does.

One process trains a stack of linear layers (fp32, AdamW, one thread, so that a core is free) and saves once a round in each
of these ways, which alternate. A save is begun after an optimizer step and the next step follows at once.

    blocked    the call, and what the next optimizer step has to wait for it
    durable    from the call until the bytes are fsynced, while training goes on
    idle       the same, while nothing else runs

A first save is that of a fresh Checkpointer with memory of its own, three steps after it was made: `prepared` by restore(),
which finds nothing and has memory made ready for what it was given; `unprepared` without, so that nothing is known but what
the optimizer owns. Three of each, in turns.

The plain writer writes the same number of bytes from memory to an O_DIRECT file, 8 MiB at a time, and fsyncs. It takes turns
with a save that is alone, in changing order.

Restored from memory means: an arena like those of a job's vault, filled with this state, into the live tensors, checked by
its root; in turns with a memcpy of as many bytes by one thread.

    python benchmarks/checkpoint.py FOLDER [--layers 20] [--rounds 5] [--json FILE]
"""

import argparse
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import time
import warnings
from pathlib import Path

import torch
from compare.jobs.ways import REUSED, Async, Blocking, Loop, Way, idle, training
from compare.jobs.ways_regrow import Regrow
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager

from regrow.core.draft import Draft, draft
from regrow.state.recall import fill
from regrow.state.tracked import Tracked
from regrow.worker.arena import Arena

BLOCK_BYTES = 8 << 20


def first_save(loop: Loop, folder: Path, is_prepared: bool) -> dict[str, float]:
    way = Regrow(loop, folder, is_prepared)
    for _ in range(3):
        loop.step()  # memory is made ready beside them
    found = training(loop, way)
    way.checkpointer.close()
    shutil.rmtree(folder)
    return found


def plain(path: Path, memory: mmap.mmap, size_bytes: int) -> float:
    begun_s = time.monotonic()
    view = memoryview(memory)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
    for start in range(0, size_bytes, BLOCK_BYTES):
        os.write(fd, view[start : start + BLOCK_BYTES])
    os.fsync(fd)
    os.close(fd)
    seconds = time.monotonic() - begun_s
    path.unlink()
    return seconds


class Memory:
    """The state in an arena, as the vault of a job keeps it."""

    def __init__(self, loop: Loop) -> None:
        self._tracked = Tracked()
        self._tracked.add("model", loop.model)
        self._tracked.add("optimizer", loop.optimizer)
        flat = self._tracked.flatten()
        self._tensors = flat.tensors
        named = [
            (path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes)
            for path, tensor in zip(flat.paths, flat.tensors, strict=True)
        ]
        self._draft: Draft = draft(
            step=1, term=1, mathematics={}, skeleton=flat.skeleton, tensors=named, shard_bytes=256_000_000
        )
        self._arena = Arena()
        self._arena.fit(self._draft.arena_bytes)
        for offset, tensor in zip(self._draft.offsets, flat.tensors, strict=True):
            self._arena.tensor(offset, tensor.nbytes).copy_(tensor.detach().reshape(-1).view(torch.uint8))
        self._root = self._tracked.fingerprint()
        self._source = torch.ones(loop.size_bytes, dtype=torch.uint8)
        self._target = torch.zeros(loop.size_bytes, dtype=torch.uint8)

    def restore(self) -> float:
        begun_s = time.monotonic()
        found = fill(self._arena.fd, self._draft, self._tensors)
        seconds = time.monotonic() - begun_s
        assert found == self._root
        return seconds

    def copy(self) -> float:
        begun_s = time.monotonic()
        self._target.copy_(self._source)
        return time.monotonic() - begun_s

    def close(self) -> None:
        self._arena.close()


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def by_turns(values: list[float], baseline: list[float]) -> dict[str, float]:
    """Of pairs that stood side by side; the first warmed both up."""
    return summary([mine / other for mine, other in zip(values[1:], baseline[1:], strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="on the disk that is measured; made, and removed afterwards")
    parser.add_argument("--layers", type=int, default=20, help="of 50 MB each, with their optimizer state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line of JSON")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    args.folder.mkdir(parents=True)
    loop = Loop(args.layers)
    regrow = Regrow(loop, args.folder / "regrow")
    scratch = args.folder / "other"
    ways: dict[str, Way] = {
        "regrow": regrow,
        "torch.save": Blocking(lambda folder: torch.save(loop.state(), folder / "state.pt"), scratch),
        "dcp save": Blocking(lambda folder: dcp.save(loop.state(), checkpoint_id=folder), scratch),
        "dcp async": Async(loop, scratch, None),
    }
    if torch.__version__ >= "2.13":  # in older ones a stager fails at its second save
        ways["dcp async, reused stager"] = Async(loop, scratch, DefaultStager(REUSED))
    for _ in range(3):
        loop.step()
    size_bytes = loop.size_bytes
    memory = mmap.mmap(-1, -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)
    memory[:] = os.urandom(BLOCK_BYTES) * (len(memory) // BLOCK_BYTES)
    times: dict[str, dict[str, list[float]]] = {name: {"blocked": [], "durable": [], "idle": []} for name in ways}
    plain_s, steps_s = [], []
    for number in range(args.rounds + 1):
        begun_s = time.monotonic()
        loop.step()
        steps_s.append(time.monotonic() - begun_s)
        for name, way in ways.items():
            found = training(loop, way)
            times[name]["blocked"].append(found["blocked_s"])
            times[name]["durable"].append(found["durable_s"])
            if name == "regrow" and number % 2:
                plain_s.append(plain(args.folder / "plain", memory, size_bytes))
            times[name]["idle"].append(idle(loop, way))
            if name == "regrow" and not number % 2:
                plain_s.append(plain(args.folder / "plain", memory, size_bytes))
            print(
                f"{number} {name:26} " + " ".join(f"{key} {each[-1]:.3f}" for key, each in times[name].items()), flush=True
            )
        print(f"{number} plain {plain_s[-1]:.3f}", flush=True)
    written_bytes = sum(path.stat().st_size for path in (args.folder / "regrow").rglob("*") if path.is_file())
    firsts: dict[str, list[dict[str, float]]] = {"prepared": [], "unprepared": []}
    for _ in range(3):
        for name, found in firsts.items():
            found.append(first_save(loop, args.folder / "first", name == "prepared"))
    restores_s = []
    for _ in range(4):
        begun_s = time.monotonic()
        regrow.checkpointer.restore(**regrow.objects)
        restores_s.append(time.monotonic() - begun_s)
    in_memory = Memory(loop)
    memories = {"restore": in_memory.restore, "memcpy": in_memory.copy}
    memories_s: dict[str, list[float]] = {name: [] for name in memories}
    for number in range(2 * args.rounds + 1):
        for name in sorted(memories, reverse=bool(number % 2)):
            memories_s[name].append(memories[name]())
    in_memory.close()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    figures = {
        "machine": {"cores": os.cpu_count(), "torch": torch.__version__, "kernel": platform.release()},
        "commit": commit.stdout.strip(),
        "state_bytes": size_bytes,
        "written_bytes": written_bytes,
        "rounds": args.rounds,
        "load": os.getloadavg()[0],
        "step_s": summary(steps_s),
        "first": {
            name: {key: summary([each[key] for each in found]) for key in ("blocked_s", "durable_s")}
            for name, found in firsts.items()
        },
        "later": {name: {key: summary(values[1:]) for key, values in each.items()} for name, each in times.items()},
        "plain_s": summary(plain_s[1:]),
        "restore_s": {"first": restores_s[0], **summary(restores_s[1:])},
        "restore_from_memory_s": summary(memories_s["restore"][1:]),
        "memcpy_s": summary(memories_s["memcpy"][1:]),
    }
    regrow.checkpointer.close()
    shutil.rmtree(args.folder)
    others = [name for name in ways if name != "regrow"]
    best = min(figures["later"][name]["blocked"]["median"] for name in others)
    ours = figures["later"]["regrow"]
    figures["ratios"] = {
        "blocked to the best other": ours["blocked"]["median"] / best,
        "first to later": {
            f"{name} {key}": found[f"{key}_s"]["median"] / ours[key]["median"]
            for name, found in figures["first"].items()
            for key in ("blocked", "durable")
        },
        "idle durable to plain writer": by_turns(times["regrow"]["idle"], plain_s),
        "restore to memcpy": figures["restore_s"]["median"] / figures["memcpy_s"]["median"],
        "restore from memory to memcpy": by_turns(memories_s["restore"], memories_s["memcpy"]),
    }
    print(json.dumps(figures, indent=1))
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
