"""Iterable datasets by lane: each item once and in order, wherever a lane is computed and however often."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import regrow
from regrow.core.errands import Errand
from regrow.core.lanes import Cell
from regrow.core.order import Grid
from regrow.core.progress import Phase
from regrow.shell.stamp import Page, Stamp
from regrow.worker import job as job_module
from regrow.worker.data import Data
from regrow.worker.streams import Streams

LANES = 3
GRID = Grid(seed=7, lanes=LANES, microbatches_per_lane=2)


class Shuffled(torch.utils.data.IterableDataset):
    """Plain: 20 items in an order that it draws anew each time, each with a random number of its own."""

    def __iter__(self) -> Iterator[tuple[int, float]]:
        order = list(range(20))
        random.shuffle(order)
        for item in order:
            yield item, torch.rand(1).item()


class Shards:
    """Split by itself; each lane's stream has no state of its own."""

    def for_lane(self, lane: int, lanes: int) -> Iterator[tuple[int, float]]:
        for item in range(lane, 20, lanes):
            yield item, random.random()


class Seekable:
    """Split by itself, with streams that say where they are. They count how many items they were asked for."""

    asked = 0

    def for_lane(self, lane: int, lanes: int) -> "SeekableStream":
        return SeekableStream(lane, lanes)


class SeekableStream:
    def __init__(self, lane: int, lanes: int) -> None:
        self.at, self.lanes = torch.tensor([lane]), lanes

    def __iter__(self) -> "SeekableStream":
        return self

    def __next__(self) -> tuple[int, float]:
        Seekable.asked += 1
        item = int(self.at)
        if item >= 20:
            raise StopIteration
        self.at += self.lanes
        return item, random.random()

    def state_dict(self) -> dict[str, object]:
        return {"at": self.at, "words": ("a", 1.5, None)}

    def load_state_dict(self, state: dict[str, object]) -> None:
        assert state["words"] == ("a", 1.5, None)
        self.at = state["at"]


KINDS = [Shuffled, Shards, Seekable]


def streams(dataset: object) -> Streams:
    return Streams(dataset, GRID, batch_size=2, collate=list)


def lane_of(source: Streams, step: int, lane: int) -> tuple[list[tuple[int, float]], bytes]:
    items = [item for number in range(2) for item in microbatch(source, step, lane, number)]
    return items, source.end_lane(lane)


def microbatch(source: Streams, step: int, lane: int, number: int) -> list[tuple[int, float]]:
    items, end = source.make(Errand(step, lane, number, source.start(lane, number)))
    source.handed_out(lane, end)
    return items


def undisturbed(dataset: object, steps: int) -> list[list[list[tuple[int, float]]]]:
    """By step and lane."""
    source, rows = streams(dataset), []
    for step in range(steps):
        row = [lane_of(source, step, lane) for lane in range(LANES)]
        source.commit({lane: position for lane, (_, position) in enumerate(row)})
        rows.append([items for items, _ in row])
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_every_item_once_in_an_epoch_and_then_the_next(kind: type) -> None:
    rows = undisturbed(kind(), 12)
    for lane in range(LANES):
        numbers = [item for row in rows for item, _ in row[lane]]
        length = len(range(lane, 20, LANES))
        epochs = [sorted(numbers[at : at + length]) for at in range(0, len(numbers) - length, length)]
        assert len(epochs) >= 6 and all(len(set(epoch)) == length for epoch in epochs)
    first = [
        item for lane in range(LANES) for item in [i for row in rows for i, _ in row[lane]][: len(range(lane, 20, LANES))]
    ]
    assert sorted(first) == list(range(20)), "the lanes share an epoch without hole or overlap"
    drawn = [number for row in rows for items in row for _, number in items]
    assert len(set(drawn)) == len(drawn), "every item has a random state of its own, in every epoch"


