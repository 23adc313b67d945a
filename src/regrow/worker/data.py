"""The job's data: a map-style dataset, cut into microbatches by (seed, step, lane, microbatch) and by nothing else."""

from collections.abc import Callable
from typing import Any, Protocol

import torch.utils.data

from regrow.core.errors import ConfigError
from regrow.core.order import Plan


class MapStyle(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Data:
    """Fetches microbatches; holds no position."""

    def __init__(self, dataset: MapStyle, plan: Plan, collate: Callable[[list[Any]], Any]) -> None:
        self.plan = plan
        self._dataset = dataset
        self._collate = collate

    def microbatch(self, step: int, lane: int, microbatch: int) -> Any:
        return self._collate([self._dataset[index] for index in self.plan.samples(step, lane, microbatch)])


def make_data(
    dataset: MapStyle,
    *,
    seed: int,
    lanes: int,
    microbatches_per_lane: int,
    batch_size: int,
    collate: Callable[[list[Any]], Any] | None,
) -> Data:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"data() got a {type(dataset).__qualname__}, which is not a map-style dataset: it needs __len__ and __getitem__"
        )
    size = len(dataset)
    if size < 1:
        raise ConfigError("data() got an empty dataset: there is nothing to train on")
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be at least 1")
    plan = Plan(
        seed=seed,
        lanes=lanes,
        microbatches_per_lane=microbatches_per_lane,
        batch_size=batch_size,
        dataset_size=size,
    )
    return Data(dataset, plan, collate or torch.utils.data.default_collate)
