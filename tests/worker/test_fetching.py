"""A striped transfer between real processes: donors die, stall, hold bad memory; the joiner has it or says why not."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from donors import DEADLINE_S, JOINER, KEY, STEP, TOKEN, Donors, Scissors, Valve

from regrow.core.errors import Mismatch, PeerError, StateError
from regrow.core.messages import Offer
from regrow.core.roster import Endpoint, Member
from regrow.core.stripes import AHEAD, PIECE_BYTES, Underway, count
from regrow.state.tracked import Tracked
from regrow.worker.healing import Received
from regrow.worker.replica import Replica
from regrow.worker.stripes import Fetching

R0, R1, R2 = (Member(f"r{number}", 0) for number in range(3))


class Box:
    """A tracked object whose state is whatever it was given."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def tracking(**objects: Any) -> Tracked:
    tracked = Tracked()
    for name, thing in objects.items():
        tracked.add(name, thing)
    return tracked


def large(is_trained: bool) -> Tracked:
    """Some 50 MB: a tensor of several pieces, tiny ones between, moments that a fresh optimizer does not have."""
    torch.manual_seed(3 if is_trained else 4)
    model = torch.nn.Sequential(torch.nn.Linear(2048, 1600), torch.nn.LayerNorm(1600), torch.nn.Linear(1600, 500))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if is_trained:
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
        optimizer.zero_grad()
    return tracking(model=model, optimizer=optimizer)


def fetching(donors: Donors, **options: Any) -> Fetching:
    return Fetching(JOINER, TOKEN, donors.endpoints, KEY, STEP, **options)


def fetched(donors: Donors, replica: Replica, **options: Any) -> Received:
    received = fetching(donors, **options).run(replica.place)
    replica.take(received)
    return received


def joiner(build: Any = large) -> Replica:
    return Replica(build(False), steps=100)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_state_comes_whole_and_is_the_donors(size: int) -> None:
    with Donors(size, large) as donors:
        replica = joiner()
        received = fetched(donors, replica)
        root = donors.tell(R0, "root")
    assert replica.tracked.fingerprint() == received.offer.digest == root
    assert replica.tracked.digest() == large(True).digest()
    assert sum(stripe.size_bytes for stripe in received.stripes.values()) == received.size_bytes > 10 * PIECE_BYTES
    assert (received.blamed, received.lost) == ({}, {})


def test_it_is_received_where_it_belongs_and_nothing_is_copied_again() -> None:
    with Donors(2, large) as donors:
        replica = joiner()
        weight = next(replica.tracked.objects["model"].parameters())
        address = weight.data_ptr()
        received = fetched(donors, replica)
    assert weight.data_ptr() == address and address in [tensor.data_ptr() for tensor in received.tensors]
    moments = replica.tracked.objects["optimizer"].state[weight]
    assert moments["exp_avg"].data_ptr() in [tensor.data_ptr() for tensor in received.tensors]


class Begun:
    """A fetch on a thread of its own, so that donors can come to it one after the other."""

    def __init__(self, fetch: Fetching, replica: Replica) -> None:
        self.fetch = fetch
        self._future = ThreadPoolExecutor(1).submit(fetch.run, replica.place)
        self._replica = replica

    def wait_given(self) -> None:
        """All pieces have come, and whoever gave them has declared what it holds."""
        wait_until(lambda: isinstance(now := self.fetch.outcome(), Underway) and now.missing == 0 and len(now.silent) == 2)

    def wait_first(self) -> None:
        """A piece has come. What a donor had sent when it was killed may be lost on the way."""
        pieces = count(sum(tensor.nbytes for tensor in large(True).flatten().tensors))
        wait_until(lambda: isinstance(now := self.fetch.outcome(), Underway) and now.missing == pieces - 1)

    def taken(self) -> Received:
        received = self._future.result(DEADLINE_S)
        self._replica.take(received)
        return received


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("size", [2, 3])
def test_a_donor_killed_in_the_middle_costs_only_what_it_owed(size: int, tmp_path: Path) -> None:
    with Donors(size, large, holds=False, faults="r1:serving:nth=2:SIGSTOP", run_dir=str(tmp_path)) as donors:
        replica = joiner()
        begun = Begun(fetching(donors, stall_s=3600.0), replica)
        donors.bid(R1, "hold")
        wait_until(lambda: donors.is_stopped(R1))
        begun.wait_first()
        donors.signal(R1, signal.SIGKILL)
        donors.processes[R1].join(DEADLINE_S)
        for member in donors.endpoints.keys() - {R1}:
            donors.tell(member, "hold")
        received = begun.taken()
    assert replica.tracked.digest() == large(True).digest()
    assert list(received.lost) == [R1]
    assert received.stripes[R1].size_bytes == PIECE_BYTES, "the one piece that it gave was not fetched again"


