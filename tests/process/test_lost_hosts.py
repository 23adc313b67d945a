"""A job's host is lost, with all that ran there and all of its memory, at named points and at moments that nobody chose.
What a neighbour on another host kept is enough: resumed on a third one, no committed step is computed again, and the final
digest is that of an undisturbed run. Lost, still, full or harmed itself, it never keeps training from going on."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import neighbours
import pytest
from hosts import Host, Network, connected
from runs import EVEN, REGROW, Run, is_stopped, sparse, wait_for

from regrow.core.origin import BEGINNING, LOGS
from regrow.core.records import (
    Committed,
    NeighbourBack,
    NeighbourLost,
    OriginFound,
    OriginPassedOver,
    OriginTaken,
    SaveDurable,
    SaveFailed,
)
from regrow.state.log import read

pytestmark = pytest.mark.process

Start = Callable[..., Run]
STEPS, PORT = 24, 29500
PACED = ("--pace", "0.05")
LONG = ("--pace", "0.1", "--steps", "400")
"""Until there has been enough of it: a neighbour takes a moment to be back."""


@pytest.fixture
def network() -> Iterator[Network]:
    with connected() as made:
        yield made


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_NEIGHBOUR_TOKEN", neighbours.TOKEN_GIVEN)


class Place:
    """A neighbour on a host of its own, which may be started there again."""

    def __init__(self, network: Network) -> None:
        self.host, self._address = network.host()
        self.memory_mb = 500
        self.running = self._started()

    def _started(self) -> neighbours.Running:
        return neighbours.Running(self.memory_mb, f"{self._address}:{PORT}", self.host.inside)

    def restart(self) -> None:
        self.running = self._started()

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--every-step", "--neighbour", f"{self._address}:{PORT}/tiny")

    @property
    def url(self) -> str:
        return f"neighbour://{self._address}:{PORT}/tiny"

    @property
    def pid(self) -> int:
        """Of the process that keeps."""
        found = [pid for pid in descendants(self.running.process.pid) if b"neighbour" in cmdline(pid)]
        return max(found)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.running.process.wait()


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(each for child in children for each in descendants(child))]


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture
def place(network: Network) -> Iterator[Place]:
    made = Place(network)
    yield made
    made.running.kill()


def reached(run: Run) -> int:
    """So many steps have been committed, by anybody."""
    return max((fact.step + 1 for _, fact in run.facts(Committed)), default=0)


def computed(run: Run) -> set[int]:
    """Steps that were committed, and not by replaying a record."""
    return {fact.step for _, fact in run.facts(Committed) if fact.by != "record"}


def lose(run: Run, host: Host) -> int:
    """All of a host at once; how many steps the job had committed."""
    host.power_off()
    run.process.wait()
    wait_for(lambda: not run.processes(), "every process of the host to be gone")
    return reached(run)


def hurry(run: Run) -> None:
    (run.folder / "hurry").touch()


def prove_nothing_lost(runs: list[Run], reference: str, steps: int = STEPS) -> None:
    """Of one job, each run of which went on from where the one before it was lost: counted from the journals."""
    last = runs[-1]
    assert last.wait() == 0, last.story()
    assert set(last.digests()) == {reference}, last.story()
    done: set[int] = set()
    for run in runs:
        again = done & computed(run)
        assert not again, f"{sorted(again)} were computed again\n{run.story()}"
        done |= computed(run) | ({fact.step for _, fact in run.facts(Committed)})
        assert run.check().returncode == 0, run.story()
    assert done == set(range(steps)), sorted(done)


EARLY = ("--bucket-mb", "0.0004")
"""Each member's part of a result goes to the neighbour bucket by bucket, while the result is still being reduced."""

AT = [
    "r0:prelogging:step=8",
    "r0:logging:step=8",
    "r0:copying:step=8",
    "r0:logged:step=8",
    "r0:boundary:step=8",
    "r0:passed:step=8",
    "r0:depositing:step=8",
    "vault:vault-kept:step=8",
    "writer:save-shard:nth=2",
    "writer:save-manifest:nth=2",
    "writer:save-pointer:nth=2",
    "writer:save-done:nth=2",
]


@pytest.mark.parametrize("point", sparse(AT, 2))
def test_a_host_lost_at_a_named_point_loses_no_step(
    network: Network, place: Place, start: Start, reference: str, point: str
) -> None:
    host, _ = network.host()
    fault = ("--memory-every", "4", "--fault", f"{point}:SIGSTOP", "--hang-factor", "0", *EVEN)
    first = start("--replicas", "3", *place.flags, *EARLY, *fault, before=host.inside, script_args=PACED)
    wait_for(lambda: any(is_stopped(pid) for pid in first.processes()), f"somebody to stand still at {point}")
    if point.startswith(("vault", "writer")):
        wait_for(lambda: reached(first) >= 11, "training to go on")
    before = lose(first, host)
    other, _ = network.host()
    second = start("--replicas", "2", *place.flags, "--resume", "latest", before=other.inside)
    prove_nothing_lost([first, second], reference)
    (taken,) = [fact for _, fact in second.facts(OriginTaken)]
    assert taken.through >= before >= 8, second.story()


