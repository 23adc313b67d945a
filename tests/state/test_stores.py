"""What every store promises, asked of each kind: a folder, fsspec's memory, and a real S3 service."""

import mmap
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from regrow.core.errors import ConfigError, StateError
from regrow.shell.pacing import Pacer
from regrow.state.store import Store
from regrow.state.stores import open_store

BLOCK_BYTES = 8 << 20
BIG = 40 << 20
"""Several blocks of a folder, several parts of an upload."""


def arena(size_bytes: int) -> memoryview:
    """Memory that starts at a page, and is different everywhere."""
    view = memoryview(mmap.mmap(-1, size_bytes))
    for start in range(0, size_bytes, 1 << 20):
        piece = view[start : start + (1 << 20)]
        piece[:] = (start.to_bytes(8, "little") * (1 << 17))[: len(piece)]
    return view


def test_what_is_put_is_let_through_block_by_block(url: str) -> None:
    sizes: list[int] = []
    store = open_store(url, Pacer(10**15, sizes.append))
    memory = arena(BIG)
    store.put("a/file", [memory[:4096], memory[4096:]])
    assert sum(sizes) == BIG
    assert url.startswith("memory:") or max(sizes) <= BLOCK_BYTES
    got = memoryview(bytearray(BIG))
    store.read_into("a/file", 0, got)
    assert got == memory


def test_a_file_of_one_writers_is_on_the_device_once_it_is_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, synced = os.fsync, {}

    def sync(fd: int) -> None:
        real(fd)
        synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size

    monkeypatch.setattr(os, "fsync", sync)
    store = open_store(f"one-writer+file://{tmp_path}/run")
    store.put("step/shard", [memoryview(b"whole")])
    assert store.create("pointers/1", b"one")
    for name, size_bytes in (("step/shard", 5), ("pointers/1", 3)):
        assert synced[(tmp_path / "run" / name).stat().st_ino] == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "cuts"),
    [(0, []), (1, []), (4096, [4095]), (4097, [4096]), (BIG, [4096]), (BIG + 5, [4096, 9001]), (BIG, [20 << 20])],
    ids=str,
)
def test_what_was_put_is_read_from_any_byte_on(store: Store, size_bytes: int, cuts: list[int]) -> None:
    """The cuts between its parts: a page of header and a body is how shards come."""
    memory = arena(max(size_bytes, 1))[:size_bytes]
    store.put("a/b/file", [memory[start:stop] for start, stop in pairwise([0, *cuts, size_bytes])])
    assert store.size_bytes("a/b/file") == size_bytes
    got = memoryview(bytearray(size_bytes))
    store.read_into("a/b/file", 0, got)
    assert got == memory
    for start, stop in ((0, 1), (4095, 4097), (size_bytes - 3, size_bytes)):
        if 0 <= start < stop <= size_bytes:
            piece = memoryview(bytearray(stop - start))
            store.read_into("a/b/file", start, piece)
            assert piece == memory[start:stop]


def test_parts_of_other_types_are_their_bytes(store: Store) -> None:
    store.put("file", [memoryview(bytes(range(16))).cast("I"), memoryview(b"")])
    assert store.read("file") == bytes(range(16))


def test_an_existing_file_is_replaced_whole(store: Store) -> None:
    store.put("file", [memoryview(b"a long content")])
    store.put("file", [memoryview(b"a short"), memoryview(b" one")])
    assert store.read("file") == b"a short one"
    assert store.names() == ["file"]


def test_a_file_is_created_once(store: Store) -> None:
    assert store.create("pointers/1", b"mine")
    assert not store.create("pointers/1", b"yours")
    assert store.read("pointers/1") == b"mine"
    assert not store.create("pointers/1", b"mine")  # the same words of somebody else's
    assert store.names("pointers") == ["1"]
    store.remove("pointers/1")
    assert store.create("pointers/1", b"yours")


def test_what_is_missing_is_none_and_no_error(store: Store) -> None:
    assert store.read("file") is None
    assert store.size_bytes("file") is None
    assert store.names() == store.names("folder") == []
    store.remove("file")
    store.put("folder/file", [memoryview(b"x")])
    assert store.size_bytes("folder") is None
    assert store.read("folder/file/more") is None
    assert store.names("folder/file") == []
    assert store.read("folder/other") is None


def test_names_are_sorted_fresh_and_of_one_level(url: str, store: Store) -> None:
    other = open_store(url)
    assert store.names() == other.names() == []
    for name in ("b/1", "b/2/3", "a"):
        store.put(name, [memoryview(b"x")])
    assert store.names() == other.names() == ["a", "b"]
    assert store.names("b") == other.names("b") == ["1", "2"]
    other.put("c", [memoryview(b"x")])
    assert store.names() == ["a", "b", "c"]
    store.remove("c")
    assert other.names() == ["a", "b"]


