"""Groups whose ranks are threads of this process: operations, abort, and what must be left behind: nothing."""

import os
import socket
import threading
from collections.abc import Callable

import pytest
import torch
from board import Board
from circle import formed, together

from regrow.collectives.group import GlooGroup, Group, Solo, form
from regrow.collectives.proof import prove
from regrow.core.errors import InfraError, PeerError
from regrow.wire.handshake import Key


def census() -> tuple[int, int]:
    """Open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def grown(before: tuple[int, int]) -> bool:
    return any(now > then for now, then in zip(census(), before, strict=True))


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
    assert together(size, lambda rank: groups[rank].gather_any(data[rank])) == [data] * size
    for group in groups:
        group.close()


def test_exchange_moves_what_each_has_for_each() -> None:
    groups = formed(3)

    def play(rank: int) -> list[list[int]]:
        # Rank r has r + 1 bytes for each higher rank and nothing for lower ones.
        outgoing = [
            torch.full((rank + 1 if other > rank else 0,), 10 * rank + other, dtype=torch.uint8) for other in range(3)
        ]
        incoming = [torch.zeros(other + 1 if other < rank else 0, dtype=torch.uint8) for other in range(3)]
        groups[rank].exchange(incoming, outgoing)
        return [tensor.tolist() for tensor in incoming]

    assert together(3, play) == [[[], [], []], [[1], [], []], [[2], [12, 12], []]]
    for group in groups:
        group.close()


def test_a_group_of_one_needs_nobody() -> None:
    group = form(Board(), 0, 1, "127.0.0.1", 1)
    assert isinstance(group, Solo) and group.gather(b"a") == [b"a"] and group.gather_any(b"") == [b""]


def test_an_abandoned_formation_ends() -> None:
    board = Board()

    def play(part: int) -> PeerError | None:
        return board.abandon() if part else failure(lambda: form(board, 0, 2, "127.0.0.1", 60))

    assert "abandoned" in str(together(2, play)[0])


def test_an_address_of_another_machine_is_the_operators_to_fix() -> None:
    with pytest.raises(InfraError, match=r"cannot listen at 192\.0\.2\.1"):
        form(Board(), 0, 2, "192.0.2.1", 1)


def test_closing_after_the_last_operation_lets_peers_finish_it() -> None:
    for _ in range(50):
        groups = formed(2)

        def play(rank: int, groups: list[Group] = groups) -> list[bytes]:
            rows = groups[rank].gather(bytes([rank]) * 40)
            groups[rank].close()
            return rows

        assert together(2, play) == [[b"\0" * 40, b"\1" * 40]] * 2
        assert "closed" in str(failure(lambda: groups[0].gather(b"a")))  # noqa: B023


def test_abort_wakes_a_blocked_operation_from_another_thread() -> None:
    """200 times, at whatever moment it hits; only if gloo itself failed was the operation under way."""
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
        aborts = [threading.Thread(target=groups[0].abort) for _ in range(2)]
        for each in aborts:
            each.start()
        for each in (*aborts, thread):
            each.join(20)
            assert not each.is_alive(), "the operation did not wake"
        under_way += "the group is broken" not in str(errors[0])
        # The peer never took part; its next operation finds the group broken.
        failure(lambda: groups[1].gather(b"row"))  # noqa: B023
        assert "aborted" in str(failure(lambda: groups[0].gather(b"row")))  # noqa: B023
        for group in groups:
            group.close()
            group.abort()
    assert under_way >= 20, f"only {under_way} of 200 aborts hit an operation under way"


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


def test_connections_are_not_inherited_by_programs_the_user_starts() -> None:
    groups = formed(2)
    for group in groups:
        assert isinstance(group, GlooGroup)
        assert [connection.get_inheritable() for connection in group._sockets] == [False]
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


def test_failed_formations_leave_no_files_and_no_threads() -> None:
    class Deaf(Board):
        def get(self, key: str) -> bytes:
            raise PeerError("abandoned")

    errors = [failure(lambda: form(Deaf(), 0, 2, "127.0.0.1", 1))]
    before = census()
    for _ in range(60):
        errors.append(failure(lambda: form(Deaf(), 0, 2, "127.0.0.1", 1)))
    assert not grown(before)


def proven(groups: list[Group], rank: int, token: str, about: str = "1.1") -> str:
    """What the proof says: nothing, or why not. Who fails breaks all, as the next roster would: gloo may not wake some."""
    try:
        prove(groups[rank], Key(token), about)
    except PeerError as error:
        for group in groups:
            group.abort()
        return str(error)
    return ""


@pytest.mark.parametrize("size", [2, 3])
def test_members_of_one_job_prove_themselves_and_go_on(size: int) -> None:
    groups = formed(size)
    assert together(size, lambda rank: proven(groups, rank, "ab" * 32)) == [""] * size
    rows = [bytes([rank]) for rank in range(size)]
    assert together(size, lambda rank: groups[rank].gather(rows[rank])) == [rows] * size
    for group in groups:
        group.close()


def test_a_stranger_in_a_group_breaks_it() -> None:
    groups = formed(3)
    words = together(3, lambda rank: proven(groups, rank, "ab" * 32 if rank != 1 else "cd" * 32))
    # Whoever finds it first breaks the group, and some may see no more than that.
    assert all(words) and any("did not prove that it knows the job's token" in word for word in words), words
    for group in groups:
        failure(lambda group=group: group.gather(b"x"))
        group.close()


def test_a_member_of_another_roster_is_a_stranger() -> None:
    groups = formed(2)
    assert all(together(2, lambda rank: proven(groups, rank, "ab" * 32, about=f"1.{rank}")))
    for group in groups:
        group.close()


def test_a_members_own_proof_cannot_be_reflected_to_it() -> None:
    class Mirror(Solo):
        size = 2

        def gather(self, row: bytes) -> list[bytes]:
            return [row, row]

    assert "rank 1 of 2 did not prove" in proven([Mirror()], 0, "ab" * 32)
