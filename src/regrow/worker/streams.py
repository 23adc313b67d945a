"""An iterable dataset, split by lane: each lane reads a stream of items of its own and goes on where it was committed.

A dataset with `for_lane(lane, lanes)` is asked for each lane's own stream. Any other is dealt: every lane reads all of it
and takes each `lanes`-th item. A stream that ends begins anew: the next epoch.

Where a lane stands is its *position*. A stream with state_dict() and load_state_dict() is put there by these; any other by
reading as many items as had been read. Every item is read in a random state that only its place decides, so that reading
again gives the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
import torch.utils.data

from regrow.core.errands import Errand
from regrow.core.errors import ConfigError
from regrow.core.order import Grid, fetch_seed, item_seed
from regrow.core.origin import STREAMS
from regrow.state.byproducts import raw
from regrow.state.tree import flatten, leaves, unflatten
from regrow.worker.randomness import seed_host
from regrow.worker.sources import one_thread


class Split(Protocol):
    def for_lane(self, lane: int, lanes: int, /) -> Iterable[Any]: ...


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a stream stands: which pass over it, items read of that, and what the stream itself says."""

    epoch: int = 0
    items: int = 0
    state: bytes | None = None


class Positions:
    """Every lane's committed position, as its bytes: part of the job's state. A lane without one is at its beginning."""

    def __init__(self) -> None:
        self.of: dict[int, bytes] = {}

    def state_dict(self) -> dict[int, bytes]:
        return dict(self.of)

    def load_state_dict(self, state_dict: dict[int, bytes], /) -> None:
        self.of = dict(state_dict)


class Streams:
    def __init__(
        self, dataset: Iterable[Any] | Split, grid: Grid, batch_size: int, collate: Callable[[list[Any]], Any] | None
    ) -> None:
        self.grid = grid
        self.terms = {"batch_size": str(batch_size), "data": STREAMS}
        self.positions = Positions()
        self._dataset = dataset
        self._batch_size = batch_size
        self._collate = collate or torch.utils.data.default_collate
        self._readers: dict[int, tuple[bytes, _Reader]] = {}
        """In the process that reads: each lane's, with the position at which it stands."""
        self._reached: dict[int, bytes] = {}
        """In the training process: lanes handed out in this step, up to where."""
        self._last: dict[int, bytes] = {}
        """The same, in any step."""

    def make(self, errand: Errand, /) -> tuple[Any, bytes]:
        """The microbatch, and where the lane stands after it: only the errand decides both, its start included."""
        assert errand.start is not None, "a stream is read from somewhere"
        with one_thread():
            reader = self._reader(errand.lane, errand.start)
            items = [reader.take() for _ in range(self._batch_size)]
            seed_host(fetch_seed(self.grid.seed, errand.step, errand.lane, errand.microbatch))
            batch = self._collate(items)
            end = msgspec.msgpack.encode(reader.position())
        self._readers[errand.lane] = end, reader
        return batch, end

    def _reader(self, lane: int, start: bytes) -> "_Reader":
        """The one at hand if it stands there. It does not in a lane that came from elsewhere or is computed again."""
        position, reader = self._readers.pop(lane, (b"", None))
        if reader is None or position != start:
            reader = _Reader(self._dataset, self.grid, lane)
            reader.seek(msgspec.msgpack.decode(start, type=Position) if start else Position())
        return reader

    # In the training process

    def start(self, lane: int, microbatch: int) -> bytes:
        """Where the microbatch begins that is needed now. Those of a lane are asked for in order, from the first."""
        return self.positions.of.get(lane, b"") if microbatch == 0 else self._reached[lane]

    def guess(self, lane: int) -> bytes:
        """Where the lane will begin when it is next computed, as far as is known."""
        return self._reached.get(lane, self.positions.of.get(lane, b""))

    def is_away(self, errand: Errand) -> bool:
        """Must the stream be read, or put, to the errand's start first?"""
        return errand.start != b"" and self._last.get(errand.lane) != errand.start

    def handed_out(self, lane: int, end: bytes) -> None:
        self._reached[lane] = self._last[lane] = end

    def end_lane(self, lane: int) -> bytes:
        """Where the lane stands now; not committed yet."""
        return self._reached[lane]

    def commit(self, positions: Mapping[int, bytes]) -> None:
        """Of the lanes that the step is made of. One that was left out stays where it was."""
        self._reached.clear()
        for lane, position in positions.items():
            self.positions.of[lane] = position
            if lane in self._readers and self._readers[lane][0] != position:
                del self._readers[lane]  # others have gone on with this lane


