"""A worker's log: what it waits for, and what it does when there is nothing to wait for."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from regrow.core.effects import Log
from regrow.core.lanes import leaf
from regrow.core.listener import Record, part_of
from regrow.core.log import follow
from regrow.core.records import BaseDue, Fact, LogMeasured, LogOutgrown, LogUnheld, LogWaited
from regrow.core.roster import NO_VERSION, Member, Version
from regrow.core.saves import Urgency
from regrow.shell.stamp import Stamp
from regrow.shell.vaulting import LogOpens
from regrow.state.gradient import Gradient
from regrow.state.layout import Layout
from regrow.state.log import PAGE_BYTES, is_sound, read
from regrow.worker import logbook
from regrow.worker.expense import Expense
from regrow.worker.logbook import Logbook

PARAMETERS = [("weight", torch.zeros(100, 100))]
SLOT_BYTES = 45_056
"""Of the whole record, with what says so."""


class Desk:
    """A logbook, and what it says."""

    def __init__(self, limit_bytes: int) -> None:
        self.facts: list[Fact] = []
        self.wishes: list[Urgency] = []
        self.saves = threading.Event()
        self.book = Logbook(
            Member("r0", 0), "root", limit_bytes, Expense(1000.0, 0), Stamp(), self.facts.append, self.wishes.append
        )
        self.book.expense.stepped(0.001, 0.001)
        self.book.open(self.saves.is_set)
        ((said, self.fd),) = self.book.opening()
        assert isinstance(said, LogOpens)

    def log(self, step: int, indices: tuple[int, ...] = (0,), count: int = 1) -> None:
        record = Record(step=step, attempt=Version(1, 1), digest=step, holdings=((leaf(0),),) * count, last=100)
        self.book.write(Log(record=record, stop=False, indices=indices, count=count), result(step))

    def told(self, kind: type[Fact]) -> list[Fact]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def steps(self) -> list[int]:
        assert self.fd is not None
        found = read(self.fd)
        assert found.damages == () and all(is_sound(self.fd, held) for held in found.held)
        return sorted(held.entry.said.record.step for held in found.held)


def result(step: int) -> Gradient:
    layout = Layout(PARAMETERS, 1 << 20)
    made = Gradient(layout, layout.new_buffer(), present=1)
    made.views[0].fill_(step)
    return made


@pytest.fixture
def open_desk() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(limit_bytes: int = 100 * SLOT_BYTES, is_held: bool = True) -> Desk:
        desks.append(Desk(limit_bytes))
        if is_held:
            desks[-1].book.held()
        return desks[-1]

    yield make
    for desk in desks:
        desk.book.close()


def test_nothing_is_logged_before_the_agent_holds_the_log(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(is_held=False)
    writer = threading.Thread(target=desk.log, args=(0,))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive() and desk.steps() == []
    desk.book.held()
    writer.join(60)
    assert desk.steps() == [0] and desk.book.opening() == []
    (waited,) = desk.told(LogWaited)
    assert isinstance(waited, LogWaited) and waited.why == "the agent did not hold it yet"


def test_a_log_that_nobody_holds_is_told_aloud_until_somebody_does(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logbook, "_AWAY_S", 0.1)
    desk = open_desk(is_held=False)
    for step in range(25):
        desk.log(step)
    assert desk.told(LogUnheld) == [LogUnheld(step=0), LogUnheld(step=20)]
    assert capsys.readouterr().err.count("nobody else holds the log of r0.0") == 1
    desk.book.held()
    for step in range(25, 50):
        desk.log(step)
    assert len(desk.told(LogUnheld)) == 2


def test_parts_of_the_absent_are_logged_with_ones_own(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk()
    desk.log(3, indices=(0, 2), count=3)
    assert desk.fd is not None
    held = read(desk.fd).held
    assert not follow(3, NO_VERSION, [one.entry.said for one in held]).records, "the third is somebody's who lives"
    desk.log(3, indices=(1,), count=3)
    held = sorted(read(desk.fd).held, key=lambda one: one.entry.said.index)
    assert len(follow(3, NO_VERSION, [one.entry.said for one in held]).records) == 1
    whole = result(3).buffer
    spans = [(one.entry.start, one.entry.start + one.entry.part_bytes) for one in held]
    assert spans == [part_of(whole.numel(), index, 3) for index in range(3)]
    found = b"".join(os.pread(desk.fd, one.entry.part_bytes, one.part_at) for one in held)
    assert found == bytes(whole.tolist())
    assert [one.entry.tail_bytes > 0 for one in held] == [True, False, False]


def test_a_log_that_is_half_full_wishes_a_state_until_one_is_on_its_way(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(limit_bytes=6 * SLOT_BYTES)
    for step in range(2):
        desk.log(step)
    assert desk.wishes == []
    for step in (2, 3):
        desk.log(step)
    assert desk.wishes == [Urgency.DUE, Urgency.DUE] and len(desk.told(BaseDue)) == 2
    desk.saves.set()
    desk.log(4)
    assert len(desk.wishes) == 2
    desk.saves.clear()
    desk.book.based(5)
    desk.log(5)
    assert len(desk.wishes) == 2, "there is room again"
    bases = [fact.base for fact in desk.facts if isinstance(fact, LogMeasured)]
    assert bases[0] == -1 and bases[-1] == 5


def test_what_the_dead_have_logged_fills_the_log_until_a_newer_state_is_whole(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(limit_bytes=6 * SLOT_BYTES)
    desk.book.based(3)
    desk.book.inherit(2 * SLOT_BYTES)
    desk.log(5)
    assert desk.wishes == [Urgency.DUE], "a third of it is the dead's, and what was logged since makes a half"
    desk.book.based(6)
    desk.log(6)
    assert len(desk.wishes) == 1


def test_a_full_log_waits_for_a_save_that_is_on_its_way(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(limit_bytes=3 * SLOT_BYTES)
    for step in range(3):
        desk.log(step)
    desk.saves.set()
    writer = threading.Thread(target=desk.log, args=(3,))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    desk.saves.clear()
    desk.book.based(2)
    writer.join(60)
    assert not desk.told(LogOutgrown) and 3 in desk.steps() and 2 in desk.steps()
    (waited,) = desk.told(LogWaited)
    assert isinstance(waited, LogWaited) and waited.step == 3


def test_a_full_log_waits_no_longer_once_the_save_is_void(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(limit_bytes=3 * SLOT_BYTES)
    for step in range(3):
        desk.log(step)
    desk.saves.set()
    writer = threading.Thread(target=desk.log, args=(3,))
    writer.start()
    writer.join(0.2)
    desk.saves.clear()
    desk.book.wake()
    writer.join(60)
    assert desk.steps() == [0, 1, 2, 3] and len(desk.told(LogOutgrown)) == 1


def test_a_full_log_waits_for_no_save_that_waits_for_the_others(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who are in a boundary, and wait for this one."""
    monkeypatch.setattr(logbook, "_ROOM_S", 0.5)
    desk = open_desk(limit_bytes=3 * SLOT_BYTES)
    for step in range(3):
        desk.log(step)
    desk.saves.set()
    for step in (3, 4, 5):
        desk.log(step)
    (outgrown,), (waited,) = desk.told(LogOutgrown), desk.told(LogWaited)
    assert isinstance(outgrown, LogOutgrown) and isinstance(waited, LogWaited)
    assert outgrown.step == waited.step == 3 and desk.steps() == [0, 1, 2, 3, 4, 5], "once, and not in each step anew"


