"""Groups whose ranks are real processes: formed, reduced in, killed and aborted."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest
import torch
from cases import assert_is_mean, dumb_mean, random_case
from ranks import Ranks

from regrow.collectives.group import Group, Solo, TcpGroup
from regrow.collectives.reduce import Reduction, Terms
from regrow.core.errors import PeerError
from regrow.core.lanes import root
from regrow.state.gradient import Pool, digest

pytestmark = pytest.mark.process

Form = Callable[[str, int, int], TcpGroup]
HOST = "127.0.0.1"


def _reduces(rank: int, size: int, form: Form, parent: Connection, seeds: range) -> None:
    group = form("one", rank, size)
    digests = []
    for seed in seeds:
        case = random_case(seed, size)
        reduction = Reduction(case.terms, case.held(rank), None, Pool(case.layout))
        digests.append(reduction.run(group, small_bytes=1 << 12))
        assert digests[-1] == digest(reduction.result)
        assert_is_mean(reduction.result, dumb_mean(case))
    parent.send(digests)
    group.close()


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_rank_has_the_bits_of_the_local_tree(size: int) -> None:
    seeds = range(1000 * size, 1000 * size + 40)
    expected = []
    for seed in seeds:
        case = random_case(seed, size)
        top = root(len(case.lanes))
        terms = Terms(case.layout, len(case.lanes), 0, ((top,),))
        expected.append(Reduction(terms, {top: case.subtree(top)}, None, Pool(case.layout)).run(Solo()))
    with Ranks(size, _reduces, seeds) as ranks:
        assert [ranks.hear(rank) for rank in range(size)] == [expected] * size
        assert [ranks.exit_code(rank) for rank in range(size)] == [0] * size


def _obedient(rank: int, size: int, form: Form, parent: Connection) -> None:
    """Does as told: forms a group of that name, gathers (in a thread, so it can still hear), aborts, closes."""
    group: Group = Solo()
    gathering = threading.Thread()

    def gather() -> None:
        try:
            parent.send(group.gather(bytes([rank]) * 40))
        except PeerError as error:
            parent.send(("broken", "the group is broken" not in str(error)))

    while (word := parent.recv()) != "exit":
        match word:
            case "gather":
                gathering = threading.Thread(target=gather)
                gathering.start()
            case "abort":
                group.abort()
            case "close":
                gathering.join()
                group.close()
                parent.send("closed")
            case name:
                group = form(name, rank, size)
                parent.send("formed")


def _rows(size: int) -> list[bytes]:
    return [bytes([rank]) * 40 for rank in range(size)]


def test_an_abort_in_one_process_wakes_all_others() -> None:
    with Ranks(3, _obedient) as ranks:
        for round_ in range(10):
            for rank in range(3):
                ranks.tell(rank, f"roster {round_}")
            assert [ranks.hear(rank) for rank in range(3)] == ["formed"] * 3
            for rank in range(3):
                ranks.tell(rank, "gather")
            assert [ranks.hear(rank) for rank in range(3)] == [_rows(3)] * 3
            # Rank 2 stays out, so that the others block, and aborts.
            for rank in range(2):
                ranks.tell(rank, "gather")
            ranks.tell(2, "abort")
            assert [ranks.hear(rank) for rank in range(2)] == [("broken", True)] * 2
            for rank in range(3):
                ranks.tell(rank, "close")
                assert ranks.hear(rank) == "closed"


def test_survivors_of_a_kill_abort_and_form_anew_without_the_dead() -> None:
    with Ranks(3, _survivor) as ranks:
        assert [ranks.hear(rank) for rank in range(3)] == ["formed"] * 3
        os.kill(ranks.processes[1].pid or 0, signal.SIGKILL)
        assert ranks.exit_code(1) == -signal.SIGKILL
        for rank in (0, 2):
            ranks.tell(rank, "a roster without you")
        assert [ranks.hear(rank) for rank in (0, 2)] == [("broken", "the user's sockets work", _rows(2))] * 2
        assert [ranks.exit_code(rank) for rank in (0, 2)] == [0, 0]


def _survivor(rank: int, size: int, form: Form, parent: Connection) -> None:
    """Large exchanges without end, so that the kill hits one under way; the abort comes from the thread that listens."""
    listener = socket.create_server((HOST, 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    group = form("first", rank, size)
    broken = threading.Event()

    def exchange_for_ever() -> None:
        incoming = [[torch.empty(1 << 20, dtype=torch.uint8)] for _ in range(size)]
        outgoing = [[torch.zeros(1 << 20, dtype=torch.uint8)]] * size
        try:
            while True:
                group.exchange(incoming, outgoing)
        except PeerError:
            broken.set()

    group.gather(b"all are here")
    threading.Thread(target=exchange_for_ever).start()
    parent.send("formed")
    parent.recv()
    group.abort()
    assert broken.wait(20)
    group.close()
    client.sendall(b"the user's sockets work")
    users = server.recv(100).decode()
    second = form("second", (0, 2).index(rank), 2)
    parent.send(("broken", users, second.gather(bytes([second.rank]) * 40)))
    second.close()


def test_a_stopped_peer_is_waited_for_and_abort_is_the_way_out() -> None:
    with Ranks(2, _obedient) as ranks:
        for rank in range(2):
            ranks.tell(rank, "roster")
        assert [ranks.hear(rank) for rank in range(2)] == ["formed"] * 2
        stopped = ranks.processes[1].pid or 0
        os.kill(stopped, signal.SIGSTOP)
        ranks.tell(0, "gather")
        ranks.tell(0, "abort")
        assert ranks.hear(0)[0] == "broken"
        os.kill(stopped, signal.SIGCONT)
        # What was said to the stopped one before the abort may still reach it; nothing that it asks for afterwards does.
        words = []
        for _ in range(2):
            ranks.tell(1, "gather")
            words.append(ranks.hear(1))
        assert words[0] in (_rows(2), ("broken", True)) and words[1][0] == "broken"
