"""One chunk of a delta: what differs from the same chunk of the base, regrouped by significance and compressed.

The bytes of both are combined by exclusive or, so that what did not change is zero; the first bytes of all numbers come
first, then all second ones, and so on: signs and exponents, which hardly change, then stand together. Each chunk is a
zstandard frame by itself. Needs the packages of `regrow[delta]`.
"""

from collections.abc import Sequence

import numpy
import zstandard

from regrow.core.errors import StateError

_LEVEL = 1
"""Higher ones are slower and not smaller: what can be said in fewer bytes is zeros, the rest is noise."""


def encoded(new: memoryview, old: memoryview, width: int) -> bytes:
    """Of two chunks of the same size."""
    changed = numpy.bitwise_xor(numpy.frombuffer(new, numpy.uint8), numpy.frombuffer(old, numpy.uint8))
    grouped = numpy.concatenate([changed[place::width] for place in range(width)])
    return zstandard.ZstdCompressor(level=_LEVEL).compress(grouped.data)


def decoded(data: bytes | bytearray, old: memoryview, width: int) -> memoryview:
    """The new chunk. StateError when these are not the bytes of one."""
    try:
        if zstandard.frame_content_size(data) != len(old):
            raise StateError(f"it decodes to {zstandard.frame_content_size(data)} bytes, {len(old)} are wanted")
        grouped = numpy.frombuffer(zstandard.ZstdDecompressor().decompress(data), numpy.uint8)
    except zstandard.ZstdError as error:
        raise StateError(f"it is no zstandard frame ({error})") from error
    changed = numpy.empty(len(old), numpy.uint8)
    start = 0
    for place in range(width):
        lane = changed[place::width]
        lane[:] = grouped[start : start + len(lane)]
        start += len(lane)
    return memoryview(numpy.bitwise_xor(changed, numpy.frombuffer(old, numpy.uint8)))  # type: ignore[arg-type]


def joined(views: Sequence[memoryview]) -> memoryview:
    """One after the other; without a copy where there is one only."""
    return views[0] if len(views) == 1 else memoryview(b"".join(views))
