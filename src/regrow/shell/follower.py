"""Reads a journal while it is being written: what was added since the last look.

For those who watch, not for those who judge: of a journal that grows faster than it is read only the newest part is seen.
"""

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from regrow.core.records import Line

_MOST_BYTES = 1 << 17

_decoder = msgspec.json.Decoder(Line)


class Follower:
    """`wanted`: only lines in which these bytes occur are parsed."""

    def __init__(self, path: Path, wanted: bytes = b"") -> None:
        self._path = path
        self._wanted = wanted
        self._file: BinaryIO | None = None
        self._rest = b""
        """A line that has not ended yet."""

    def read(self) -> list[Line]:
        """Nothing when there is no such file, or no longer."""
        try:
            if self._file is None:
                self._file = self._path.open("rb", buffering=0)
            lines = self._read_on(self._file)
            if os.fstat(self._file.fileno()).st_ino != self._path.stat().st_ino:
                self.close()  # it was rotated: what follows is in a new file
                self._file = self._path.open("rb", buffering=0)
                lines += self._read_on(self._file)
        except OSError:
            return []
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._rest = b""

    def _read_on(self, file: BinaryIO) -> list[Line]:
        behind = os.fstat(file.fileno()).st_size - file.tell()
        if behind > _MOST_BYTES:
            file.seek(-_MOST_BYTES, os.SEEK_END)
            self._rest = b""
        *whole, self._rest = (self._rest + file.read(_MOST_BYTES)).split(b"\n")
        return [line for line in map(self._parse, whole) if line is not None]

    def _parse(self, raw: bytes) -> Line | None:
        if self._wanted not in raw:
            return None
        try:
            return _decoder.decode(raw)
        except (ValueError, RecursionError):
            return None  # torn, or cut by the jump to the newest part
