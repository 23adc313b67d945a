"""Gradients as flat bytes with presence, and the only arithmetic that is ever done on them.

The rules that keep the bits: absent + x is x, copied, never added to zeros (-0.0 would turn into 0.0, and optimizers tell
None from zero); a sum is `left + right` of the lane tree; division happens once, at the root, by the total weight. The
bytes of an absent parameter mean nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan

import msgspec
import torch
import xxhash

from regrow.core.errors import ConfigError, Invariant
from regrow.state.byproducts import NOTHING, Byproducts
from regrow.state.layout import Layout, Source, aligned
from regrow.state.memory import bytes_of


@dataclass(slots=True)
class Part:
    """A byte range of a gradient. `present`, `weight` and `loss` are those of the whole gradient."""

    start: int
    data: torch.Tensor
    present: int
    weight: float
    loss: float

    @property
    def stop(self) -> int:
        return self.start + self.data.numel()


@dataclass(slots=True, eq=False)
class Gradient:
    """The sum of some microbatches' gradients, or, once divided, a step's result."""

    layout: Layout
    buffer: torch.Tensor
    present: int = 0
    """Bit i: parameter i has a gradient."""
    weight: float = 0.0
    """Sum of the microbatches' weights."""
    loss: float = 0.0
    """Sum of weight * loss; in a divided result, the mean."""
    byproducts: Byproducts = NOTHING
    views: list[torch.Tensor] = field(init=False, repr=False)
    """One tensor per parameter, meaningful where present."""

    def __post_init__(self) -> None:
        self.views = self.layout.views(self.buffer)

    def part(self, start: int, stop: int) -> Part:
        return Part(start, self.buffer[start:stop], self.present, self.weight, self.loss)

    def absorb(self, parameters: Sequence[torch.Tensor], weight: float, loss: float) -> None:
        """Add the `.grad`s of one microbatch, unscaled; on a fresh gradient they are copied. `.grad` is left as it is."""
        for index, (parameter, view) in enumerate(zip(parameters, self.views, strict=True)):
            grad = parameter.grad
            if grad is None:
                continue
            if grad.layout != torch.strided:
                name = self.layout.spans[index].name
                raise ConfigError(
                    f"the gradient of {name} is {grad.layout}: only dense gradients can be reduced (sparse=False)"
                )
            if self.present >> index & 1:
                view.add_(grad)
            else:
                view.copy_(grad)
                self.present |= 1 << index
        self.weight += weight
        self.loss += weight * loss


def add_(left: Gradient, right: Gradient) -> None:
    """left becomes left + right; right is left untouched."""
    stop = left.layout.size_bytes
    total = add(left.layout, left.part(0, stop), right.part(0, stop), left.buffer)
    left.present, left.weight, left.loss = total.present, total.weight, total.loss
    left.byproducts += right.byproducts


def add(layout: Layout, left: Part, right: Part, out: torch.Tensor) -> Part:
    """left + right into `out`, which may be the bytes of either side."""
    start, stop = left.start, left.stop
    if (right.start, right.stop) != (start, stop) or out.numel() != stop - start:
        raise Invariant(f"cannot add bytes [{right.start}, {right.stop}) to [{start}, {stop}) into {out.numel()}")
    for run in layout.runs(start, stop, left.present, right.present):
        where = slice(run.start - start, run.stop - start)
        match run.source:
            case Source.BOTH:
                torch.add(
                    left.data[where].view(run.dtype), right.data[where].view(run.dtype), out=out[where].view(run.dtype)
                )
            case Source.LEFT if out is not left.data:
                out[where].copy_(left.data[where])
            case Source.RIGHT if out is not right.data:
                out[where].copy_(right.data[where])
    return Part(start, out, left.present | right.present, left.weight + right.weight, left.loss + right.loss)


def divide(layout: Layout, total: Part, out: torch.Tensor) -> Part:
    """The result of a step out of its total, into `out`. Of no weight at all there is no gradient: everything is absent."""
    if total.weight == 0:
        return Part(total.start, out, 0, 0.0, nan)
    for run in layout.runs(total.start, total.stop, total.present, 0):
        where = slice(run.start - total.start, run.stop - total.start)
        torch.div(total.data[where].view(run.dtype), total.weight, out=out[where].view(run.dtype))
    return Part(total.start, out, total.present, total.weight, total.loss / total.weight)


def digest(gradient: Gradient) -> int:
    """64 bits over presence, the present parameters' bytes and the by-products; padding and absent bytes do not count."""
    layout = gradient.layout
    state = xxhash.xxh3_64(gradient.present.to_bytes(len(layout.spans) // 8 + 1, "little"))
    host = gradient.buffer.cpu()
    memory = bytes_of(host)
    for index, span in enumerate(layout.spans):
        if gradient.present >> index & 1:
            state.update(memory[span.start : span.start + span.size_bytes])
    state.update(msgspec.msgpack.encode(gradient.byproducts))
    return state.intdigest()


class Pool:
    """Buffers that are used again, so that a step in steady state allocates nothing. One thread's."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._free: list[Gradient] = []
        self._scratch: dict[int, torch.Tensor] = {}

    def take(self) -> Gradient:
        """An empty gradient: nothing present, no weight."""
        if not self._free:
            return Gradient(self.layout, self.layout.new_buffer())
        gradient = self._free.pop()
        gradient.present, gradient.weight, gradient.loss, gradient.byproducts = 0, 0.0, 0.0, NOTHING
        return gradient

    def give(self, gradient: Gradient) -> None:
        """Hand it back; whoever still reads it would read another's bytes."""
        if gradient.layout is not self.layout or any(gradient is free for free in self._free):
            raise Invariant("a gradient was handed back twice, or to the pool of another layout")
        self._free.append(gradient)

    def forget_scratch(self) -> None:
        """Somebody may still write into it: leave it to him."""
        self._scratch.clear()

    def scratch(self, index: int, size_bytes: int) -> torch.Tensor:
        """Bytes of any content, valid until the same index is asked for again."""
        have = self._scratch.get(index)
        if have is None or have.numel() < size_bytes:
            have = self._scratch[index] = aligned(size_bytes, self.layout.device)
        return have[:size_bytes]