def test_a_donor_that_stands_still_in_the_middle_is_not_waited_for_when_the_others_agree(tmp_path: Path) -> None:
    with Donors(3, large, holds=False, faults="r1:serving:nth=2:SIGSTOP", run_dir=str(tmp_path)) as donors:
        replica = joiner()
        begun = Begun(fetching(donors, stall_s=3600.0), replica)
        donors.bid(R1, "hold")
        wait_until(lambda: donors.is_stopped(R1))
        begun.wait_first()
        for member in (R0, R2):
            donors.tell(member, "hold")
        received = begun.taken()
    assert replica.tracked.digest() == large(True).digest()
    assert received.stripes[R1].size_bytes == PIECE_BYTES
    assert len(received.witnesses) >= 2, "most of them; the one that stands still may have declared its state before"


def test_a_slow_donor_cannot_spoil_a_piece_that_has_come_from_another() -> None:
    with Donors(3, large, holds=False) as donors:
        valve = Valve(donors.endpoints[R1], 6 << 20)  # the first half of its second piece, and a bit
        donors.endpoints[R1] = valve.endpoint
        donors.tell(R1, "corrupt", 0, 7 << 20)  # in the second half
        replica = joiner()
        begun = Begun(fetching(donors, stall_s=3600.0), replica)
        donors.tell(R1, "hold")
        assert valve.is_reached.wait(DEADLINE_S)
        begun.wait_first()
        donors.tell(R0, "hold")
        wait_until(lambda: isinstance(now := begun.fetch.outcome(), Underway) and now.missing == 0)
        valve.open()
        wait_until(lambda: not begun.fetch.owes(R1))
        donors.tell(R2, "hold")
        received = begun.taken()
    assert replica.tracked.digest() == large(True).digest()
    assert list(received.blamed) == [R1]
    assert received.stripes[R1].size_bytes == PIECE_BYTES


def test_a_donor_that_stalls_in_the_middle_is_set_aside(tmp_path: Path) -> None:
    with (
        Donors(1, large, faults="r0:serving:nth=2:SIGSTOP", run_dir=str(tmp_path)) as donors,
        pytest.raises(PeerError, match=r"r0\.0 gave no byte for 3 s while it owed some"),
    ):
        fetched(donors, joiner(), stall_s=3.0)


def test_a_donor_that_never_answers_at_its_door_is_set_aside() -> None:
    with Donors(2, large, holds=False) as donors:
        donors.tell(R0, "hold")
        donors.signal(R1, signal.SIGSTOP)
        replica = joiner()
        received = fetched(donors, replica, stall_s=3.0)
    assert replica.tracked.digest() == large(True).digest()
    assert list(received.lost) == [R1]
    assert received.witnesses == (R0,)


def test_a_donor_whose_memory_is_bad_is_outvoted_and_only_the_bad_piece_is_fetched_again() -> None:
    with Donors(3, large, holds=False) as donors:
        donors.tell(R1, "corrupt", 0, 5_000_000)
        replica = joiner()
        begun = Begun(fetching(donors, stall_s=3600.0), replica)
        donors.tell(R1, "hold")
        begun.wait_given()
        for member in (R0, R2):
            donors.tell(member, "hold")
        received = begun.taken()
    assert replica.tracked.digest() == large(True).digest()
    assert list(received.blamed) == [R1]
    assert received.witnesses == (R0, R2)
    assert received.stripes[R0].size_bytes + received.stripes[R2].size_bytes == PIECE_BYTES


def test_of_two_that_differ_neither_is_believed() -> None:
    with Donors(2, large, holds=False) as donors:
        donors.tell(R0, "corrupt", 0, 5_000_000)
        for member in donors.endpoints:
            donors.tell(member, "hold")
        with pytest.raises(StateError, match=r"no majority.*r0\.0.*r1\.0"):
            fetched(donors, joiner())


