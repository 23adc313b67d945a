"""Logs: killed between any two writes, or with any bit flipped, only what is whole is found in them."""

import mmap
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regrow.core.errors import InfraError
from regrow.core.lanes import leaf
from regrow.core.listener import Record
from regrow.core.log import Part
from regrow.core.roster import Version
from regrow.state.log import PAGE_BYTES, Entry, Held, Reading, erase, is_sound, read, slot_bytes
from regrow.state.log_filling import copied
from regrow.state.log_writer import LogWriter, is_written

V1 = Version(1, 1)


def part_of(step: int, index: int, size_bytes: int) -> bytes:
    return random.Random(f"{step} {index}").randbytes(size_bytes)


def tail_of(step: int) -> bytes:
    return f"all that is no bytes of step {step}".encode()


def record(step: int, attempt: Version) -> Record:
    return Record(step=step, attempt=attempt, digest=step * 7, holdings=((leaf(0),), (leaf(1),)), last=100)


def entry(step: int, index: int = 0, attempt: Version = V1, stop: bool = False) -> Entry:
    """Sizes and digests are the writer's."""
    return Entry(
        said=Part(record=record(step, attempt), stop=stop, index=index, count=2),
        total_bytes=20_000,
        start=10_000 * index,
    )


def put(book: LogWriter, step: int, size_bytes: int = 10_000, index: int = 0, attempt: Version = V1) -> None:
    tail = tail_of(step) if index == 0 else b""
    book.write(entry(step, index, attempt), tail, memoryview(bytearray(part_of(step, index, size_bytes))))


def steps(found: Reading) -> list[int]:
    return sorted(held.entry.said.record.step for held in found.held)


def holds_what_was_written(fd: int, held: Held) -> bool:
    one = held.entry
    part = os.pread(fd, one.part_bytes, held.part_at)
    tail = os.pread(fd, one.tail_bytes, held.tail_at)
    step, index = one.said.record.step, one.said.index
    wanted = tail_of(step) if index == 0 else b""
    return part == part_of(step, index, one.part_bytes) and tail == wanted and one.said.record.digest == step * 7


@pytest.fixture
def book() -> Iterator[LogWriter]:
    made = LogWriter.new("r0.0", "the root")
    yield made
    made.close()


@pytest.fixture
def copy() -> Iterator[Callable[[bytes], int]]:
    """A log with these bytes."""
    fds: list[int] = []

    def make(data: bytes) -> int:
        fds.append(os.memfd_create("copy", os.MFD_CLOEXEC))
        os.pwrite(fds[-1], data, 0)
        return fds[-1]

    yield make
    for fd in fds:
        os.close(fd)


def bytes_of(book: LogWriter) -> bytes:
    return os.pread(book.fd, os.fstat(book.fd).st_size, 0)


def test_what_was_written_is_read(book: LogWriter) -> None:
    put(book, 3)
    put(book, 4, size_bytes=0)
    put(book, 4, index=1, size_bytes=300_000)
    found = read(book.fd)
    assert found.damages == () and found.head == book.head and (book.head.member, book.head.root) == ("r0.0", "the root")
    assert [(held.entry.said.record.step, held.entry.said.index) for held in found.held] == [(3, 0), (4, 0), (4, 1)]
    assert found.held[0].entry.said.record == record(3, Version(1, 1))
    assert all(is_sound(book.fd, held) and holds_what_was_written(book.fd, held) for held in found.held)


def test_large_parts_go_through_a_mapping_and_are_read_like_any(book: LogWriter) -> None:
    sizes = (3_000_001, 2_500_000, 3_000_001, 2_999_999, 1_200_000)
    for step, size_bytes in enumerate(sizes):
        book.free(step - 2)
        put(book, step, size_bytes=size_bytes)
    book.free(len(sizes))
    book.empty(8_000_000)
    assert steps(read(book.fd)) == []
    put(book, 7, size_bytes=2_000_000)
    put(book, 8, size_bytes=2_400_000)
    found = read(book.fd)
    assert steps(found) == [7, 8]
    assert all(is_sound(book.fd, held) and holds_what_was_written(book.fd, held) for held in found.held)
    held = found.held[-1]
    (byte,) = os.pread(book.fd, 1, held.part_at + 1_999_999)
    os.pwrite(book.fd, bytes([byte ^ 8]), held.part_at + 1_999_999)
    assert [is_sound(book.fd, each) for each in found.held] == [True, False]


