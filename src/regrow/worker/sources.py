"""Sources of microbatches: each a pure function of (step, lane, microbatch), in whichever process it is called."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import torch.utils.data

from regrow.core.errors import ConfigError
from regrow.core.order import Grid, Plan


class MapStyle(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Samples:
    """A map-style dataset, cut by a Plan."""

    def __init__(self, dataset: MapStyle, grid: Grid, batch_size: int, collate: Callable[[list[Any]], Any] | None) -> None:
        size = len(dataset)
        if size < 1:
            raise ConfigError("data() got an empty dataset: there is nothing to train on")
        self.grid = Plan(**msgspec.structs.asdict(grid), batch_size=batch_size, dataset_size=size)
        self.terms = {"batch_size": str(batch_size), "dataset size": str(size)}
        self._dataset = dataset
        self._collate = collate or torch.utils.data.default_collate

    def make(self, step: int, lane: int, microbatch: int) -> Any:
        return self._collate([self._dataset[index] for index in self.grid.samples(step, lane, microbatch)])


class Function:
    """The user's own function of (step, lane, microbatch)."""

    def __init__(self, function: Callable[[int, int, int], Any], grid: Grid) -> None:
        self.grid = grid
        self.terms = {"data": f"the function {getattr(function, '__qualname__', type(function).__qualname__)}"}
        self._function = function

    def make(self, step: int, lane: int, microbatch: int) -> Any:
        return self._function(step, lane, microbatch)
