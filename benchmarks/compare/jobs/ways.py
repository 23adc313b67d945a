"""Ways to save the state of a loop, and how long each is waited for. Torch alone: it runs in the environments of all peers.

begin()         the save is asked for; training goes on when it returns
before_step()   what the next optimizer step has to wait for
is_durable()    the bytes are fsynced, by the way itself or by this file
finish()        waits for that, and removes the checkpoint; the seconds from begin() to the fsync
"""

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import AsyncStager, StagingOptions

WIDTH = 2048
BATCH = 64
REUSED = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
)
"""What a machine without a GPU can do; the stager keeps its memory from one save to the next."""


class Way(Protocol):
    def begin(self) -> None: ...
    def before_step(self) -> None: ...
    def is_durable(self) -> bool: ...
    def finish(self) -> float: ...


class Loop:
    """Training that can be asked for a step at any time."""

    def __init__(self, layers: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(BATCH, WIDTH)
        self.index = 0

    def forward_and_backward(self) -> None:
        self.model(self.batch).square().mean().backward()

    def step(self) -> None:
        self.forward_and_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.index += 1

    def state(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def size_bytes(self) -> int:
        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        return sum(tensor.nbytes for tensor in [*self.model.state_dict().values(), *state])


def synced(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


class Blocking:
    """torch.save, or DCP's save."""

    def __init__(self, save: Callable[[Path], None], folder: Path) -> None:
        self._save, self._folder = save, folder
        self._durable_s = 0.0

    def begin(self) -> None:
        begun_s = time.monotonic()
        self._folder.mkdir()
        self._save(self._folder)
        synced(self._folder)
        self._durable_s = time.monotonic() - begun_s

    def before_step(self) -> None:
        pass

    def is_durable(self) -> bool:
        return True

    def finish(self) -> float:
        shutil.rmtree(self._folder)
        return self._durable_s


class Async:
    """DCP's async_save, which has copied the state when it returns, and writes from a thread."""

    def __init__(self, loop: Loop, folder: Path, stager: AsyncStager | None) -> None:
        self._loop, self._folder, self._stager = loop, folder, stager
        self._future: Future[object]
        self._durable_s = 0.0

    def begin(self) -> None:
        begun_s = time.monotonic()
        self._future = dcp.async_save(self._loop.state(), checkpoint_id=self._folder, async_stager=self._stager)
        self._future.add_done_callback(lambda _: self._done(begun_s))

    def before_step(self) -> None:
        pass

    def is_durable(self) -> bool:
        return self._future.done()

    def finish(self) -> float:
        self._future.result()
        shutil.rmtree(self._folder)
        return self._durable_s

    def _done(self, begun_s: float) -> None:
        self._durable_s = time.monotonic() - begun_s


class Watched:
    """A save that goes on by itself: `begin` returns what waits for its end, and a thread waits and fsyncs what it wrote."""

    def __init__(self, begin: Callable[[Path], Callable[[], None]], folder: Path) -> None:
        self._begin, self._folder = begin, folder
        self._thread: threading.Thread
        self._durable_s = 0.0

    def begin(self) -> None:
        begun_s = time.monotonic()
        wait = self._begin(self._folder)
        self._thread = threading.Thread(target=self._watch, args=(wait, begun_s))
        self._thread.start()

    def before_step(self) -> None:
        pass

    def is_durable(self) -> bool:
        return not self._thread.is_alive()

    def finish(self) -> float:
        self._thread.join()
        shutil.rmtree(self._folder)
        return self._durable_s

    def _watch(self, wait: Callable[[], None], begun_s: float) -> None:
        wait()
        synced(self._folder)
        self._durable_s = time.monotonic() - begun_s


def training(loop: Loop, way: Way) -> dict[str, float]:
    loop.step()
    begun_s = time.monotonic()
    way.begin()
    blocked_s = time.monotonic() - begun_s
    loop.forward_and_backward()
    waiting_s = time.monotonic()
    way.before_step()
    blocked_s += time.monotonic() - waiting_s
    loop.optimizer.step()
    loop.optimizer.zero_grad()
    loop.index += 1
    while not way.is_durable():
        loop.step()
    return {"blocked_s": blocked_s, "durable_s": way.finish()}


def idle(loop: Loop, way: Way) -> float:
    loop.step()
    way.begin()
    way.before_step()
    while not way.is_durable():
        time.sleep(0.001)
    return way.finish()
