"""Where in an arena each tensor of the tracked state belongs, and what of the state must be said besides its tensors."""

from collections.abc import Sequence

import msgspec
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from regrow.core.draft import Draft, draft
from regrow.core.errors import ConfigError
from regrow.state.tracked import Tracked
from regrow.state.tree import Flat


class Drafting:
    """The layout is found once, and again when a tensor came, went or changed its shape."""

    def __init__(self, shard_bytes: int, mathematics: dict[str, str] | None = None) -> None:
        self._shard_bytes = shard_bytes
        self._mathematics = mathematics or {}
        self._layout: tuple[Sequence[object], Draft, tuple[int, ...]] | None = None

    def planned(self, step: int, tracked: Tracked) -> tuple[Draft, tuple[int, ...], Flat]:
        """The draft of this moment, without a term; where each tensor belongs; and the tensors."""
        flat = tracked.flatten()
        shapes = [(path, tensor.dtype, tensor.shape) for path, tensor in zip(flat.paths, flat.tensors, strict=True)]
        if self._layout is None or self._layout[0] != shapes:
            _check(flat)
            tensors = [
                (path, str(dtype).removeprefix("torch."), tuple(shape), tensor.nbytes)
                for (path, dtype, shape), tensor in zip(shapes, flat.tensors, strict=True)
            ]
            plan = draft(
                step=step,
                term=0,
                mathematics=self._mathematics,
                skeleton=flat.skeleton,
                tensors=tensors,
                shard_bytes=self._shard_bytes,
            )
            self._layout = shapes, plan, plan.offsets
        _, plan, offsets = self._layout
        return msgspec.structs.replace(plan, step=step, skeleton=flat.skeleton), offsets, flat


def optimizers(tracked: Tracked) -> list[torch.optim.Optimizer]:
    return [thing for thing in tracked.objects.values() if isinstance(thing, torch.optim.Optimizer)]


def is_young(tracked: Tracked) -> bool:
    """Has an optimizer no state yet? It makes that in its first step, so nobody knows how large an arena must be."""
    return any(not optimizer.state for optimizer in optimizers(tracked))


def _check(flat: Flat) -> None:
    for path, tensor in zip(flat.paths, flat.tensors, strict=True):
        if is_traceable_wrapper_subclass(tensor):
            raise ConfigError(
                f"{path} is a {type(tensor).__qualname__}: only whole tensors are saved, and this one may be a "
                "part of one; gather it in the object's state_dict()"
            )
        if tensor.is_meta:
            raise ConfigError(f"{path} is on the meta device and has no values: materialize the model first")