@pytest.mark.parametrize("room, says", [(7, True), (8, False)])
def test_a_limit_that_is_too_small_for_the_gradients_is_told_once(
    open_desk: Callable[..., Desk], capsys: pytest.CaptureFixture[str], room: int, says: bool
) -> None:
    large = result(0).buffer.numel()
    desk = open_desk(limit_bytes=room * large)
    for step in range(3):
        desk.log(step)
    told = capsys.readouterr().err
    assert told.count("--log-mb 1 or more") == says and told.count("have room for 7 steps") == says


def test_a_full_log_goes_beyond_its_limit_rather_than_leave_a_step_out(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(limit_bytes=2 * SLOT_BYTES)
    for step in range(5):
        desk.log(step)
    assert desk.steps() == [0, 1, 2, 3, 4]
    (told,) = desk.told(LogOutgrown)
    assert told == LogOutgrown(step=2, used_bytes=3 * SLOT_BYTES, limit_bytes=2 * SLOT_BYTES)
    desk.book.based(5)
    for step in range(5, 8):
        desk.log(step)
    assert [fact.step for fact in desk.facts if isinstance(fact, LogOutgrown)] == [2, 7], "told again once it was within"


def test_memory_is_made_ahead(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk()
    desk.log(0)
    desk.book.close()  # the thread has done all that it was asked for
    assert desk.fd is not None
    assert os.fstat(desk.fd).st_blocks * 512 == PAGE_BYTES + 3 * SLOT_BYTES