@pytest.mark.parametrize("size", [1, 2])
def test_a_line_that_breaks_half_way_costs_only_what_was_on_its_way(size: int) -> None:
    with Donors(size, large, holds=False) as donors:
        scissors = Scissors(donors.endpoints[R0], 26 << 20)
        donors.endpoints[R0] = scissors.endpoint
        replica = joiner()
        begun = Begun(fetching(donors, stall_s=3600.0), replica)
        donors.tell(R0, "hold")
        assert scissors.has_cut.wait(DEADLINE_S)
        if size == 1:
            assert scissors.came_again.wait(DEADLINE_S)
        for member in donors.endpoints.keys() - {R0}:
            donors.tell(member, "hold")
        received = begun.taken()
    assert replica.tracked.digest() == large(True).digest()
    assert (received.lost, received.blamed) == ({}, {})
    assert received.stripes[R0].size_bytes >= 5 * PIECE_BYTES, "what had come was not fetched again"
    if size == 1:
        assert scissors.passed_bytes < received.size_bytes + (AHEAD + 1) * PIECE_BYTES


def test_a_line_that_breaks_again_and_again_and_brings_nothing_is_given_up() -> None:
    with Donors(1, large) as donors:
        scissors = Scissors(donors.endpoints[R0], 1 << 20, again=True)
        donors.endpoints[R0] = scissors.endpoint
        with pytest.raises(PeerError, match=r"no donor is left.*r0\.0"):
            fetched(donors, joiner())


def test_what_is_no_tensor_is_compared_too() -> None:
    with Donors(3, large, holds=False) as donors:
        donors.tell(R0, "alter", 0.5)
        replica = joiner()
        begun = Begun(fetching(donors, stall_s=3600.0), replica)
        donors.tell(R0, "hold")
        begun.wait_given()
        for member in (R1, R2):
            donors.tell(member, "hold")
        received = begun.taken()
    assert replica.tracked.objects["optimizer"].param_groups[0]["lr"] == 0.01
    assert list(received.blamed) == [R0]
    assert received.stripes[R0].size_bytes == received.size_bytes, "all its bytes were right"


def test_bytes_that_change_after_they_were_declared_are_fetched_again_elsewhere() -> None:
    with Donors(3, large, holds=False) as donors:
        donors.tell(R0, "hold")
        Begun(fetching(donors, stall_s=3600.0), joiner()).wait_given()  # its digests are made
        donors.tell(R0, "corrupt snapshot", 77)
        replica = joiner()
        fetch = fetching(donors, stall_s=3600.0)
        begun = Begun(fetch, replica)
        wait_until(lambda: bool(fetch.blamed))
        for member in (R1, R2):
            donors.tell(member, "hold")
        received = begun.taken()
    assert replica.tracked.digest() == large(True).digest()
    assert list(received.blamed) == [R0] and "piece 0" in received.blamed[R0]


def test_with_all_donors_gone_it_says_so_and_goes_on_later_from_what_it_has(tmp_path: Path) -> None:
    with Donors(2, large, faults="*:serving:nth=3:SIGKILL,*:serving:nth=2:SIGKILL", run_dir=str(tmp_path)) as donors:
        fetch = fetching(donors)
        replica = joiner()
        with pytest.raises(PeerError, match=r"no donor is left.*r0\.0.*r1\.0"):
            fetch.run(replica.place)
    leftover = fetch.leftover
    assert leftover is not None and leftover.kept.digests
    with Donors(1, large) as donors:
        received = fetching(donors, leftover=leftover).run(replica.place)
        replica.take(received)
    assert replica.tracked.digest() == large(True).digest()
    had = len(leftover.kept.digests) * PIECE_BYTES
    assert received.stripes[R0].size_bytes == received.size_bytes - had


def test_nobody_there_is_a_peer_error() -> None:
    fetch = Fetching(JOINER, TOKEN, {R0: Endpoint("127.0.0.1", 9)}, KEY, STEP)
    with pytest.raises(PeerError, match="cannot reach"):
        fetch.run(joiner().place)
    assert fetch.leftover is None


def test_an_ask_waits_for_its_snapshot_and_is_turned_away_when_that_is_dropped() -> None:
    with Donors(1, large, holds=False) as donors:
        done: list[Any] = []
        replica = joiner()
        thread = threading.Thread(target=lambda: done.append(fetched(donors, replica)))
        thread.start()
        donors.tell(R0, "hold")
        thread.join()
        assert done and replica.tracked.digest() == large(True).digest()
        donors.tell(R0, "drop")
        with pytest.raises(PeerError, match="no donor is left"):
            fetched(donors, joiner())