@pytest.mark.parametrize("kind", KINDS)
def test_a_lane_goes_on_exactly_wherever_it_moves(kind: type) -> None:
    expected = undisturbed(kind(), 9)
    chance = random.Random(4)
    replicas = [streams(kind()) for _ in range(3)]
    for step in range(9):
        if step % 3 == 2:  # one dies, and grows back with a donor's state
            back = streams(kind())
            back.positions.load_state_dict(replicas[1].positions.state_dict())
            replicas[0] = back
            chance.shuffle(replicas)
        found = {}
        for lane in range(LANES):
            holder = chance.choice(replicas)
            if chance.random() < 0.5:
                lane_of(chance.choice(replicas), step, lane)  # somebody who died, or whose part was dropped
            items, found[lane] = lane_of(holder, step, lane)
            assert items == expected[step][lane]
        for replica in replicas:
            replica.commit(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lane_computed_again_starts_from_the_committed_position(kind: type) -> None:
    source = streams(kind())
    once, position = lane_of(source, 0, 1)
    assert lane_of(source, 0, 1) == (once, position)
    microbatch(source, 0, 1, 0)  # and broken off
    assert lane_of(source, 0, 1) == (once, position)
    source.commit({1: position})
    other, _ = lane_of(source, 1, 1)
    assert other == undisturbed(kind(), 2)[1][1]


def test_a_stream_with_state_is_put_there_and_not_read_again() -> None:
    source = streams(Seekable())
    _, position = lane_of(source, 0, 0)
    moved = streams(Seekable())
    moved.commit({0: position})
    Seekable.asked = 0
    assert lane_of(moved, 1, 0)[0] == undisturbed(Seekable(), 2)[1][0]
    Seekable.asked = 0
    lane_of(moved, 1, 0)
    assert Seekable.asked == 5, "four items, and the end of an epoch between them"


class Few(Shards):
    def for_lane(self, lane: int, lanes: int) -> Iterator[tuple[int, float]]:
        return iter([(lane, 0.0)] * (lane == 0))


class Shrinking(torch.utils.data.IterableDataset):
    size = 20

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


def test_what_cannot_feed_a_lane_is_refused() -> None:
    with pytest.raises(regrow.ConfigError, match="no item for lane 1 of 3"):
        lane_of(streams(Few()), 0, 1)
    with pytest.raises(regrow.ConfigError, match="no item for lane 2 of 3"):
        lane_of(streams([1, 2]), 0, 2)
    source = streams(Shrinking())
    _, position = lane_of(source, 0, 0)
    moved = streams(Shrinking())
    moved.commit({0: position})
    Shrinking.size = 5
    with pytest.raises(regrow.ConfigError, match="ended after 5 items, where 10 had been read"):
        lane_of(moved, 1, 0)


def test_an_error_names_the_item() -> None:
    class Torn(Shards):
        def for_lane(self, lane: int, lanes: int) -> Iterator[tuple[int, float]]:
            yield 0, 0.0
            raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable") as raised:
        lane_of(streams(Torn()), 0, 2)
    assert raised.value.__notes__ == ["in item 1 of lane 2's stream, epoch 0"]


# In a job of one


class Measured(Shuffled):
    """Says how long it is, and inherits a __getitem__, and is no map-style dataset for that."""

    def __len__(self) -> int:
        return 20


@pytest.mark.usefixtures("one_job")
@pytest.mark.parametrize("kind", [Measured, *KINDS])
def test_an_iterable_dataset_is_known_as_one(kind: type) -> None:
    job_module.current = None
    job = regrow.join(lanes=LANES, seed=7)
    model = torch.nn.Linear(1, 1)
    job.track(model=model)
    seen: list[int] = []
    for step in job.steps(3, job.data(kind(), batch_size=2)):
        for numbers, _ in step:
            seen += numbers.tolist()
            step.backward(model(numbers[:, None].float()).mean())
    assert len(set(seen)) == 18, "items of the first epoch"


def trained(skip: list[tuple[int, int]], steps: int = 4) -> tuple[dict[int, list[int]], str]:
    """The items of each lane, and the digest."""
    job_module.current = None
    job = regrow.join(lanes=LANES, seed=7, skip=skip)
    model = torch.nn.Linear(1, 1)
    job.track(model=model)
    seen: dict[int, list[int]] = {lane: [] for lane in range(LANES)}
    for step in job.steps(steps, job.data(Shards(), batch_size=2)):
        for numbers, _ in step:
            seen[step.lane] += numbers.tolist()
            step.backward(model(numbers[:, None].float()).mean())
    return seen, job.digest()


@pytest.mark.usefixtures("one_job")
def test_a_lane_that_is_left_out_keeps_its_position() -> None:
    whole, digest = trained([])
    skipped, other = trained([(1, 2)])
    assert skipped[0] == whole[0] and skipped[1] == whole[1]
    assert skipped[2] == whole[2][:6], "it goes on where it was, one step later"
    assert digest != other, "positions are part of the state"


# With data workers


class Opened(Shards):
    """Notes in a file what is opened and read, and by whom; may die, once, at one item."""

    def __init__(self, log: Path, deadly: int | None = None) -> None:
        self._log, self._deadly = log, deadly

    def for_lane(self, lane: int, lanes: int) -> Iterator[tuple[int, float]]:
        self._write(f"open {lane} {os.getpid()}")
        for item in super().for_lane(lane, lanes):
            if item[0] == self._deadly and "died" not in self._log.read_text():
                self._write("died")
                os.kill(os.getpid(), signal.SIGKILL)
            self._write(f"read {item[0]}")
            yield item

    def _write(self, words: str) -> None:
        with self._log.open("a") as file:
            file.write(words + "\n")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def fed(
    source: object, skip: list[tuple[int, int]] | None = None, inside: Callable[[], object] = int, **options: object
) -> list[object]:
    """What every microbatch held, in the order of their use, and the state at the end."""
    job_module.current = None
    job = regrow.join(lanes=LANES, microbatches_per_lane=2, seed=7, skip=skip or [])
    model = torch.nn.Linear(1, 1)
    job.track(model=model)
    seen: list[object] = []
    for step in job.steps(5, job.data(source, batch_size=2, **options)):
        for numbers, drawn in step:
            inside()
            seen.append((step.index, step.lane, numbers.tolist(), drawn.tolist()))
            step.backward(model(numbers[:, None].float()).mean() + torch.rand(1)[0])
    return [*seen, job.digest()]


@pytest.mark.usefixtures("one_job")
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_data_workers_change_nothing_of_a_stream(kind: type, workers: int) -> None:
    for skip in ([], [(1, 2), (2, 0)]):
        expected = fed(kind(), skip)
        assert fed(kind(), skip, num_workers=workers, prefetch=1) == expected
        assert fed(kind(), skip, num_workers=workers, prefetch=4) == expected


@pytest.mark.usefixtures("one_job")
def test_a_stream_stays_with_one_data_worker(log: Path) -> None:
    assert fed(Opened(log), num_workers=2) == fed(Shards())
    opened = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("open")]
    holders = {lane: {pid for other, pid in opened if other == lane} for lane, _ in opened}
    assert sorted(holders) == ["0", "1", "2"] and all(len(pids) == 1 for pids in holders.values())
    assert len(set.union(*holders.values())) == 2, "both have something to do"
    epochs = {str(lane): 1 + 5 * 4 // len(range(lane, 20, LANES)) for lane in range(LANES)}
    assert Counter(lane for lane, _ in opened) == epochs, "none was read again"


@pytest.mark.usefixtures("one_job")
def test_a_stream_is_read_ahead_of_its_use(log: Path) -> None:
    """While a microbatch is in hand, another one of its lane is made."""
    used = 0

    def wait() -> None:
        nonlocal used
        used += 2
        deadline = time.monotonic() + 60
        while used <= 2 * 2 and log.read_text().count("read") <= used and time.monotonic() < deadline:
            time.sleep(0.001)
        assert used > 2 * 2 or log.read_text().count("read") > used

    assert fed(Opened(log), inside=wait, num_workers=1, prefetch=1) == fed(Shards())


@pytest.mark.usefixtures("one_job")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_whose_data_worker_dies_goes_on_exactly(workers: int, log: Path) -> None:
    assert fed(Opened(log, deadly=13), num_workers=workers) == fed(Shards())
    assert "died" in log.read_text()


@pytest.mark.usefixtures("one_job")
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_read_ahead_from_a_wrong_position_is_not_used(kind: type) -> None:
    """Others commit a lane that was read on here, or it is left out of its step, or computed again."""
    seen = []
    for workers in (0, 2):
        job_module.current = None
        data = regrow.join(lanes=LANES, microbatches_per_lane=2, seed=7).data(kind(), 2, num_workers=workers)
        told: list[object] = []

        def lane(step: int, lane: int, data: Data = data, told: list[object] = told) -> dict[int, bytes]:
            ahead = [Cell(step + more, other) for more in (1, 2) for other in range(LANES)]
            data.attend(lambda count: tuple(ahead[:count]), Stamp(), lambda fact: None)
            told.append([[part.tolist() for part in data.microbatch(step, lane, number)] for number in range(2)])
            return data.end_lane(lane)

        zero, one = lane(0, 0), lane(0, 1)
        data.commit(zero)  # without lane 1
        assert lane(1, 1) == one
        far = lane(1, 0)
        assert lane(1, 0) == far  # once more
        data.commit(zero | one)  # lane 0 stays where it was
        lane(2, 0), lane(2, 1)
        data.close()
        seen.append(told)
    assert seen[0] == seen[1] and seen[0][0] != seen[0][3] == seen[0][4] == seen[0][5]


@pytest.mark.usefixtures("one_job")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_way_to_a_lanes_place_has_a_limit_of_its_own(workers: int) -> None:
    page = Page("test")

    class Watched(Shards):
        def for_lane(self, lane: int, lanes: int) -> Iterator[tuple[int, float]]:
            for item in super().for_lane(lane, lanes):
                yield item[0], float(page.read().place.phase == "seek")

    job_module.current = None
    data = regrow.join(lanes=LANES, seed=7).data(Watched(), 2, num_workers=workers)
    stamp = Stamp(page.fd)
    data.attend(lambda count: (), stamp, lambda fact: None)
    stamp.enter(Phase.DATA, 0, 0)

    def fetched(step: int, lane: int) -> bool:
        return bool(data.microbatch(step, lane, 0)[1].any())

    assert not fetched(0, 0), "from the beginning"
    data.commit(first := data.end_lane(0))
    assert not fetched(1, 0), "and on"
    data.commit(first)  # it was left out: back again
    assert fetched(2, 0)
    data.close()
    page.close()


class Heavy(Seekable):
    def for_lane(self, lane: int, lanes: int) -> "HeavyStream":
        return HeavyStream(lane, lanes)


class HeavyStream(SeekableStream):
    def state_dict(self) -> dict[str, object]:
        return {**super().state_dict(), "buffer": torch.zeros(20_000)}


@pytest.mark.usefixtures("one_job")
def test_a_position_too_large_for_data_workers_is_refused() -> None:
    assert len(fed(Heavy())) == 31
    with pytest.raises(regrow.ConfigError, match=r"state_dict\(\) of lane 0's stream has 80\d+ bytes"):
        fed(Heavy(), num_workers=1)


@pytest.mark.usefixtures("one_job")
@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (iter([1]), {"batch_size": 1}, "can be read only once"),
        (Shards(), {}, "say how many samples"),
        (Shards(), {"batch_size": 0}, "batch_size=0"),
    ],
)
def test_wrong_combinations_say_what_to_do(source: object, options: dict[str, int], says: str) -> None:
    job_module.current = None
    job = regrow.join(lanes=LANES)
    with pytest.raises(regrow.ConfigError, match=says):
        job.data(source, **options)
