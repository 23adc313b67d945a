"""Saves that are written while their copy is being made, by a real writer: nothing counts before the copy is sound."""

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from shelf import drafted, load, same, save

from regrow.core.checkpoint import Pointer
from regrow.core.errors import StateError
from regrow.core.retention import Retention
from regrow.shell.writing import Setting
from regrow.state.archive import Archive
from regrow.state.copying import Copying
from regrow.state.keeper import Keeper, Save
from regrow.state.local_store import BLOCK_BYTES, LocalStore
from regrow.state.stores import open_store
from regrow.worker.account import Account
from regrow.worker.arena import Arena

DEADLINE_S = 60.0
TREE = {f"t{i}": torch.arange(3000) * i for i in range(4)}
"""Of four shards."""


class Bench:
    """A keeper, its writer, and a copy whose every move is the test's."""

    def __init__(self, folder: Path, faults: str = "", keep_last: int | None = None) -> None:
        self.folder = folder
        self.account = Account()
        self.archive = Archive(open_store(str(folder)))
        self._arena = Arena()
        self.given_back: list[Arena] = []
        self._keeper = Keeper(
            Setting(url=str(folder), retention=Retention(last=keep_last), faults=faults), DEADLINE_S, self.account
        )

    def begin(self, step: int, tree: dict[str, torch.Tensor] = TREE) -> None:
        self._draft, self._sound = drafted(tree, step, term=0, shard_bytes=1)
        self._arena.fit(self._draft.arena_bytes)
        ctypes.memset(self._arena.address, ord("?"), self._draft.arena_bytes)
        self.copying = Copying(self._draft)
        self.account.begun()

        def over(outcome: Pointer | Exception) -> None:
            self.given_back.append(self._arena)
            if isinstance(outcome, Pointer):
                self.account.durable(step, 0.0)
            else:
                self.account.given_up(outcome)

        self._keeper.persist(Save(draft=self._draft, arena=self._arena, copying=self.copying, over=over))

    def copy(self, shards: int) -> None:
        """The first so many of them."""
        stop = self.stops[shards - 1]
        ctypes.memmove(self._arena.address, bytes(self._sound[:stop]), stop)
        self.copying.reached(stop)

    def end(self, error: Exception | None = None) -> None:
        self.copying.end(error)

    @property
    def stops(self) -> list[int]:
        return [stop for _, stop in self._draft.extents]

    @property
    def shards(self) -> list[str]:
        """The durable ones."""
        return sorted(path.name for path in self.folder.glob("step-*/shard-*"))

    @property
    def writer(self) -> int:
        assert self._keeper._writer is not None
        return self._keeper._writer.process.pid

    @property
    def idle_s(self) -> float:
        return self._keeper.idle_s

    @property
    def has_stopped(self) -> bool:
        writer = self._keeper._writer
        return (
            writer is not None and "T" in Path(f"/proc/{writer.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        )

    def close(self) -> None:
        self.end(StateError("the test is over"))  # of no effect on what has ended
        self._keeper.close()
        self._arena.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "run")
    yield bench
    bench.close()


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_shards_become_durable_as_the_copy_comes_and_count_once_it_is_sound(bench: Bench) -> None:
    bench.begin(1)
    for shards in (1, 2):
        bench.copy(shards)
        wait_for(lambda shards=shards: len(bench.shards) == shards)
    assert bench.archive.pointers() == ([], []) and bench.given_back == []
    bench.copy(4)
    wait_for(lambda: len(bench.shards) == 3)
    assert bench.copying.after(-1) < bench.stops[3], "the last one waits for the verdict"
    bench.end()
    wait_for(lambda: bench.account.report().durable == 1)
    [pointer], damages = bench.archive.pointers()
    assert damages == [] == bench.archive.verify(pointer) and same(load(bench.archive, pointer), TREE)
    assert len(bench.given_back) == 1


def test_a_void_copy_never_counts_however_much_of_it_was_durable(bench: Bench) -> None:
    bench.begin(1)
    bench.copy(3)
    wait_for(lambda: len(bench.shards) == 3)
    bench.copy(4)
    bench.end(StateError("weight has changed"))
    wait_for(lambda: bench.account.report().given_up == 1)
    assert bench.account.report().failures == ("weight has changed",)
    assert bench.archive.pointers() == ([], []) and bench.shards == [] and len(bench.given_back) == 1
    bench.begin(2)
    bench.copy(4)
    bench.end()
    wait_for(lambda: bench.account.report().durable == 1)
    assert [pointer.step for pointer in bench.archive.pointers()[0]] == [2]


@pytest.mark.parametrize("is_sound", [True, False], ids=["sound", "void"])
def test_a_writer_that_dies_while_the_copy_is_made_is_replaced(bench: Bench, is_sound: bool) -> None:
    bench.begin(1)
    bench.copy(2)
    wait_for(lambda: len(bench.shards) == 2)
    os.kill(bench.writer, signal.SIGKILL)
    bench.copy(4)
    bench.end(None if is_sound else StateError("weight has changed"))
    wait_for(lambda: bench.account.report().durable + bench.account.report().given_up == 1)
    pointers, damages = bench.archive.pointers()
    assert damages == [] and [bench.archive.verify(pointer) for pointer in pointers] == ([[]] if is_sound else [])
    assert bench.account.report().failures[-1] == (
        "the writer of step 1 died (exit status -9)" if is_sound else "weight has changed"
    )
    assert not is_sound or same(load(bench.archive, pointers[0]), TREE)


def test_a_save_gets_on_with_every_block_of_a_file(tmp_path: Path) -> None:
    stops = ",".join(f"writer.0:save-block:nth={nth}:SIGSTOP" for nth in (2, 3))  # in the first block, and the second
    bench = Bench(tmp_path / "run", stops)
    try:
        bench.begin(1, {"large": torch.zeros(3 * BLOCK_BYTES // 4)})
        bench.copy(1)
        bench.end()
        wait_for(lambda: bench.has_stopped)
        time.sleep(0.25)  # it says no more than so often how far it is
        os.kill(bench.writer, signal.SIGCONT)
        wait_for(lambda: re.search("step 1, (17|25) of 25 MB written", bench.account.under_way))
        assert bench.shards == [], "no file is there yet"
        wait_for(lambda: bench.has_stopped)
        os.kill(bench.writer, signal.SIGCONT)
        wait_for(lambda: bench.account.report().durable == 1)
    finally:
        bench.close()


def test_a_save_that_waits_until_older_ones_are_removed_hears_that_they_are(tmp_path: Path) -> None:
    stops = ",".join(f"writer.0:save-prune:nth={nth}:SIGSTOP" for nth in (1, 2))
    for step in (1, 2):
        save(LocalStore(tmp_path / "run"), step)
    bench = Bench(tmp_path / "run", stops, keep_last=1)
    try:
        for step in (3, 4):
            bench.begin(step)
            bench.copy(4)
            bench.end()
            wait_for(lambda: bench.has_stopped)
        wait_for(lambda: bench.idle_s > 1.5)
        os.kill(bench.writer, signal.SIGCONT)
        wait_for(lambda: bench.idle_s < 1.0)
        wait_for(lambda: bench.has_stopped)
        os.kill(bench.writer, signal.SIGCONT)
        wait_for(lambda: bench.account.report().durable == 2)
    finally:
        bench.close()
    assert [pointer.step for pointer in bench.archive.pointers()[0]] == [4]


def test_a_copy_that_never_begins_is_given_up_without_a_writers_word(bench: Bench) -> None:
    bench.begin(1)
    bench.end(StateError("no memory"))
    wait_for(lambda: bench.account.report().given_up == 1)
    assert bench.account.report().failures == ("no memory",) and not bench.folder.exists()
