"""Messages between two processes of one host, over a socket pair; a message may carry an open descriptor.

Each end belongs to one thread, or to two: one that sends and one that receives. The messages are the caller's: this file
sees their bytes.
"""

import array
import contextlib
import os
import select
import socket
from collections import deque

from regrow.core.errors import PeerError
from regrow.wire.framing import Decoder, frame

LIMIT_BYTES = 1 << 30
"""The layout of a million tensors in one message; both ends are ours."""
_READ_BYTES = 1 << 18
_FDS = 4
"""More than one message carries."""


class Handover:
    """Owns the socket, and descriptors that have come until they are taken."""

    def __init__(self, sock: socket.socket, send_timeout_s: float | None = None) -> None:
        """A peer that reads nothing for so long counts as gone."""
        sock.settimeout(send_timeout_s)
        self._sock = sock
        self._arrived = Decoder(LIMIT_BYTES)
        self._fds: deque[int] = deque()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, payload: bytes, fd: int | None = None) -> None:
        """Blocks until the kernel has it. The other end gets a descriptor of its own."""
        data = memoryview(frame(payload, LIMIT_BYTES))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        try:
            sent = self._sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            if sent < len(data):  # sending nothing fails where the other end was closed meanwhile
                self._sock.sendall(data[sent:], socket.MSG_NOSIGNAL)
        except OSError as error:
            raise PeerError(f"the process at the other end is gone: {error}") from error

    def receive(self, timeout_s: float | None) -> bytes | None:
        """The next message; None when none has come in this time. PeerError when the other end is closed."""
        while (payload := self._arrived.next_payload()) is None:
            if not self._poll.poll(None if timeout_s is None else 1000 * timeout_s):
                return None
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _FDS)
            except OSError as error:
                raise PeerError(f"the process at the other end is gone: {error}") from error
            if not data:
                raise PeerError("the other end is closed")
            self._fds += fds
            self._arrived.feed(data)
        return payload

    def take_fd(self) -> int:
        """Of the message that was received last."""
        return self._fds.popleft()

    def shut_sending(self) -> None:
        """The other end finds, once it has taken what was sent, that nothing more comes. What it says is still received."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def shut(self) -> None:
        """From any thread: whoever sends or receives finds that the other end is gone."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())