@pytest.mark.parametrize("seed", sparse(range(10), 4))
def test_hosts_lost_at_any_moment_one_after_the_other_lose_no_step(
    network: Network, place: Place, start: Start, reference: str, seed: int
) -> None:
    chance = random.Random(seed)
    runs: list[Run] = []
    for life in range(3):
        host, _ = network.host()
        flags = ("--memory-every", str(chance.randint(2, 6))) if chance.random() < 0.6 else ()
        flags += EARLY if chance.random() < 0.5 else ()
        resume = ("--resume", "latest") if life else ()
        replicas = str(chance.randint(1, 3))
        run = start(
            "--replicas", replicas, *place.flags, *flags, *resume, before=host.inside, script_args=("--pace", "0.03")
        )
        runs.append(run)
        goal = min(STEPS - 4, reached(runs[-2]) + 7 if life else 5) + chance.randint(-2, 2)
        wait_for(lambda run=run, goal=goal: reached(run) >= goal or run.process.poll() is not None, f"step {goal}")
        assert run.process.poll() is None, run.story()
        before = lose(run, host)
        if life:
            (taken,) = [fact for _, fact in run.facts(OriginTaken)]
            assert before >= taken.through >= reached(runs[-2]), run.story()
    host, _ = network.host()
    runs.append(start("--replicas", "2", *place.flags, "--resume", "latest", before=host.inside))
    prove_nothing_lost(runs, reference)


def test_before_any_state_was_saved_the_neighbours_logs_are_enough(
    network: Network, place: Place, start: Start, reference: str
) -> None:
    host, _ = network.host()
    first = start("--replicas", "3", *place.flags, "--fault", "*:forward:step=4:SIGSTOP", before=host.inside)
    wait_for(lambda: any(is_stopped(pid) for pid in first.processes()), "somebody to stand still in step 4")
    assert not first.facts(SaveDurable), first.story()
    lose(first, host)
    other, _ = network.host()
    second = start("--replicas", "1", *place.flags, "--resume", "latest", before=other.inside)
    prove_nothing_lost([first, second], reference)
    assert [fact.where for _, fact in second.facts(OriginTaken)] == [BEGINNING], second.story()


def test_with_other_mathematics_those_logs_are_not_replayed(network: Network, place: Place, start: Start) -> None:
    host, _ = network.host()
    first = start("--replicas", "2", *place.flags, "--fault", "*:forward:step=4:SIGSTOP", before=host.inside)
    wait_for(lambda: any(is_stopped(pid) for pid in first.processes()), "somebody to stand still in step 4")
    lose(first, host)
    other, _ = network.host()
    second = start("--replicas", "2", *place.flags, "--resume", "latest", before=other.inside, script_args=("--batch", "5"))
    assert second.wait() == 1 and "the same mathematics" in second.output, second.story()


def test_a_neighbour_that_is_killed_is_done_without_and_counts_again(
    network: Network, place: Place, start: Start, digests: list[str]
) -> None:
    """And from its new base on it is enough: the host is lost after that."""
    host, _ = network.host()
    first = start("--replicas", "2", *place.flags, before=host.inside, script_args=LONG)
    wait_for(lambda: reached(first) >= 4, "four steps")
    place.kill()
    wait_for(lambda: {who for who, _ in first.facts(NeighbourLost)} == {"r0.0", "r1.0"}, "its loss to be noticed")
    lost = reached(first)
    wait_for(lambda: reached(first) >= lost + 2, "steps without it")
    assert "lies on this host alone" in first.output, first.story()
    assert "this host alone" in told(first, host), told(first, host)
    place.restart()
    wait_for(lambda: {who for who, _ in first.facts(NeighbourBack)} == {"r0.0", "r1.0"}, "it to count again")
    assert "this host alone" not in told(first, host), told(first, host)
    back = max(fact.step for _, fact in first.facts(NeighbourBack))
    assert any(fact.step <= back for _, fact in first.facts(SaveDurable)), first.story()
    wait_for(lambda: reached(first) >= back + 2, "steps with it")
    lose(first, host)
    other, _ = network.host()
    second = start("--replicas", "3", *place.flags, "--resume", "latest", before=other.inside, script_args=LONG)
    wait_for(lambda: computed(second), "a step of its own")
    steps = second.enough()
    prove_nothing_lost([first, second], digests[steps], steps)