def test_a_folder_goes_with_all_below_it(store: Store) -> None:
    for name in ("old/1", "old/2/3", "older/1"):
        store.put(name, [memoryview(b"x")])
    store.remove("old")
    assert store.names() == ["older"] and store.names("old") == [] and store.read("old/2/3") is None
    store.remove("old")
    store.put("old/1", [memoryview(b"new")])
    assert store.read("old/1") == b"new"


def test_a_missing_or_short_file_is_named_with_what_it_lacks(url: str, store: Store) -> None:
    view = memoryview(bytearray(8))
    with pytest.raises(StateError, match=r"step/shard is missing"):
        store.read_into("step/shard", 0, view)
    store.put("step/shard", [memoryview(b"12345")])
    for start in (0, 4, 5, 100):
        with pytest.raises(StateError, match=r"step/shard is too short: it has 5 bytes"):
            store.read_into("step/shard", start, view)


@pytest.mark.parametrize("path", ["../file", "a/../../file", "/file", "a//b", "a/", ".", "a\0b"])
def test_a_path_that_leads_out_of_the_store_is_refused(store: Store, path: str) -> None:
    for asked in (lambda: store.put(path, []), lambda: store.read(path), lambda: store.remove(path)):
        with pytest.raises(StateError, match="is not a path below a store"):
            asked()


def test_of_many_threads_that_create_one_succeeds(store: Store) -> None:
    ready = threading.Barrier(8)

    def create(number: int) -> bool:
        ready.wait()
        return store.create("pointers/1", b"%d" % number * 1000)

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(create, range(8)))
    assert sum(created) == 1
    assert store.read("pointers/1") == b"%d" % created.index(True) * 1000


_RACER = """
import sys
from regrow.state.stores import open_store
store = open_store(sys.argv[1])
store.names()
print("ready", flush=True)
sys.stdin.readline()
print(store.create("pointers/1", sys.argv[2].encode() * 10_000))
"""


@pytest.mark.parametrize("url", ["folder", "s3"], indirect=True)
def test_of_many_processes_that_create_one_succeeds(url: str) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, url, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(8)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        created = [racer.communicate(timeout=60)[0] == "True\n" for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
    assert [racer.returncode for racer in racers] == [0] * 8
    assert sum(created) == 1
    assert open_store(url).read("pointers/1") == b"%d" % created.index(True) * 10_000


KILLED_BYTES = 20 << 20
_PUTTER = """
import sys
from pathlib import Path
from regrow.core.roster import Member
from regrow.shell import faultpoint
from regrow.state.stores import open_store
url, nth, run_dir, size_bytes = sys.argv[1:]
faultpoint.arm(f"*:save-block:nth={nth}:SIGKILL", Member("writer", 0), Path(run_dir))
open_store(url).put("step/shard", [memoryview(b"new" * (int(size_bytes) // 3))])
"""


@pytest.mark.parametrize(
    ("url", "old"),
    [("folder", None), ("folder", b"old" * 7000), ("s3", b"old" * 7000)],
    ids=["folder-absent", "folder-old", "s3-old"],
    indirect=["url"],
)
def test_a_put_that_is_killed_at_any_block_leaves_what_was_there(
    url: str, old: bytes | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    new = b"new" * (KILLED_BYTES // 3)
    for nth in range(1, 100):
        store = open_store(url)
        store.remove("step/shard")
        if old is not None:
            store.put("step/shard", [memoryview(old)])
        arguments = [url, str(nth), str(tmp_path_factory.mktemp("run")), str(KILLED_BYTES)]
        code = subprocess.run([sys.executable, "-c", _PUTTER, *arguments], timeout=60, check=False).returncode
        found = store.read("step/shard")
        if code == 0:
            break
        assert code == -9
        assert found in (old, new), f"killed at block {nth}: {found and len(found)} bytes"
        assert store.names("step") == ([] if found is None else ["shard"])
    assert found == new and nth > 3


def test_a_url_is_a_folder_or_is_reached_or_is_refused_with_what_to_do(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}").url == open_store(str(tmp_path)).url == str(tmp_path)
    assert open_store("memory://x/y/").url == "memory://x/y"
    assert open_store(os.path.relpath(tmp_path)).url == str(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be sure of that at ftp://; use s3://, or a folder"):
        open_store("ftp://host/run")
    with pytest.raises(ConfigError, match="names no bucket"):
        open_store("s3://")
    with pytest.raises(ConfigError, match="leave the credentials out") as told:
        open_store("s3://user:word@bucket/run")
    assert "word" not in str(told.value).replace("words", "")
    with pytest.raises(ConfigError, match="has no URL"):
        open_store("")
