"""Origins that a real vault finds: in memory, at places, and after it was killed."""

import os
import random
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import xxhash
from vaults import (
    MATHEMATICS,
    TENSOR_BYTES,
    Host,
    Worker,
    bytes_of,
    drafted,
    place,
    root_at,
    save,
    steps_in,
    stopped_writer,
    wait_for,
)

from regrow.core.errors import PeerError
from regrow.core.records import (
    OriginFound,
    OriginMended,
    OriginPassedOver,
    SaveDurable,
    SaveFailed,
    StateKept,
    VaultEnded,
    VaultStarted,
)
from regrow.core.roster import Version
from regrow.shell.vaulting import Foreseen, Kept, Lent, Place, Void
from regrow.state.archive import Archive
from regrow.state.pointers import sealed
from regrow.state.stores import open_store

MEMORY = "this host's memory"
ME = ("r0.0",)


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


def check(host: Host, sought: object, step: int, where: str) -> None:
    """This is what was found, and a founder gets it."""
    assert isinstance(sought, dict)
    assert sought["origin"] == {"step": step, "root": root_at(step), "where": where, "records": 0}
    assert sought["mathematics"] == MATHEMATICS
    founder = Worker(host, "founder.0")
    assert founder.recall(step, root_at(step)) == bytes_of(step, drafted(step).arena_bytes)
    founder.close()


def filled(make: Callable[..., Host], places: tuple[Place, ...], steps: int) -> None:
    """By a run that is over."""
    host = make(*places)
    host.open()
    worker = Worker(host, "r0.0")
    for step in range(1, steps + 1):
        save(step, worker)
    assert host.finish() == []


