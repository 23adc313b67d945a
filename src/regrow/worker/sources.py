"""Sources of microbatches: each a pure function of (step, lane, microbatch), in whichever process it is called.

Each sample is read in a random state of its own, and with one thread of torch's: whatever else is read beside it, and
wherever, random augmentation comes out the same.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
import torch.utils.data

from regrow.core.errands import Errand
from regrow.core.errors import ConfigError
from regrow.core.order import Grid, Plan, fetch_seed, sample_seed
from regrow.core.origin import DATA_FROM, DATASET_SIZE
from regrow.worker.randomness import seed_host


class MapStyle(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Samples:
    """A map-style dataset, cut by a Plan."""

    def __init__(self, dataset: MapStyle, grid: Grid, batch_size: int, collate: Callable[[list[Any]], Any] | None) -> None:
        size = len(dataset)
        if size < 1:
            raise ConfigError("data() got an empty dataset: there is nothing to train on")
        grid = msgspec.structs.replace(grid, data_from=grid.data_from.within(grid.seed, size))
        self.grid = Plan(**msgspec.structs.asdict(grid), batch_size=batch_size, dataset_size=size)
        self.terms = {
            "batch_size": str(batch_size),
            DATASET_SIZE: str(size),
            DATA_FROM: str(grid.data_from),
        }
        self._dataset = dataset
        self._collate = collate or torch.utils.data.default_collate

    def make(self, errand: Errand, /) -> Any:
        which = errand.step, errand.lane, errand.microbatch
        with one_thread():
            samples = [self._sample(position) for position in self.grid.positions(*which)]
            seed_host(fetch_seed(self.grid.seed, *which))
            return self._collate(samples)

    def _sample(self, position: int) -> Any:
        index = self.grid.sample(position)
        seed_host(sample_seed(self.grid.seed, position))
        try:
            return self._dataset[index]
        except Exception as error:
            error.add_note(f"in sample {index} of the dataset")
            raise


class Function:
    """The user's own function of (step, lane, microbatch)."""

    def __init__(self, function: Callable[[int, int, int], Any], grid: Grid) -> None:
        self.grid = grid
        self.terms = {"data": f"the function {getattr(function, '__qualname__', type(function).__qualname__)}"}
        self._function = function

    def make(self, errand: Errand, /) -> Any:
        which = errand.step, errand.lane, errand.microbatch
        with one_thread():
            seed_host(fetch_seed(self.grid.seed, *which))
            return self._function(*which)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A sum over several threads has other bits; data workers have one."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
