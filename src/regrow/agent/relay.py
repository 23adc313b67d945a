"""A worker's output: raw into its file, line by line with a prefix onto the terminal.

Every byte survives, also those that are not UTF-8 and the line that never ended. A worker that floods is read a piece
at a time, so that the loop goes round in between.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from regrow.agent.terminal import STDERR, STDOUT, Terminal

_PIECE_BYTES = 64 * 1024
_RETRY_S = 0.02
_LINE_END = re.compile(rb"\r\n|\r(?!\Z)|\n")
"""A progress bar's carriage returns end lines too, and are kept: each piece gets the prefix and overwrites the last. One
at the very end may be half of a CRLF: it waits for what follows."""


class Output:
    """Both streams of one worker, and its file."""

    def __init__(self, path: Path, prefix: str, loop: asyncio.AbstractEventLoop, terminal: Terminal) -> None:
        self._terminal = terminal
        self._path = path
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._give_up(error)
        self._pipes: list[_Pipe] = []
        self.writers: list[int] = []
        """For the worker: its stdout and stderr. Close them here with `hand_over` once it has them."""
        for stream in (STDOUT, STDERR):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            self.writers.append(writer)
            self._pipes.append(_Pipe(reader, stream, prefix.encode(), loop, terminal, self._keep))

    def hand_over(self) -> None:
        for writer in self.writers:
            os.close(writer)
        self.writers.clear()

    def when_ended(self, ended: Callable[[], None]) -> None:
        """Once no process holds either stream."""
        for pipe in self._pipes:
            pipe.ended = lambda: None if any(other.is_open for other in self._pipes) else ended()

    @property
    def is_open(self) -> bool:
        return any(pipe.is_open for pipe in self._pipes)

    def drain(self) -> None:
        """Take over what a dead worker left in its pipes, at most what they can hold."""
        for pipe in self._pipes:
            pipe.drain()

    def close(self) -> None:
        self.hand_over()
        for pipe in self._pipes:
            pipe.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _keep(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._terminal.say(f"cannot write {self._path} ({error.strerror}): this output is only shown here from now on")
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _Pipe:
    def __init__(
        self,
        fd: int,
        stream: int,
        prefix: bytes,
        loop: asyncio.AbstractEventLoop,
        terminal: Terminal,
        keep: Callable[[bytes], None],
    ) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._stream = stream
        self._prefix = prefix
        self._loop = loop
        self._terminal = terminal
        self._keep = keep
        self._partial = b""
        self._waiting: asyncio.TimerHandle | None = None
        self.is_open = True
        self.ended: Callable[[], None] = lambda: None
        loop.add_reader(fd, self._read)

    def drain(self) -> None:
        pieces = 0
        while self.is_open and pieces < 16 and self._take():
            pieces += 1

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            self._loop.remove_reader(self._fd)
        os.close(self._fd)
        if self._partial:
            self._terminal.write(self._stream, self._prefix + self._partial + b"\n")
            self._partial = b""
        self.ended()

    def _read(self) -> None:
        if self._terminal.is_full:
            self._loop.remove_reader(self._fd)
            self._waiting = self._loop.call_later(_RETRY_S, self._resume)
            return
        self._take()

    def _resume(self) -> None:
        self._waiting = None
        self._loop.add_reader(self._fd, self._read)

    def _take(self) -> bool:
        """One piece; false when there was none."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _PIECE_BYTES)
            if not data:
                self.close()
                return False
            self._keep(data)
            self._show(data)
            return True
        return False

    def _show(self, data: bytes) -> None:
        searched = max(0, len(self._partial) - 1)  # all but a carriage return that waited
        text = self._partial + data
        end = 0
        shown: list[bytes] = []
        for found in _LINE_END.finditer(text, searched):
            shown += (self._prefix, text[end : found.end()])
            end = found.end()
        self._partial = text[end:]
        if len(self._partial) > _PIECE_BYTES:
            shown += (self._prefix, self._partial, b"\n")
            self._partial = b""
        if shown:
            self._terminal.write(self._stream, b"".join(shown))
