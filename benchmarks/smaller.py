"""Claim: deltas and fewer bits make checkpoints smaller, and what they lose, take and cost after a resume is said.

The small GPT of examples/train_gpt.py trains alone. After a warm-up its state is saved every few steps, each time in every
one of these ways, to folders of their own:

    whole      as it is: what the others are compared with
    delta      what differs from the save before it; restored, it must be the very same state
    int8       the optimizer's moments in eight bits
    pruned     first moments pruned jointly with second ones, both in four bits with levels where the values are

Then it is resumed from the last save of each, trains on through the same batches, and its loss is compared with that of the
whole one.

    python benchmarks/smaller.py FOLDER [--steps 200] [--saves 5] [--every 5] [--after 50] [--json FILE]
"""

import argparse
import json
import platform
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from regrow.checkpoint import Checkpointer
from regrow.core.inexact import Inexact
from regrow.state.archive import Archive
from regrow.state.stores import open_store

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from train_gpt import GPT, Text

WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "delta": {"delta": 8},
    "int8": {"moments": "int8"},
    "pruned": {"moments": "pruned"},
}
WINDOW, WIDTH, LAYERS, BATCH = 64, 256, 4, 16


class Loop:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = GPT(27, WINDOW, WIDTH, LAYERS, heads=4, dropout=0.0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)
        self.text = Text(200_000, WINDOW)

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(number)
        picks = torch.randint(0, len(self.text), (BATCH,), generator=generator)
        pairs = [self.text[int(pick)] for pick in picks]
        tokens, targets = (torch.stack(column) for column in zip(*pairs, strict=True))
        loss = F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss)

    def objects(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200, help="before the first save")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--every", type=int, default=5, help="steps from one save to the next")
    parser.add_argument("--after", type=int, default=50, help="steps after the resume")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    last, seconds = trained(args)
    rows = [row(args.folder, name, last, args.after, seconds[name]) for name in WAYS]
    for found in rows:
        found["ratio"] = round(rows[0]["size_bytes"] / found["size_bytes"], 3)
        found["loss_difference"] = max(abs(a - b) for a, b in zip(rows[0]["losses"], found["losses"], strict=True))
        found["last_loss_difference"] = found["losses"][-1] - rows[0]["losses"][-1]
    print(
        f"{'':8} {'MB':>7} {'ratio':>6} {'durable s':>9} {'exp_avg':>9} {'exp_avg_sq':>10} {'loss off at most':>17} "
        f"{'at the end':>11}"
    )
    for found in rows:
        lost = found["rms_relative"]
        print(
            f"{found['name']:8} {found['size_bytes'] / 1e6:7.2f} {found['ratio']:6.2f} {found['durable_s']:9.3f} "
            f"{lost.get('exp_avg', 0.0):9.2%} {lost.get('exp_avg_sq', 0.0):10.2%} {found['loss_difference']:17.2e} "
            f"{found['last_loss_difference']:+11.2e}"
        )
    assert rows[1]["loss_difference"] == 0.0, "a delta is exact"
    if args.json:
        about = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
        setting = {"steps": args.steps, "saves": args.saves, "every": args.every, "after": args.after}
        args.json.write_text(json.dumps({"about": about, "setting": setting, "rows": rows}, indent=1) + "\n")


def trained(args: argparse.Namespace) -> tuple[int, dict[str, list[float]]]:
    """The step of the last save; and how long each way took until each save was durable."""
    loop, number = Loop(), 0
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    savers = {name: Checkpointer(args.folder / name, **how) for name, how in WAYS.items()}
    for save in range(args.saves):
        for _ in range(args.every if save else args.steps):
            number += 1
            loop.step(number)
        for name, saver in savers.items():
            begun_s = time.monotonic()
            saver.save(number, **loop.objects())
            saver.wait()
            seconds[name].append(time.monotonic() - begun_s)
    for saver in savers.values():
        saver.close()
    return number, seconds


def row(folder: Path, name: str, last: int, after: int, seconds: list[float]) -> dict[str, Any]:
    archive = Archive(open_store(str(folder / name)))
    pointers, _ = archive.pointers()
    manifest = archive.manifest(pointers[0])
    errors = manifest.inexact.errors if isinstance(manifest.inexact, Inexact) else ()
    loop = Loop()
    with Checkpointer(folder / name, writes=False) as reader:
        assert reader.restore(**loop.objects()) == last
    later = pointers[:-1]  # without the first, which is always whole
    return {
        "name": name,
        "size_bytes": statistics.median(pointer.size_bytes for pointer in later),
        "durable_s": statistics.median(seconds[1:]),
        "rms_relative": {error.kind: error.rms_relative for error in errors},
        "largest": {error.kind: error.largest for error in errors},
        "zeroed": {error.kind: error.zeroed for error in errors},
        "losses": [loop.step(number) for number in range(last + 1, last + 1 + after)],
    }


if __name__ == "__main__":
    main()
