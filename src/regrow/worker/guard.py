"""Watches that nothing but the commit changes the parameters: they stay as they are inside the inner loop."""

import torch

from regrow.core.errors import ConfigError


class Guard:
    """Compares autograd's version counters, which every in-place write raises."""

    def __init__(self, parameters: list[tuple[str, torch.Tensor]]) -> None:
        self._parameters = parameters
        self._seen: list[int] = []

    def remember(self) -> None:
        self._seen = [parameter._version for _, parameter in self._parameters]

    def check(self, step: int) -> None:
        for (name, parameter), seen in zip(self._parameters, self._seen, strict=True):
            if parameter._version != seen:
                raise ConfigError(
                    f"{name} was changed inside the inner loop of step {step}: call optimizer.step() after the loop over "
                    "the step's batches, not in it"
                )
