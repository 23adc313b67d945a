"""One connection of a group: messages straight between the caller's memory and the socket, without ever blocking.

A message is its size and its bytes. The size is said even where both ends know it: members that are not in the same
operation find out, instead of taking one thing for another.
"""

import select
import socket
import struct
from collections.abc import Sequence

_SIZE = struct.Struct("<Q")
_PIECES = 64
"""So many are handed to the kernel at once, which takes 1024 at most."""


class Line:
    """Owns a connected socket. `early`: bytes that somebody has already read from it."""

    def __init__(self, sock: socket.socket, early: bytes = b"") -> None:
        sock.setblocking(False)
        self.fd = sock.fileno()
        self._socket = sock
        self._early = early
        self._size = bytearray(_SIZE.size)
        self._out: list[memoryview] = []
        self._in: list[memoryview] = []
        self._is_sized = True
        self._expected: Sequence[memoryview] | None = None
        self.received = bytearray()
        """What came, where its size was not known before."""

    def begin(self, outgoing: Sequence[memoryview], incoming: Sequence[memoryview] | None) -> None:
        """One message each way. None: of whatever size the peer says."""
        self._out = [memoryview(_SIZE.pack(sum(map(len, outgoing)))), *filter(len, outgoing)]
        self._in = [memoryview(self._size)]
        self._is_sized = False
        self._expected = incoming

    @property
    def awaits(self) -> int:
        """What to poll for; 0 once both messages are through."""
        return (select.POLLIN if self._in else 0) | (select.POLLOUT if self._out else 0)

    def write(self) -> None:
        """Send what the socket takes. OSError when the connection is broken."""
        while self._out:
            try:
                count = self._socket.sendmsg(self._out[:_PIECES], (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            _advance(self._out, count)

    def read(self) -> None:
        """Receive what has come. OSError when the connection is broken, or the peer is in another operation."""
        while self._in:
            try:
                count = self._receive(self._in[0])
            except BlockingIOError:
                return
            if not count:
                raise ConnectionResetError("the peer closed the connection")
            _advance(self._in, count)
            if not self._in and not self._is_sized:
                self._is_sized = True
                self._in = self._place(_SIZE.unpack(self._size)[0])

    def shut(self) -> None:
        """Both ends wake, and find the line broken. Also where a forked child holds a copy of the socket."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """What was written is still delivered."""
        try:
            self.shut()
        except OSError:
            pass  # the peer was faster
        self._socket.close()

    def _receive(self, into: memoryview) -> int:
        if not self._early:
            return self._socket.recv_into(into)
        count = min(len(into), len(self._early))
        into[:count] = self._early[:count]
        self._early = self._early[count:]
        return count

    def _place(self, size: int) -> list[memoryview]:
        if self._expected is None:
            self.received = bytearray(size)
            return [memoryview(self.received)] if size else []
        expected = sum(map(len, self._expected))
        if size != expected:
            raise ConnectionAbortedError(f"the peer sends {size} bytes where {expected} belong: it is in another operation")
        return [*filter(len, self._expected)]


def _advance(views: list[memoryview], count: int) -> None:
    while count:
        if count < len(views[0]):
            views[0] = views[0][count:]
            return
        count -= len(views.pop(0))
