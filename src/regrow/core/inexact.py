"""What a checkpoint says when it is not exact: which moments of an optimizer are stored in another way, and how far off.

Only a Checkpointer in a loop of its user's own makes such ones, and only when it is told to. Jobs neither make nor take
them: they promise equal bits.
"""

from typing import Any

import msgspec

FIRST, SECOND = "exp_avg", "exp_avg_sq"
"""The moments of Adam and its kin, as torch names them."""
MODES = ("int8", "pruned")
LEAST = 256
"""Tensors of fewer numbers stay as they are."""
NUMBERS = ("float32", "bfloat16", "float16")
"""So do those of other kinds."""


class Kept(msgspec.Struct, frozen=True, kw_only=True, tag="kept"):
    """A tensor that lies there as it is."""

    leaf: int


class Linear(msgspec.Struct, frozen=True, kw_only=True, tag="linear"):
    """Eight bits for each number, which times its block's scale is the number."""

    codes: int
    scales: int


class Logarithmic(msgspec.Struct, frozen=True, kw_only=True, tag="logarithmic"):
    """Eight bits for each number: 0 is 0, the others are at even distances between its block's smallest and largest positive
    one, as bits of a float32 read as an integer: those grow with the logarithm."""

    codes: int
    ends: int


class Looked(msgspec.Struct, frozen=True, kw_only=True, tag="looked"):
    """Four bits for each number, a zstandard frame of two in each byte, the lower half first: its place in a table."""

    frame: int
    table: int


Coded = Kept | Linear | Logarithmic | Looked


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Of all numbers of one kind."""

    kind: str
    largest: float
    rms_relative: float
    """The root of the mean square of what is lost, by that of what was."""
    zeroed: float
    """The share of numbers that became zero, and were not."""


class Inexact(msgspec.Struct, frozen=True, kw_only=True):
    mode: str
    ratio: float
    """The state is so many times smaller than it would be exact."""
    errors: tuple[Error, ...]
    skeleton: Any
    """Of the state that is restored."""
    leaves: tuple[Coded, ...]
    """Where each of its tensors is, by the index under which this skeleton names it."""
    shapes: tuple[tuple[str, int], ...]
    """And its dtype and size in bytes."""
    root: str
    """Of the state that is restored."""

    def words(self) -> str:
        lost = ", ".join(f"{each.kind} by {100 * each.rms_relative:.2g} %" for each in self.errors) or "nothing lost"
        return f"it was saved with moments={self.mode!r} and is not exact: {lost} (rms)"