def told(run: Run, host: Host) -> str:
    """Asked there: elsewhere nobody knows which of its processes live."""
    asked = [*host.inside, *REGROW, "status", str(run.folder)]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def test_a_neighbour_that_stands_still_is_waited_for_once(
    network: Network, place: Place, start: Start, digests: list[str]
) -> None:
    """Waited for at each of so many steps, they would not come before the deadline."""
    host, _ = network.host()
    flags = (*place.flags, "--neighbour-patience", "5")
    run = start("--replicas", "2", *flags, before=host.inside, script_args=LONG)
    wait_for(lambda: reached(run) >= 4, "four steps")
    neighbours.stand_still(place.pid)
    wait_for(lambda: run.facts(NeighbourLost), "its silence to be noticed")
    lost = reached(run)
    wait_for(lambda: reached(run) >= lost + 30, "steps without it")
    os.kill(place.pid, signal.SIGCONT)
    wait_for(lambda: len(run.facts(NeighbourBack)) == 2, "it to count again")
    steps = run.enough()
    prove_nothing_lost([run], digests[steps], steps)


def test_a_host_that_was_only_cut_off_is_fenced(network: Network, place: Place, start: Start, digests: list[str]) -> None:
    """It comes back while the job goes on elsewhere: it may not write at the neighbour any more, and finds out."""
    host, _ = network.host()
    first = start("--replicas", "2", *place.flags, "--neighbour-patience", "1", before=host.inside, script_args=LONG)
    wait_for(lambda: reached(first) >= 3, "three steps")
    network.plug(host, False)
    wait_for(lambda: len(first.facts(NeighbourLost)) == 2, "the cut to be noticed")
    other, _ = network.host()
    second = start(
        "--replicas", "2", *place.flags, "--resume", "latest", "--memory-every", "2", before=other.inside, script_args=LONG
    )
    wait_for(lambda: second.facts(SaveDurable), "a state of the second at the neighbour")
    network.plug(host, True)
    (first.folder / "enough").touch()
    assert first.wait() == 4, first.story()  # its last state could not be saved
    refused = [fact for _, fact in first.facts(SaveFailed) if fact.is_final]
    assert any("fenced" in fact.why for fact in refused), first.story()
    assert not first.facts(NeighbourBack), first.story()
    steps = second.enough()
    assert set(second.digests()) == {digests[steps]}, second.story()
    assert not second.facts(NeighbourLost), second.story()
    newest = subprocess.run(
        [*other.inside, *REGROW, "checkpoint", "list", f"neighbour://{place.flags[-1]}", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(newest.stdout)["checkpoints"][0]["step"] == steps, newest.stdout


def test_a_flipped_bit_at_the_neighbour_is_found_and_told(
    network: Network, place: Place, start: Start, reference: str
) -> None:
    """What came after it is computed again: nothing that is not what was committed is ever replayed."""
    host, _ = network.host()
    fault = ("--memory-every", "5", "--fault", "*:forward:step=9:SIGSTOP", *EVEN)
    first = start("--replicas", "2", *place.flags, *fault, before=host.inside)
    wait_for(lambda: any(is_stopped(pid) for pid in first.processes()), "somebody to stand still in step 9")
    wait_for(lambda: first.facts(SaveDurable), "a base")
    lose(first, host)
    logs = [fd for fd in Path(f"/proc/{place.pid}/fd").iterdir() if "regrow-log" in os.readlink(fd)]
    with logs[0].open("r+b", buffering=0) as file:
        (held,) = [held for held in read(file.fileno()).held if held.entry.said.record.step == 7]
        at = held.part_at + held.entry.part_bytes // 2
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 4]), at)
    other, _ = network.host()
    second = start("--replicas", "2", *place.flags, "--resume", "latest", before=other.inside)
    assert second.wait() == 0 and set(second.digests()) == {reference}, second.story()
    assert (7, LOGS) in [(fact.step, fact.where) for _, fact in second.facts(OriginPassedOver)], second.story()
    assert [(fact.step, fact.through) for _, fact in second.facts(OriginTaken)] == [(5, 7)], second.story()
    assert "is harmed" in second.output, second.story()


