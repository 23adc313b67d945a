"""What the latest checkpoints in fixtures/ hold. Run as a script it writes one: only for a new version of the format.

kept.py version-1             a whole one, as a Checkpointer saves it
kept.py version-1-job         the same as a job does, with its mathematics and what was not trained
kept.py version-2 deltas      one on which two deltas lie
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

FIXTURES = Path(__file__).with_name("fixtures")
MATHEMATICS = {"lanes": "4", "seed": "7", "batch_size": "3", "data": "map"}
FROZEN = ("0.bias",)


def older(steps: int) -> dict[str, Any]:
    """What it was so many steps before."""
    tree = state()
    tree["model"]["0.bias"] += steps / 8
    tree["optimizer"]["state"][0]["step"] -= steps
    return tree


def state() -> dict[str, Any]:
    """Every kind of value, and dtypes that safetensors has a word for and some that it has not."""
    count = torch.arange(8)
    return {
        "model": {
            "0.weight": (count.reshape(2, 4) / 4).to(torch.bfloat16),
            "0.bias": torch.tensor([0.5, -0.0]),
            "scale": torch.tensor(1.5, dtype=torch.float64),
            "mask": count % 3 == 0,
            "none": torch.empty(0, 3),
            "quarter": (count / 2).to(torch.float8_e4m3fn),
            "wave": torch.complex(count[:2].double(), count[2:4].double()),
        },
        "optimizer": {"state": {0: {"step": torch.tensor(7), "avg": count.float()}}, "lr": 0.1, "betas": (0.9, 0.999)},
        "rng": count.to(torch.uint8).numpy(),
        "rest": [None, True, 2**70, float("inf"), "é", b"\x00\xff"],
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from shelf import Chained, drafted

    from regrow.state.archive import Archive
    from regrow.state.local_store import LocalStore

    store = LocalStore(FIXTURES / sys.argv[1])
    saver = Chained(2)
    for steps in (2, 1) if "deltas" in sys.argv else ():
        saver.save(store, 12 - steps, {**older(steps)}, shard_bytes=70)
    if sys.argv[1].endswith("-job"):
        draft, arena = drafted(state(), step=12, term=1, shard_bytes=70)
        Archive(store).write(msgspec.structs.replace(draft, mathematics=MATHEMATICS, frozen=FROZEN), arena)
    else:
        saver.save(store, 12, state(), shard_bytes=70)