def test_on_a_kernel_with_pages_of_64_kb_large_parts_go_through_a_mapping_too(
    book: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    grain_bytes, offsets, sound = 1 << 16, list[int](), mmap.mmap

    def mapped(fd: int, size_bytes: int, flags: int, offset: int) -> mmap.mmap:
        assert offset % grain_bytes == 0
        offsets.append(offset)
        return sound(fd, size_bytes, flags=flags, offset=offset)

    monkeypatch.setattr(mmap, "ALLOCATIONGRANULARITY", grain_bytes)
    monkeypatch.setattr(mmap, "mmap", mapped)
    put(book, 1, size_bytes=2_000_000)
    put(book, 2)
    put(book, 3, size_bytes=1_500_000)
    found = read(book.fd)
    assert steps(found) == [1, 2, 3] and found.damages == () and len(offsets) == 2
    assert all(is_sound(book.fd, held) and holds_what_was_written(book.fd, held) for held in found.held)


def test_a_large_slot_that_cannot_be_mapped_is_written_all_the_same(book: LogWriter) -> None:
    mapped_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + (16 << 20), hard))
    try:
        book.grow(32 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert "lock:" in Path(f"/proc/self/fdinfo/{book.fd}").read_text(), "else it is taken for one whose writer is dead"
    put(book, 1, size_bytes=2_000_000)
    (held,) = read(book.fd).held
    assert is_sound(book.fd, held) and holds_what_was_written(book.fd, held)


def test_what_is_given_up_makes_room_for_what_comes(book: LogWriter) -> None:
    for step in range(8):
        put(book, step)
    made = book.made_bytes
    assert (book.used_bytes, book.oldest) == (made, 0)
    book.free(5)
    assert (book.used_bytes, book.oldest) == (made * 3 // 8, 5)
    assert steps(read(book.fd)) == list(range(8)), "it counts until it is written over"
    for step in range(8, 13):
        put(book, step)
    assert book.made_bytes == made
    assert steps(read(book.fd)) == list(range(5, 13))


def test_a_slot_that_is_being_filled_is_nobody_elses(book: LogWriter) -> None:
    """A part may come slowly, while a newer state gives up all that is as old, and others are written."""
    size_bytes, part = slot_bytes(10_000, 4000), part_of(3, 0, 10_000)
    slow = book.begin(size_bytes, 10_000)
    slow.put(0, 5000, copied(memoryview(bytearray(part[:5000]))))
    book.free(9)
    put(book, 9)
    slow.put(5000, 5000, copied(memoryview(bytearray(part[5000:]))))
    assert steps(read(book.fd)) == [9], "it is not there yet"
    dropped = book.begin(size_bytes, 10_000)
    book.drop(dropped)
    assert book.begin(size_bytes, 10_000).slot == dropped.slot
    book.keep(slow, entry(3), tail_of(3))
    found = read(book.fd)
    assert steps(found) == [3, 9]
    assert all(is_sound(book.fd, held) and holds_what_was_written(book.fd, held) for held in found.held)


def test_a_log_grows_with_its_parts_and_gives_small_slots_back(book: LogWriter) -> None:
    for step in range(4):
        put(book, step, size_bytes=50_000)
    book.free(4)
    assert not book.has_room(200_000, limit_bytes=150_000)
    assert book.has_room(200_000, limit_bytes=250_000), "what is free does not count"
    book.empty(200_000)
    before = book.made_bytes
    assert before == 4 * PAGE_BYTES
    put(book, 4, size_bytes=195_000)
    assert steps(read(book.fd)) == [4]
    put(book, 5, size_bytes=50_000)
    assert book.made_bytes < 300_000, "a hollow slot is filled again"
    found = read(book.fd)
    assert steps(found) == [4, 5] and found.damages == ()
    assert all(holds_what_was_written(book.fd, held) for held in found.held)


def test_a_slot_made_ahead_is_taken(book: LogWriter) -> None:
    book.grow(20_000)
    made = book.made_bytes
    put(book, 1)
    assert book.made_bytes == made and steps(read(book.fd)) == [1]


def test_a_writer_without_memory_says_so(book: LogWriter) -> None:
    put(book, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(InfraError, match=r"no shared memory for .* lower --log-mb"):
            book.grow(2 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    put(book, 2)
    assert steps(read(book.fd)) == [1, 2]


def test_what_is_erased_is_not_there(book: LogWriter) -> None:
    for step in range(3):
        put(book, step)
    erase(book.fd, read(book.fd).held[1].slot_at)
    assert steps(read(book.fd)) == [0, 2] and read(book.fd).damages == ()


# Writers that die


Needed = set[tuple[int, int, Version]]


def life(book: LogWriter, needed: Needed) -> None:
    """Slots are made, filled, given up, used again, given back and filled again. `needed`: what was written, and is not
    given up."""

    def keep(step: int, size_bytes: int, index: int = 0, attempt: Version = V1) -> None:
        put(book, step, size_bytes, index, attempt)
        needed.add((step, index, attempt))

    def free(below: int) -> None:
        needed.difference_update([one for one in needed if one[0] < below])
        book.free(below)

    keep(0, 9_000)
    keep(1, 5_000)
    keep(1, 5_000, index=1)
    free(1)
    keep(2, 8_500)
    free(2)
    book.empty(20_000)
    keep(3, 20_000)
    keep(4, 4_000)
    keep(4, 4_000, attempt=Version(2, 1))


def test_a_writer_killed_between_any_two_writes_leaves_only_what_is_whole(
    monkeypatch: pytest.MonkeyPatch, copy: Callable[[bytes], int]
) -> None:
    """What a file holds at each moment is kept: before each write, in the middle of it where it is one of several pages, and
    after it."""
    moments: list[tuple[bytes, Needed]] = []
    needed: Needed = set()
    sound = os.pwrite

    def pwrite(fd: int, data: memoryview, at: int) -> int:
        for part in (data[: len(data) // 2 // PAGE_BYTES * PAGE_BYTES], data):
            moments.append((os.pread(fd, os.fstat(fd).st_size, 0), set(needed)))
            sound(fd, part, at)
        moments.append((os.pread(fd, os.fstat(fd).st_size, 0), set(needed)))
        return len(data)

    monkeypatch.setattr(os, "pwrite", pwrite)
    book = LogWriter.new("r0.0", "the root")
    life(book, needed)
    monkeypatch.undo()
    book.close()
    assert len(moments) > 100
    for data, wanted in moments:
        fd = copy(data)
        found = read(fd)
        assert found.head is not None or not wanted, "a head is written once, before all else"
        assert found.damages == () or found.head is None, "a kill harms nothing that counted"
        assert all(is_sound(fd, held) and holds_what_was_written(fd, held) for held in found.held)
        there = [(held.entry.said.record.step, held.entry.said.index, held.entry.said.record.attempt) for held in found.held]
        assert wanted <= set(there) and len(there) == len(set(there))
        os.ftruncate(fd, 0)
    assert steps(found) == [2, 3, 4, 4]


@pytest.mark.parametrize("seed", range(8))
def test_with_any_bit_flipped_nothing_false_is_read(book: LogWriter, copy: Callable[[bytes], int], seed: int) -> None:
    life(book, set())
    whole, chance = bytes_of(book), random.Random(seed)
    # Most of a log is parts: half of the flips are in what says where they are.
    said = [at + byte for at in range(0, len(whole), PAGE_BYTES) for byte in range(200)]
    for _ in range(60):
        data = bytearray(whole)
        at = chance.choice(said) if chance.random() < 0.5 else chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        fd = copy(bytes(data))
        found = read(fd)
        right = [held for held in found.held if is_sound(fd, held)]
        assert all(holds_what_was_written(fd, held) for held in right), f"byte {at}"
        assert len(right) >= 2 or found.head is None, f"byte {at}: one flip costs one entry"
        if len(right) < 3:
            assert found.damages or len(right) < len(found.held), f"byte {at}: what is lost is told"


def test_bytes_of_another_log_are_not_taken_for_this_ones(book: LogWriter, copy: Callable[[bytes], int]) -> None:
    other = LogWriter.new("r1.0", "the root")
    put(book, 1)
    put(other, 2)
    mixed = bytes_of(book)[:PAGE_BYTES] + bytes_of(other)[PAGE_BYTES:]
    other.close()
    assert steps(read(copy(mixed))) == []


WRITER = """
import os, signal
from regrow.state.log_writer import LogWriter
book = LogWriter.new("r0.0", "the root")
book.grow(8192)
print(book.fd, flush=True)
signal.pause()
"""


def test_others_know_whether_a_writer_lives() -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    fd = os.open(f"/proc/{process.pid}/fd/{int(process.stdout.readline())}", os.O_RDWR)
    os.kill(process.pid, signal.SIGSTOP)
    assert is_written(fd)
    process.kill()
    process.wait()
    assert not is_written(fd)
    assert read(fd).head is not None, "it outlives its writer"
    os.close(fd)
