"""A real vault under a real custodian, and workers that are played over the real socket."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vaults import (
    DEADLINE_S,
    Host,
    Worker,
    bytes_of,
    drafted,
    place,
    root_at,
    save,
    state_of,
    steps_in,
    stopped_writer,
    wait_for,
    writer_of,
)

from regrow.core.records import OriginPassedOver, SaveDurable, SaveFailed, SaveVoided, StateKept
from regrow.core.retention import Retention
from regrow.core.roster import Version
from regrow.core.saves import Urgency
from regrow.shell.vaulting import Foreseen, Kept, Lacking, Lent, Place, Recall, Void


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Hosts that end with their test."""
    hosts: list[Host] = []

    def begin(*places: Place, **settings: object) -> Host:
        folder = tmp_path / f"run{len(hosts)}"
        folder.mkdir()
        hosts.append(Host(folder, *places, **settings))  # type: ignore[arg-type]
        return hosts[-1]

    yield begin
    for host in hosts:
        host.release()


# Whole saves


def test_a_whole_save_lies_in_memory_and_in_every_place_that_takes_it(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near", 1), place(tmp_path / "far", 2))
    assert host.open()["newest"] == [None, None]
    pair = [Worker(host, "r0.0"), Worker(host, "r1.0")]
    for step in (1, 2, 3):
        save(step, *pair)
        found = wait_for(lambda: host.facts(SaveDurable), "a place") and host.facts(StateKept)[-1]
        assert (found.step, found.root) == (step, root_at(step))
        wait_for(lambda step=step: any(fact.step == step for fact in host.facts(SaveDurable)), "the near place")
    assert pair[1].recall(3, root_at(3)) == bytes_of(3, drafted(3).arena_bytes)
    assert host.finish() == []
    assert steps_in(tmp_path / "near") == [3, 2, 1]
    assert steps_in(tmp_path / "far") == [3, 2], "in the end what is newest in memory is in every place"
    assert {fact.term for fact in host.facts(SaveDurable)} == {1}


def test_the_vault_has_no_torch_and_ends_with_its_agent(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    pid = host.vault()
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    host.process.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), "its end")


