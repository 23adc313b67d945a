"""Gradients as flat bytes with presence, and the only arithmetic that is ever done on them.

The rules that keep the bits: absent + x is x, copied, never added to zeros (-0.0 would turn into 0.0, and optimizers tell
None from zero); a sum is `left + right` of the lane tree; division happens once, at the root, by the total weight. The
bytes of an absent parameter mean nothing.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import torch
import xxhash

from regrow.core.errors import ConfigError, Invariant
from regrow.state.byproducts import NOTHING, Byproducts
from regrow.state.layout import Bucket, Layout, Source, aligned
from regrow.state.memory import bytes_of


@dataclass(slots=True)
class Part:
    """A byte range of a gradient. The weight is that of the whole; bits of `present` outside of the range mean nothing."""

    start: int
    data: torch.Tensor
    present: int
    weight: float

    @property
    def stop(self) -> int:
        return self.start + self.data.numel()

    def cut(self, start: int, stop: int) -> "Part":
        return Part(start, self.data[start - self.start : stop - self.start], self.present, self.weight)


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
        return Part(start, self.buffer[start:stop], self.present, self.weight)

    def absorb(self, grads: Sequence[torch.Tensor | None], weight: float, loss: float) -> None:
        """Add the gradients of one microbatch, unscaled; on a fresh gradient they are copied. None: absent."""
        self.present = combine(self, grads, 0, self.views)
        self.weight += weight
        self.loss += weight * loss


def combine(base: Gradient | None, grads: Sequence[torch.Tensor | None], first: int, out: Sequence[torch.Tensor]) -> int:
    """`base` and a microbatch's gradients of the parameters from `first` on, into `out`; which of these are present."""
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    sums: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    present = 0
    for index, (grad, where) in enumerate(zip(grads, out, strict=True), first):
        old = base.views[index] if base is not None and base.present >> index & 1 else None
        one = old if grad is None else grad
        if one is None:
            continue
        present |= 1 << index
        if grad is not None and old is not None:
            sums.append((old, grad, where))
        elif where is not one:
            copies.append((where, one))
    with torch.no_grad():
        if copies:
            torch._foreach_copy_([where for where, _ in copies], [source for _, source in copies])
        for left, right, where in sums:
            torch.add(left, right, out=where)
    return present


def dense(layout: Layout, index: int, grad: torch.Tensor) -> torch.Tensor:
    """The gradient itself; ConfigError when it cannot be reduced."""
    if grad.layout != torch.strided:
        name = layout.spans[index].name
        raise ConfigError(f"the gradient of {name} is {grad.layout}: only dense gradients can be reduced (sparse=False)")
    return grad


def add_(left: Gradient, right: Gradient) -> None:
    """left becomes left + right; right is left untouched."""
    stop = left.layout.size_bytes
    total = add(left.layout, left.part(0, stop), right.part(0, stop), left.buffer)
    left.present, left.weight, left.loss = total.present, total.weight, left.loss + right.loss
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
    return Part(start, out, left.present | right.present, left.weight + right.weight)


def divide(layout: Layout, total: Part, out: torch.Tensor) -> Part:
    """The result of a step out of its total, into `out`. Of no weight at all there is no gradient: everything is absent."""
    if total.weight == 0:
        return Part(total.start, out, 0, 0.0)
    for run in layout.runs(total.start, total.stop, total.present, 0):
        where = slice(run.start - total.start, run.stop - total.start)
        torch.div(total.data[where].view(run.dtype), total.weight, out=out[where].view(run.dtype))
    return Part(total.start, out, total.present, total.weight)


def bucket_digest(gradient: Gradient, bucket: Bucket) -> int:
    """64 bits over the present parameters' bytes in a bucket. Absent ones do not count; padding is zero everywhere."""
    host = gradient.buffer[bucket.start : bucket.stop].cpu()
    memory = bytes_of(host)
    if gradient.present & bucket.mask == bucket.mask:
        return xxhash.xxh3_64_intdigest(memory)
    state = xxhash.xxh3_64()
    for index in range(bucket.first, bucket.last):
        if gradient.present >> index & 1:
            span = gradient.layout.spans[index]
            state.update(memory[span.start - bucket.start : span.stop - bucket.start])
    return state.intdigest()


def digest(gradient: Gradient, buckets: Sequence[int] | None = None) -> int:
    """64 bits over presence, the present parameters' bytes and the by-products. `buckets`: their digests, where known."""
    layout = gradient.layout
    if buckets is None:
        buckets = [bucket_digest(gradient, bucket) for bucket in layout.buckets]
    state = xxhash.xxh3_64(gradient.present.to_bytes(len(layout.spans) // 8 + 1, "little"))
    state.update(struct.pack(f"<{len(buckets)}Q", *buckets))
    state.update(msgspec.msgpack.encode(gradient.byproducts))
    return state.intdigest()


class Pool:
    """Buffers that are used again, so that a step in steady state allocates nothing. One thread's."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._free: list[Gradient] = []
        self.made = 0
        """How many buffers there are in all."""
        self._scratch = aligned(0, layout.device)

    def take(self) -> Gradient:
        """An empty gradient: nothing present, no weight."""
        if not self._free:
            self.made += 1
            return Gradient(self.layout, self.layout.new_buffer())
        gradient = self._free.pop()
        gradient.present, gradient.weight, gradient.loss, gradient.byproducts = 0, 0.0, 0.0, NOTHING
        return gradient

    def give(self, gradient: Gradient) -> None:
        """Hand it back; whoever still reads it would read another's bytes."""
        if gradient.layout is not self.layout or any(gradient is free for free in self._free):
            raise Invariant("a gradient was handed back twice, or to the pool of another layout")
        self._free.append(gradient)

    def scratch(self, size_bytes: int) -> torch.Tensor:
        """Bytes of any content, valid until it is asked for again."""
        if self._scratch.numel() < size_bytes:
            self._scratch = aligned(size_bytes, self.layout.device)
        return self._scratch[:size_bytes]
