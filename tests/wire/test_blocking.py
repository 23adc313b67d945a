"""A connection for a thread of its own: messages and bulk in one stream, never mixed up, and awake when it is shut."""

import socket
import threading
from collections.abc import Iterator

import pytest

from regrow.core.errors import PeerError
from regrow.core.messages import Need, Piece
from regrow.wire.blocking import Blocking
from regrow.wire.codec import encode
from regrow.wire.framing import frame

DEADLINE_S = 30.0


@pytest.fixture
def ends() -> Iterator[tuple[Blocking, Blocking]]:
    one, other = socket.socketpair()
    left, right = Blocking(one, b"", "left"), Blocking(other, b"", "right")
    yield left, right
    left.close()
    right.close()


def heard(line: Blocking) -> object:
    while (message := line.next_message()) is None:
        assert line.wait_readable(DEADLINE_S)
    return message


def filled(line: Blocking, views: list[memoryview]) -> None:
    while views:
        count = line.read_some(views)
        if not count:
            assert line.wait_readable(DEADLINE_S)
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


def test_bulk_lands_in_its_views_between_messages(ends: tuple[Blocking, Blocking]) -> None:
    left, right = ends
    bulk = bytes(range(256)) * 4000

    def send() -> None:
        left.send(Piece(number=5))
        left.send_raw(memoryview(bulk))
        left.send(Piece(number=6))

    sender = threading.Thread(target=send)
    sender.start()
    assert heard(right) == Piece(number=5)
    parts = [bytearray(size) for size in (1, 2, 100, 5000, len(bulk) - 5103)]
    filled(right, [memoryview(part) for part in parts])
    sender.join()
    assert b"".join(parts) == bulk
    assert heard(right) == Piece(number=6)
    assert right.next_message() is None


def test_what_was_read_early_comes_first() -> None:
    one, other = socket.socketpair()
    whole = frame(encode(Need(pieces=(1, 2)))) + b"bulk"
    line = Blocking(one, whole[:-2], "peer")
    assert line.next_message() == Need(pieces=(1, 2))
    other.send(whole[-2:])
    into = bytearray(4)
    filled(line, [memoryview(into)])
    assert into == b"bulk"
    line.close()
    other.close()


def test_whoever_waits_wakes_when_it_is_shut(ends: tuple[Blocking, Blocking]) -> None:
    left, right = ends
    woken = threading.Event()

    def wait() -> None:
        left.wait_readable(None)
        woken.set()

    threading.Thread(target=wait).start()
    left.shut()
    assert woken.wait(DEADLINE_S)
    with pytest.raises(PeerError, match="closed"):
        left.next_message()
    with pytest.raises(PeerError, match="closed"):
        right.next_message()


def test_a_peer_that_reads_nothing_never_blocks_a_message(ends: tuple[Blocking, Blocking]) -> None:
    left, _ = ends
    with pytest.raises(PeerError, match="takes nothing any more"):
        for _ in range(100_000):
            left.send_now(Need(pieces=tuple(range(100))))
