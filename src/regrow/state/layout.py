"""The flat byte layout of one gradient: where each parameter's bytes lie in one buffer.

Every parameter starts at a multiple of ALIGN_BYTES and its span is padded to one, so a cut at a multiple of ALIGN_BYTES
never splits an element, and element-wise kernels never see a ragged tail: the tail loops of some kernels give other NaN
bits than their vector loops, and then the result would depend on where a slice was cut.

It knows nothing of values: presence, sums and division are `gradient`'s.
"""

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import torch
import xxhash

from regrow.core.errors import ConfigError, Invariant

ALIGN_BYTES = 512
BUCKET_BYTES = 8 << 20
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Span(NamedTuple):
    """One parameter's place: its bytes are [start, start + size_bytes), then padding up to stop."""

    name: str
    start: int
    stop: int
    size_bytes: int
    dtype: torch.dtype
    shape: torch.Size


class Bucket(NamedTuple):
    """A run of whole parameters, from `first` up to `last`, that travels as one."""

    start: int
    stop: int
    first: int
    last: int

    @property
    def mask(self) -> int:
        """The presence bits of its parameters."""
        return (1 << self.last) - (1 << self.first)


class Source(Enum):
    """Where a run of a sum comes from: the side that is present, or both."""

    LEFT = "left"
    RIGHT = "right"
    BOTH = "both"


class Run(NamedTuple):
    """A maximal byte range of one dtype and one source."""

    start: int
    stop: int
    dtype: torch.dtype
    source: Source


class Layout:
    """Parameters in the given order, which must be the same on every replica, and so must be the size of buckets."""

    def __init__(self, parameters: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int = BUCKET_BYTES) -> None:
        devices = {tensor.device for _, tensor in parameters}
        if len(devices) > 1:
            raise ConfigError(f"the parameters of one replica lie on {sorted(map(str, devices))}: keep them on one device")
        self.device = devices.pop() if devices else torch.device("cpu")
        spans: list[Span] = []
        offset = 0
        for name, tensor in parameters:
            if tensor.dtype not in DTYPES:
                raise ConfigError(
                    f"parameter {name} is {tensor.dtype}: gradients can be reduced in {', '.join(map(str, DTYPES))}"
                )
            size_bytes = tensor.numel() * tensor.element_size()
            stop = offset + _padded(size_bytes)
            spans.append(Span(name, offset, stop, size_bytes, tensor.dtype, tensor.shape))
            offset = stop
        self.spans = tuple(spans)
        self.size_bytes = offset
        self.everything = (1 << len(spans)) - 1
        """The presence mask of a gradient in which no parameter is absent."""
        self.fingerprint = xxhash.xxh3_64_intdigest(repr(self.spans).encode())
        """Equal where the layout is: replicas of different models must find out before they add."""
        self.bucket_bytes = bucket_bytes
        self.buckets = self.cut(bucket_bytes)
        """In the order in which they travel: backward makes the gradients of the last parameters first."""
        self._starts = [span.start for span in spans]
        # Presence is the same step after step; walking thousands of spans each time would cost more than the adds.
        self.runs = lru_cache(maxsize=4096)(self._runs)

    def cut(self, bucket_bytes: int) -> tuple[Bucket, ...]:
        """From the end, each bucket as soon as it has reached this size."""
        buckets: list[Bucket] = []
        last = len(self.spans)
        for first in range(last - 1, -1, -1):
            start, stop = self.spans[first].start, self.spans[last - 1].stop
            if first == 0 or stop - start >= bucket_bytes:
                buckets.append(Bucket(start, stop, first, last))
                last = first
        return tuple(buckets)

    def new_buffer(self) -> torch.Tensor:
        """Zeroed bytes for one gradient, aligned whatever the allocator does."""
        return aligned(self.size_bytes, self.device)

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """One contiguous tensor per parameter, sharing the buffer's bytes."""
        if buffer.numel() != self.size_bytes:
            raise Invariant(f"a buffer of {buffer.numel()} bytes does not have this layout of {self.size_bytes}")
        return self.bucket_views(Bucket(0, self.size_bytes, 0, len(self.spans)), buffer)

    def bucket_views(self, bucket: Bucket, data: torch.Tensor) -> list[torch.Tensor]:
        """One contiguous tensor per parameter of the bucket, sharing its bytes."""
        spans, start = self.spans[bucket.first : bucket.last], bucket.start
        return [data[s.start - start : s.start - start + s.size_bytes].view(s.dtype).view(s.shape) for s in spans]

    def slices(self, bucket: Bucket, members: int) -> list[tuple[int, int]]:
        """The byte range of it that each member owns: contiguous, as even as can be; some may be empty."""
        base, extra = divmod((bucket.stop - bucket.start) // ALIGN_BYTES, members)
        ranges, start = [], bucket.start
        for index in range(members):
            stop = start + (base + (1 if index < extra else 0)) * ALIGN_BYTES
            ranges.append((start, stop))
            start = stop
        return ranges

    def _runs(self, start: int, stop: int, left: int, right: int) -> tuple[Run, ...]:
        """What the sum of two gradients with this presence is made of in [start, stop); absent in both: no run."""
        runs: list[Run] = []
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self.spans)):
            span = self.spans[index]
            if span.start >= stop:
                break
            low, high = max(span.start, start), min(span.stop, stop)
            source = _SOURCES[(left >> index) & 1, (right >> index) & 1]
            if source is None or low >= high:
                continue
            last = runs[-1] if runs else None
            if last and (last.stop, last.dtype, last.source) == (low, span.dtype, source):
                runs[-1] = Run(last.start, high, span.dtype, source)
            else:
                runs.append(Run(low, high, span.dtype, source))
        return tuple(runs)


_SOURCES = {(0, 0): None, (1, 0): Source.LEFT, (0, 1): Source.RIGHT, (1, 1): Source.BOTH}


def aligned(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Zeroed bytes whose address is a multiple of ALIGN_BYTES."""
    raw = torch.zeros(size_bytes + ALIGN_BYTES, dtype=torch.uint8, device=device)
    skip = -raw.data_ptr() % ALIGN_BYTES
    return raw[skip : skip + size_bytes]


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
