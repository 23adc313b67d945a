"""Logs under a real vault and a real custodian: held, shown, let go, and found together with a state."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from vaults import Host, Worker, place, root_at, save, wait_for

from regrow.core.lanes import leaf
from regrow.core.listener import Record, part_of
from regrow.core.log import Part
from regrow.core.origin import BEGINNING, LOGS
from regrow.core.records import OriginPassedOver, SaveDurable
from regrow.core.roster import Version
from regrow.shell.vaulting import Kept, LogHeld, LogOpens, Place, Recall, Recalled, Shown, Unknown
from regrow.state.log import Entry, read
from regrow.state.log_writer import LogWriter

V1, V2 = Version(1, 1), Version(2, 1)
ROOT = "what the script built"
TOTAL_BYTES = 30_000


class Member(Worker):
    """A worker with a log."""

    def __init__(self, host: Host, member: str, root: str = ROOT) -> None:
        super().__init__(host, member)
        self.writer = LogWriter.new(member, root)
        self.opens()
        self.heard(LogHeld)

    def opens(self) -> None:
        self.line.send(msgspec.json.encode(LogOpens()), self.writer.fd)

    def log(self, step: int, index: int, count: int, attempt: Version = V1, stop: bool = False) -> None:
        start, end = part_of(TOTAL_BYTES, index, count)
        record = Record(step=step, attempt=attempt, digest=step, holdings=((leaf(0),),) * count, last=100)
        entry = Entry(
            said=Part(record=record, stop=stop, index=index, count=count),
            total_bytes=TOTAL_BYTES,
            start=start,
        )
        self.writer.write(entry, b"the tail" if index == 0 else b"", memoryview(bytearray(result(step)[start:end])))

    def is_heard(self) -> None:
        """By the vault and by the agent: what was to be said before has been."""
        self.opens()
        self.heard(LogHeld)

    def die(self) -> None:
        """Nobody holds the lock from here on."""
        self.writer.close()
        self.close()


def result(step: int) -> bytes:
    return bytes((step * 31 + at) % 251 for at in range(TOTAL_BYTES))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Hosts that end with their test."""
    hosts: list[Host] = []

    def begin(*places: Place, **settings: object) -> Host:
        folder = tmp_path / f"run{len(hosts)}"
        folder.mkdir()
        hosts.append(Host(folder, *places, **settings))  # type: ignore[arg-type]
        hosts[-1].open()
        return hosts[-1]

    yield begin
    for host in hosts:
        host.release()


def pair(host: Host) -> list[Member]:
    return [Member(host, "r0.0"), Member(host, "r1.0")]


def commit(step: int, members: list[Member], attempt: Version = V1) -> None:
    for index, member in enumerate(members):
        member.log(step, index, len(members), attempt)


def held(host: Host) -> int:
    """So many logs the agent holds."""
    folder = Path(f"/proc/{host.process.pid}/fd")
    return sum("regrow-log" in os.readlink(fd) for fd in folder.iterdir())


def replayed(host: Host, step: int, root: str, records: int) -> dict[int, bytes]:
    """What a founder reads, by step."""
    founder = Worker(host, "r0.1")
    try:
        founder.say(Recall(step=step, root=root, records=records))
        logs: dict[str, int] = {}
        while isinstance(message := founder.hear(), Shown):
            logs[message.member] = founder.line.take_fd()
        assert isinstance(message, Recalled), message
        assert (message.draft is None) == (step == 0) and message.root == root
        if step:
            os.close(founder.line.take_fd())
        found = {}
        for whole in message.records:
            parts = [os.pread(logs[piece.member], piece.size_bytes, piece.at) for piece in whole.pieces]
            assert os.pread(logs[whole.tail.member], whole.tail.size_bytes, whole.tail.at) == b"the tail"
            found[whole.record.step] = b"".join(parts)
        for fd in logs.values():
            with pytest.raises(OSError):
                os.pwrite(fd, b"a founder only reads", 0)
            os.close(fd)
        return found
    finally:
        founder.close()


