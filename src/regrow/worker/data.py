"""The job's data, as the two loops see it: microbatches by (step, lane, microbatch), and by nothing else."""

from collections.abc import Callable
from typing import Any

from regrow.core.errors import ConfigError
from regrow.core.order import Grid, fetch_seed
from regrow.worker.randomness import seed_everything
from regrow.worker.sources import Function, MapStyle, Samples


class Data:
    """Fetches microbatches; holds no position."""

    def __init__(self, source: Samples | Function) -> None:
        self.grid: Grid = source.grid
        self.terms: dict[str, str] = source.terms
        """What all replicas must agree on."""
        self._source = source

    def microbatch(self, step: int, lane: int, microbatch: int) -> Any:
        # Devices too: data that is made here may be made on one.
        seed_everything(fetch_seed(self.grid.seed, step, lane, microbatch))
        return self._source.make(step, lane, microbatch)


def make_data(
    source: MapStyle | Callable[[int, int, int], Any],
    grid: Grid,
    *,
    batch_size: int | None,
    collate: Callable[[list[Any]], Any] | None,
) -> Data:
    what = f"data() got a {type(source).__qualname__}"
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        if batch_size is None:
            raise ConfigError(
                f"{what}, which is a dataset: say how many samples a microbatch holds, data(..., batch_size=4)"
            )
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} must be at least 1")
        return Data(Samples(source, grid, batch_size, collate))
    if callable(source):
        for name, value in (("batch_size", batch_size), ("collate", collate)):
            if value is not None:
                raise ConfigError(f"{what} and {name}={value}: a function returns whole microbatches, leave {name} out")
        return Data(Function(source, grid))
    raise ConfigError(
        f"{what}, which is neither a map-style dataset (it has no __len__ and __getitem__) nor a function of (step, lane, "
        "microbatch)"
    )
