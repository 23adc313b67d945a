"""Logs under a real vault and a real custodian: held, shown, let go, and found together with a state."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import neighbours
import pytest
from vaults import DEADLINE_S, Host, Worker, place, root_at, save, wait_for

from regrow.agent.logs import chained
from regrow.core.lanes import leaf
from regrow.core.listener import Record, part_of
from regrow.core.log import Part
from regrow.core.neighbour_messages import Done, LogBegun, LogCounted, LogEntry, LogPiece, OpenLog
from regrow.core.origin import BEGINNING, LOGS
from regrow.core.records import OriginPassedOver, SaveDurable
from regrow.core.retention import Retention
from regrow.core.roster import NO_VERSION, Version
from regrow.shell.vaulting import Kept, LogHeld, LogOpens, Place, Recall, Recalled, Shown, Unknown
from regrow.state.log import Entry, read, rest_of, slot_bytes
from regrow.state.log_writer import LogWriter
from regrow.state.neighbour_store import CLAIM, TOKEN, Address, own_claim, taken_over
from regrow.wire.visit import heard, visit

V1, V2 = Version(1, 1), Version(2, 1)
ROOT = "what the script built"
TOTAL_BYTES = 30_000


class Member(Worker):
    """A worker with a log."""

    def __init__(self, host: Host, member: str, root: str = ROOT, is_held: bool = True) -> None:
        super().__init__(host, member)
        self.writer = LogWriter.new(member, root)
        if is_held:
            self.is_heard()

    def opens(self) -> None:
        self.line.send(msgspec.json.encode(LogOpens()), self.writer.fd)

    def log(self, step: int, index: int, count: int, attempt: Version = V1, stop: bool = False) -> Entry:
        start, end = part_of(TOTAL_BYTES, index, count)
        record = Record(step=step, attempt=attempt, digest=step, holdings=((leaf(0),),) * count, last=100)
        entry = Entry(
            said=Part(record=record, stop=stop, index=index, count=count),
            total_bytes=TOTAL_BYTES,
            start=start,
        )
        return self.writer.write(entry, tail(index), memoryview(bytearray(result(step)[start:end])))

    def is_heard(self) -> None:
        """By the vault and by the agent: what was to be said before has been."""
        self.opens()
        self.heard(LogHeld)

    def die(self) -> None:
        """Nobody holds the lock from here on."""
        self.writer.close()
        self.close()


class Guarded(Member):
    """A worker with a log here, and a copy of it at a neighbour."""

    def __init__(self, host: Host, member: str, near: neighbours.Running, is_held: bool = True) -> None:
        super().__init__(host, member, is_held=is_held)
        address = shelf(near)
        self.guard = visit(address.endpoint, neighbours.TOKEN_GIVEN, address.run, own_claim(), DEADLINE_S, member)
        self.guard.send(OpenLog(member=member, root=ROOT))
        heard(self.guard, Done, DEADLINE_S)

    def log(self, step: int, index: int, count: int, attempt: Version = V1, stop: bool = False) -> Entry:
        entry = super().log(step, index, count, attempt, stop)
        part = result(step)[entry.start : entry.start + entry.part_bytes]
        size_bytes = slot_bytes(len(part), rest_of(entry, [len(part)], entry.tail_bytes))
        self.guard.send(LogBegun(size_bytes=size_bytes, part_bytes=len(part)))
        self.guard.send(LogPiece(at=0, size_bytes=len(part)))
        self.guard.send_raw(memoryview(part))
        self.guard.send(LogEntry(entry=msgspec.msgpack.encode(entry), tail_bytes=entry.tail_bytes))
        self.guard.send_raw(memoryview(tail(index)))
        heard(self.guard, LogCounted, DEADLINE_S)
        return entry

    def die(self) -> None:
        self.guard.close()
        super().die()


def result(step: int) -> bytes:
    return bytes((step * 31 + at) % 251 for at in range(TOTAL_BYTES))


def tail(index: int) -> bytes:
    return b"the tail" if index == 0 else b""


def shelf(near: neighbours.Running) -> Address:
    return Address(endpoint=near.endpoint, run="job")


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> Iterator[neighbours.Running]:
    """A neighbour that this test's run has taken over."""
    monkeypatch.setenv(TOKEN, neighbours.TOKEN_GIVEN)
    with neighbours.serving(100) as running:
        monkeypatch.setenv(CLAIM, str(taken_over(shelf(running), resumes=False)))
        yield running


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
    harm_part(members[1], 2)
    for member in members:
        member.die()
    assert host.seek()["origin"]["records"] == 1
    told = [(fact.step, fact.where, fact.why) for fact in host.facts(OriginPassedOver)]
    assert [(step, where) for step, where, _ in told] == [(2, LOGS)] * 2
    assert "in the log of r1.0 the part at byte" in told[0][2] and "though step 3 was begun" in told[1][2]
    assert len([words for words in host.said if "is harmed and passed over" in words]) == 2


