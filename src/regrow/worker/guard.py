"""Watches that nothing but the commit changes the model: parameters and buffers stay as they are inside the inner loop."""

import torch

from regrow.core.errors import ConfigError


class Guard:
    """Compares autograd's version counters, which every in-place write raises."""

    def __init__(self, parameters: list[tuple[str, torch.Tensor]], buffers: list[tuple[str, torch.Tensor]]) -> None:
        self._watched = [(name, tensor, "parameter") for name, tensor in parameters]
        self._watched += [(name, tensor, "buffer") for name, tensor in buffers]
        self._seen: list[int] = []

    def remember(self) -> None:
        self._seen = [tensor._version for _, tensor, _ in self._watched]

    def check(self, step: int) -> None:
        for (name, tensor, kind), seen in zip(self._watched, self._seen, strict=True):
            if tensor._version == seen:
                continue
            if kind == "parameter":
                raise ConfigError(
                    f"{name} was changed inside the inner loop of step {step}: call optimizer.step() after the loop over "
                    "the step's batches, not in it"
                )
            raise ConfigError(
                f"the buffer {name} was changed by the forward pass of step {step}: buffers are not agreed on between "
                "replicas yet; put the layer in eval() mode or use one without running statistics"
            )
