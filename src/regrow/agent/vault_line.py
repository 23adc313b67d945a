"""One end of a line to or from a vault: messages that may carry a descriptor, and nobody ever waits for the other end.

Its owner has a loop, which says when there is something to read and when there is room to write again.
"""

import array
import contextlib
import os
import socket
from collections import deque

import msgspec

from regrow.core.errors import PeerError
from regrow.wire.framing import Decoder, frame
from regrow.wire.handover import LIMIT_BYTES
from regrow.wire.violation import Violation

_READ_BYTES = 1 << 18
_FDS = 4
"""More than one message carries."""


class _Leaving(msgspec.Struct, kw_only=True):
    """A frame on its way."""

    rest: memoryview
    fd: int | None
    """Goes with its first byte; a copy of our own."""


class VaultLine:
    """Owns the socket, and descriptors that have come until they are taken."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._arrived = Decoder(LIMIT_BYTES)
        self._fds: deque[int] = deque()
        self._leaving: deque[_Leaving] = deque()

    def fileno(self) -> int:
        """-1: closed."""
        return self._sock.fileno()

    @property
    def is_behind(self) -> bool:
        """There is something to `flush` once there is room."""
        return bool(self._leaving)

    def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        """Now, or later where the other end is slow. The descriptor stays the caller's. PeerError: it is gone."""
        payload = msgspec.json.encode(message)
        copy = None if fd is None else os.dup(fd)
        self._leaving.append(_Leaving(rest=memoryview(frame(payload, LIMIT_BYTES)), fd=copy))
        self.flush()

    def flush(self) -> None:
        """As much as there is room for."""
        while self._leaving:
            head = self._leaving[0]
            rights = [] if head.fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [head.fd]))]
            try:
                sent = self._sock.sendmsg([head.rest], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                raise PeerError(f"the process at the other end is gone: {error}") from error
            if head.fd is not None:
                os.close(head.fd)
                head.fd = None
            head.rest = head.rest[sent:]
            if not head.rest:
                self._leaving.popleft()

    def received(self) -> list[bytes]:
        """What is there now. PeerError once the other end is closed and all that it said was taken."""
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _FDS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return []
        except OSError as error:
            raise PeerError(f"the process at the other end is gone: {error}") from error
        if not data:
            raise PeerError("the other end is closed")
        self._fds += fds
        self._arrived.feed(data)
        found = []
        try:
            while (payload := self._arrived.next_payload()) is not None:
                found.append(payload)
        except Violation as error:
            raise PeerError(str(error)) from error
        return found

    def take_fd(self) -> int:
        """The first that has come and was not taken."""
        return self._fds.popleft()

    def close(self) -> None:
        """Idempotent."""
        self._sock.close()
        for fd in [*self._fds, *(leaving.fd for leaving in self._leaving if leaving.fd is not None)]:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds.clear()
        self._leaving.clear()
