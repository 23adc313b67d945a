"""A worker's log is copied to a neighbour of its own process: what it was told of lies there, and it is waited for no longer
than was said."""

import os
import signal
import socket
import threading
from collections.abc import Iterator

import neighbours
import pytest
import torch

from regrow.core.listener import Record
from regrow.core.log import Part
from regrow.core.neighbour_messages import LogBegun, LogCounted, LogEntry
from regrow.core.roster import Endpoint, Version
from regrow.state.log import Entry, is_sound, read
from regrow.state.log_filling import copied
from regrow.state.log_writer import LogWriter
from regrow.state.memory import bytes_of
from regrow.state.neighbour_store import Address, fetched_logs, taken_over
from regrow.wire.blocking import Blocking
from regrow.worker.copyist import Copyist

PATIENCE_S = 5.0
BYTES = 3 << 20


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[neighbours.Running]:
    monkeypatch.setenv("REGROW_NEIGHBOUR_TOKEN", neighbours.TOKEN_GIVEN)
    with neighbours.serving(100) as running:
        yield running


def entry(step: int) -> Entry:
    record = Record(step=step, attempt=Version(1, 1), digest=step, holdings=(), last=9)
    return Entry(said=Part(record=record, stop=False, index=0, count=1), total_bytes=BYTES, start=0)


class Desk:
    """A member's own log, and its copyist."""

    def __init__(self, running: neighbours.Running, patience_s: float = PATIENCE_S) -> None:
        self.address = Address(endpoint=running.endpoint, run="job")
        claim = taken_over(self.address, resumes=True)
        self.writer = LogWriter.new("r0.0", "root")
        self.copyist = Copyist(self.address, neighbours.TOKEN_GIVEN, claim, patience_s, "r0.0", "root")
        self.copyist.open()

    def write(self, step: int) -> tuple[int | None, str]:
        data = torch.full((BYTES,), step % 251, dtype=torch.uint8)
        self.begin(step, data)
        self.writer.free(step)
        return self.copyist.wait()

    def begin(self, step: int, data: torch.Tensor) -> None:
        self.copyist.begin(BYTES + 4096, BYTES)
        for start, stop in ((1 << 20, BYTES), (0, 1 << 20)):
            self.copyist.put(start, data[start:stop])
        self.copyist.end(self.written(entry(step), data), b"the tail")

    def written(self, entry: Entry, data: torch.Tensor) -> Entry:
        """In the same pieces, as they come."""
        filling = self.writer.begin(BYTES + 4096, BYTES)
        for start, stop in ((1 << 20, BYTES), (0, 1 << 20)):
            filling.put(start, stop - start, copied(bytes_of(data[start:stop])))
        return self.writer.keep(filling, entry, b"the tail")

    def there(self) -> list[int]:
        """Steps whose parts are whole at the neighbour."""
        steps: list[int] = []
        for fd in fetched_logs(self.address, lambda _: None).values():
            steps += [held.entry.said.record.step for held in read(fd).held if is_sound(fd, held)]
            os.close(fd)
        return sorted(steps)

    def close(self) -> None:
        self.copyist.close()
        self.writer.close()


@pytest.fixture
def desk(running: neighbours.Running) -> Iterator[Desk]:
    made = Desk(running)
    yield made
    made.close()


def test_once_it_has_waited_all_lies_there(desk: Desk) -> None:
    for step in range(3):
        assert desk.write(step) == (step + 1, "")
        assert desk.there() == list(range(step + 1))


def test_of_several_parts_none_is_left_out(desk: Desk) -> None:
    for step in (0, 1):
        desk.begin(step, torch.full((BYTES,), step, dtype=torch.uint8))
    assert desk.copyist.wait() == (2, "") and desk.there() == [0, 1]


def test_a_part_without_its_entry_is_not_there(desk: Desk) -> None:
    desk.write(0)
    desk.copyist.begin(BYTES + 4096, BYTES)
    desk.copyist.put(0, torch.zeros(BYTES, dtype=torch.uint8))
    desk.copyist.close()
    assert desk.there() == [0]


def test_one_that_stands_still_is_waited_for_once(running: neighbours.Running) -> None:
    """Waited for each time, two hundred parts would not be through before the test's own time is."""
    desk = Desk(running, patience_s=2.0)
    try:
        assert desk.write(0) == (1, "")
        neighbours.stand_still(running.process.pid)
        through, why = desk.write(1)
        assert through is None and "does not answer for 2 s" in why
        step = 200
        assert {desk.write(each)[0] for each in range(2, step)} == {None}
        os.kill(running.process.pid, signal.SIGCONT)
        while desk.write(step)[0] is None:
            step += 1
        counted, _ = desk.write(step + 1)
        assert counted in (1, 2), "what was left out is a gap; the first may have been on its way"
        assert desk.there() == [*range(counted), step, step + 1]
    finally:
        desk.close()


def test_one_that_is_gone_is_done_without(running: neighbours.Running, desk: Desk) -> None:
    assert desk.write(0) == (1, "")
    running.kill()
    assert desk.write(1)[0] is None and desk.write(2)[0] is None


def test_whoever_was_replaced_is_told_and_does_not_come_back(running: neighbours.Running, desk: Desk) -> None:
    assert desk.write(0) == (1, "")
    taken_over(desk.address, resumes=True)
    step = 1
    while "another `regrow run` has taken over" not in desk.write(step)[1]:
        step += 1
    assert desk.write(step + 1)[0] is None and desk.there() == [0]


class Late(Blocking):
    """What its peer answers comes just as it is given up."""

    def __init__(self, sock: socket.socket, peer: Blocking) -> None:
        super().__init__(sock, b"", "the neighbour")
        self._peer = peer

    def shut(self) -> None:
        self._peer.send(LogCounted(through=1))
        super().shut()


def serve(copyist: Copyist, line: Blocking) -> threading.Thread:
    """As its own thread does with a new line."""
    copyist._line = line
    thread = threading.Thread(target=copyist._serve, args=(line,), daemon=True)
    thread.start()
    return thread


def test_an_answer_that_comes_too_late_does_not_keep_the_next_record_from_being_sent() -> None:
    copyist = Copyist(Address(endpoint=Endpoint("127.0.0.1", 1), run="job"), "", 1, 0.0, "r0.0", "root")
    first, second = socket.socketpair(), socket.socketpair()
    peer = Blocking(first[1], b"", "the copyist")
    serving = serve(copyist, Late(first[0], peer))
    copyist.begin(BYTES + 4096, BYTES)
    copyist.end(entry(0), b"the tail")
    assert isinstance(peer.receive(), LogBegun) and isinstance(peer.receive(), LogEntry)
    peer.receive_raw_into(memoryview(bytearray(len(b"the tail"))))
    assert copyist.wait()[0] is None
    serving.join()
    serving = serve(copyist, Blocking(second[0], b"", "the neighbour"))
    copyist.begin(BYTES + 4096, BYTES)
    assert isinstance(Blocking(second[1], b"", "the copyist").receive(PATIENCE_S), LogBegun)
    copyist._give_up("the test is over")
    serving.join()
    for sock in (*first, *second):
        sock.close()