def test_room_that_was_foreseen_is_there_before_it_is_asked_for(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    worker = Worker(host, "r0.0")
    made = drafted(1, tensors=64)
    worker.say(Foreseen(arena_bytes=made.arena_bytes))
    ready = wait_for(lambda: found if len(found := arenas(host, made.arena_bytes)) == 3 else set(), "three arenas")
    worker.deposit(1, ("r0.0",), made=made)
    worker.heard(Lent)
    fd = worker.line.take_fd()
    assert os.fstat(fd).st_ino in ready
    os.close(fd)


def arenas(host: Host, size_bytes: int) -> set[int]:
    """Inodes of those that the agent holds, and whose pages are made."""
    folder = Path(f"/proc/{host.process.pid}/fd")
    files = [fd for fd in folder.iterdir() if "regrow-arena" in os.readlink(fd)]
    return {stat.st_ino for stat in (fd.stat() for fd in files) if stat.st_blocks * 512 >= size_bytes}


def test_whoever_does_not_read_keeps_nobody_waiting(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    deaf, other = Worker(host, "r0.0"), Worker(host, "r1.0")
    made = drafted(1, tensors=100)
    other.deposit(1, ("r1.0",), made=made)
    other.lent()
    other.deposited(1, 0)
    assert other.heard(Kept).step == deaf.heard(Kept).step == 1
    root = host.facts(StateKept)[0].root
    for _ in range(200):  # more than a socket holds
        deaf.say(Recall(step=1, root=root))
    save(2, other)
    for _ in range(200):
        message = deaf.hear()
        if not isinstance(message, Kept):
            os.close(deaf.line.take_fd())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_users_processes_are_not_heard(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    lines = (
        "import os, socket, sys",
        "os.setuid(65534)",
        "sock = socket.socket(socket.AF_UNIX)",
        "sock.connect(chr(0) + sys.argv[1])",
        "sys.exit(len(sock.recv(1)))",
    )
    command = [sys.executable, "-c", "\n".join(lines), host.address]
    stranger = subprocess.run(command, timeout=DEADLINE_S)
    assert stranger.returncode == 0  # shown the door


# Void saves


def pair_of(host: Host) -> list[Worker]:
    return [Worker(host, "r0.0"), Worker(host, "r1.0")]


BOTH = ("r0.0", "r1.0")


def begin(step: int, pair: list[Worker], urgency: Urgency = Urgency.DUE) -> None:
    for worker in pair:
        worker.deposit(step, BOTH, urgency)
    for worker in pair:
        worker.lent()


def test_a_portion_that_is_torn_voids_the_save(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    pair = pair_of(host)
    begin(1, pair)
    pair[0].deposited(1, 0)
    pair[1].deposited(1, 1, why="its tensors changed")
    for worker in pair:
        assert worker.heard(Void).why == "r1.0: its tensors changed"
    save(2, *pair)
    assert [fact.step for fact in host.facts(SaveVoided)] == [1]
    assert host.seek()["origin"]["step"] == 2


def test_a_member_that_goes_before_its_portion_is_there_voids_the_save_and_one_that_goes_after_does_not(
    make: Callable[..., Host],
) -> None:
    host = make()
    host.open()
    pair = pair_of(host)
    begin(1, pair)
    pair[1].close()
    assert "r1.0 was gone" in pair[0].heard(Void).why
    pair[1] = Worker(host, "r1.0")
    begin(2, pair)
    pair[1].copy(2, BOTH)
    pair[1].deposited(2, 1)
    assert pair[1].hears_nothing()
    pair[1].close()
    pair[0].copy(2, BOTH)
    pair[0].deposited(2, 0)
    assert pair[0].heard(Kept).step == 2
    again = Worker(host, "r1.0", unsettled=2)
    assert again.heard(Kept).step == 2


def test_a_member_that_has_no_line_voids_the_save_for_all_who_come(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    first, second = pair_of(host)
    first.deposit(1, (*BOTH, "r2.0"))
    for worker in (first, second):
        assert "r2.0 was gone" in worker.heard(Void).why
    second.deposit(1, (*BOTH, "r2.0"))
    assert "r2.0 was gone" in second.heard(Void).why
    assert len(host.facts(SaveVoided)) == 1


def test_a_later_save_voids_one_that_lacks_portions(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    pair = pair_of(host)
    pair[0].deposit(1, BOTH)
    pair[0].lent()
    pair[0].deposit(2, BOTH)
    assert pair[0].heard(Void).step == 1
    pair[0].lent()
    assert pair[1].heard(Void).step == 1
    pair[1].deposit(1, BOTH)
    assert pair[1].heard(Void).step == 1  # too late
    pair[1].deposit(2, BOTH)
    pair[1].lent()
    for index, worker in enumerate(pair):
        worker.copy(2, BOTH)
        worker.deposited(2, index)
    for worker in pair:
        assert worker.heard(Kept).step == 2


def test_members_that_lay_their_states_out_differently_are_named(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    pair = pair_of(host)
    pair[0].deposit(1, BOTH, layout="one")
    pair[0].lent()
    pair[1].deposit(1, BOTH, layout="other")
    for worker in pair:
        why = worker.heard(Void).why
        assert all(word in why for word in ("r0.0", "r1.0", "one", "other"))


def test_whoever_wakes_in_the_middle_of_its_copy_harms_no_later_save(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    sleeper, other = pair_of(host)
    begin(1, [sleeper, other])
    other.close()  # void; the sleeper still holds the arena that it was lent
    assert sleeper.heard(Void).step == 1
    three = Worker(host, "r3.0")
    for step in (2, 3, 4):  # each generation is used
        save(step, three)
        assert sleeper.heard(Kept).step == step
        sleeper.copy(1, BOTH)
        assert three.recall(step, root_at(step)) == bytes_of(step, drafted(step).arena_bytes)


def test_memory_that_is_not_there_is_looked_for_and_missed_no_more_than_now_and_then(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    worker, made = Worker(host, "r0.0"), drafted(1, tensors=200)
    resource.prlimit(host.vault(), resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))

    def void(step: int, urgency: Urgency = Urgency.DUE) -> bool:
        worker.deposit(step, ("r0.0",), urgency, made=made)
        return isinstance(message := worker.hear(), Void) and "there is no shared memory" in message.why

    assert void(1) and void(2), "it is wished again at each boundary"
    assert void(3, Urgency.ASKED), "an operator may know of more memory"
    assert [fact.step for fact in host.facts(SaveVoided)] == [1, 3]
    wait_for(lambda: len(host.said) == 2, "the word of both")
    assert all("memory is looked for again in" in said for said in host.said)
    resource.prlimit(host.vault(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    steps = iter(range(4, 1 << 20))
    wait_for(lambda: not void(next(steps)), "a save that finds it")


# The last save


def test_of_the_last_save_others_give_what_is_lacking(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near", 100))
    host.open()
    members = ("r0.0", "r1.0", "r2.0")
    first, second = Worker(host, "r0.0"), Worker(host, "r1.0")  # the third is gone already
    for worker in (first, second):
        worker.deposit(7, members, Urgency.LAST)
    first.lent()
    asked = first.heard(Lacking)
    assert asked.index == 2
    second.lent()
    first.close()  # with two portions on it
    for _ in range(2):
        second.copy(7, members, index := second.heard(Lacking).index)
        second.deposited(7, index)
    assert second.hears_nothing()
    second.copy(7, members)
    second.deposited(7, 1)
    assert second.heard(Kept).step == 7
    assert host.finish() == []
    assert steps_in(tmp_path / "near") == [7]


def test_a_last_save_that_nobody_can_complete_is_told_at_the_end(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near", 100))
    host.open()
    pair = pair_of(host)
    begin(7, pair, Urgency.LAST)
    pair[0].deposited(7, 0, why="its tensors changed")
    assert pair[1].heard(Lacking).index == 0
    pair[1].close()
    void = pair[0].heard(Void)
    assert "nobody is left" in void.why and void.is_final
    failures = host.finish()
    assert len(failures) == 1 and "step 7" in failures[0]


def test_a_last_save_that_there_is_no_memory_for_is_not_tried_again_and_told_at_the_end(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    worker = Worker(host, "r0.0")
    resource.prlimit(host.vault(), resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    made = drafted(7, tensors=200)
    assert made.arena_bytes > 1 << 20
    for _ in range(2):  # the second time it has forgotten nothing
        worker.deposit(7, ("r0.0",), Urgency.LAST, made=made)
        void = worker.heard(Void)
        assert "there is no shared memory" in void.why and void.is_final
    failures = host.finish()
    assert len(failures) == 1 and "the last state (step 7) is not saved: there is no shared memory" in failures[0]


def test_a_last_save_under_a_newer_roster_takes_the_place_of_one_that_lacks_portions(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    pair = pair_of(host)
    pair[0].deposit(7, BOTH, Urgency.LAST)
    pair[0].lent()
    pair[1].deposit(7, ("r1.0",), Urgency.LAST, Version(1, 2))
    for worker in pair:
        assert not worker.heard(Void).is_final, "this step may become whole yet"
    pair[1].lent()
    pair[0].deposit(7, BOTH, Urgency.LAST)
    void = pair[0].heard(Void)
    assert "is being saved already" in void.why and not void.is_final
    pair[1].copy(7, ("r1.0",))
    pair[1].deposited(7, 0, version=Version(1, 2))
    for worker in pair:
        assert worker.heard(Kept).step == 7
    assert host.finish() == []


# A time that is short


def test_a_state_that_is_safe_nowhere_is_sent_ahead_to_a_place_that_nothing_is_known_of(
    make: Callable[..., Host], tmp_path: Path
) -> None:
    host = make(place(tmp_path / "near", 1000))
    host.open()
    save(5, Worker(host, "r0.0"))
    host.order("hurry 30")
    wait_for(lambda: host.facts(SaveDurable), "the state of before")
    assert steps_in(tmp_path / "near") == [5]


SLOW_BYTES_PER_S = 40_000


def slow(make: Callable[..., Host], folder: Path) -> tuple[Host, Worker, float]:
    """A host whose place has taken step 5 and not step 6; and what one save takes there."""
    slow = Place(url=str(folder), every=5, retention=Retention(), bytes_per_s=SLOW_BYTES_PER_S)
    host = make(slow)
    host.open()
    worker = Worker(host, "r0.0")
    save(5, worker)
    wait_for(lambda: host.facts(SaveDurable), "what a save takes")
    save(6, worker)
    return host, worker, host.facts(SaveDurable)[0].seconds


def test_without_a_last_state_the_newest_goes_when_it_is_now_or_never(make: Callable[..., Host], tmp_path: Path) -> None:
    host, _, seconds = slow(make, tmp_path / "near")
    host.order(f"hurry {1.6 * seconds}")  # too short for two
    wait_for(lambda: len(host.facts(SaveDurable)) == 2, "the state of before")
    assert steps_in(tmp_path / "near") == [6, 5]


def test_a_last_state_that_is_on_its_way_is_waited_for(make: Callable[..., Host], tmp_path: Path) -> None:
    host, worker, seconds = slow(make, tmp_path / "near")
    host.order(f"hurry {1.6 * seconds}")
    worker.deposit(7, ("r0.0",), Urgency.LAST)
    worker.lent()
    time.sleep(seconds)  # past "now or never": that nothing is sent then shows by nothing that could be waited for
    worker.copy(7, ("r0.0",))
    worker.deposited(7, 0)
    worker.heard(Kept)
    wait_for(lambda: len(host.facts(SaveDurable)) == 2, "the last state")
    assert steps_in(tmp_path / "near") == [7, 5]


FAR_APART_S = 1000.0
"""Between signs of life, which wake a vault as well."""


def stuck(make: Callable[..., Host], near: Path, far: Path) -> tuple[Host, Worker, int]:
    """A host whose nearer place has taken step 5, and stands still from then on; the other one has taken nothing yet."""
    host = make(place(near), place(far, 1000), silence_s=10 * FAR_APART_S)
    host.open()
    worker = Worker(host, "r0.0")
    save(5, worker)
    return host, worker, stopped_writer(host)


def test_a_place_that_stands_still_has_its_turn_and_no_more(make: Callable[..., Host], tmp_path: Path) -> None:
    host, worker, writer = stuck(make, tmp_path / "near", tmp_path / "far")
    host.order("hurry 40")
    save(7, worker, urgency=Urgency.LAST)
    wait_for(lambda: steps_of(host, tmp_path / "far", SaveDurable), "the place that is well")
    assert steps_in(tmp_path / "far") == [7] and steps_in(tmp_path / "near") == [5]
    os.kill(writer, signal.SIGCONT)
    assert host.finish() == []
    assert steps_in(tmp_path / "near") == [7, 5]


def test_a_place_that_refuses_makes_way_at_once(make: Callable[..., Host], tmp_path: Path) -> None:
    """Nothing was measured of either: else the first had half an hour for itself."""
    near, far = tmp_path / "near", tmp_path / "far"
    host = make(place(near), place(far), silence_s=10 * FAR_APART_S)
    host.open()
    (near / "pointers" / "000000000099.json").mkdir(parents=True)  # no pointer can be read there
    host.order("hurry 3600")
    save(7, Worker(host, "r0.0"), urgency=Urgency.LAST)
    wait_for(lambda: steps_of(host, far, SaveDurable), "the place that is well")
    assert {(fact.url, fact.is_final) for fact in host.facts(SaveFailed)} == {(str(near), False)}


def test_a_state_is_sent_ahead_past_a_place_that_stands_still(make: Callable[..., Host], tmp_path: Path) -> None:
    host, worker, _ = stuck(make, tmp_path / "near", tmp_path / "far")
    save(6, worker)
    host.order("hurry 40")
    wait_for(lambda: steps_of(host, tmp_path / "far", SaveDurable), "the place that is well")
    assert steps_in(tmp_path / "far") == [6] and steps_in(tmp_path / "near") == [5]


# Places


def test_saves_wait_for_a_place_that_is_behind_and_none_is_dropped(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"))
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    writer = stopped_writer(host)
    for step in (2, 3, 4):
        save(step, worker)
    worker.deposit(5, ("r0.0",))
    assert worker.hears_nothing()
    os.kill(writer, signal.SIGCONT)
    worker.lent()
    worker.copy(5, ("r0.0",))
    worker.deposited(5, 0)
    assert worker.heard(Kept).step == 5
    assert host.finish() == []
    assert steps_in(tmp_path / "near") == [5, 4, 3, 2, 1]


def test_the_newest_whole_state_is_never_lent(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near", 2))
    host.open()
    worker = Worker(host, "r0.0")
    save(2, worker)
    writer = stopped_writer(host)
    for step in (4, 6, 7):  # two are waited for by the place, which does not take the third
        save(step, worker)
    worker.deposit(8, ("r0.0",))
    assert worker.hears_nothing()
    assert worker.recall(7, root_at(7)) == bytes_of(7, drafted(7).arena_bytes)
    os.kill(writer, signal.SIGCONT)
    worker.lent()


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_place_that_fails_is_told_and_the_others_go_on(make: Callable[..., Host], tmp_path: Path, is_mended: bool) -> None:
    host = make(place(tmp_path / "near"), place(tmp_path / "far"))
    host.open()
    shutil.rmtree(tmp_path / "near")
    (tmp_path / "near").write_text("no folder")
    worker = Worker(host, "r0.0")
    save(1, worker)
    final = wait_for(lambda: [fact for fact in host.facts(SaveFailed) if fact.is_final], "the end of it")
    assert (final[0].step, final[0].url) == (1, str(tmp_path / "near"))
    if is_mended:
        (tmp_path / "near").unlink()
    save(2, worker)
    failures = host.finish()
    assert steps_in(tmp_path / "far") == [2, 1]
    assert any("given up" in said for said in host.said)
    if is_mended:
        assert failures == []  # what was to be safe at the end is
        assert steps_in(tmp_path / "near") == [2]
    else:
        assert all(str(tmp_path / "near") in why for why in failures) and "step 2" in failures[-1]


def test_what_a_place_refuses_is_told_and_tried_again(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"), faults="writer.0:save-manifest:step=1:raise")
    host.open()
    save(1, Worker(host, "r0.0"))
    assert host.finish() == []
    assert [(fact.step, fact.attempt, fact.is_final) for fact in host.facts(SaveFailed)] == [(1, 1, False)]
    assert any("tried again" in said for said in host.said)
    assert steps_in(tmp_path / "near") == [1]


def test_what_cannot_be_removed_after_the_last_save_is_told_before_the_end(
    make: Callable[..., Host], tmp_path: Path
) -> None:
    host = make(place(tmp_path / "near", keep_last=1), faults="writer.0:save-prune:step=1:raise")
    host.open()
    worker = Worker(host, "r0.0")
    for step in (1, 2):
        save(step, worker)
    assert host.finish() == []
    assert any("an old checkpoint cannot be removed: fault injected at save-prune" in said for said in host.said)


def test_a_vault_that_waits_for_a_long_removal_at_the_end_is_not_taken_for_a_dead_one(
    make: Callable[..., Host], tmp_path: Path
) -> None:
    """Each of six takes a second more than it would: after a fault that stops it the writer waits so long."""
    near = tmp_path / "near"
    first = make(place(near))
    first.open()
    worker = Worker(first, "r0.0")
    for step in range(1, 7):
        save(step, worker)
    assert first.finish() == []
    faults = ",".join(f"writer.0:save-prune:nth={n}:SIGSTOP" for n in range(1, 7))
    host = make(place(near, keep_last=1), silence_s=5.0, faults=faults)
    host.open()
    save(7, Worker(host, "r0.0"))
    wait_for(lambda: host.facts(SaveDurable), "the save")
    writer = writer_of(host)
    host.order("finish")
    while wait_for(lambda: state if (state := state_of(writer)) in "TZ" else "", "it to stand still") == "T":
        os.kill(writer, signal.SIGCONT)
    assert host.event("finished") == []
    assert steps_in(near) == [7] and len(host.ended()) == 1
    assert any("old checkpoints are removed" in said for said in host.said)


def test_a_place_that_never_answers_is_given_up(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"), patience_s=1.0, faults="writer.0:save-shard:step=1:SIGSTOP")
    host.open()
    save(1, Worker(host, "r0.0"))
    failures = host.finish()
    assert len(failures) == 1 and "given up" in failures[0] and "step 1" in failures[0]
    assert steps_in(tmp_path / "near") == []


def test_the_death_of_a_writer_is_not_its_places_fault(make: Callable[..., Host], tmp_path: Path) -> None:
    """Who waits for memory waits for the next writer, and nothing is skipped."""
    near = tmp_path / "near"
    host = make(place(near), faults="writer.0:save-manifest:step=2:SIGSTOP,writer.1:save-manifest:step=2:SIGSTOP")
    host.open()
    worker = Worker(host, "r0.0")
    for step in range(1, 5):
        save(step, worker)
    first = writer_of(host)
    wait_for(lambda: state_of(first) == "T", "it to stand still")
    worker.deposit(5, ("r0.0",))
    worker.wait_told()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: host.facts(SaveFailed), "the word of its death")
    second = wait_for(lambda: pid if (pid := writer_of(host)) != first else None, "the next one")
    assert second is not None
    wait_for(lambda: state_of(second) == "T", "it to stand still as well")
    for _ in range(3):
        worker.wait_told()  # each time the vault has looked whose fault it is
    os.kill(second, signal.SIGCONT)
    worker.lent()
    worker.copy(5, ("r0.0",))
    worker.deposited(5, 0)
    assert worker.heard(Kept).step == 5
    assert host.finish() == []
    assert steps_in(near) == [5, 4, 3, 2, 1]
    assert [(fact.step, fact.attempt, fact.is_final) for fact in host.facts(SaveFailed)] == [(2, 1, False)]


@pytest.mark.parametrize("stalled", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_places_that_stall_are_skipped_and_one_that_comes_back_gets_the_newest(
    make: Callable[..., Host], tmp_path: Path, stalled: int
) -> None:
    """At the patience of everyday: neither training nor the good place waits that long."""
    near = [tmp_path / f"near{n}" for n in range(stalled)]
    host = make(*map(place, near), place(tmp_path / "far"), patience_s=120.0)
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    wait_for(lambda: len(host.facts(SaveDurable)) == stalled + 1, "the first save everywhere")
    gates = [folder / "pointers" / "000000000099.json" for folder in near]
    for gate in gates:
        os.mkfifo(gate)  # whoever reads the pointers waits here for ever
    for step in range(2, 9):
        save(step, worker)
    wait_for(lambda: steps_of(host, tmp_path / "far", SaveDurable) == list(range(1, 9)), "the good place")
    assert not [fact for fact in host.facts(SaveFailed) if fact.is_final and fact.newer is None], "nobody waited that long"
    for gate in gates:
        release(gate)
    save(9, worker)
    assert host.finish() == []
    for folder in near:
        durable, skipped = (steps_of(host, folder, kind) for kind in (SaveDurable, SaveFailed))
        assert sorted(durable + skipped) == list(range(1, 10)) and skipped, "each was saved there, or its skip was noted"
        assert steps_in(folder)[0] == 9
    for fact in host.facts(SaveFailed):
        assert fact.newer is not None and fact.newer > fact.step and "superseded by step" in fact.why
    wait_for(lambda: any("is given the newest alone" in said for said in host.said), "the word of it")


def steps_of(host: Host, folder: Path, kind: type[SaveDurable] | type[SaveFailed]) -> list[int]:
    return [fact.step for fact in host.facts(kind) if fact.url == str(folder)]


def release(gate: Path) -> None:
    """Whoever reads there finds nothing, and nobody else gets there."""
    readers = gate.with_name("gone")
    gate.rename(readers)
    try:
        os.close(os.open(readers, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        pass  # nobody reads just now
    readers.unlink()


def test_a_bit_that_flips_in_memory_never_becomes_a_checkpoint(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"))
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    writer = stopped_writer(host)
    save(2, worker)
    assert worker.arena is not None
    worker.arena[5000] ^= 1
    os.kill(writer, signal.SIGCONT)
    (failed,) = wait_for(lambda: host.facts(SaveFailed), "the place")
    assert (failed.step, failed.is_final) == (2, True) and root_at(2) in failed.why
    wait_for(lambda: any("changed in memory" in said for said in host.said), "the word of it")
    (passed,) = wait_for(lambda: host.facts(OriginPassedOver), "the state in memory to be given up")
    assert (passed.step, passed.where) == (2, "this host's memory")
    worker.wait_due()  # else an every-step job had no base until the next one is due
    assert host.seek()["origin"]["step"] == 1
    save(3, worker)
    assert host.finish() == []
    assert steps_in(tmp_path / "near") == [3, 1]


def test_nor_one_at_a_place_whose_turn_comes_after_it_was_found(make: Callable[..., Host], tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    host = make(place(near), place(far))
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    first, second = stopped_writer(host, near), stopped_writer(host, far)
    save(2, worker)
    save(3, worker)
    assert worker.arena is not None
    worker.arena[5000] ^= 1
    os.kill(first, signal.SIGCONT)
    wait_for(lambda: host.facts(OriginPassedOver), "the state in memory to be given up")
    assert (steps_of(host, near, SaveFailed), steps_of(host, far, SaveDurable)) == ([3], [1])
    os.kill(second, signal.SIGCONT)
    wait_for(lambda: 3 in steps_of(host, far, SaveDurable) + steps_of(host, far, SaveFailed), "the second place")
    assert steps_of(host, far, SaveDurable) == [1, 2]
    failed = host.facts(SaveFailed)[-1]
    assert (failed.url, failed.step, failed.is_final) == (str(far), 3, True) and root_at(3) in failed.why
    save(4, worker)
    assert host.finish() == []
    assert steps_in(near) == steps_in(far) == [4, 2, 1]


def test_nor_a_last_state_that_goes_to_one_place_after_the_other(make: Callable[..., Host], tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    host = make(place(near, 1000), place(far, 1000))
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    host.order(f"hurry {DEADLINE_S}")
    writer = stopped_writer(host)  # of the place to which the state of before was sent ahead
    save(2, worker, urgency=Urgency.LAST)
    assert worker.arena is not None
    worker.arena[5000] ^= 1
    os.kill(writer, signal.SIGCONT)
    failures = host.finish()
    assert steps_in(near) + steps_in(far) == [1]
    assert len(failures) == 2 and all("changed in memory" in why for why in failures)


def test_who_was_replaced_can_no_longer_save(make: Callable[..., Host], tmp_path: Path) -> None:
    old, new = make(place(tmp_path / "near")), make(place(tmp_path / "near"))
    assert old.open()["term"] == 1
    worker = Worker(old, "r0.0")
    save(1, worker)
    wait_for(lambda: old.facts(SaveDurable), "step 1")
    assert new.open() == {"type": "Opened", "newest": [1], "term": 2, "finished": [None]}
    save(1, Worker(new, "r0.0"))
    assert new.finish() == []
    save(2, worker)
    assert "fenced" in old.finish()[0]
    assert [fact.is_final for fact in old.facts(SaveFailed)] == [True]
    assert steps_in(tmp_path / "near") == [1, 1]


@pytest.mark.parametrize("url", ["", "nowhere://bucket", "{folder}/file/below"])
def test_a_place_that_cannot_be_used_is_told_before_training_begins(
    make: Callable[..., Host], tmp_path: Path, url: str
) -> None:
    (tmp_path / "file").write_text("")
    url = url.format(folder=tmp_path)
    host = make(Place(url=url, every=1, retention=Retention()))
    host.order("open")
    assert url in host.event("unusable")
    assert host.finish() == []  # nothing was taken, and nothing is waited for
    host.ended()
