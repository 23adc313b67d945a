"""A terminal's screen, as far as Regrow writes to it: what somebody in front of it would see, scrollback included.

Any sequence it does not know is an error: whatever the live view uses must be here, and is tried on tmux too.
"""

import os
import re
import select
import time
from collections.abc import Callable

DEADLINE_S = 60.0
_TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n])")


class Screen:
    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.columns, self.lines = columns, lines
        self._rows: list[str] = [""]
        self._top = self._row = self._column = 0

    def feed(self, data: bytes) -> "Screen":
        text, at = data.decode(errors="replace"), 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            assert found is not None, f"an unknown sequence: {text[at : at + 20]!r}"
            at = found.end()
            number, command, is_return, is_newline, char = found.groups()
            if command:
                self._command(command, int(number or 1))
            elif is_return:
                self._column = 0
            elif is_newline:
                self._column = 0  # the terminal driver adds the return
                self._down()
            else:
                self._put(char)
        return self

    def resize(self, columns: int) -> None:
        """As tmux does it: rows that have become too long are wrapped. The cursor is at the beginning of a row."""
        assert self._column == 0
        before, after = self._rows[: self._row], self._rows[self._row :]
        self.columns = columns
        self._rows = [piece for row in before for piece in _wrapped(row, columns)]
        self._row = len(self._rows)
        self._rows += after
        self._top = max(0, self._row + 1 - self.lines)

    @property
    def text(self) -> list[str]:
        rows = [row.rstrip() for row in self._rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _command(self, command: str, number: int) -> None:
        match command:
            case "A":
                self._row = max(self._top, self._row - number)
            case "J":
                self._rows[self._row] = self._rows[self._row][: self._column]
                self._rows[self._row + 1 :] = [""] * len(self._rows[self._row + 1 :])
            case "K":
                self._rows[self._row] = self._rows[self._row][: self._column]
            case "m":
                pass
            case _:
                raise AssertionError(f"an unknown command: {command}")

    def _put(self, char: str) -> None:
        if self._column == self.columns:
            self._column = 0
            self._down()
        row = self._rows[self._row].ljust(self._column)
        self._rows[self._row] = row[: self._column] + char + row[self._column + 1 :]
        self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")
        self._top = max(self._top, self._row + 1 - self.lines)


class Viewer:
    """Whoever sits in front of a pseudoterminal: keeps all that came."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.seen = b""

    def look(self) -> bytes:
        """All that has come by now. The end of it looks like silence."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                break  # nobody holds the other side any more
            if not data:
                break
            self.seen += data
        return self.seen

    def wait(self, condition: Callable[[bytes], object], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition(self.look()):
            assert time.monotonic() < end, f"waited {DEADLINE_S:g} s in vain for {what}; seen: {self.seen[-3000:]!r}"
            time.sleep(0.005)


def _wrapped(row: str, columns: int) -> list[str]:
    return [row[at : at + columns] for at in range(0, len(row), columns)] or [""]
