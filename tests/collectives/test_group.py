"""Groups whose ranks are threads of this process: operations, abort, and what must be left behind: nothing."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest
import torch
from circle import formed, together

from regrow.collectives.group import Group, Solo, TcpGroup
from regrow.collectives.line import Line
from regrow.core.errors import PeerError


def census() -> tuple[int, int]:
    """Open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def grown(before: tuple[int, int]) -> bool:
    """A thread that was joined may take a moment to be gone: it is looked for until it is, or for ten seconds."""
    return not until(lambda: all(now <= then for now, then in zip(census(), before, strict=True)), 10.0)


def failure(operation: Callable[[], object]) -> PeerError:
    with pytest.raises(PeerError) as caught:
        operation()
    return caught.value


@pytest.mark.parametrize("size", [2, 3, 5])
def test_gather_in_order_of_rank(size: int) -> None:
    groups = formed(size)
    rows = [bytes([rank]) * 40 for rank in range(size)]
    assert together(size, lambda rank: [groups[rank].gather(rows[rank]) for _ in range(20)]) == [[rows] * 20] * size
    data = [b"x" * (rank * 1000) for rank in range(size)]
    assert together(size, lambda rank: groups[rank].gather(data[rank])) == [data] * size
    large = [bytes([rank]) * (3 << 20) for rank in range(size)]
    assert together(size, lambda rank: groups[rank].gather(large[rank])) == [large] * size
    for group in groups:
        group.close()


def test_exchange_moves_what_each_has_for_each() -> None:
    groups = formed(3)

    def play(rank: int) -> list[list[int]]:
        # Rank r has r + 1 bytes for each higher rank, in two pieces, and nothing for lower ones.
        outgoing = [
            [torch.full((count,), 10 * rank + other, dtype=torch.uint8) for count in (rank, 1)] if other > rank else []
            for other in range(3)
        ]
        incoming = [[torch.zeros(other + 1 if other < rank else 0, dtype=torch.uint8)] for other in range(3)]
        groups[rank].exchange(incoming, outgoing)
        return [parcel[0].tolist() for parcel in incoming]

    assert together(3, play) == [[[], [], []], [[1], [], []], [[2], [12, 12], []]]
    for group in groups:
        group.close()


def test_many_pieces_and_more_than_any_buffer_arrive_whole() -> None:
    groups = formed(2)
    sent = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in [0, 1, 5_000_000, *range(200)]]

    def play(rank: int) -> bool:
        incoming = [torch.zeros_like(piece) for piece in sent]
        groups[rank].exchange([incoming, incoming], [sent, sent])
        return all(map(torch.equal, incoming, sent))

    assert together(2, play) == [True, True]
    for group in groups:
        group.close()


def test_members_in_different_operations_find_out() -> None:
    groups = formed(2)
    piece = [torch.zeros(3, dtype=torch.uint8)]

    def play(rank: int) -> str:
        try:
            groups[rank].exchange([piece] * 2, [piece * (rank + 1)] * 2)  # rank 1 says twice as much
            return ""
        except PeerError as error:
            return str(error)

    assert "sends 6 bytes where 3 belong: it is in another operation" in together(2, play)[0]
    failure(lambda: groups[1].gather(b"row"))
    for group in groups:
        group.close()


@pytest.mark.parametrize("count", [10, 13])
def test_bytes_that_came_early_are_the_first_of_the_line(count: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there, here = socket.create_connection(listener.getsockname()), listener.accept()[0]
    groups = [TcpGroup(0, {1: Line(there)})]
    thread = threading.Thread(target=groups[0].gather, args=(b"a row",))
    thread.start()
    early = here.recv(count, socket.MSG_WAITALL)  # as a reader of frames would: the size, and a part of the row, or all
    groups.append(TcpGroup(1, {0: Line(here, early)}))
    assert groups[1].gather(b"mine") == [b"a row", b"mine"]
    thread.join(20)
    for group in groups:
        group.close()


def test_a_group_of_one_needs_nobody() -> None:
    assert Solo().gather(b"a") == [b"a"]


def test_closing_after_the_last_operation_lets_peers_finish_it() -> None:
    for _ in range(50):
        groups = formed(2)

        def play(rank: int, groups: list[TcpGroup] = groups) -> list[bytes]:
            rows = groups[rank].gather(bytes([rank]) * 40)
            groups[rank].close()
            return rows

        assert together(2, play) == [[b"\0" * 40, b"\1" * 40]] * 2
        assert "closed" in str(failure(lambda: groups[0].gather(b"a")))  # noqa: B023


@pytest.mark.parametrize("way", ["abort", "close"])
def test_abort_wakes_a_blocked_operation_from_another_thread(way: str) -> None:
    """200 times, at whatever moment it hits; only if the line itself failed was the operation under way."""
    under_way = 0
    for _ in range(200):
        groups = formed(2)
        entering = threading.Event()
        errors: list[PeerError] = []

        def block(group: Group = groups[0], entering: threading.Event = entering, errors: list[PeerError] = errors) -> None:
            entering.set()
            errors.append(failure(lambda: group.gather(b"row")))

        thread = threading.Thread(target=block)
        thread.start()
        entering.wait()
        aborts = [threading.Thread(target=getattr(groups[0], way)) for _ in range(2)]
        for each in aborts:
            each.start()
        for each in (*aborts, thread):
            each.join(20)
            assert not each.is_alive(), "the operation did not wake"
        under_way += "the group is broken" not in str(errors[0])
        # The peer never took part; its next operations find the group broken.
        failure(lambda: [groups[1].gather(b"row") for _ in range(2)])  # noqa: B023
        failure(lambda: groups[0].gather(b"row"))  # noqa: B023
        for group in groups:
            group.close()
            group.abort()
    assert under_way >= 20, f"only {under_way} of 200 aborts hit an operation under way"


def test_an_interrupted_operation_breaks_the_group() -> None:
    """Else the next one would take up where this one was left, and pair with another of the peer's."""
    groups = formed(2)

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Interrupted):
            groups[0].gather(b"row")
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert "interrupted" in str(failure(lambda: groups[0].gather(b"row")))
    failure(lambda: [groups[1].gather(b"row") for _ in range(2)])
    for group in groups:
        group.close()


def test_abort_leaves_the_users_sockets_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        groups = formed(2)
        others = formed(2)  # another roster's group beside it
        groups[0].abort()
        for group in groups:
            failure(lambda: group.gather(b"row"))  # noqa: B023
            group.close()
        with client, server, socket.create_connection(listener.getsockname()):
            client.sendall(b"there")
            assert server.recv(5) == b"there"
            server.sendall(b"back")
            assert client.recv(4) == b"back"
        assert together(2, lambda rank: others[rank].gather(b"r")) == [[b"r", b"r"]] * 2
        for group in others:
            group.close()


@pytest.mark.parametrize("ending", ["abort", "close"])
def test_many_groups_leave_no_files_and_no_threads(ending: str) -> None:
    errors = []  # somebody may keep them, and with them their tracebacks

    def cycle() -> None:
        groups = formed(2)
        together(2, lambda rank: groups[rank].gather(b"row"))
        if ending == "abort":
            groups[0].abort()
            errors.append(failure(lambda: groups[1].gather(b"row")))
        for group in groups:
            group.close()

    cycle()
    before = census()
    for _ in range(60):
        cycle()
    assert not grown(before)
