"""What a neighbour keeps of a run: within its room, under the newest claim, and no record for longer than it is needed."""

import resource

import msgspec
import pytest
import xxhash

from regrow.core.checkpoint import Manifest, Pointer
from regrow.core.errors import ConfigError, Fenced, InfraError, NoRoom, StateError
from regrow.core.listener import Record
from regrow.core.log import Part
from regrow.core.neighbour_messages import LogBegun
from regrow.core.roster import Version
from regrow.neighbour.room import Room
from regrow.neighbour.shelf import Shelf
from regrow.state.log import Entry, Piece, is_sound, read, slot_bytes
from regrow.state.log_filling import copied
from regrow.state.log_writer import LogWriter

V1 = Version(1, 1)
TAIL, PART = memoryview(bytearray(b"the tail")), memoryview(bytearray(range(200)))


def shelf(limit_bytes: int = 1 << 20) -> Shelf:
    return Shelf("run", Room(limit_bytes), lambda text: None)


def entry(step: int, data: memoryview = PART) -> Entry:
    record = Record(step=step, attempt=V1, digest=7, holdings=(), last=9)
    return Entry(
        said=Part(record=record, stop=False, index=0, count=1),
        total_bytes=len(data),
        start=0,
        pieces=(Piece(len(data), xxhash.xxh3_128_digest(data)),),
        tail_bytes=len(TAIL),
        tail_digest=xxhash.xxh3_128_digest(TAIL),
    )


def log(on: Shelf, claim: int, name: str, one: Entry, tail: memoryview, part: memoryview) -> int:
    begun = LogBegun(size_bytes=slot_bytes(len(part), 512), part_bytes=len(part))
    filling = on.begin_part(claim, name, begun)
    filling.put(0, len(part), copied(part))
    return on.keep_part(claim, name, filling, one, tail)


def put(on: Shelf, claim: int, path: str, data: bytes, is_new: bool = False) -> bool:
    on.reserve(claim, len(data))
    return on.put(claim, path, bytearray(data), is_new)


def base(on: Shelf, claim: int, step: int) -> None:
    manifest = Manifest(
        regrow="0", step=step, term=1, made_unix_s=0.0, skeleton=None, leaves=(), shards=(), root="r", roster=V1
    )
    pointer = Pointer(digest="", number=step, term=1, step=step, folder=f"s{step}", manifest="", size_bytes=0)
    put(on, claim, f"s{step}/manifest.json", msgspec.json.encode(manifest))
    put(on, claim, f"pointers/{step:012d}.json", msgspec.json.encode(pointer), is_new=True)


def used(on: Shelf) -> int:
    return on._room.used_bytes


def test_of_two_claims_the_newer_one_writes() -> None:
    it = shelf()
    older = it.take_over(resumes=False)
    name = it.open_log(older, "r0.0", "root")
    newer = it.take_over(resumes=True)
    assert newer > older
    before = used(it)
    for write in (
        lambda: put(it, older, "file", b"late"),
        lambda: it.put(older, "file", bytearray(b"reserved before"), False),
        lambda: it.drop(older, "file"),
        lambda: it.open_log(older, "r1.0", "root"),
        lambda: log(it, older, name, entry(0), TAIL, PART),
    ):
        with pytest.raises(Fenced, match="another `regrow run` has taken over"):
            write()
    assert it.names("") == () and used(it) == before - len(b"reserved before"), "what was reserved is given back"


def test_what_lies_there_is_taken_over_by_who_resumes_alone() -> None:
    it = shelf()
    claim = it.take_over(resumes=False)
    it.open_log(claim, "r0.0", "root")
    with pytest.raises(ConfigError, match="--resume latest"):
        it.take_over(resumes=False)
    it.enter(claim)
    assert it.take_over(resumes=True) > claim


def test_a_claim_from_before_it_was_started_again_counts() -> None:
    it = shelf()
    it.enter(7)
    with pytest.raises(Fenced):
        it.enter(6)


def test_room_is_taken_before_and_given_back_after() -> None:
    it = shelf(10_000)
    claim = it.take_over(resumes=False)
    assert put(it, claim, "a/file", bytes(6000)) and used(it) == 6000
    with pytest.raises(NoRoom, match="it is full"):
        put(it, claim, "a/other", bytes(6000))
    assert put(it, claim, "a/file", bytes(3000)) and used(it) == 3000
    assert not put(it, claim, "a/file", bytes(2000), is_new=True) and used(it) == 3000
    it.drop(claim, "a")
    assert used(it) == 0 and it.get("a/file") is None


def test_a_log_is_there_as_it_was_written_and_counts() -> None:
    it = shelf()
    claim = it.take_over(resumes=False)
    name = it.open_log(claim, "r0.0", "root")
    assert [log(it, claim, name, entry(step), TAIL, PART) for step in (0, 1, 3)] == [1, 2, 2]
    ((named, fd),) = it.logs().items()
    reading = read(fd)
    assert named == name and reading.head is not None and (reading.head.member, reading.head.root) == ("r0.0", "root")
    assert sorted(held.entry.said.record.step for held in reading.held) == [0, 1, 3]
    assert all(is_sound(fd, held) for held in reading.held) and not reading.damages


def test_what_came_otherwise_than_it_was_sent_is_not_there() -> None:
    it = shelf()
    claim = it.take_over(resumes=False)
    name = it.open_log(claim, "r0.0", "root")
    with pytest.raises(StateError, match="not what was sent"):
        log(it, claim, name, entry(0), TAIL, memoryview(bytearray(200)))
    (fd,) = it.logs().values()
    assert not read(fd).held


def test_records_are_given_up_for_a_base_that_lies_there_and_logs_once_nobody_writes_them() -> None:
    it = shelf()
    claim = it.take_over(resumes=False)
    gone, stays = it.open_log(claim, "r0.0", "root"), it.open_log(claim, "r0.1", "root")
    for step in range(3):
        log(it, claim, gone, entry(step), TAIL, PART)
    log(it, claim, stays, entry(3), TAIL, PART)
    it.close_log(gone)
    before = used(it)
    base(it, claim, 2)
    assert set(it.logs()) == {gone, stays}, "the record of step 2 follows that base"
    base(it, claim, 3)
    assert set(it.logs()) == {stays} and used(it) < before + 1000
    assert log(it, claim, stays, entry(4), TAIL, PART) == 5


def test_a_log_has_no_room_beyond_the_limit() -> None:
    it = shelf(20_000)
    claim = it.take_over(resumes=False)
    name = it.open_log(claim, "r0.0", "root")
    with pytest.raises(NoRoom):
        for step in range(9):
            log(it, claim, name, entry(step), TAIL, PART)
    assert used(it) <= 20_000


def test_room_for_a_part_that_there_is_no_memory_for_is_given_back() -> None:
    it = shelf(4 << 20)
    claim = it.take_over(resumes=False)
    name = it.open_log(claim, "r0.0", "root")
    before = used(it)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        for _ in range(3):
            with pytest.raises(InfraError, match="no shared memory"):
                it.begin_part(claim, name, LogBegun(size_bytes=2 << 20, part_bytes=1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert used(it) == before


def test_a_writer_that_expects_nothing_makes_its_own_digests() -> None:
    writer = LogWriter.new("r0.0", "root")
    written = writer.write(entry(0), bytes(TAIL), PART)
    assert written == entry(0)
    writer.close()
