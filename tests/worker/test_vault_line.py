"""A worker's line to its vault, against a real socket."""

import os
import signal
import subprocess
import sys
import threading

import msgspec
import pytest
from vault_door import DEADLINE_S, Door, heard

from regrow.core.errors import InfraError, PeerError
from regrow.shell.vaulting import Came, Foreseen, Kept, Void
from regrow.worker.vault_line import VaultLine

FORKS = """
import os, signal, sys
from regrow.shell.vaulting import Came
from regrow.worker.vault_line import VaultLine

line = VaultLine(sys.argv[1], lambda: [(Came(member="r0.0"), None)], lambda message, fd: None, lambda: None)
line.open()
assert line.wait(30) == 1
child = os.fork()
if child:
    print(child, flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def lost() -> threading.Event:
    return threading.Event()


@pytest.fixture
def door():
    made = Door()
    yield made
    made.close()


@pytest.fixture
def line(door: Door, lost: threading.Event):
    made = VaultLine(door.address, lambda: [(Came(member="r0.0"), None)], lambda message, fd: None, lost.set)
    made.open()
    yield made
    made.close()


def test_a_line_counts_once_the_vault_has_said_something(door: Door, line: VaultLine) -> None:
    end = door.accept()
    assert heard(end) == Came(member="r0.0")
    assert line.number == 0
    with pytest.raises(PeerError):
        line.say(Foreseen(arena_bytes=1), 1)
    end.send(msgspec.json.encode(Kept(step=-1)))
    assert line.wait(DEADLINE_S) == 1
    line.say(Foreseen(arena_bytes=1), 1)
    assert heard(end) == Foreseen(arena_bytes=1)
    end.close()


def test_a_line_without_an_answer_has_no_number(door: Door, line: VaultLine) -> None:
    """Whoever took the number while there was none must not speak on the line that comes."""
    end = door.accept()
    assert heard(end) == Came(member="r0.0")
    with pytest.raises(PeerError):
        line.say(Foreseen(arena_bytes=1), 0)
    end.send(msgspec.json.encode(Kept(step=-1)))
    assert line.wait(DEADLINE_S) == 1
    line.say(Foreseen(arena_bytes=2), 1)
    assert heard(end) == Foreseen(arena_bytes=2)
    end.close()


def test_what_a_worker_cannot_bear_to_hear_costs_the_line_and_not_the_thread(
    door: Door, capfd: pytest.CaptureFixture[str]
) -> None:
    def hear(message: object, fd: int | None) -> None:
        if isinstance(message, Void):
            raise InfraError("there is no memory")

    line = VaultLine(door.address, lambda: [(Came(member="r0.0"), None)], hear, lambda: None)
    line.open()
    try:
        for number in (1, 2):
            end = door.accept()
            end.send(msgspec.json.encode(Kept(step=-1)))
            while line.wait(DEADLINE_S) != number:
                pass
            end.send(msgspec.json.encode(Void(step=1, why="whatever")))
            assert heard(end) == Came(member="r0.0")
            with pytest.raises(PeerError):
                heard(end)
            end.close()
    finally:
        line.close()
    assert capfd.readouterr().err.count("regrow: there is no memory; the line to the vault is begun anew") == 2


def test_a_lost_line_is_followed_by_another_with_a_number_of_its_own(
    door: Door, line: VaultLine, lost: threading.Event
) -> None:
    first = door.accept()
    first.send(msgspec.json.encode(Kept(step=-1)))
    assert line.wait(DEADLINE_S) == 1
    first.close()
    assert lost.wait(DEADLINE_S)
    second = door.accept()
    second.send(msgspec.json.encode(Kept(step=-1)))
    while line.wait(DEADLINE_S) == 1:
        pass
    with pytest.raises(PeerError):
        line.say(Foreseen(arena_bytes=1), 1)
    line.say(Foreseen(arena_bytes=2), 2)
    assert heard(second) == Came(member="r0.0") and heard(second) == Foreseen(arena_bytes=2)
    second.close()


def test_a_forked_child_keeps_no_line_open(door: Door) -> None:
    """Else the vault would wait for a worker that is dead."""
    process = subprocess.Popen([sys.executable, "-c", FORKS, door.address], stdout=subprocess.PIPE, text=True)
    try:
        end = door.accept()
        assert heard(end) == Came(member="r0.0")
        end.send(msgspec.json.encode(Kept(step=-1)))
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        try:
            with pytest.raises(PeerError):
                heard(end)
        finally:
            os.kill(child, signal.SIGKILL)
            end.close()
    finally:
        process.kill()
        process.wait()
