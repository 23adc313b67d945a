"""A committed result on its way to a listener: what of it is no bytes, and how it is put together again."""

import msgspec
import torch

from regrow.core.errors import StateError
from regrow.state.byproducts import Byproducts
from regrow.state.gradient import Gradient, bucket_digest, digest


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """Of a result, all that is not its bytes."""

    present: bytes
    weight: float
    loss: float
    byproducts: Byproducts
    bucket_bytes: int
    """How large the buckets were that its digest is made of."""


def summary(result: Gradient) -> bytes:
    present = result.present.to_bytes(len(result.layout.spans) // 8 + 1, "little")
    return msgspec.msgpack.encode(
        Summary(present, result.weight, result.loss, result.byproducts, result.layout.bucket_bytes)
    )


def fill(result: Gradient, data: torch.Tensor, encoded: bytes, wanted: int) -> None:
    """The result becomes the one that was sent. StateError when it is not that: its digest says so."""
    said = msgspec.msgpack.decode(encoded, type=Summary)
    if data.numel() == result.buffer.numel():
        result.buffer.copy_(data)
        result.present = int.from_bytes(said.present, "little")
        result.weight, result.loss, result.byproducts = said.weight, said.loss, said.byproducts
        buckets = result.layout.cut(said.bucket_bytes)  # a job goes on with buckets of any size
        if digest(result, [bucket_digest(result, bucket) for bucket in buckets]) == wanted:
            return
    raise StateError("a committed record did not survive its way to this joiner: it starts again")
