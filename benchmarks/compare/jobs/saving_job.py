"""Saves a state of about 1 GB in one way, by turns with torch.save as the reference; or restores what that has left.

python saving_job.py WAY FOLDER measure    trains and saves; prints a line of JSON, and leaves one checkpoint in FOLDER
python saving_job.py WAY FOLDER restore    a fresh process reads it; prints a line of JSON with what it found
"""

import argparse
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager
from ways import REUSED, Async, Blocking, Loop, Watched, Way, training

ROUNDS = 2
"""After one that is not counted: first saves touch fresh memory."""


def digest(loop: Loop) -> str:
    found = hashlib.blake2b()
    tensors = [value for entry in loop.optimizer.state.values() for value in entry.values()]
    for tensor in [*loop.model.state_dict().values(), *tensors]:
        found.update(tensor.detach().contiguous().view(-1).numpy())
    return found.hexdigest()


def take(loop: Loop, state: dict[str, object]) -> None:
    loop.model.load_state_dict(state["model"])
    loop.optimizer.load_state_dict(state["optimizer"])


def torch_saves(loop: Loop, folder: Path) -> Way:
    return Blocking(lambda folder: torch.save(loop.state(), folder / "state.pt"), folder)


def torch_loads(loop: Loop, folder: Path) -> None:
    take(loop, torch.load(folder / "state.pt"))


def dcp_loads(loop: Loop, folder: Path) -> None:
    state = loop.state()
    dcp.load(state, checkpoint_id=folder)
    take(loop, state)


def regrow_saves(loop: Loop, folder: Path) -> Way:
    from ways_regrow import Regrow

    return Regrow(loop, folder)


def regrow_loads(loop: Loop, folder: Path) -> None:
    from regrow.checkpoint import Checkpointer

    with Checkpointer(folder) as checkpointer:
        if checkpointer.restore(model=loop.model, optimizer=loop.optimizer) is None:
            raise RuntimeError("found no checkpoint")


def snapshot_saves(loop: Loop, folder: Path) -> Way:
    from torchsnapshot import Snapshot

    objects = {"model": loop.model, "optimizer": loop.optimizer}
    return Watched(lambda folder: Snapshot.async_take(str(folder), objects).wait, folder)


def snapshot_loads(loop: Loop, folder: Path) -> None:
    from torchsnapshot import Snapshot

    Snapshot(str(folder)).restore({"model": loop.model, "optimizer": loop.optimizer})


class FlashMemory:
    """Shared memory that outlives the process, and nothing durable."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

        self._loop, self._kind = loop, StorageType.MEMORY
        self._checkpointer = DdpCheckpointer(str(folder))

    def begin(self) -> None:
        self._checkpointer.save_checkpoint(self._loop.index, self._loop.state(), storage_type=self._kind)

    def before_step(self) -> None:
        pass

    def is_durable(self) -> bool:
        return True

    def finish(self) -> float:
        return float("nan")


def flash_saves(loop: Loop, folder: Path) -> Way:
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

    checkpointer = DdpCheckpointer(str(folder))

    def begin(folder: Path) -> Callable[[], None]:
        step = loop.index
        checkpointer.save_checkpoint(step, loop.state(), storage_type=StorageType.DISK)

        def wait() -> None:
            newest = folder / "dlrover_latest.txt"
            while not newest.exists() or newest.read_text().strip() != str(step):
                time.sleep(0.002)

        return wait

    return Watched(begin, folder)


def flash_loads(loop: Loop, folder: Path) -> None:
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

    state = DdpCheckpointer(str(folder)).load_checkpoint()
    if not state:
        raise RuntimeError("found no checkpoint")
    take(loop, state)


Saves, Loads = Callable[[Loop, Path], Way], Callable[[Loop, Path], None]
WAYS: dict[str, tuple[Saves, Loads | None]] = {
    "regrow": (regrow_saves, regrow_loads),
    "torch.save": (torch_saves, torch_loads),
    "dcp": (lambda loop, folder: Blocking(lambda folder: dcp.save(loop.state(), checkpoint_id=folder), folder), dcp_loads),
    "dcp-async": (lambda loop, folder: Async(loop, folder, None), dcp_loads),
    "dcp-async-reused": (lambda loop, folder: Async(loop, folder, DefaultStager(REUSED)), dcp_loads),
    "torchsnapshot": (snapshot_saves, snapshot_loads),
    "flash-memory": (FlashMemory, None),
    "flash-disk": (flash_saves, flash_loads),
}


def measure(loop: Loop, way: Way, folder: Path) -> dict[str, object]:
    reference = torch_saves(loop, folder.with_name("reference"))
    found: dict[str, list[dict[str, float]]] = {"way": [], "reference": []}
    for number in range(ROUNDS + 1):
        for name, one in sorted({"way": way, "reference": reference}.items(), reverse=bool(number % 2)):
            found[name].append(training(loop, one))
    loop.step()
    way.begin()
    way.before_step()
    while not way.is_durable():
        time.sleep(0.002)
    pairs = list(zip(found["way"], found["reference"], strict=True))[1:]
    return {"pairs": pairs, "state_bytes": loop.size_bytes, "digest": digest(loop)}


def restore(loop: Loop, loads: Loads, folder: Path) -> dict[str, object]:
    try:
        loads(loop, folder)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"digest": digest(loop)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=["measure", "restore"])
    parser.add_argument("--layers", type=int, required=True, help="of 50 MB each, with their optimizer state")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(1)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    loop = Loop(args.layers)
    for _ in range(3):
        loop.step()
    saves, loads = WAYS[args.way]
    found = (
        measure(loop, saves(loop, args.folder), args.folder) if args.what == "measure" else restore(loop, loads, args.folder)
    )
    print(json.dumps(found), flush=True)
    os._exit(0)  # whatever thread or process a way leaves behind, the figures are out


if __name__ == "__main__":
    main()
