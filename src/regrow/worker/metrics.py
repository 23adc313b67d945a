"""Metrics of a step: each replica adds those of its own batches, and after the inner loop the mean is the same on all."""

from collections.abc import Iterator, Mapping

import torch

from regrow.core.errors import ConfigError
from regrow.state.byproducts import Mean


class Metrics(Mapping[str, float]):
    """Inside the inner loop one adds to it; afterwards one reads it."""

    def __init__(self) -> None:
        self._lane: dict[str, Mean] | None = None
        self._agreed: dict[str, float] | None = None

    def add(self, name: str, value: float | torch.Tensor, weight: float = 1.0) -> None:
        """A value of this batch, for the mean over the step, in which it counts `weight` times."""
        if self._lane is None:
            raise ConfigError(f"metrics.add({name!r}) outside the inner loop: values are added batch by batch, inside it")
        if not weight >= 0.0:
            raise ConfigError(f"metrics.add({name!r}, weight={weight}): a weight must be 0 or more")
        found = Mean(float(value) * weight, float(weight))
        self._lane[name] = self._lane[name] + found if name in self._lane else found

    def __getitem__(self, name: str) -> float:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def _known(self) -> dict[str, float]:
        if self._agreed is None:
            raise ConfigError("step.metrics inside the inner loop: a metric is known after it")
        return self._agreed

    def begin_lane(self) -> None:
        self._lane = {}

    def end_lane(self) -> dict[str, Mean]:
        found, self._lane = self._lane or {}, None
        return found

    def agree(self, means: Mapping[str, Mean]) -> None:
        self._agreed = {name: mean.value for name, mean in means.items()}
