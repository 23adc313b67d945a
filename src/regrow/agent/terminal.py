"""The launcher's own stdout and stderr, written by a thread: a stopped or slow terminal must never hold up the job.

While the terminal is merely slow, relays wait for it (`is_full`) and nothing is lost. Once it has taken nothing for a
while it is stalled: what comes then is counted and dropped here; the workers' files have all of it.
"""

import os
import select
import threading
import time
from collections import deque

_FULL_BYTES = 1 << 20
_STALLED_S = 5.0
STDOUT, STDERR = 1, 2


class Terminal:
    def __init__(self, stdout_fd: int = STDOUT, stderr_fd: int = STDERR) -> None:
        self._fds = {STDOUT: stdout_fd, STDERR: stderr_fd}
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._moved_s = time.monotonic()
        self._closing = False
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

    def say(self, text: str) -> None:
        """Regrow's own words."""
        self.write(STDERR, "".join(f"regrow: {line}\n" for line in text.splitlines()).encode(errors="replace"))

    def close(self, within_s: float = 2.0) -> None:
        """Write what is queued, if the terminal takes it in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(within_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                stream, data = self._queue[0]
            self._write_out(self._fds[stream], data)
            with self._changed:
                self._queue.popleft()
                self._queued_bytes -= len(data)
                if self._dropped and self._queued_bytes < _FULL_BYTES:
                    note = (
                        f"regrow: {self._dropped} lines are not shown here: the terminal was stopped; see output/\n".encode()
                    )
                    self._queue.appendleft((STDERR, note))
                    self._queued_bytes += len(note)
                    self._dropped = 0

    def _write_out(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                select.select([], [fd], [])
                continue
            except OSError:
                return  # nobody reads any more (a closed pipe, a lost terminal): the files have it
            finally:
                self._moved_s = time.monotonic()