def harm_part(member: Member, step: int) -> None:
    """Where it lies in this host's memory."""
    (part,) = [one for one in read(member.writer.fd).held if one.entry.said.record.step == step]
    at = part.part_at + 100
    (byte,) = os.pread(member.writer.fd, 1, at)
    os.pwrite(member.writer.fd, bytes([byte ^ 4]), at)


def guarded(
    make: Callable[..., Host], near: neighbours.Running, base: int, is_held: bool = True, patience_s: float = DEADLINE_S
) -> tuple[Host, list[Member]]:
    """A host, and two members that have committed up to step 3, from a base in memory or from the job's beginning."""
    host = make(Place(url=shelf(near).url, every=1, retention=Retention()), patience_s=patience_s)
    members: list[Member] = [Guarded(host, "r0.0", near, is_held), Guarded(host, "r1.0", near)]
    if base:
        save(base, *members)
    for step in range(base, 4):
        commit(step, members)
    return host, members


@pytest.mark.parametrize("base", [0, 1], ids=["from the beginning", "from a base"])
@pytest.mark.parametrize("lost", ["a step", "the newest step", "a log"])
def test_what_the_logs_of_this_host_lack_comes_from_the_neighbour(
    make: Callable[..., Host], near: neighbours.Running, lost: str, base: int
) -> None:
    host, members = guarded(make, near, base, is_held=lost != "a log")
    if lost != "a log":
        harm_part(members[0], 2 if lost == "a step" else 3)
    for member in members:
        member.die()
    origin = host.seek()["origin"]
    assert (origin["step"], origin["records"]) == (base, 4 - base)
    wanted = {step: result(step) for step in range(base, 4)}
    assert replayed(host, base, origin["root"], 4 - base) == wanted
    host.kill()
    assert replayed(host, base, origin["root"], 4 - base) == wanted, "the next vault finds them again"


def test_a_neighbour_is_not_asked_for_a_step_that_was_only_begun(
    make: Callable[..., Host], near: neighbours.Running
) -> None:
    """Asked for nothing, one that is away would keep a founding waiting."""
    host, members = guarded(make, near, 1)
    near.kill()
    Member.log(members[0], 4, 0, 2)
    for member in members:
        member.die()
    assert host.seek()["origin"]["records"] == 3
    assert not [said for said in host.said if "is read as well" in said] and not host.facts(OriginPassedOver)


@pytest.mark.parametrize("how", ["away", "fenced"])
def test_a_neighbour_that_cannot_be_asked_is_done_without(
    make: Callable[..., Host], near: neighbours.Running, how: str
) -> None:
    """And told. What another run has committed there since is nothing that follows here."""
    host, members = guarded(make, near, 1, patience_s=2.0)
    harm_part(members[0], 2)
    for member in members:
        member.die()
    if how == "away":
        near.kill()
    else:
        taken_over(shelf(near), resumes=True)
    assert host.seek()["origin"]["records"] == 1
    (passed,) = [fact for fact in host.facts(OriginPassedOver) if fact.where == shelf(near).url]
    assert passed.step == 2 and ("fenced" if how == "fenced" else "cannot be reached") in passed.why


def test_when_this_run_is_to_end_is_known_from_its_copies_as_well_and_the_log_itself_counts_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When another run was to end does not count."""
    logs = [LogWriter.new("r0.0", ROOT) for _ in range(2)]
    record = Record(step=0, attempt=V1, digest=0, holdings=(), last=100)
    said = Part(record=record, stop=False, index=0, count=1)
    for log in logs:
        log.write(Entry(said=said, total_bytes=4, start=0), b"", memoryview(bytearray(4)))
    here, copy = (log.fd for log in logs)
    monkeypatch.setenv(CLAIM, "7")
    for fds, last, read_in in (
        ({"r0.0@7": copy}, 100, "r0.0@7"),
        ({"r0.0@6": copy}, 0, "r0.0@6"),
        ({"r0.0": here, "r0.0@7": copy}, 100, "r0.0"),
    ):
        (whole,) = chained(fds, 0, NO_VERSION).records
        assert (whole.record.last, whole.tail.member, whole.pieces[0].member) == (last, read_in, read_in)
    for log in logs:
        log.close()


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
