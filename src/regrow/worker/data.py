"""The job's data, as the two loops see it: microbatches by (step, lane, microbatch), and by nothing else."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data._utils.pin_memory import pin_memory

from regrow.core.errands import Errand
from regrow.core.errors import ConfigError
from regrow.core.lanes import Cell
from regrow.core.order import Grid, fetch_seed
from regrow.core.progress import Phase
from regrow.core.records import Fact
from regrow.shell.stamp import Stamp
from regrow.state.tracked import Stateful
from regrow.worker.prefetch import TRIES, Prefetch, PrefetchConfig
from regrow.worker.randomness import seed_everything
from regrow.worker.sources import Function, MapStyle, Samples
from regrow.worker.streams import Split, Streams

Given = MapStyle | Iterable[Any] | Split | Callable[[int, int, int], Any]
"""What a script may give as its data."""


class Data:
    """Fetches microbatches. Only streams have a position; it moves when a step is committed."""

    def __init__(self, source: Samples | Function | Streams, config: PrefetchConfig, pins: bool) -> None:
        self.grid: Grid = source.grid
        self.terms: dict[str, str] = source.terms
        """What all replicas must agree on."""
        self._source = source
        self._pins = pins
        self._timeout_s = config.timeout_s
        # Here, and not at the first step: the later a process is forked, the more threads and connections it has.
        self._prefetch = Prefetch(source, config, lambda fact: self._note(fact)) if config.workers else None
        self._expected: Callable[[int], tuple[Cell, ...]] = lambda count: ()
        self._stamp = Stamp()
        self._note: Callable[[Fact], None] = lambda fact: None

    def attend(self, expected: Callable[[int], tuple[Cell, ...]], stamp: Stamp, note: Callable[[Fact], None]) -> None:
        """expected: so many cells that this replica will be asked for, as far as is known."""
        self._expected, self._stamp, self._note = expected, stamp, note

    @property
    def tracked(self) -> dict[str, Stateful]:
        """What of it is part of the job's state, under names that no script can give."""
        return {"regrow.data": self._source.positions} if isinstance(self._source, Streams) else {}

    def end_lane(self, lane: int) -> dict[int, bytes]:
        """All microbatches of a lane were handed out: its new position, if it has one."""
        return {lane: self._source.end_lane(lane)} if isinstance(self._source, Streams) else {}

    def commit(self, positions: dict[int, bytes]) -> None:
        if isinstance(self._source, Streams):
            self._source.commit(positions)

    def microbatch(self, step: int, lane: int, microbatch: int) -> Any:
        if isinstance(self._source, Streams):
            errand = Errand(step, lane, microbatch, self._source.start(lane, microbatch))
            # How long the way to a lane's place takes says nothing about the next microbatch, nor the other way round.
            is_away = self._source.is_away(errand)
            with self._stamp.aside(Phase.SEEK) if is_away else contextlib.nullcontext():
                batch, end = self._fetch(errand)
            self._source.handed_out(lane, end)
            if self._prefetch is not None:  # what follows in this lane can be asked for only now
                self._prefetch.ask(self._wanted(errand, 1 + self._prefetch.reach, end)[1:])
        else:
            batch = self._fetch(Errand(step, lane, microbatch))
        return pin_memory(batch) if self._pins else batch  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """No data worker is left afterwards."""
        if self._prefetch is not None:
            self._prefetch.close()

    def _fetch(self, errand: Errand) -> Any:
        if self._prefetch is None:
            # Devices too: data that is made here may be made on one.
            seed_everything(fetch_seed(self.grid.seed, errand.step, errand.lane, errand.microbatch))
            return self._source.make(errand)
        wanted = self._wanted(errand, self._prefetch.reach)
        try:
            if self._timeout_s is None or self._prefetch.is_ready(wanted):
                return self._prefetch.take(wanted)
            # The user has said how long a data worker may take: no learned limit may be shorter.
            with self._stamp.aside(Phase.BUSY, "a data worker", at_most_s=2 * TRIES * self._timeout_s):
                return self._prefetch.take(wanted)
        finally:
            for took_s in self._prefetch.took_s:
                self._stamp.learn(Phase.DATA, took_s)
            self._prefetch.took_s.clear()

    def _wanted(self, needed: Errand, count: int, end: bytes | None = None) -> list[Errand]:
        """The one that is needed now, the rest of its lane, and what will follow. end: of the needed one, if it was made."""
        lanes = self.grid.microbatches_per_lane
        here = Cell(needed.step, needed.lane)
        wanted = [Errand(here.step, here.lane, number) for number in range(needed.microbatch, lanes)]
        for cell in self._expected(2 + count // lanes):
            if cell != here:
                wanted += [Errand(cell.step, cell.lane, number) for number in range(lanes)]
        # Before their starts are known: what comes into sight stays there until it is used, and is not read again.
        wanted = wanted[:count]
        if needed.start is None:
            return wanted
        return list(self._placed(needed, wanted, {} if end is None else {needed: end}))

    def _placed(self, needed: Errand, wanted: list[Errand], ends: dict[Errand, bytes]) -> Iterator[Errand]:
        """The same with their starts, as far as these are known: up to the first of a lane that is still to be made."""
        assert isinstance(self._source, Streams) and self._prefetch is not None
        starts: dict[int, bytes | None] = {needed.lane: needed.start}
        for errand in wanted:
            lane = errand.lane
            start = starts[lane] if lane in starts else self._source.guess(lane)
            if start is None:
                continue
            placed = Errand(errand.step, lane, errand.microbatch, start)
            yield placed
            made = self._prefetch.peek(placed)
            starts[lane] = made[1] if made is not None else ends.get(placed)


def make_data(
    source: Given,
    grid: Grid,
    *,
    batch_size: int | None,
    collate: Callable[[list[Any]], Any] | None,
    num_workers: int,
    prefetch: int,
    pins: bool,
    timeout_s: float | None,
) -> Data:
    if num_workers < 0 or prefetch < 1:
        raise ConfigError(f"num_workers={num_workers} must be at least 0, and prefetch={prefetch} at least 1")
    if timeout_s is not None and (not timeout_s > 0 or not num_workers):
        raise ConfigError(f"timeout_s={timeout_s} with num_workers={num_workers}: it is for data workers, and more than 0")
    made = _source(source, grid, batch_size, collate)
    keeps_lanes = isinstance(made, Streams)
    config = PrefetchConfig(workers=num_workers, ahead=prefetch, keeps_lanes=keeps_lanes, timeout_s=timeout_s)
    return Data(made, config, pins and torch.cuda.is_available())


def _source(
    source: Given,
    grid: Grid,
    batch_size: int | None,
    collate: Callable[[list[Any]], Any] | None,
) -> Samples | Function | Streams:
    what = f"data() got a {type(source).__qualname__}"
    # torch's iterable datasets inherit a __getitem__ that only raises.
    is_stream = hasattr(source, "for_lane") or isinstance(source, torch.utils.data.IterableDataset)
    is_map = not is_stream and hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if is_map or is_stream or hasattr(source, "__iter__"):
        if isinstance(source, Iterator):
            raise ConfigError(
                f"{what}, an iterator, which can be read only once: a lane that moves must be read again from its "
                "beginning. Give a map-style dataset, an iterable one, or a function of (step, lane, microbatch)"
            )
        if batch_size is None:
            raise ConfigError(
                f"{what}, which is a dataset: say how many samples a microbatch holds, data(..., batch_size=4)"
            )
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} must be at least 1")
        return (Samples if is_map else Streams)(source, grid, batch_size, collate)  # type: ignore[arg-type]
    if callable(source):
        for name, value in (("batch_size", batch_size), ("collate", collate)):
            if value is not None:
                raise ConfigError(f"{what} and {name}={value}: a function returns whole microbatches, leave {name} out")
        return Function(source, grid)
    raise ConfigError(
        f"{what}, which is neither a map-style dataset (__len__ and __getitem__), nor an iterable one (__iter__ or "
        "for_lane), nor a function of (step, lane, microbatch)"
    )
