"""A part that goes into the log while its record is still being reduced: closed it is the part, else it never was there."""

import os
import random
import time
from collections.abc import Callable, Iterator

import neighbours
import pytest
import torch

from regrow.core.effects import Log
from regrow.core.lanes import leaf
from regrow.core.listener import Record, part_of
from regrow.core.roster import Member, Version
from regrow.shell.stamp import Stamp
from regrow.state.gradient import Gradient
from regrow.state.layout import Layout
from regrow.state.log import Held, is_sound, read
from regrow.state.neighbour_store import Address, fetched_logs, taken_over
from regrow.worker.copyist import Copyist
from regrow.worker.early import Early
from regrow.worker.expense import Expense
from regrow.worker.logbook import Logbook

LAYOUT = Layout([(f"weight {number}", torch.zeros(100, 100 + number)) for number in range(9)], 60_000)
V1, V2 = Version(1, 1), Version(1, 2)
COUNT = 3


def result(step: int) -> Gradient:
    made = Gradient(LAYOUT, LAYOUT.new_buffer(), present=LAYOUT.everything)
    made.buffer.copy_(torch.frombuffer(bytearray(random.Random(step).randbytes(LAYOUT.size_bytes)), dtype=torch.uint8))
    return made


def quiet(what: object) -> None:
    """Nobody listens."""


class Desk:
    """One of three members' log, of which a first record is known."""

    def __init__(self, index: int, limit_mb: int = 100, copyist: Copyist | None = None) -> None:
        self.index = index
        limit_bytes, expense = limit_mb * 1_000_000, Expense(1.0, 0)
        self.book = Logbook(Member("r0", 0), "root", limit_bytes, expense, Stamp(), quiet, quiet, copyist)
        self.book.open(lambda: False)
        ((_, fd),) = self.book.opening()
        assert fd is not None
        self.fd = fd
        self.book.held()
        self.write(0)

    def early(self, step: int, attempt: Version = V1, index: int | None = None) -> Early:
        end_s = time.monotonic() + 60
        while not self.book._is_ahead:
            assert time.monotonic() < end_s, "memory is made ready for ever"
            time.sleep(0.001)
        made = self.book.early(step, attempt, self.index if index is None else index, COUNT)
        assert made is not None
        return made

    def write(self, step: int, attempt: Version = V1) -> None:
        record = Record(step=step, attempt=attempt, digest=2**63 + step, holdings=((leaf(0),),) * COUNT, last=10**6)
        self.book.write(Log(record=record, stop=True, indices=(self.index,), count=COUNT), result(step))

    def held(self, step: int) -> list[Held]:
        found = read(self.fd)
        assert not found.damages
        return [held for held in found.held if held.entry.said.record.step == step]

    def prove(self, step: int, attempt: Version = V1) -> Held:
        """The part is there, once, and is what it should be."""
        (held,) = self.held(step)
        start, stop = part_of(LAYOUT.size_bytes, self.index, COUNT)
        assert is_sound(self.fd, held) and held.entry.said.record.attempt == attempt
        assert (held.entry.start, held.entry.part_bytes) == (start, stop - start)
        assert os.pread(self.fd, stop - start, held.part_at) == bytes(result(step).buffer[start:stop].tolist())
        return held


@pytest.fixture
def open_desk() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(index: int = 1, limit_mb: int = 100) -> Desk:
        desks.append(Desk(index, limit_mb))
        return desks[-1]

    yield make
    for desk in desks:
        desk.book.close()


def arrive(early: Early, made: Gradient, but: int = -1) -> None:
    for number, bucket in enumerate(LAYOUT.buckets):
        if number != but:
            early.arrived(made, bucket.start, bucket.stop)


@pytest.mark.parametrize("index", range(COUNT))
def test_what_came_in_buckets_is_the_part(open_desk: Callable[..., Desk], index: int) -> None:
    desk = open_desk(index)
    for step in range(1, 6):
        arrive(desk.early(step), result(step))
        assert not desk.held(step), "nobody has said that it is there"
        desk.write(step)
        assert len(desk.prove(step).entry.pieces) > 1
    assert desk.prove(0).entry.pieces[0].size_bytes == desk.prove(0).entry.part_bytes


