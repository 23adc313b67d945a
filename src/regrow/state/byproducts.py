"""What a lane leaves besides its gradient: the buffers it changed, metrics, and where it stands in its data.

Every lane starts from the committed buffers. At the commit a buffer of floats becomes the mean over the lanes, where a lane
that did not touch it counts with the committed value; any other buffer must have come out the same in every lane. Metrics
are weighted means. All sums are taken in float64 in the order of the lane tree, so they are the same bits everywhere. A
lane's position in its data is the lane's own, and nothing is added to it.
"""

from math import nan
from typing import TypeVar

import msgspec
import torch

from regrow.state.memory import bytes_of, plain


class Changed(msgspec.Struct, frozen=True, array_like=True):
    """A buffer of floats, summed over the lanes that changed it."""

    lanes: int
    total: bytes

    def __add__(self, other: "Changed") -> "Changed":
        return Changed(self.lanes + other.lanes, packed(unpacked(self.total) + unpacked(other.total)))


class Outcomes(msgspec.Struct, frozen=True, array_like=True):
    """The values that a buffer of anything but floats came out with."""

    lanes: int
    values: tuple[bytes, ...]

    def __add__(self, other: "Outcomes") -> "Outcomes":
        return Outcomes(self.lanes + other.lanes, tuple(sorted({*self.values, *other.values})))


class Mean(msgspec.Struct, frozen=True, array_like=True):
    """A metric on its way: sum of weight * value, and of weights."""

    total: float
    weight: float

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else nan


class Byproducts(msgspec.Struct, frozen=True, array_like=True):
    """Of some lanes. Buffers go by their index, metrics by their name."""

    lanes: int = 0
    floats: dict[int, Changed] = {}
    others: dict[int, Outcomes] = {}
    metrics: dict[str, Mean] = {}
    positions: dict[int, bytes] = {}
    """By lane: where its stream of data stands after this step."""

    def __add__(self, other: "Byproducts") -> "Byproducts":
        return Byproducts(
            lanes=self.lanes + other.lanes,
            floats=_joined(self.floats, other.floats),
            others=_joined(self.others, other.others),
            metrics=_joined(self.metrics, other.metrics),
            positions=dict(sorted({**self.positions, **other.positions}.items())),
        )


NOTHING = Byproducts()


def packed(values: torch.Tensor) -> bytes:
    """Floats of any kind, as the bytes of a sum."""
    return raw(values.detach().to(torch.float64))


def raw(values: torch.Tensor) -> bytes:
    """A copy of the bytes."""
    held = plain(values)  # alive until the bytes are copied
    return bytes(bytes_of(held))


def unpacked(total: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(total), dtype=torch.float64) if total else torch.empty(0, dtype=torch.float64)


_Key = TypeVar("_Key", int, str)
_Value = TypeVar("_Value", Changed, Outcomes, Mean)


def _joined(left: dict[_Key, _Value], right: dict[_Key, _Value]) -> dict[_Key, _Value]:
    """Absent + x is x. Keys are in order: a digest is taken over them."""
    both = left.keys() & right.keys()
    joined = {**left, **right, **{key: left[key] + right[key] for key in both}}
    return {key: joined[key] for key in sorted(joined)}