def test_a_log_is_held_and_outlives_its_worker_and_the_vault(make: Callable[..., Host]) -> None:
    host = make()
    members = pair(host)
    commit(0, members)
    assert held(host) == 2
    host.kill()
    for member in members:
        member.die()
    sought = host.seek()["origin"]
    assert sought == {"step": 0, "root": ROOT, "where": BEGINNING, "records": 1}
    assert replayed(host, 0, ROOT, 1) == {0: result(0)}


def test_a_log_said_again_is_held_once(make: Callable[..., Host]) -> None:
    """Its worker did not hear that it is held: the vault died in between."""
    host = make()
    member = Member(host, "r0.0")
    member.opens()
    member.heard(LogHeld)
    host.kill()
    member.close()
    host.vault(1)
    again = Worker(host, "r0.0", unsettled=0)
    again.hear()
    again.line.send(msgspec.json.encode(LogOpens()), member.writer.fd)
    again.heard(LogHeld)
    assert held(host) == 1
    member.writer.close()


def test_what_follows_a_state_is_found_with_it(make: Callable[..., Host]) -> None:
    host = make()
    members = pair(host)
    for step in range(3):
        commit(step, members)
    save(2, *members)
    commit(3, members)
    commit(4, members)
    members[0].log(5, 0, 2)  # the other one had not come so far
    for member in members:
        member.die()
    assert host.seek()["origin"] == {"step": 2, "root": root_at(2), "where": "this host's memory", "records": 3}
    wanted = {step: result(step) for step in (2, 3, 4)}
    assert replayed(host, 2, root_at(2), 3) == wanted
    host.kill()
    assert replayed(host, 2, root_at(2), 3) == wanted, "the next vault finds them again"
    assert replayed(host, 2, root_at(2), 2) == {step: wanted[step] for step in (2, 3)}, "no more than was told"


def test_a_founding_is_followed_by_the_logs_of_both_lives(make: Callable[..., Host]) -> None:
    host = make()
    members = pair(host)
    save(1, *members)
    commit(1, members)
    commit(2, members)
    for member in members:
        member.die()
    assert host.seek()["origin"]["records"] == 2
    alone = Member(host, "r0.1")
    commit(3, [alone], V2)
    alone.die()
    assert host.seek()["origin"]["records"] == 3
    assert replayed(host, 1, root_at(1), 3) == {step: result(step) for step in (1, 2, 3)}


def test_a_log_is_let_go_once_its_writer_is_gone_and_a_state_is_newer(make: Callable[..., Host]) -> None:
    host = make()
    members = pair(host)
    commit(0, members)
    commit(1, members)
    members[0].die()
    other = Member(host, "r2.0")
    assert held(host) == 3
    save(1, members[1], other)
    other.is_heard()
    assert held(host) == 3, "step 1 is still needed, and whoever lives may write"
    save(2, members[1], other)
    other.is_heard()
    assert held(host) == 2, "the log of who is gone was let go"
    assert read(members[1].writer.fd).head is not None


def test_a_harmed_part_is_passed_over_and_told(make: Callable[..., Host]) -> None:
    host = make()
    members = pair(host)
    save(1, *members)
    for step in (1, 2, 3):
        commit(step, members)
    (part,) = [one for one in read(members[1].writer.fd).held if one.entry.said.record.step == 2]
    os.pwrite(members[1].writer.fd, b"\xff", part.part_at + 100)
    for member in members:
        member.die()
    assert host.seek()["origin"]["records"] == 1
    told = [(fact.step, fact.where, fact.why) for fact in host.facts(OriginPassedOver)]
    assert [(step, where) for step, where, _ in told] == [(2, LOGS)] * 2
    assert "in the log of r1.0 the part at byte" in told[0][2] and "though step 3 was begun" in told[1][2]
    assert len([words for words in host.said if "is harmed and passed over" in words]) == 2


