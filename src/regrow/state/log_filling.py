"""A slot of a log that is being filled: a part, in pieces, as they come and in whichever order.

Nothing of it counts before `LogWriter.keep`. A piece that comes again takes the place of the one before.
"""

from collections.abc import Callable

import msgspec
import xxhash

from regrow.core.errors import Invariant
from regrow.state import log
from regrow.state.log import Piece

_BLOCK_BYTES = 1 << 18
"""Digested while the cache still has it."""

Pour = Callable[[memoryview, int], None]
"""Fills this memory with the bytes of a piece from there on."""


def copied(data: memoryview) -> Pour:
    """A piece that is at hand."""
    return lambda block, start: log.copy(block, data[start : start + len(block)])


class Slot(msgspec.Struct, frozen=True):
    at: int
    size_bytes: int


class Filling:
    """Made by `LogWriter.begin`. One thread at a time."""

    def __init__(self, fd: int, slot: Slot, part_bytes: int, rest_bytes: int, mapped: memoryview | None) -> None:
        self.slot = slot
        self.part_bytes = part_bytes
        self.rest_bytes = rest_bytes
        """That was asked for behind the part."""
        self._fd = fd
        self._mapped = mapped
        self._pieces: dict[int, Piece] = {}
        """By their places in the part."""

    def put(self, at: int, size_bytes: int, pour: Pour) -> None:
        hasher, part_at = xxhash.xxh3_128(), log.PART_AT + at
        for start in range(0, size_bytes, _BLOCK_BYTES):
            width = min(_BLOCK_BYTES, size_bytes - start)
            if self._mapped is None:
                block = memoryview(bytearray(width))
                pour(block, start)
                log.write(self._fd, block, self.slot.at + part_at + start)
            else:
                block = self._mapped[part_at + start : part_at + start + width]
                pour(block, start)
            hasher.update(block)
        self._pieces[at] = Piece(size_bytes, hasher.digest())

    @property
    def is_whole(self) -> bool:
        end = 0
        for at, piece in sorted(self._pieces.items()):
            if at != end:
                return False
            end += piece.size_bytes
        return end == self.part_bytes

    @property
    def pieces(self) -> tuple[Piece, ...]:
        if not self.is_whole:
            raise Invariant(f"a part of {self.part_bytes} bytes is to be closed, and has {sorted(self._pieces)}")
        return tuple(piece for _, piece in sorted(self._pieces.items()))