class _Reader:
    """One lane's stream, read on and on."""

    def __init__(self, dataset: Iterable[Any] | Split, grid: Grid, lane: int) -> None:
        self._dataset, self._grid, self._lane = dataset, grid, lane
        self._is_split = hasattr(dataset, "for_lane")
        self._epoch = self._items = 0
        self._stream: Any = None
        self._iterator: Iterator[Any] = iter(())

    def seek(self, position: Position) -> None:
        self._open(position.epoch, position.state)
        if position.state is not None:
            self._items = position.items
        while self._items < position.items:
            try:
                self._next()
            except StopIteration:
                raise ConfigError(
                    f"the stream of lane {self._lane} ended after {self._items} items, where {position.items} had been read "
                    "before: an iterable dataset must give the same items each time"
                ) from None

    def take(self) -> Any:
        while True:
            index = self._items
            try:
                item = self._next()
            except StopIteration:
                if index <= (0 if self._is_split else self._lane):
                    raise ConfigError(
                        f"the dataset holds no item for lane {self._lane} of {self._grid.lanes}: it needs one for each lane"
                    ) from None
                self._open(self._epoch + 1, None)
                continue
            if self._is_split or index % self._grid.lanes == self._lane:
                return item

    def position(self) -> Position:
        state = None
        if self._has_state:
            flat = flatten(self._stream.state_dict(), f"the state_dict() of lane {self._lane}'s stream")
            tensors = [raw(tensor) for tensor in flat.tensors]
            state = msgspec.msgpack.encode([msgspec.json.encode(flat.skeleton), tensors])
        return Position(self._epoch, self._items, state)

    @property
    def _has_state(self) -> bool:
        return self._is_split and hasattr(self._stream, "state_dict") and hasattr(self._stream, "load_state_dict")

    def _open(self, epoch: int, state: bytes | None) -> None:
        # The same for all lanes: where each reads everything, all must see one order.
        seed_host(item_seed(self._grid.seed, epoch, -1, 0))
        self._epoch, self._items = epoch, 0
        lane, lanes = self._lane, self._grid.lanes
        self._stream = self._dataset.for_lane(lane, lanes) if self._is_split else self._dataset  # type: ignore[union-attr]
        if state is not None:
            self._stream.load_state_dict(_decoded(state))
        self._iterator = iter(self._stream)

    def _next(self) -> Any:
        seed_host(item_seed(self._grid.seed, self._epoch, self._lane if self._is_split else -1, self._items + 1))
        try:
            item = next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:
            error.add_note(f"in item {self._items} of lane {self._lane}'s stream, epoch {self._epoch}")
            raise
        self._items += 1
        return item


def _decoded(state: bytes) -> Any:
    skeleton, parts = msgspec.msgpack.decode(state, type=tuple[bytes, list[bytes]])
    tree = msgspec.json.decode(skeleton)
    shapes = {index: (dtype, shape) for index, dtype, shape in leaves(tree)}
    tensors = []
    for index, part in enumerate(parts):
        dtype, shape = shapes[index]
        flat = torch.frombuffer(bytearray(part), dtype=dtype) if part else torch.empty(0, dtype=dtype)
        tensors.append(flat.reshape(shape))
    return unflatten(tree, tensors)
