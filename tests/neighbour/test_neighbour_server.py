"""A neighbour and whoever writes to it otherwise than is agreed: that line is ended, and nothing of it lies there."""

import os
from collections.abc import Iterator, Sequence

import msgspec
import neighbours
import pytest
import xxhash

from regrow.core.errors import NoRoom, PeerError
from regrow.core.listener import Record
from regrow.core.log import Part
from regrow.core.messages import Message
from regrow.core.neighbour_messages import Done, LogBegun, LogCounted, LogEntry, LogPiece, OpenLog
from regrow.core.roster import Version
from regrow.state.log import Entry, Piece, read
from regrow.state.neighbour_store import Address, fetched_logs, taken_over
from regrow.wire.blocking import Blocking
from regrow.wire.visit import heard, visit

PART = bytes(range(200))
SLOT_BYTES = 4096
ANSWER_S = 60.0


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    monkeypatch.setenv("REGROW_NEIGHBOUR_TOKEN", neighbours.TOKEN_GIVEN)
    with neighbours.serving(1) as running:
        yield Address(endpoint=running.endpoint, run="job")


def entry() -> Entry:
    record = Record(step=0, attempt=Version(1, 1), digest=7, holdings=(), last=9)
    return Entry(
        said=Part(record=record, stop=False, index=0, count=1),
        total_bytes=len(PART),
        start=0,
        pieces=(Piece(len(PART), xxhash.xxh3_128_digest(PART)),),
        tail_digest=xxhash.xxh3_128_digest(b""),
    )


def opened(address: Address) -> Blocking:
    claim = taken_over(address, resumes=True)
    line = visit(address.endpoint, neighbours.TOKEN_GIVEN, address.run, claim, ANSWER_S, "r0.0")
    line.send(OpenLog(member="r0.0", root="root"))
    heard(line, Done, ANSWER_S)
    return line


def say(line: Blocking, *what: Message | bytes) -> None:
    for each in what:
        if isinstance(each, bytes):
            line.send_raw(memoryview(each))
        else:
            line.send(each)


def begun(size_bytes: int = SLOT_BYTES, part_bytes: int = len(PART)) -> LogBegun:
    return LogBegun(size_bytes=size_bytes, part_bytes=part_bytes)


def piece(at: int = 0, size_bytes: int = len(PART)) -> LogPiece:
    return LogPiece(at=at, size_bytes=size_bytes)


CLOSED = LogEntry(entry=msgspec.msgpack.encode(entry()), tail_bytes=0)


def test_what_is_sent_as_agreed_counts(address: Address) -> None:
    line = opened(address)
    say(line, begun(), piece(), PART, begun(), piece(), PART, CLOSED)
    assert heard(line, LogCounted, ANSWER_S).through == 1
    line.close()


@pytest.mark.parametrize(
    "what",
    [
        (piece(), PART),
        (CLOSED,),
        (begun(), piece(at=1), PART),
        (begun(), piece(size_bytes=-1)),
        (begun(part_bytes=SLOT_BYTES),),
        (begun(size_bytes=1 << 40),),
        (begun(), CLOSED),
        (begun(), piece(at=1, size_bytes=199), PART[1:], CLOSED),
        (begun(), piece(), PART, LogEntry(entry=b"no entry", tail_bytes=0)),
        (begun(), piece(), PART, LogEntry(entry=CLOSED.entry, tail_bytes=1 << 40)),
    ],
    ids=[
        "a piece of nothing",
        "nothing is closed",
        "a piece beyond the part",
        "a piece of less than nothing",
        "a part larger than its slot",
        "a slot larger than all of it",
        "closed without a piece",
        "closed without its first byte",
        "closed by no entry",
        "a tail larger than all of it",
    ],
)
def test_what_is_not_agreed_ends_the_line(address: Address, what: Sequence[Message | bytes]) -> None:
    line = opened(address)
    with pytest.raises(PeerError, match=r"was closed|broke"):
        say(line, *what)
        heard(line, LogCounted, ANSWER_S)
    line.close()
    ((_, fd),) = fetched_logs(address, lambda _: None).items()
    assert read(fd).held == ()
    os.close(fd)


def test_a_part_that_has_no_room_is_refused_where_it_is_closed(address: Address) -> None:
    line = opened(address)
    say(line, begun(size_bytes=999_000), piece(), PART, CLOSED)
    with pytest.raises(NoRoom, match="it is full"):
        heard(line, LogCounted, ANSWER_S)
    say(line, begun(), piece(), PART, CLOSED)
    assert heard(line, LogCounted, ANSWER_S).through == 1, "a smaller one has"
    line.close()
