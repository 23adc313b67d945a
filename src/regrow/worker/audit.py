"""The audit: is the state that the replicas hold still the same? Everything else rests on it.

A digest of some of it goes into the boundary's row: of a sixteenth of the parameters, with what the optimizers hold for
them, at every step; of all tracked state every so many steps and at the end. It is the state before the step, which
stays as it is until the commit, so large parts are digested in a thread of their own while the lanes are computed.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import torch
import xxhash

from regrow.core.resolve import Manifest
from regrow.state.memory import bytes_of, plain
from regrow.state.tracked import Tracked

PARTS = 16
_INLINE_BYTES = 1 << 18
"""What takes less time to digest than to hand to another thread."""


class Audit:
    """`every`: all of the state is compared every so many steps. 0: nothing ever is."""

    def __init__(self, tracked: Tracked, every: int) -> None:
        self._tracked = tracked
        self._every = every
        self._thread = ThreadPoolExecutor(1, "regrow-audit") if every else None
        self._parts = _cut([parameter for _, parameter in tracked.parameters()])
        self._digest: Future[int] | int = 0
        self._equal: dict[int | None, int] = {}
        """Before which step each part was last found to be equal; None: all of it."""

    def begin(self, step: int) -> None:
        """The inner loop of this step begins."""
        if self._thread is None:
            return
        part = self._part(step)
        if part is None:
            self._digest = self.whole()
            return
        tensors = [tensor for parameter in self._parts[part] for tensor in self._with_state(parameter)]
        if sum(tensor.nbytes for tensor in tensors) <= _INLINE_BYTES:
            self._digest = _digest(tensors)
        else:
            self._digest = self._thread.submit(_digest, tensors)

    def digest(self) -> int:
        """Of the part that is due in the step under way."""
        return self._digest if isinstance(self._digest, int) else self._digest.result()

    def whole(self) -> int:
        return int(self._tracked.fingerprint(), 16) & (1 << 64) - 1 if self._every else 0

    def manifest(self) -> Manifest:
        return self._tracked.manifest()

    def passed(self, step: int) -> None:
        self._equal[self._part(step) if self._every else None] = step

    def last_equal(self, step: int) -> int | None:
        """Before which step what is compared in this one was last found to be equal."""
        known = [self._equal[part] for part in (None, self._part(step)) if part in self._equal]
        return max(known, default=None)

    def _part(self, step: int) -> int | None:
        return None if step % self._every == 0 else step % len(self._parts)

    def _with_state(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        states = [
            thing.state[parameter]
            for thing in self._tracked.objects.values()
            if isinstance(thing, torch.optim.Optimizer) and parameter in thing.state
        ]
        held = [value for state in states for _, value in sorted(state.items()) if isinstance(value, torch.Tensor)]
        return [parameter.detach(), *held]


def _cut(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Parts of about the same size, each of whole parameters, in order."""
    share = sum(parameter.nbytes for parameter in parameters) / PARTS
    parts: list[list[torch.Tensor]] = [[]]
    size = 0
    for parameter in parameters:
        if parts[-1] and size + parameter.nbytes > share:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.nbytes
    return parts


def _digest(tensors: list[torch.Tensor]) -> int:
    state = xxhash.xxh3_64()
    for tensor in tensors:
        held = plain(tensor)
        state.update(bytes_of(held))
    return state.intdigest()