def test_the_beginning_is_no_origin_once_a_state_was_whole(make: Callable[..., Host]) -> None:
    """Even where the logs hold nothing that speaks against it, and the vault is another one."""
    host = make()
    members = pair(host)
    save(1, *members)
    host.kill()
    for member in members:
        member.die()
    harm(host)
    sought = host.seek()
    assert sought["origin"] is None and "is passed over" in sought["why"], sought
    host.kill()
    assert host.seek()["origin"] is None, "nor for a vault that finds no trace of that state"


def harm(host: Host) -> None:
    """Whatever lies in the arenas that the agent holds."""
    folder = Path(f"/proc/{host.process.pid}/fd")
    for arena in [fd for fd in folder.iterdir() if "regrow-arena" in os.readlink(fd)]:
        with arena.open("r+b") as file:
            file.write(b"harmed")


def test_the_beginning_is_no_origin_where_a_step_is_missing(make: Callable[..., Host]) -> None:
    host = make()
    members = pair(host)
    for step in (0, 2):
        commit(step, members)
    for member in members:
        member.die()
    sought = host.seek()
    assert sought["origin"] is None and "not whole in the logs" in sought["why"], sought


def test_scripts_that_built_different_states_have_no_common_beginning(make: Callable[..., Host]) -> None:
    host = make()
    members = [Member(host, "r0.0"), Member(host, "r1.0", root="something else")]
    for member in members:
        member.die()
    assert host.seek()["origin"] is None


def harmed(host: Host, version: Version = V1, is_durable: bool = True) -> None:
    """The state of step 1 was whole in memory, and another step was committed after it. Nobody lives."""
    members = pair(host)
    save(1, *members, version=version)
    commit(1, members)
    for member in members:
        member.die()
    if is_durable:
        wait_for(lambda: host.facts(SaveDurable), "a durable save")
    harm(host)


def sought_by_the_next(host: Host) -> Any:
    """The origin that is found for a coordinator of term 7."""
    host.order("seek 1 7")
    return host.event("sought")["origin"]


def test_the_same_state_from_a_place_is_followed_by_what_followed_it_in_memory(
    make: Callable[..., Host], tmp_path: Path
) -> None:
    near = place(tmp_path / "near")
    host = make(near)
    harmed(host)
    origin = sought_by_the_next(host)
    where = f"this host's memory and {near.url}"  # of which only the first tensors were harmed
    assert origin == {"step": 1, "root": root_at(1), "where": where, "records": 1}
    assert replayed(host, 1, root_at(1), 1) == {1: result(1)}
    host.kill()
    assert replayed(host, 1, root_at(1), 1) == {1: result(1)}, "the next vault finds them again"
    harm(host)
    assert sought_by_the_next(host) == origin, "harmed once more"


def test_what_a_founding_gave_up_does_not_follow_the_same_state_from_a_place(
    make: Callable[..., Host], tmp_path: Path
) -> None:
    host = make(place(tmp_path / "near"))
    harmed(host, V2)  # what is logged is older
    assert sought_by_the_next(host)["records"] == 0


def test_another_state_of_that_step_from_a_place_is_followed_by_nothing(make: Callable[..., Host], tmp_path: Path) -> None:
    earlier = make(place(tmp_path / "near"))
    worker = Worker(earlier, "r0.0")
    worker.deposit(1, ("r0.0",))
    worker.lent()
    assert worker.arena is not None
    worker.arena[:8] = b"another "
    worker.deposited(1, 0)
    worker.heard(Kept)
    assert earlier.finish() == []
    host = make(place(tmp_path / "near", 5))
    harmed(host, is_durable=False)
    origin = sought_by_the_next(host)
    assert (origin["step"], origin["where"], origin["records"]) == (1, str(tmp_path / "near"), 0)
    assert origin["root"] != root_at(1)


def test_an_origin_whose_records_are_gone_is_unknown(make: Callable[..., Host]) -> None:
    host = make()
    members = pair(host)
    save(1, *members)
    commit(1, members)
    founder = Worker(host, "r0.1")
    founder.say(Recall(step=1, root=root_at(1), records=2))
    assert "1 records follow step 1" in founder.heard(Unknown).why
    for member in members:
        member.die()
