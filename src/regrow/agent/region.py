"""The bottom rows of a terminal, redrawn in place while output scrolls by above them.

Pure: says which bytes to write, and writes none. The region is taken away before output and drawn again below it, all in
one write, so that output reaches the screen and its scrollback as it came. The cursor rests at the beginning of the row
below. Nothing outlives the process: no margins, no hidden cursor, no changed modes.
"""

from collections.abc import Sequence

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row, narrower than the screen."""

    text: str
    """With its colours."""
    cells: int
    """How wide it is."""


class Region:
    def __init__(self) -> None:
        self._drawn: list[Row] = []
        self._is_open = False
        """The last line of output has not ended (a progress bar: it ends in a carriage return)."""

    def compose(self, output: bytes, rows: Sequence[Row], columns: int) -> bytes:
        """The region away, this output, the region with these rows."""
        pieces: list[bytes] = []
        is_at_open_line = self._is_open and not self._drawn
        if self._drawn:
            pieces.append(self._erase(columns))
            if self._is_open and (output or not rows):
                pieces.append(b"\x1b[1A")
                is_at_open_line = True
        if output:
            if self._drawn and is_at_open_line:
                pieces.append(b"\x1b[K")
            pieces.append(output)
            self._is_open = is_at_open_line = not output.endswith(b"\n")
        if rows:
            pieces.append(b"\x1b[0m" if b"\x1b" in output else b"")  # colours that it left behind
            pieces.append(b"\n" if is_at_open_line else b"")
            pieces += [row.text.encode(errors="replace") + b"\n" for row in rows]
        self._drawn = list(rows)
        return b"".join(pieces)

    def forget(self) -> None:
        """Somebody else wrote below it: what was drawn stays where it is."""
        self._drawn = []
        self._is_open = False

    def _erase(self, columns: int) -> bytes:
        # A terminal that became narrower has wrapped what was drawn when it was wider.
        height = sum(max(1, -(-row.cells // columns)) for row in self._drawn)
        return b"\r\x1b[%dA\x1b[J" % height
