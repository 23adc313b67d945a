"""A worker's line to its host's vault, on a thread of its own: whatever is lost with it is said again on the next one.

A line counts once the vault has said something on it: one that was stopped, and not killed, takes connections without ever
answering. Training never waits for a vault that is away; whoever waits for one that is there hears from it now and then.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from regrow.core.errors import PeerError, RegrowError
from regrow.shell.backoff import Backoff
from regrow.shell.vaulting import FromWorker, Lent, Recalled, Shown, ToWorker
from regrow.wire.handover import Handover

_SILENCE_S = 15.0
"""Somebody waits, and nothing was heard for so long: the vault counts as gone."""
_SEND_S = 10.0


class VaultLine:
    def __init__(
        self,
        address: str,
        first: Callable[[], Iterable[tuple[FromWorker, int | None]]],
        heard: Callable[[ToWorker, int | None], None],
        lost: Callable[[], None],
    ) -> None:
        """`first` is what a line begins with, with a descriptor where one goes along; `heard` and `lost` are called on the
        line's thread. Whoever has heard owns the descriptor, where one came along."""
        self._address = address
        self._first = first
        self._heard = heard
        self._lost = lost
        self._changed = threading.Condition()
        self._line: Handover | None = None
        self._number = 0
        """Of the line that is open; 0 when none is."""
        self._lines = 0
        self._heard_s = 0.0
        self._sending = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="regrow-vault", daemon=True)

    def open(self) -> None:
        os.register_at_fork(after_in_child=self._let_go)
        self._thread.start()

    @property
    def number(self) -> int:
        """Of the line that is open: another one has another number. 0: none is."""
        return self._number

    def wait(self, timeout_s: float) -> int:
        """Until a line is open: its number, or 0 when none has come in this time."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > 0, timeout_s)
            return self._number

    def say(self, message: FromWorker, number: int) -> None:
        """On this very line. PeerError when it is lost."""
        line = self._line
        if line is None or not number or number != self._number:  # 0 is that of a line that has yet to be answered
            raise PeerError("the vault is away")
        with self._sending:
            line.send(msgspec.json.encode(message))

    def touch(self) -> None:
        """Somebody begins to wait: from now on silence counts."""
        self._heard_s = time.monotonic()

    def is_silent(self) -> bool:
        return time.monotonic() - self._heard_s > _SILENCE_S

    def drop(self, number: int) -> None:
        """It is open and says nothing: another one may be better."""
        line = self._line
        if line is not None and number == self._number:
            line.shut()

    def close(self) -> None:
        self._closing.set()
        line = self._line
        if line is not None:
            line.shut()
        self._thread.join()

    def _let_go(self) -> None:
        """In a forked child, which must not keep the line open once this worker is gone."""
        line, self._line, self._number = self._line, None, 0
        if line is not None:
            line.close()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._closing.is_set():
            try:
                line = self._connected()
            except OSError:
                self._closing.wait(backoff.delay_s())
                continue
            try:
                self._converse(line)
            except (PeerError, OSError):
                pass
            except (RegrowError, msgspec.DecodeError) as error:  # with this thread every later save would be void
                print(f"regrow: {error}; the line to the vault is begun anew", file=sys.stderr, flush=True)
            finally:
                with self._changed:
                    if self._number:
                        backoff = Backoff()
                    self._number, self._line = 0, None
                    self._changed.notify_all()
                line.close()
                self._lost()
            self._closing.wait(backoff.delay_s())

    def _connected(self) -> Handover:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect("\0" + self._address)
        except OSError:
            sock.close()
            raise
        return Handover(sock, _SEND_S)

    def _converse(self, line: Handover) -> None:
        for first, fd in self._first():
            line.send(msgspec.json.encode(first), fd)
        self._line = line
        while not self._closing.is_set():
            payload = line.receive(None)
            assert payload is not None  # without a timeout it waits
            message = msgspec.json.decode(payload, type=ToWorker)
            fd = line.take_fd() if _brings(message) else None
            self._heard_s = time.monotonic()
            self._heard(message, fd)
            if not self._number:
                with self._changed:
                    self._lines += 1
                    self._number = self._lines
                    self._changed.notify_all()


def _brings(message: ToWorker) -> bool:
    """A descriptor."""
    return isinstance(message, Lent | Shown) or (isinstance(message, Recalled) and message.draft is not None)
