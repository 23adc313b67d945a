"""A store in a folder: what is on the device when power goes, full and refused disks, and what dead writers leave."""

import contextlib
import fcntl
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import IMAGE_OPTIONS, image, mounted

from regrow.core.errors import ConfigError, InfraError
from regrow.state.local_store import BLOCK_BYTES, LocalStore

MIB = 1 << 20
ROOM_BYTES = 24 * MIB


# Full, refused, read-only


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "tmpfs":
        options = ("-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs")
    else:
        options = (*IMAGE_OPTIONS, str(image(tmp_path / "image", ROOM_BYTES)))
    with mounted(tmp_path / "disk", *options) as place:
        yield place


def test_a_full_disk_is_told_in_numbers_and_leaves_nothing(small: Path) -> None:
    store = LocalStore(small / "run")
    body = memoryview(mmap.mmap(-1, 12 * MIB))
    store.put("step-1/shard", [body])
    free = shutil.disk_usage(small).free
    with pytest.raises(
        InfraError, match=rf"no room for .*step-2/shard \(No space left on device\): it wants {16 * MIB} bytes, \d+ are free"
    ) as told:
        store.put("step-2/shard", [body, body[: 4 * MIB]])
    said = int(str(told.value).split(" are free")[0].rsplit(" ", 1)[1])
    assert abs(said - free) < MIB  # what the failed file took is back
    assert os.listdir(small / "run" / "step-2") == [] and store.names("step-2") == []
    assert store.size_bytes("step-1/shard") == len(body)
    store.remove("step-1")
    store.put("step-2/shard", [body, body[: 4 * MIB]])
    assert store.size_bytes("step-2/shard") == 16 * MIB


