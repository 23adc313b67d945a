"""The ribbon: the bytes of all tracked tensors, one after the other in canonical order, and what stands for them.

Canonical, so that every donor has the same byte at the same place, in whatever order its dicts were filled. Each piece of it
has a digest, and the root is one over these and all that is no tensor: whoever has checked every piece has checked the
whole, without reading it again.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
import xxhash

from regrow.core.skeleton import Json, in_order
from regrow.core.stripes import PIECE_BYTES, Cut
from regrow.state.fingerprint import digest, in_parallel, piece_digests
from regrow.state.memory import bytes_of, plain
from regrow.state.tree import leaves


def digests(tensors: Iterable[torch.Tensor], piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Of each piece of the ribbon that these tensors are, in this order."""
    return piece_digests(_views(tensors), piece_bytes)


def digests_at_once(tensors: Sequence[torch.Tensor]) -> Iterable[bytes]:
    """The same by several threads, for whoever has nothing else to do meanwhile; of memory that is plain."""
    if not all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors):
        return digests(tensors)
    ribbon = Ribbon(tensors)
    return in_parallel(lambda number: digest(ribbon.piece(number)), ribbon.count)


def _views(tensors: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    for tensor in tensors:
        held = plain(tensor)  # a name of its own: a view does not keep what it shows alive
        yield bytes_of(held)


def layout(skeleton: Json) -> str:
    """Equal where ribbons are made of equal tensors. ValueError when the skeleton does not name each of its tensors once."""
    named = {index: (dtype, shape) for index, dtype, shape in leaves(skeleton)}
    order = list(in_order(skeleton))
    if sorted(order) != list(range(len(order))):
        raise ValueError("a skeleton that does not name each of its tensors once")
    return str(xxhash.xxh3_128_hexdigest(repr([named[index] for index in order]).encode()))


class Ribbon:
    """Tensors that a ribbon is received into, or read from, in its order: contiguous and on the CPU."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._views = [bytes_of(tensor) for tensor in tensors]
        self._cut = Cut([len(view) for view in self._views])
        self.count = self._cut.count
        self.size_bytes = self._cut.size_bytes

    def piece(self, number: int) -> list[memoryview]:
        """Where its bytes belong."""
        return [self._views[span.leaf][span.start : span.stop] for span in self._cut.spans(number)]
