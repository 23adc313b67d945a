"""Iterable datasets by lane: each item once and in order, wherever a lane is computed and however often."""

import random
from collections.abc import Iterator

import pytest
import torch

import regrow
from regrow.core.order import Grid
from regrow.worker import job as job_module
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
    items = [item for number in range(2) for item in source.make(step, lane, number)]
    return items, source.end_lane(lane)


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
    source.make(0, 1, 0)  # and broken off
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


@pytest.mark.usefixtures("one_job")
@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (iter([1]), {"batch_size": 1}, "can be read only once"),
        (Shards(), {}, "say how many samples"),
        (Shards(), {"batch_size": 0}, "batch_size=0"),
        (Shuffled(), {"batch_size": 1, "num_workers": 2}, "num_workers=2"),
    ],
)
def test_wrong_combinations_say_what_to_do(source: object, options: dict[str, int], says: str) -> None:
    job_module.current = None
    job = regrow.join(lanes=LANES)
    with pytest.raises(regrow.ConfigError, match=says):
        job.data(source, **options)