def test_a_bucket_that_travels_again_counts_as_it_came_last(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk()
    early = desk.early(1)
    arrive(early, result(99))
    arrive(early, result(1))
    desk.write(1)
    assert len(desk.prove(1).entry.pieces) > 1


@pytest.mark.parametrize("number", range(len(LAYOUT.buckets)))
def test_where_a_bucket_lacks_the_part_is_written_whole(open_desk: Callable[..., Desk], number: int) -> None:
    desk = open_desk()
    start, stop = part_of(LAYOUT.size_bytes, desk.index, COUNT)
    bucket = LAYOUT.buckets[number]
    arrive(desk.early(1), result(1), but=number)
    desk.write(1)
    assert (len(desk.prove(1).entry.pieces) > 1) == (bucket.stop <= start or bucket.start >= stop)


@pytest.mark.parametrize("what", ["attempt", "step", "part"])
def test_what_came_of_another_attempt_is_given_up(open_desk: Callable[..., Desk], what: str) -> None:
    desk = open_desk()
    before = desk.book._writer.used_bytes
    about = {"attempt": {"attempt": V2}, "step": {"step": 2}, "part": {"index": 2}}[what]
    arrive(desk.early(**{"step": 1, **about}), result(99))
    desk.write(1)
    assert len(desk.prove(1).entry.pieces) == 1
    assert desk.book._writer.used_bytes == 2 * before, "its slot is free again"


def test_a_new_attempt_ends_the_one_before(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk()
    before = desk.book._writer.used_bytes
    older = desk.early(1)
    arrive(older, result(98), but=0)
    newer = desk.early(1, V2)
    older.arrived(result(97), 0, LAYOUT.size_bytes)
    arrive(newer, result(1))
    older.arrived(result(96), 0, LAYOUT.size_bytes)
    desk.write(1, V2)
    desk.prove(1, V2)
    assert desk.book._writer.used_bytes == 2 * before


def test_where_there_is_no_slot_at_hand_nothing_is_begun(open_desk: Callable[..., Desk]) -> None:
    """To make one, or to wait for one, is the training thread's."""
    desk = open_desk(limit_mb=1)
    for step in range(1, 9):
        arrive(desk.early(step), result(step))
        desk.write(step)
    assert len(desk.prove(8).entry.pieces) == 1
    desk.book.based(9)
    arrive(desk.early(9), result(9))
    desk.write(9)
    assert len(desk.prove(9).entry.pieces) > 1, "there is room again"


def test_where_more_is_to_be_said_than_was_thought_the_part_is_written_whole(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(0)
    arrive(desk.early(1), result(1))
    record = Record(step=1, attempt=V1, digest=1, holdings=((leaf(0),) * 5000,) * COUNT, last=100)
    desk.book.write(Log(record=record, stop=False, indices=(0,), count=COUNT), result(1))
    assert len(desk.prove(1).entry.pieces) == 1
    arrive(desk.early(2), result(2))
    desk.write(2)
    assert len(desk.prove(2).entry.pieces) > 1


def test_nothing_is_early_before_the_agent_holds_the_log(open_desk: Callable[..., Desk]) -> None:
    book = Logbook(Member("r0", 0), "root", 10**8, Expense(1.0, 0), Stamp(), quiet, quiet)
    assert book.early(0, V1, 0, COUNT) is None


def test_the_neighbour_has_what_the_log_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_NEIGHBOUR_TOKEN", neighbours.TOKEN_GIVEN)
    with neighbours.serving(100) as running:
        address = Address(endpoint=running.endpoint, run="job")
        claim = taken_over(address, resumes=True)
        desk = Desk(0, copyist=Copyist(address, neighbours.TOKEN_GIVEN, claim, 60.0, "r0.0", "root"))
        for step, but in ((1, -1), (2, len(LAYOUT.buckets) - 1), (3, -1)):
            arrive(desk.early(step), result(step), but)
            desk.write(step)
        ((_, fd),) = fetched_logs(address, lambda _: None).items()
        there = sorted(read(fd).held, key=lambda held: held.entry.said.record.step)
        assert [held.entry for held in there] == [desk.prove(step).entry for step in range(4)]
        assert all(is_sound(fd, held) for held in there)
        assert [len(held.entry.pieces) > 1 for held in there] == [False, True, False, True]
        os.close(fd)
        desk.book.close()