def flip(file: Path, offset: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def shards_of(folder: Path, step: int) -> list[Path]:
    return sorted(folder.glob(f"step-{step:012d}-*/shard-*"))


# Nearest first


def test_a_place_that_cannot_be_searched_for_a_while_is_tried_again(make: Callable[..., Host], tmp_path: Path) -> None:
    places = (place(tmp_path / "near"),)
    filled(make, places, 2)
    host = make(*places)
    host.open()
    pointers, aside = tmp_path / "near" / "pointers", tmp_path / "near" / "aside"
    pointers.rename(aside)
    pointers.symlink_to("pointers")  # which leads nowhere, for ever
    host.order("seek")
    wait_for(lambda: any("cannot be searched yet, and is tried again" in said for said in host.said), "a try in vain")
    pointers.unlink()
    aside.rename(pointers)
    check(host, host.event("sought"), 2, str(tmp_path / "near"))


def test_a_place_that_cannot_be_searched_for_good_ends_the_search(make: Callable[..., Host], tmp_path: Path) -> None:
    """An older state from elsewhere must not silently take the place of one that may be there."""
    places = (place(tmp_path / "near"), place(tmp_path / "far"))
    filled(make, places, 2)
    host = make(*places, patience_s=1.0)
    host.open()
    (tmp_path / "near" / "pointers").rename(tmp_path / "near" / "aside")
    (tmp_path / "near" / "pointers").symlink_to("pointers")
    sought = host.seek()
    assert sought["origin"] is None and f"{tmp_path / 'near'} cannot be searched" in sought["why"]


@pytest.mark.parametrize("has_other", [True, False])
def test_a_state_that_cannot_be_read_at_one_place_is_taken_from_another_that_has_it(
    make: Callable[..., Host], tmp_path: Path, has_other: bool
) -> None:
    places = (place(tmp_path / "near"), place(tmp_path / "far", 1 if has_other else 2))
    filled(make, places, 3)
    if not has_other:
        archive = Archive(open_store(places[1].url))
        archive._pointers.remove(archive.pointers()[0][0].number)
    shard = shards_of(tmp_path / "near", 3)[0]
    shard.unlink()
    shard.symlink_to(shard.name)  # which leads nowhere, for ever
    host = make(*places, patience_s=1000.0 if has_other else 1.0)  # while others have it nobody waits for a refusal to end
    host.open()
    sought = host.seek()
    if has_other:
        check(host, sought, 3, f"{tmp_path / 'near'} and {tmp_path / 'far'}")
        (mended,) = host.facts(OriginMended)
        assert (mended.step, mended.where) == (3, str(tmp_path / "near")) and "cannot be used" in mended.why
    else:
        assert sought["origin"] is None and f"{tmp_path / 'near'} cannot be searched" in sought["why"], "none older"


def test_nothing_was_saved(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"))
    host.open()
    sought = host.seek()
    assert sought["origin"] is None and "nothing was saved" in sought["why"]


def test_memory_is_nearer_than_places_and_the_first_place_nearer_than_the_second(
    make: Callable[..., Host], tmp_path: Path
) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    places = place(far, 1), place(near, 1)
    host = make(*reversed(places))
    host.open()
    worker = Worker(host, "r0.0")
    for step in (1, 2):
        save(step, worker)
    wait_for(lambda: len(host.facts(SaveDurable)) == 4, "both places")
    worker.close()
    check(host, host.seek(), 2, MEMORY)
    assert host.finish() == []
    again = make(*reversed(places))
    again.open()
    check(again, again.seek(), 2, str(near))
    found = again.facts(OriginFound)[0]
    assert (found.step, found.where, found.size_bytes) == (2, str(near), drafted(2).size_bytes)
    check(again, again.seek(1), 1, str(near))
    sought = again.seek(7)
    assert sought["origin"] is None and "step 7" in sought["why"]


def test_a_place_that_is_ahead_is_asked_although_it_is_farther(make: Callable[..., Host], tmp_path: Path) -> None:
    near, far = place(tmp_path / "near"), place(tmp_path / "far")
    filled(make, (near,), 2)
    filled(make, (far,), 3)
    host = make(near, far)
    assert host.open()["newest"] == [2, 3]
    check(host, host.seek(), 3, far.url)


def test_what_is_harmed_is_passed_over_and_told(make: Callable[..., Host], tmp_path: Path) -> None:
    near, far = place(tmp_path / "near"), place(tmp_path / "far")
    filled(make, (near, far), 2)
    for shard in shards_of(tmp_path / "near", 2):
        flip(shard)
    host = make(near, far)
    host.open()
    sought = host.seek()
    check(host, sought, 2, far.url)
    assert "near" in sought["why"] and "passed over" in sought["why"]
    assert [(fact.step, fact.where) for fact in host.facts(OriginPassedOver)] == [(2, near.url)]
    wait_for(lambda: any("passed over" in said for said in host.said), "a word to people")
    flip(shards_of(tmp_path / "far", 2)[0])
    other = make(near, far)
    other.open()
    check(other, other.seek(), 1, near.url)


def test_a_bit_that_flips_in_memory_is_found(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"))
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    save(2, worker)
    wait_for(lambda: len(host.facts(SaveDurable)) == 2, "the place")
    assert worker.arena is not None
    worker.arena[100] ^= 1
    worker.close()
    check(host, host.seek(), 2, f"{MEMORY} and {tmp_path / 'near'}")
    (fact,) = host.facts(OriginMended)
    assert (fact.step, fact.where) == (2, MEMORY)
    assert re.match(r"1 of 1 pieces are harmed, the first one within x\d \(byte 0 to \d+\), ", fact.why)


def test_a_bit_that_flips_in_memory_leaves_the_state_before_it(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    save(2, worker)
    assert worker.arena is not None
    worker.arena[100] ^= 1
    worker.close()
    check(host, host.seek(), 1, MEMORY)
    save(2, Worker(host, "r0.1"))  # again, and rightly
    check(host, host.seek(), 2, MEMORY)


def test_a_state_that_is_still_digested_is_waited_for_and_found(make: Callable[..., Host]) -> None:
    """No place takes it: nothing else would bring the search on."""
    host = make()
    host.open()
    worker = Worker(host, "r0.0")
    large = drafted(1, tensors=20_000)  # its digest takes longer than the question after it
    worker.deposit(1, ME, made=large)
    worker.lent()
    worker.deposited(1, 0)
    origin = host.seek()["origin"]
    assert (origin["step"], origin["where"]) == (1, MEMORY)


def test_a_place_that_may_hold_a_newer_state_is_not_passed_over(make: Callable[..., Host], tmp_path: Path) -> None:
    near, far = place(tmp_path / "near"), place(tmp_path / "far")
    filled(make, (near, far), 2)
    archive = Archive(open_store(near.url))
    newest = archive.pointers()[0][0]
    data = (tmp_path / "near" / newest.folder / "manifest.json").read_bytes()
    later = msgspec.json.encode({**msgspec.json.decode(data), "version": 99, "regrow": "9.9"})
    archive.store.put(f"{newest.folder}/manifest.json", [memoryview(later)])
    archive._pointers.remove(newest.number)
    named = msgspec.structs.replace(newest, manifest=xxhash.xxh3_128_hexdigest(later))
    assert archive._pointers.create(sealed(named))
    host = make(near, far)
    host.open()
    sought = host.seek()
    assert sought["origin"] is None and "9.9" in sought["why"]


def test_after_a_step_back_nothing_that_was_left_behind_is_found(make: Callable[..., Host], tmp_path: Path) -> None:
    near = place(tmp_path / "near")
    filled(make, (near,), 3)
    host = make(near)
    host.open()
    check(host, host.seek(1), 1, near.url)
    host.kill()
    check(host, host.seek(), 1, MEMORY)  # not step 3, which is durable
    save(2, Worker(host, "r0.0"), version=Version(2, 1))
    assert host.finish() == []
    assert steps_in(near.url) == [2, 3, 2, 1]
    after = make(near)
    after.open()
    check(after, after.seek(), 2, near.url)


# Out of several tiers


def served(host: Host) -> dict[str, int]:
    """How many bytes of the state that was found last each tier gave."""
    found = host.facts(OriginFound)[-1]
    assert sum(one.size_bytes for one in found.served) == found.size_bytes
    return {one.where: one.size_bytes for one in found.served}


SHARD_BYTES = 2 * TENSOR_BYTES
"""Of the tensors in each of two shards, each of which is one chunk."""


def test_only_what_is_harmed_in_memory_comes_from_a_place(make: Callable[..., Host], tmp_path: Path) -> None:
    near = place(tmp_path / "near")
    host = make(near)
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    wait_for(lambda: host.facts(SaveDurable), "the place")
    for _ in range(2):  # what was mended can be harmed as well, and is mended again
        assert worker.arena is not None
        worker.arena[SHARD_BYTES + 7] ^= 1
        check(host, host.seek(), 1, f"{MEMORY} and {near.url}")
        assert served(host) == {MEMORY: SHARD_BYTES, near.url: SHARD_BYTES}
        mended = host.facts(OriginMended)[-1]
        assert (mended.where, mended.lacking_bytes) == (MEMORY, SHARD_BYTES)
    assert not host.facts(OriginPassedOver)
    wait_for(lambda: any(f"{SHARD_BYTES} bytes of it come from elsewhere" in said for said in host.said), "a word of it")


@pytest.mark.parametrize("harm", [flip, Path.unlink, lambda file: os.truncate(file, 5000)], ids=["flip", "unlink", "cut"])
def test_a_state_that_no_place_has_whole_is_put_together(
    make: Callable[..., Host], tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    near, far = place(tmp_path / "near"), place(tmp_path / "far")
    filled(make, (near, far), 2)
    harm(shards_of(tmp_path / "near", 2)[1])
    harm(shards_of(tmp_path / "far", 2)[0])
    host = make(near, far)
    host.open()
    sought = host.seek()
    check(host, sought, 2, f"{near.url} and {far.url}")
    assert served(host) == {near.url: SHARD_BYTES, far.url: SHARD_BYTES}
    (mended,) = host.facts(OriginMended)  # of the other one nobody asked what is harmed there
    assert (mended.where, mended.lacking_bytes) == (near.url, SHARD_BYTES)
    assert "shard-00001.safetensors" in mended.why and "shard-00001.safetensors" in sought["why"]
    assert host.finish() == []


def test_a_vault_that_dies_over_a_harmed_state_leaves_it_to_be_mended(make: Callable[..., Host], tmp_path: Path) -> None:
    """The older one, which is whole in memory, does not take its place."""
    near = place(tmp_path / "near")
    host = make(near, faults="vault.0:restore-read:SIGKILL")
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    save(2, worker)
    wait_for(lambda: len(host.facts(SaveDurable)) == 2, "the place")
    assert worker.arena is not None
    worker.arena[7] ^= 1
    check(host, host.seek(), 2, f"{MEMORY} and {near.url}")
    assert len(host.facts(VaultEnded)) == 1


def test_what_was_newest_in_memory_and_harmed_is_not_forgotten(make: Callable[..., Host], tmp_path: Path) -> None:
    """One place found the harm while it saved the state, which another one had durable by then."""
    near, far = place(tmp_path / "near"), place(tmp_path / "far", 2)
    host = make(near, far)
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    writer = stopped_writer(host)
    save(2, worker)
    wait_for(lambda: [fact.url for fact in host.facts(SaveDurable) if fact.step == 2] == [far.url], "the farther place")
    assert worker.arena is not None
    worker.arena[7] ^= 1
    os.kill(writer, signal.SIGCONT)
    wait_for(lambda: host.facts(SaveFailed), "the nearer place")
    host.kill()
    check(host, host.seek(), 2, far.url)


def test_what_no_copy_has_whole_leaves_the_state_before_it(make: Callable[..., Host], tmp_path: Path) -> None:
    near, far = place(tmp_path / "near"), place(tmp_path / "far")
    filled(make, (near, far), 2)
    for folder in ("near", "far"):
        flip(shards_of(tmp_path / folder, 2)[1])
    host = make(near, far)
    host.open()
    check(host, host.seek(), 1, near.url)
    assert [(fact.step, fact.where) for fact in host.facts(OriginPassedOver)] == [(2, near.url), (2, far.url)]


def test_a_place_that_never_answers_is_left_and_the_others_serve(make: Callable[..., Host], tmp_path: Path) -> None:
    near, far = place(tmp_path / "near"), place(tmp_path / "far")
    filled(make, (near, far), 2)
    file = shards_of(tmp_path / "near", 2)[1]
    file.unlink()
    os.mkfifo(file)  # whoever reads it waits for ever
    host = make(near, far, patience_s=1.0)
    host.open()
    check(host, host.seek(), 2, far.url)
    assert served(host) == {far.url: 2 * SHARD_BYTES}
    (passed,) = host.facts(OriginPassedOver)
    assert passed.where == near.url and "does not answer for 1 s" in passed.why


@pytest.mark.parametrize("kept", ["version-1-job", "version-2"])
def test_what_a_release_saved_is_an_origin_for_this_one(make: Callable[..., Host], tmp_path: Path, kept: str) -> None:
    """A whole checkpoint, and a chain of deltas."""
    pytest.importorskip("zstandard", reason="pip install 'regrow[delta]'")
    shutil.copytree(Path(__file__).parents[1] / "state" / "fixtures" / kept, tmp_path / "near")
    host = make(place(tmp_path / "near"))
    host.open()
    origin = host.seek()["origin"]
    manifest = Archive(open_store(str(tmp_path / "near"))).manifest(
        Archive(open_store(str(tmp_path / "near"))).pointers()[0][0]
    )
    assert (origin["step"], origin["root"], origin["where"]) == (12, manifest.root, str(tmp_path / "near"))
    assert Worker(host, "founder.0").recall(12, manifest.root)


def test_files_whose_manifest_is_harmed_serve_under_that_of_another_copy(make: Callable[..., Host], tmp_path: Path) -> None:
    near, far = place(tmp_path / "near"), place(tmp_path / "far")
    filled(make, (near, far), 2)
    flip(next((tmp_path / "near").glob("step-000000000002-*/manifest.json")), 40)
    flip(shards_of(tmp_path / "near", 2)[0])
    host = make(near, far)
    host.open()
    check(host, host.seek(), 2, f"{near.url} and {far.url}")
    assert served(host) == {near.url: SHARD_BYTES, far.url: SHARD_BYTES}
    assert "manifest.json" in host.facts(OriginMended)[0].why


# Killed


@pytest.mark.parametrize("point, kept", [("lend", False), ("whole", False), ("kept", True)])
def test_a_vault_that_is_killed_leaves_what_is_whole(
    make: Callable[..., Host], tmp_path: Path, point: str, kept: bool
) -> None:
    host = make(place(tmp_path / "near"), faults=f"vault.0:vault-{point}:step=2:SIGKILL")
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    worker.deposit(2, ME)
    if point != "lend":
        worker.lent()
        worker.copy(2, ME)
        worker.deposited(2, 0)
    with pytest.raises(PeerError):
        worker.hear()
    assert [ended.how for ended in host.ended()] == ["killed by SIGKILL"]
    again, fate = settled(host, 2)
    assert isinstance(fate, Kept if kept else Void) and fate.step == 2
    check(host, host.seek(), 2 if kept else 1, MEMORY)
    save(3, again)
    assert host.finish() == []
    assert steps_in(tmp_path / "near") == ([3, 2, 1] if kept else [3, 1])


def test_a_vault_that_is_killed_while_it_opens_or_seeks_is_asked_again(make: Callable[..., Host], tmp_path: Path) -> None:
    near = place(tmp_path / "near")
    filled(make, (near,), 1)
    host = make(near, faults="vault.0:vault-open:SIGKILL,vault.1:vault-seek:SIGKILL")
    assert host.open() == {"type": "Opened", "newest": [1], "term": 2, "finished": [None]}
    check(host, host.seek(), 1, near.url)
    assert [fact.incarnation for fact in host.facts(VaultStarted)] == [0, 1, 2]
    assert len(host.facts(VaultEnded)) == 2


def test_a_door_that_a_dying_process_still_holds_is_waited_for(make: Callable[..., Host]) -> None:
    host = make()
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    holder.bind("\0" + host.address)
    host.order("open")
    pid = host.vault()
    wait_for(lambda: "nanosleep" in Path(f"/proc/{pid}/wchan").read_text(), "it to wait")
    holder.close()
    assert host.event("opened")["term"] == 1
    assert host.facts(VaultEnded) == []


def test_a_vault_that_stands_still_is_replaced(make: Callable[..., Host]) -> None:
    host = make(silence_s=3.0, faults="vault.0:vault-seek:SIGSTOP")
    host.open()
    save(1, Worker(host, "r0.0"))
    check(host, host.seek(), 1, MEMORY)
    assert [ended.how for ended in host.facts(VaultEnded)] == ["killed by SIGKILL"]


def test_vaults_that_always_die_are_given_up_and_the_agent_is_told(make: Callable[..., Host]) -> None:
    host = make(faults=",".join(f"vault.{n}:vault-seek:SIGKILL" for n in range(20)))
    host.open()
    sought = host.seek()
    assert sought["origin"] is None and "10 times in a row" in sought["why"]
    assert host.seek()["why"] == sought["why"]
    assert "10 times in a row" in host.finish()[0]
    assert any("Training goes on" in said for said in host.said)


def test_vaults_that_save_and_are_killed_are_no_row(make: Callable[..., Host]) -> None:
    """However often: each of them has made a state safe."""
    host = make()
    host.open()
    for step in range(1, 13):
        worker = Worker(host, "r0.0")
        save(step, worker)
        wait_for(lambda step=step: any(fact.step == step for fact in host.facts(StateKept)), "the state in memory")
        host.kill()
        worker.close()
    check(host, host.seek(), 12, MEMORY)
    assert host.finish() == []


def test_what_a_vault_had_not_made_durable_the_next_one_does(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"))
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    stopped_writer(host)
    for step in (2, 3):
        save(step, worker)
    assert [fact.step for fact in host.facts(SaveDurable)] == [1]
    host.kill()
    assert host.finish() == []
    assert steps_in(tmp_path / "near") == [3, 2, 1]


def test_what_was_durable_is_not_saved_again_by_the_next_vault(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"))
    host.open()
    worker = Worker(host, "r0.0")
    for step in (1, 2, 3):
        save(step, worker)
    wait_for(lambda: len(host.facts(SaveDurable)) == 3, "the place")
    host.kill()
    check(host, host.seek(), 3, MEMORY)
    assert host.finish() == []
    assert [fact.step for fact in host.facts(SaveDurable, SaveFailed)] == [1, 2, 3]


def test_what_a_search_finds_that_nobody_waits_for_does_not_end_the_vault(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near"))
    host.open()
    worker = Worker(host, "r0.0")
    save(1, worker)
    writer = stopped_writer(host)
    save(2, worker)
    host.order("search")
    host.order("finish")
    wait_for(lambda: host.facts(OriginFound), "what was searched for")
    os.kill(writer, signal.SIGCONT)
    assert host.event("finished") == []
    assert steps_in(tmp_path / "near") == [2, 1]


def test_what_is_overwritten_is_believed_by_nobody(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    worker = Worker(host, "r0.0")
    worker.say(Foreseen(arena_bytes=drafted(1).arena_bytes))
    for step in (1, 2, 3, 4):
        save(step, worker)
    worker.deposit(5, ME)  # where one of those lay
    worker.lent()
    worker.copy(5, ME)
    host.kill()
    for step in (1, 2, 3):
        host.seek(step)
    assert host.facts(OriginPassedOver) == []  # nobody even looked there


def test_a_member_that_was_lent_an_arena_by_a_vault_that_died_harms_no_later_save(make: Callable[..., Host]) -> None:
    host = make()
    host.open()
    sleeper = Worker(host, "r0.0")
    sleeper.deposit(1, ME)
    sleeper.lent()
    host.kill()
    worker = Worker(host, "r1.0")
    for step in (2, 3, 4):  # each generation is used
        save(step, worker)
        sleeper.copy(1, ME)
        assert worker.recall(step, root_at(step)) == bytes_of(step, drafted(step).arena_bytes)


@pytest.mark.parametrize("seed", range(4))
def test_a_vault_killed_at_any_moment_loses_nothing_that_was_kept(
    make: Callable[..., Host], tmp_path: Path, seed: int
) -> None:
    """The killer strikes some time after a member has asked for an arena."""
    host = make(place(tmp_path / "near", 3))
    host.open()
    chance = random.Random(seed)
    step, kept = 0, 0
    for _ in range(5):
        for _ in range(chance.randrange(4)):
            step += 1
            kept = max(kept, tried(host, step))
        step += 1
        killer = threading.Thread(target=host.kill_after, args=(chance.random() * 0.02,))
        kept = max(kept, tried(host, step, killer.start))
        killer.join()
    check(host, host.seek(), kept, MEMORY)
    while tried(host, step := step + 1) != step:
        pass
    check(host, host.seek(), step, MEMORY)
    assert host.finish() == []
    durable = {fact.step for fact in host.facts(SaveDurable)}
    assert durable and durable <= set(steps_in(tmp_path / "near"))
    assert steps_in(tmp_path / "near") == sorted(steps_in(tmp_path / "near"), reverse=True)


def tried(host: Host, step: int, strike: Callable[[], object] = bool) -> int:
    """The step that is kept after this try; 0: none."""
    unsettled = -1
    try:
        worker = Worker(host, "r0.0")
        strike()
        worker.deposit(step, ME)
        match worker.hear():
            case Kept(step=kept):
                return kept
            case Lent(size_bytes=size_bytes):
                worker.take_arena(size_bytes)
            case other:
                raise AssertionError(other)
        worker.copy(step, ME)
        unsettled = step
        worker.deposited(step, 0)
        return worker.heard(Kept).step
    except PeerError:
        pass
    if unsettled < 0:
        return 0
    _, fate = settled(host, unsettled)
    return fate.step if isinstance(fate, Kept) else 0


def settled(host: Host, step: int) -> tuple[Worker, object]:
    """A worker that comes again, and what it hears of a save: from the first vault that does not die over it."""

    def come() -> tuple[Worker, object] | None:
        try:
            worker = Worker(host, "r0.0", unsettled=step)
            return worker, worker.hear()
        except PeerError:
            return None

    found = wait_for(come, "a vault")
    assert found is not None
    return found
