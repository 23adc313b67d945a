"""A committed result on its way to a listener: cut into one part for each member that sends, and put together again."""

import msgspec
import torch

from regrow.core.errors import StateError
from regrow.state.byproducts import Byproducts
from regrow.state.gradient import Gradient, digest
from regrow.state.layout import ALIGN_BYTES


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """Of a result, all that is not its bytes."""

    present: bytes
    weight: float
    loss: float
    byproducts: Byproducts


def summary(result: Gradient) -> bytes:
    present = result.present.to_bytes(len(result.layout.spans) // 8 + 1, "little")
    return msgspec.msgpack.encode(Summary(present, result.weight, result.loss, result.byproducts))


def cut(size_bytes: int, index: int, count: int) -> tuple[int, int]:
    """Where this one of so many parts starts and stops."""
    start, stop = (size_bytes * i // count // ALIGN_BYTES * ALIGN_BYTES for i in (index, index + 1))
    return start, size_bytes if index + 1 == count else stop


def fill(result: Gradient, data: torch.Tensor, encoded: bytes, wanted: int) -> None:
    """The result becomes the one that was sent. StateError when it is not that: its digest says so."""
    said = msgspec.msgpack.decode(encoded, type=Summary)
    if data.numel() == result.buffer.numel():
        result.buffer.copy_(data)
        result.present = int.from_bytes(said.present, "little")
        result.weight, result.loss, result.byproducts = said.weight, said.loss, said.byproducts
        if digest(result) == wanted:
            return
    raise StateError("a committed record did not survive its way to this joiner: it starts again")