@pytest.mark.parametrize("moment", ["before", "connecting", "waiting", "receiving"])
def test_a_cancelled_fetch_ends_and_nobody_writes_any_more(moment: str, tmp_path: Path) -> None:
    faults = "r0:serving:nth=2:SIGSTOP" if moment == "receiving" else ""
    with Donors(1, large, holds=moment == "receiving", faults=faults, run_dir=str(tmp_path)) as donors:
        if moment == "connecting":
            donors.signal(R0, signal.SIGSTOP)
        fetch, placed = fetching(donors, stall_s=3600.0), threading.Event()
        replica = joiner()

        def place(offer: Offer) -> list[torch.Tensor]:
            placed.set()
            return replica.place(offer)

        def cancel() -> None:
            if moment == "receiving":
                wait_until(lambda: donors.is_stopped(R0))
            fetch.cancel()

        if moment == "before":
            fetch.cancel()
        else:
            threading.Timer(0.2, cancel).start()
        before = threading.active_count()
        with pytest.raises(PeerError, match="cancelled"):
            fetch.run(place)
        assert placed.is_set() == (moment == "receiving")
        assert threading.active_count() <= before


def test_another_script_is_refused_before_a_byte_is_written() -> None:
    with Donors(1, large) as donors:
        other = Replica(tracking(model=torch.nn.Linear(3, 3)), steps=100)
        before = other.tracked.digest()
        with pytest.raises(Mismatch, match="Run the same script"):
            fetched(donors, other)
    assert other.tracked.digest() == before


# Odd states


def odd(is_trained: bool) -> Tracked:
    torch.manual_seed(1 if is_trained else 2)
    model = torch.nn.Module()
    model.transposed = torch.nn.Parameter(torch.randn(700, 900).t())
    model.last = torch.nn.Parameter(torch.randn(64, 3, 40, 40).to(memory_format=torch.channels_last))
    model.brief = torch.nn.Parameter(torch.randn(333, 777).bfloat16())
    model.tied = model.brief
    model.register_buffer("mask", torch.randn(1001) > 0)
    model.register_buffer("count", torch.randint(-(2**60), 2**60, (513,)))
    model.register_buffer("nothing", torch.empty(0, 5))
    model.register_buffer("one", torch.tensor(3.5 if is_trained else 0.0))
    extra = Box({"tensor": torch.randn(100), "empty": torch.empty(0), "word": "trained" if is_trained else "new", "at": 7})
    return tracking(model=model, extra=extra)


def tiny(is_trained: bool) -> Tracked:
    torch.manual_seed(1 if is_trained else 2)
    return tracking(box=Box({str(number): torch.randn(number % 7) for number in range(5000)}))


def empty(is_trained: bool) -> Tracked:
    return tracking(box=Box({"nothing": torch.empty(0), "word": "trained" if is_trained else "new"}))


@pytest.mark.parametrize("build", [odd, tiny, empty])
@pytest.mark.parametrize("size", [1, 2])
def test_states_of_every_kind_arrive_as_they_are(build: Any, size: int) -> None:
    with Donors(size, build) as donors:
        replica = joiner(build)
        fetched(donors, replica)
    assert replica.tracked.digest() == build(True).digest()
    if build is odd:
        assert replica.tracked.objects["model"].tied is replica.tracked.objects["model"].brief
        assert not replica.tracked.objects["model"].transposed.is_contiguous()


def reordered(is_trained: bool) -> Tracked:
    """As each process fills its dict in another order."""
    names = ["a", "b", "c", "d"]
    first = os.getpid() % len(names)
    torch.manual_seed(1 if is_trained else 2)
    values = {name: torch.randn(number + 1, 300_000) for number, name in enumerate(names)}
    return tracking(box=Box({name: values[name] for name in names[first:] + names[:first]}))


def test_donors_whose_dicts_were_filled_in_another_order_hold_the_same_ribbon() -> None:
    with Donors(3, reordered) as donors:
        replica = joiner(reordered)
        received = fetched(donors, replica)
    assert len(received.witnesses) >= 2 and received.blamed == {}
    assert replica.tracked.digest() == reordered(True).digest()
