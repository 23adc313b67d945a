"""A proven connection for a thread of its own: bulk between the caller's memory and the socket, at the kernel's speed.

Made from a connection that has passed the door and left its loop. Whoever is blocked here wakes when another thread
shuts it.
"""

import contextlib
import select
import socket
import time
from collections.abc import Sequence

from regrow.core.errors import PeerError
from regrow.core.messages import Message
from regrow.wire.codec import decode, encode
from regrow.wire.framing import PEER_LIMIT_BYTES, Decoder, frame

_READ_BYTES = 4096
"""What follows a message is bulk, which is better read straight into its place."""
_VIEWS = 64
"""So many are handed to the kernel at once, which takes 1024 at most."""


class LineBroken(PeerError):
    """The connection is gone. The peer may well be there, and be reached again."""


class Blocking:
    """Owns the socket. One thread reads at a time, one writes. `early`: what had already been read from it."""

    def __init__(self, sock: socket.socket, early: bytes, peer: str) -> None:
        sock.setblocking(True)
        self.peer = peer
        self._sock = sock
        self._arrived = Decoder(PEER_LIMIT_BYTES)
        self._arrived.feed(early)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, message: Message) -> None:
        self.send_raw(memoryview(frame(encode(message))))

    def send_raw(self, data: memoryview) -> None:
        """Blocks until the kernel has taken all of it."""
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._broken(error) from error

    def send_now(self, message: Message) -> None:
        """Never blocks: PeerError when the peer has not read for so long that no room is left for a small message."""
        data = frame(encode(message))
        try:
            if self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data):
                return
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._broken(error) from error
        self.shut()
        raise PeerError(f"{self.peer} takes nothing any more")

    def receive(self, timeout_s: float | None = None) -> Message:
        """Blocks. LineBroken, and nothing more is heard, when no message has come in this time."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (message := self.next_message()) is None:
            if not self.wait_readable(None if end_s is None else max(0.0, end_s - time.monotonic())):
                self.shut()
                raise LineBroken(f"{self.peer} does not answer for {timeout_s:g} s")
        return message

    def receive_raw_into(self, view: memoryview) -> None:
        """Blocks until the view is full: woken seldom, since the kernel fills what it can before."""
        rest = view[self._arrived.take_raw(view) :]
        while len(rest):
            rest = rest[self._read([rest], socket.MSG_WAITALL) :]

    def wait_readable(self, timeout_s: float | None) -> bool:
        """Can more be read than what has been tried for? True also once the connection is broken: reading then says so."""
        return bool(self._poll.poll(None if timeout_s is None else 1000 * timeout_s))

    def next_message(self) -> Message | None:
        """Never blocks; None where no whole message has come."""
        payload = self._arrived.next_payload()
        if payload is None:
            count = self._read([self._buffer])
            self._arrived.feed(self._buffer[:count])
            payload = self._arrived.next_payload()
        return None if payload is None else decode(payload)

    def read_some(self, views: Sequence[memoryview]) -> int:
        """Into these views, one after the other. Never blocks; how many bytes came, maybe none."""
        if not len(self._arrived):
            return self._read(views)
        count = 0
        for view in views:
            count += self._arrived.take_raw(view)
        return count

    def shut(self) -> None:
        """Both ends wake, and find the connection broken. From any thread, also where a forked child holds a copy."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._sock.close()

    def let_go(self) -> None:
        """In a forked child: the connection stays its parent's."""
        self._sock.close()

    def _read(self, views: Sequence[memoryview], flags: int = socket.MSG_DONTWAIT) -> int:
        try:
            if len(views) == 1:
                count = self._sock.recv_into(views[0], 0, flags)
            else:
                count = self._sock.recvmsg_into(views[:_VIEWS], 0, flags)[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error
        if not count:
            raise LineBroken(f"the connection to {self.peer} was closed by the peer")
        return count

    def _broken(self, error: OSError) -> LineBroken:
        return LineBroken(f"the connection to {self.peer} broke: {error.strerror}")
