"""The launcher's own stdout and stderr, written by a thread: a stopped or slow terminal must never hold up the job.

While the terminal is merely slow, relays wait for it (`is_full`) and nothing is lost. Once it has taken nothing for a
while it is stalled: what comes then is counted and dropped here; the workers' files have all of it.

With `show`, a region at the bottom of the screen is kept below everything else that is written there. Only the newest frame
is kept for a slow terminal. Whatever goes wrong with the region, the rest goes on without it.
"""

import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from regrow.agent.region import Region, Row

_FULL_BYTES = 1 << 20
_PIECE_BYTES = 1 << 12
"""Written at once: a slow terminal is seen to move."""
_STALLED_S = 5.0
_PAUSE_S = 0.05
"""Between two redraws: output that comes meanwhile is written with the next one."""
_RECENT = 8
STDOUT, STDERR = 1, 2

Frame = Callable[[int, int], Sequence[Row]]
"""The rows of the region on a screen of so many columns and lines."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line of Regrow's own."""

    at: float
    """Wall clock, seconds."""
    text: str
    is_routine: bool


class Terminal:
    """`is_quiet`: what is routine is not shown."""

    def __init__(self, stdout_fd: int = STDOUT, stderr_fd: int = STDERR, is_quiet: bool = False) -> None:
        self._fds = {STDOUT: stdout_fd, STDERR: stderr_fd}
        self._is_quiet = is_quiet
        self.said: deque[Said] = deque(maxlen=_RECENT)
        """The newest last."""
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._moved_s = time.monotonic()
        self._closing = False
        self._region: Region | None = None
        """Touched by the thread alone, once it is there."""
        self._frame: Frame | None = None
        self._is_stale = False
        """There is a frame to draw."""
        self._is_blind = False
        """The screen was lost, or a frame failed: no more frames."""
        self._is_moved = False
        """Somebody else wrote to the screen: the region begins anew below that."""
        self._is_aside = False
        """Somebody else is about to write to the screen: nothing is written here meanwhile."""
        self._is_clear = False
        """The thread has taken the region away, and waits until it may come back."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Wait with reading more: there is a screenful of screenfuls to write, and it is moving."""
        return self._queued_bytes >= _FULL_BYTES and not self._is_stalled

    @property
    def _is_stalled(self) -> bool:
        return time.monotonic() - self._moved_s > _STALLED_S

    @property
    def is_screen(self) -> bool:
        """Regrow's own lines go to a terminal, and nobody else writes there: whoever reads a pipe (tee) might."""
        try:
            return os.isatty(self._fds[STDERR]) and not stat.S_ISFIFO(os.fstat(self._fds[STDOUT]).st_mode)
        except OSError:
            return False  # stdout is closed

    def write(self, stream: int, data: bytes) -> None:
        with self._changed:
            if not self._queue:
                self._moved_s = time.monotonic()
            elif self._queued_bytes >= _FULL_BYTES and self._is_stalled:
                self._dropped += data.count(b"\n") or 1
                return
            self._queue.append((stream, data))
            self._queued_bytes += len(data)
            self._changed.notify()

    def say(self, text: str, is_routine: bool = False) -> None:
        """Regrow's own words. Routine: nobody has to do anything about it."""
        self.said.extend(Said(at=time.time(), text=line, is_routine=is_routine) for line in text.splitlines())
        if not (is_routine and self._is_quiet):
            self.write(STDERR, "".join(f"regrow: {line}\n" for line in text.splitlines()).encode(errors="replace"))

    def show(self, frame: Frame | None) -> None:
        """Draw this at the bottom from now on; None takes the region away. Only on a screen."""
        with self._changed:
            self._frame = None if self._is_blind else frame
            self._is_stale = True
            self._changed.notify()

    def step_aside(self, within_s: float = 1.0) -> None:
        """This process is about to be stopped, and the shell to write to the screen: the region is taken away, unless the
        terminal takes nothing for so long, and nothing is written before `come_back`."""
        with self._changed:
            self._is_aside = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_clear, within_s)

    def come_back(self) -> None:
        with self._changed:
            self._is_moved = not self._is_clear
            self._is_aside, self._is_stale = False, True
            self._changed.notify_all()

    def displaced(self) -> None:
        """This process was stopped unasked and continued: the shell may have written to the screen."""
        with self._changed:
            self._is_moved = True

    def close(self, within_s: float = 2.0) -> None:
        """Write what is queued, unless the terminal takes nothing for so long."""
        with self._changed:
            self._frame = None
            self._is_stale = True
            self._closing = True
            self._moved_s = time.monotonic()
            self._changed.notify()
        while self._thread.is_alive() and (left_s := self._moved_s + within_s - time.monotonic()) > 0:
            self._thread.join(left_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._queue or self._is_stale or self._closing or self._is_aside):
                    self._changed.wait()
                is_aside = self._is_aside
            if is_aside:
                self._stand_aside()
                continue
            with self._changed:
                if self._is_stale and self._region is None and self._frame is not None:
                    self._region = Region()
                is_drawing = self._region is not None
                batch = list(self._queue) if is_drawing or not self._queue else [self._queue[0]]
                if not batch and not (is_drawing and self._is_stale):
                    self._is_stale = False
                    if self._closing:
                        return
                    continue
                self._is_stale = False
                frame, is_moved, self._is_moved = self._frame, self._is_moved, False
            if self._region is not None:
                self._draw(self._region, batch, frame, is_moved)
            else:
                for stream, data in batch:
                    self._write_out(self._fds[stream], data)
            with self._changed:
                self._take_off(batch)
                if is_drawing and frame is not None:
                    self._changed.wait_for(lambda: self._closing or self._is_aside, _PAUSE_S)

    def _stand_aside(self) -> None:
        if self._region is not None:
            screen = self._fds[STDERR]
            self._write_out(screen, self._region.compose(b"", (), _size(screen)[0]))
        with self._changed:
            self._is_clear = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_aside)
            self._is_clear = False

    def _take_off(self, batch: list[tuple[int, bytes]]) -> None:
        for _, data in batch:
            self._queue.popleft()
            self._queued_bytes -= len(data)
        if self._dropped and self._queued_bytes < _FULL_BYTES:
            note = f"regrow: {self._dropped} lines are not shown here: the terminal was stopped; see output/\n".encode()
            self._queue.appendleft((STDERR, note))
            self._queued_bytes += len(note)
            self._dropped = 0

    def _draw(self, region: Region, batch: list[tuple[int, bytes]], frame: Frame | None, is_moved: bool) -> None:
        screen = self._fds[STDERR]
        is_shared = os.isatty(self._fds[STDOUT])
        output = b"".join(data for stream, data in batch if stream == STDERR or is_shared)
        columns, lines = _size(screen)
        if is_moved:
            region.forget()
        rows: Sequence[Row] = ()
        if frame is not None and not self._is_blind and _is_in_front(screen):
            try:
                rows = frame(columns, lines)
            except Exception as error:  # output must come through, whatever a frame does
                self._is_blind = True
                output += f"regrow: a bug in Regrow, please report it: the live view ended: {error!r}\n".encode()
        if not self._write_out(screen, region.compose(output, rows, columns)):
            self._is_blind = True
        if not is_shared:
            for stream, data in batch:
                if stream == STDOUT:
                    self._write_out(self._fds[STDOUT], data)

    def _write_out(self, fd: int, data: bytes) -> bool:
        """False when nobody reads any more (a closed pipe, a lost terminal): the files have it."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(fd, rest[:_PIECE_BYTES]) :]
            except BlockingIOError:
                select.select([], [fd], [])
                continue
            except OSError:
                return False
            finally:
                self._moved_s = time.monotonic()
        return True


def _size(fd: int) -> tuple[int, int]:
    """Columns and lines. A terminal that does not know says 0."""
    try:
        columns, lines = os.get_terminal_size(fd)
    except OSError:
        columns, lines = 0, 0
    return columns or 80, lines or 24


def _is_in_front(fd: int) -> bool:
    """Not while the shell has put this job into the background: somebody else has the screen."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # not the terminal that controls this process: no shell shares it
