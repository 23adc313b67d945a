"""Messages over a socket pair, with descriptors, of any size, and to an end that is gone."""

import os
import socket
import threading

import pytest

from regrow.core.errors import PeerError
from regrow.wire.handover import Handover


def pair(send_timeout_s: float | None = None) -> tuple[Handover, Handover]:
    ours, theirs = socket.socketpair()
    return Handover(ours, send_timeout_s), Handover(theirs)


def test_messages_come_whole_and_in_order_with_their_descriptors() -> None:
    ours, theirs = pair()
    read, write = os.pipe()
    sizes = [0, 1, 3_000_000]

    def send() -> None:
        for size in sizes:
            ours.send(b"x" * size, write)

    sender = threading.Thread(target=send)
    sender.start()
    for size in sizes:
        assert theirs.receive(10.0) == b"x" * size
        fd = theirs.take_fd()
        os.write(fd, b"y")
        os.close(fd)
    sender.join()
    assert os.read(read, 10) == b"yyy"
    assert theirs.receive(0.0) is None
    for end in (ours, theirs):
        end.close()


def test_what_was_said_before_the_end_was_closed_is_heard_and_then_the_end() -> None:
    ours, theirs = pair()
    theirs.send(b"last")
    theirs.close()
    assert ours.receive(10.0) == b"last"
    with pytest.raises(PeerError):
        ours.receive(10.0)
    with pytest.raises(PeerError):
        ours.send(b"anybody?")


def test_a_peer_that_reads_nothing_counts_as_gone() -> None:
    ours, _theirs = pair(send_timeout_s=0.05)
    with pytest.raises(PeerError):
        ours.send(bytes(10_000_000))