def test_a_flipped_bit_in_the_neighbours_base_is_found_and_told(
    network: Network, place: Place, start: Start, reference: str, tmp_path: Path
) -> None:
    """It comes from the next place, and is followed by what followed it at the neighbour."""
    host, _ = network.host()
    folder = str(tmp_path / "place")
    saves = ("--checkpoint", folder, "--checkpoint-every", "4")
    fault = ("--fault", "*:forward:step=11:SIGSTOP", *EVEN)
    first = start("--replicas", "2", *place.flags, *saves, *fault, before=host.inside)
    wait_for(lambda: any(is_stopped(pid) for pid in first.processes()), "somebody to stand still in step 11")
    both = {(8, folder), (8, place.url)}
    wait_for(lambda: {(fact.step, fact.url) for _, fact in first.facts(SaveDurable)} >= both, "a base at both places")
    lose(first, host)
    assert flip_in_shards(place.pid), "no shard lies in its memory"
    other, _ = network.host()
    second = start("--replicas", "3", *place.flags, *saves, "--resume", "latest", before=other.inside)
    prove_nothing_lost([first, second], reference)
    assert (8, place.url) in [(fact.step, fact.where) for _, fact in second.facts(OriginPassedOver)], second.story()
    assert next((fact.step, fact.where) for _, fact in second.facts(OriginFound)) == (8, folder), second.story()
    assert [(fact.step, fact.through) for _, fact in second.facts(OriginTaken)] == [(8, 11)], second.story()


def flip_in_shards(pid: int) -> int:
    """One bit of the data of each shard, and of each copy of one, in this process's memory: how many."""
    found = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if not line.split()[1].startswith("rw") or "[v" in line:
                continue
            start, stop = (int(each, 16) for each in line.split()[0].split("-"))
            memory.seek(start)
            data = memory.read(stop - start)
            at = data.find(b'{"')
            while at >= 8:
                size = int.from_bytes(data[at - 8 : at], "little")
                if size < 100_000 and b'"data_offsets"' in data[at : at + size]:
                    memory.seek(start + at + size + 100)
                    memory.write(bytes([data[at + size + 100] ^ 4]))
                    found += 1
                at = data.find(b'{"', at + 1)
    return found


def test_a_neighbour_that_is_full_is_done_without(network: Network, place: Place, start: Start, reference: str) -> None:
    """Others have most of its room."""
    place.kill()
    place.memory_mb = 1
    place.restart()
    host, _ = network.host()
    url = f"neighbour://{place.flags[-1].replace('/tiny', '/other')}"
    filling = f"from regrow.state.stores import open_store; open_store({url!r}).put('file', [memoryview(bytes(960_000))])"
    subprocess.run([*host.inside, sys.executable, "-c", filling], check=True)
    run = start("--replicas", "2", *place.flags, "--checkpoint-patience", "2", before=host.inside)
    assert run.wait() == 4 and "is full" in run.output, run.story()  # nor has it room for the last state
    assert any("is full" in fact.why for _, fact in run.facts(NeighbourLost)), run.story()
    assert set(run.digests()) == {reference} and run.check().returncode == 0, run.story()


def test_a_wrong_token_is_refused(place: Place, network: Network, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = network.host()
    monkeypatch.setenv("REGROW_NEIGHBOUR_TOKEN", "0bad" * 16)
    run = start("--replicas", "2", *place.flags, before=host.inside)
    assert run.wait() == 2 and "token" in run.output, run.output


def test_a_name_that_is_taken_is_refused(network: Network, place: Place, start: Start, reference: str) -> None:
    """And whoever has it is not disturbed."""
    host, _ = network.host()
    first = start("--replicas", "2", *place.flags, before=host.inside, script_args=PACED)
    wait_for(lambda: reached(first) >= 2, "two steps")
    second = start("--replicas", "2", *place.flags, before=host.inside)
    assert second.wait() == 2 and "--resume latest" in second.output, second.output
    hurry(first)
    prove_nothing_lost([first], reference)
    assert not first.facts(NeighbourLost), first.story()


def test_what_it_says_of_the_loss_of_the_host_comes_true(
    network: Network, place: Place, start: Start, digests: list[str]
) -> None:
    host, _ = network.host()
    first = start("--replicas", "2", *place.flags, "--memory-every", "6", before=host.inside, script_args=LONG)
    wait_for(lambda: first.facts(SaveDurable) and reached(first) >= 9, "steps after a base")
    asked = subprocess.run(
        [*host.inside, *REGROW, "status", str(first.folder), "--json", "--what-if", "host"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    (answer,) = json.loads(asked.stdout)["risk"]["what_if"]
    lose(first, host)
    assert (answer["outcome"]["kind"], answer["outcome"]["redone"]) == ("ended", 0), answer
    other, _ = network.host()
    second = start("--replicas", "2", *place.flags, "--resume", "latest", before=other.inside, script_args=LONG)
    wait_for(lambda: computed(second), "a step of its own")
    steps = second.enough()
    prove_nothing_lost([first, second], digests[steps], steps)
