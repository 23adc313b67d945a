"""How large the state of a loop will be that has named none of it yet: what its optimizers own, seen as they step.

To make the pages of an arena takes several times as long as to copy into it. A script that restores first, or calls `save`
at each step, has them made beside training. Of one that first calls when a save is due, this is all that is known before.
It decides nothing: whatever it says, a save is laid out by what it is given.
"""

import threading
import weakref
from collections.abc import Callable, Iterable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_MORE = 1 / 64
_MORE_BYTES = 1 << 20
"""For buffers and the like: for memory that is too small, if only by a page, a save waits."""


class Forecast:
    """Until it ends. It keeps no optimizer alive, and says nothing of those that step on other threads."""

    def __init__(self, told: Callable[[int], None]) -> None:
        """`told` is called when an optimizer has made its first step: how many bytes those that live own altogether."""
        self._told: Callable[[int], None] | None = told
        self._seen: weakref.WeakValueDictionary[int, torch.optim.Optimizer] = weakref.WeakValueDictionary()
        self._thread = threading.get_ident()
        self._hook = register_optimizer_step_post_hook(torch.compiler.disable(self._look))  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """It is known what is saved: nothing more is said. The hook stays for now: whoever saves may do so in a hook of
        their own, and torch's list of hooks must not change while it goes through it."""
        self._told = None

    def close(self) -> None:
        self.end()
        self._hook.remove()

    def _look(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._told is None or self._seen.get(id(optimizer)) is optimizer or threading.get_ident() != self._thread:
            return
        self._seen[id(optimizer)] = optimizer
        size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in _owned(self._seen.values()))
        self._told(size_bytes + int(size_bytes * _MORE) + _MORE_BYTES)


def _owned(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Each once, and those alone that a save would take."""
    found: dict[int, torch.Tensor] = {}
    for optimizer in optimizers:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        states = [state for state in optimizer.state.values() if isinstance(state, dict)]
        values = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        found.update((id(tensor), tensor) for tensor in [*parameters, *values])
    return [
        tensor
        for tensor in found.values()
        if tensor.layout is torch.strided and not tensor.is_meta and not is_traceable_wrapper_subclass(tensor)
    ]