def test_a_disk_without_room_for_one_more_file_says_so(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=8m,nr_inodes=4", "tmpfs") as disk:
        store = LocalStore(disk)
        for number in range(3):
            store.put(str(number), [])
        with pytest.raises(
            InfraError, match=r"it wants 1 bytes, \d+ are free, though no more files can be made: free space"
        ):
            store.put("one-more", [memoryview(b"x")])


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Root may do anything; nobody may not."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


def test_a_lost_right_is_told_and_given_back(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        store = LocalStore(folder / "run")
        with nobody():
            store.put("step-1/shard", [memoryview(b"whole")])
            (folder / "run" / "step-1").chmod(0o500)
            for write in (lambda: store.put("step-1/shard", [memoryview(b"new")]), lambda: store.remove("step-1/shard")):
                with pytest.raises(InfraError, match=r"step-1/shard is refused to user \d+ .*: give it the right to"):
                    write()
            assert store.read("step-1/shard") == b"whole"
            (folder / "run" / "step-1").chmod(0o700)
            store.put("step-1/shard", [memoryview(b"new")])
            assert store.read("step-1/shard") == b"new"


def test_a_read_only_disk_is_told(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "tmpfs") as disk:
        store = LocalStore(disk)
        assert store.create("1", b"one")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for write in (lambda: store.put("2", []), lambda: store.create("2", b""), lambda: store.remove("1")):
            with pytest.raises(InfraError, match="is on a read-only file system"):
                write()
        assert store.names() == ["1"]


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", [memoryview(b"x")])
    for path in ("a/b", "a/b/c"):
        with pytest.raises(ConfigError, match="a part of its path is a file"):
            store.put(path, [])


# What dead and living writers leave


_WRITER = """
import mmap, sys
from pathlib import Path
from regrow.core.roster import Member
from regrow.shell import faultpoint
from regrow.state.local_store import BLOCK_BYTES, LocalStore
root, call, nth, action, run_dir = sys.argv[1:]
faultpoint.arm(f"*:save-block:nth={nth}:{action}", Member("writer", 0), Path(run_dir))
store = LocalStore(Path(root))
print("ready", flush=True)
if call == "put":
    body = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    body[:] = b"n" * BLOCK_BYTES
    store.put("step-1/shard", [body, body, memoryview(b"tail")])
else:
    store.create("step-1/shard", b"n" * 1000)
print("done", flush=True)
"""
NEW = {"put": b"n" * (2 * BLOCK_BYTES) + b"tail", "create": b"n" * 1000}
BLOCKS = {"put": 5, "create": 3}
"""Fault points that a call passes: its writes, before the name, before the name is durable."""


@contextlib.contextmanager
def writer(root: Path, call: str, nth: int, action: str, run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _WRITER, str(root), call, str(nth), action, str(run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("call", ["put", "create"])
def test_what_a_killed_writer_left_is_unseen_and_is_removed_by_the_next(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, call: str
) -> None:
    for nth in range(1, BLOCKS[call] + 1):
        root = tmp_path / str(nth)
        with writer(root, call, nth, "SIGKILL", tmp_path_factory.mktemp("run")) as process:
            assert process.wait(60) == -signal.SIGKILL
        left = os.listdir(root / "step-1")
        store = LocalStore(root)
        assert store.names("step-1") == (["shard"] if nth == BLOCKS[call] else [])
        assert any(name.endswith(".part") for name in left) == (nth < BLOCKS[call] or call == "create")
        store.put("step-1/other", [])
        assert sorted(os.listdir(root / "step-1")) == ["other", *store.names("step-1")[1:]]


def test_what_a_living_writer_holds_is_left_alone(tmp_path: Path) -> None:
    with writer(tmp_path, "put", 4, "SIGSTOP", tmp_path) as process:
        wait_stopped(process)
        held = os.listdir(tmp_path / "step-1")
        LocalStore(tmp_path).put("step-1/other", [])
        assert sorted(os.listdir(tmp_path / "step-1")) == sorted([*held, "other"])
    LocalStore(tmp_path).put("step-1/other", [])  # now it is dead
    assert os.listdir(tmp_path / "step-1") == ["other"]


def wait_stopped(process: subprocess.Popen[str]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status


@pytest.mark.parametrize("at", [0, 1, 4096], ids=["aligned", "unaligned", "paged"])
def test_blocks_go_past_the_page_cache(tmp_path: Path, at: int) -> None:
    with mounted(tmp_path / "disk", *IMAGE_OPTIONS, str(image(tmp_path / "image", 64 * MIB))) as place:
        body = memoryview(mmap.mmap(-1, 2 * BLOCK_BYTES + MIB))
        LocalStore(place).put("shard", [body[:at], body[at:]])
        with (place / "shard").open("rb", buffering=0) as file:
            for start in (0, BLOCK_BYTES, 2 * BLOCK_BYTES):
                with pytest.raises(BlockingIOError):  # it would have to ask the device
                    os.preadv(file.fileno(), [bytearray(4096)], start, os.RWF_NOWAIT)


def test_a_file_system_without_o_direct_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def refuse(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")  # as kernels before 6.6 say for tmpfs
        return real(fd, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    store = LocalStore(tmp_path)
    store.put("file", [memoryview(NEW["put"])])
    assert store.read("file") == NEW["put"]


def test_a_file_system_without_hard_links_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ConfigError, match=r"has no hard links .* one-writer"):
        LocalStore(tmp_path).create("pointers/1", b"one")
    assert [*(tmp_path / "pointers").iterdir()] == []


def test_a_file_system_without_locks_is_told_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(InfraError, match="No locks available"):
            LocalStore(tmp_path).put("file", [memoryview(b"x")])
    assert [*tmp_path.iterdir()] == [] and len(os.listdir("/proc/self/fd")) == opened


# Power


def test_when_power_goes_what_returned_is_there_and_what_did_not_is_whole_or_absent(tmp_path: Path) -> None:
    disk = image(tmp_path / "image", 96 * MIB)
    with mounted(tmp_path / "disk", *IMAGE_OPTIONS, str(disk)) as place:
        store = LocalStore(place / "runs" / "store")
        store.put("step-0/shard", [memoryview(NEW["put"])])
        assert store.create("pointers/1", b"first")
        for call in ("put", "create"):
            for nth in range(1, BLOCKS[call] + 1):
                run_dir = tmp_path / f"{call}-{nth}"
                run_dir.mkdir()
                with writer(place / "runs" / "store", call, nth, "SIGSTOP", run_dir) as process:
                    wait_stopped(process)
                    shutil.copy(disk, run_dir / "copy")  # what the device holds at this moment, and nothing of any cache
                after_power(run_dir, {None, NEW[call]}, is_there=False)
                store.remove("step-1")
            with writer(place / "runs" / "store", call, 100, "SIGKILL", run_dir) as process:
                assert process.stdout is not None and process.stdout.readline() == "done\n"
                shutil.copy(disk, run_dir / "copy")
            after_power(run_dir, {NEW[call]}, is_there=True)
            store.remove("step-1")


def after_power(run_dir: Path, allowed: set[bytes | None], is_there: bool) -> None:
    with mounted(run_dir / f"disk-{is_there}", *IMAGE_OPTIONS, str(run_dir / "copy")) as place:
        store = LocalStore(place / "runs" / "store")
        assert store.read("step-0/shard") == NEW["put"]
        assert store.read("pointers/1") == b"first"
        found = store.read("step-1/shard")
        assert found in allowed, found and len(found)
        assert store.names("step-1") == ([] if found is None else ["shard"])
        assert store.create("pointers/2", b"goes on")
