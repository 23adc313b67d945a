"""A connected socket as a stream of bytes: reads and writes that never block the loop, straight from and into the caller's
memory. No frames, no messages; tcp builds those on it.

Reads happen in the calling task once the socket is ready, not in the loop's callback as in loop.sock_recv_into: there a task
cancelled between the two loses bytes that were already taken from the socket.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TypeVar

from regrow.core.errors import Invariant, PeerError

T = TypeVar("T", int, bytes)

_DRAIN_BYTES = 64 * 1024
_DRAIN_READS = 64


class Stream:
    """Owns the socket. One task reads at a time, one writes."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        """Who is at the other end, for errors."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock: socket.socket | None = sock
        self._loop = asyncio.get_running_loop()
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    async def read_some(self, view: memoryview) -> tuple[int, bool]:
        """How many bytes came, at least one, and whether they had to be waited for. Loses nothing when cancelled."""
        return await self._read(lambda sock: sock.recv_into(view))

    async def read_bytes(self, size_bytes: int) -> tuple[bytes, bool]:
        """As read_some, for whoever keeps no memory to read into."""
        return await self._read(lambda sock: sock.recv(size_bytes))

    async def _read(self, take: Callable[[socket.socket], T]) -> tuple[T, bool]:
        waited = False
        while True:
            try:
                taken = take(self._open_socket())
            except (BlockingIOError, InterruptedError):
                waited = True
                await self._wait_readable()
                continue
            except OSError as error:
                raise PeerError(f"the connection to {self.peer} broke: {error.strerror}") from error
            if not taken:
                raise PeerError(f"the connection to {self.peer} was closed by the peer")
            return taken, waited

    async def write_some(self, view: memoryview) -> tuple[int, bool]:
        """How many bytes the socket took, at least one, and whether it had to be waited for."""
        waited = False
        while True:
            try:
                return self._open_socket().send(view, socket.MSG_NOSIGNAL), waited
            except (BlockingIOError, InterruptedError):
                waited = True
                await self._wait_writable()
            except OSError as error:
                raise PeerError(f"the connection to {self.peer} broke: {error.strerror}") from error

    async def read_each(self, taken: Callable[[bytes], bool], size_bytes: int) -> None:
        """Hand over what comes, as it comes, until `taken` says that it is enough. No task wakes for it: for whoever has
        many streams that say little. Loses nothing when cancelled."""
        if self._readable is not None:
            raise Invariant(f"two tasks receive from {self.peer} at once: one of them would take the other's bytes")
        sock, self._readable = self._open_socket(), self._loop.create_future()
        self._loop.add_reader(sock, self._take, sock, taken, size_bytes, self._readable)
        try:
            await self._readable
            self._open_socket()
        finally:
            self._readable = None
            self._forget(sock, self._loop.remove_reader)

    def _take(
        self, sock: socket.socket, taken: Callable[[bytes], bool], size_bytes: int, ended: asyncio.Future[None]
    ) -> None:
        if ended.done():
            return
        try:
            data = sock.recv(size_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            ended.set_exception(PeerError(f"the connection to {self.peer} broke: {error.strerror}"))
            return
        try:
            if not data:
                raise PeerError(f"the connection to {self.peer} was closed by the peer")
            if not taken(data) and not ended.done():
                ended.set_result(None)
        except Exception as error:  # the reader's own: it is raised where the reader waits
            if not ended.done():
                ended.set_exception(error)

    def write_now(self, view: memoryview) -> int:
        """How many bytes the socket took without waiting, maybe none. Only while no task writes."""
        if self._writable is not None:
            raise Invariant(f"two tasks send to {self.peer} at once: their bytes would mix")
        try:
            return self._open_socket().send(view, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise PeerError(f"the connection to {self.peer} broke: {error.strerror}") from error

    def detach(self) -> socket.socket:
        """Give the socket away: nobody may read or write here at that moment, nor ever again."""
        sock, self._sock = self._open_socket(), None
        if self._readable is not None or self._writable is not None:
            raise Invariant(f"the connection to {self.peer} was given away while a task used it")
        return sock

    def close(self) -> None:
        """What was written is still delivered. Idempotent."""
        if self._sock is None:
            return
        # Closing with unread bytes makes the kernel send a reset, and a reset may overtake what was written last.
        scrap = bytearray(_DRAIN_BYTES)
        with contextlib.suppress(OSError):
            for _ in range(_DRAIN_READS):
                if self._sock.recv_into(scrap) == 0:
                    break
        self._release()

    def abort(self) -> None:
        """Unsent bytes are dropped and the peer sees a reset. Idempotent."""
        if self._sock is None:
            return
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self._release()

    def _release(self) -> None:
        sock, self._sock = self._open_socket(), None
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        # Shut down, not only closed: a forked child may hold a copy, and the peer would never learn.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        for waiting in (self._readable, self._writable):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)  # whoever waited wakes, and finds the socket gone

    def _open_socket(self) -> socket.socket:
        if self._sock is None:
            raise PeerError(f"the connection to {self.peer} was closed here")
        return self._sock

    async def _wait_readable(self) -> None:
        if self._readable is not None:
            raise Invariant(f"two tasks receive from {self.peer} at once: one of them would take the other's bytes")
        sock, self._readable = self._open_socket(), self._loop.create_future()
        self._loop.add_reader(sock, _wake, self._readable)
        try:
            await self._readable
        finally:
            self._readable = None
            self._forget(sock, self._loop.remove_reader)

    async def _wait_writable(self) -> None:
        if self._writable is not None:
            raise Invariant(f"two tasks send to {self.peer} at once: their bytes would mix")
        sock, self._writable = self._open_socket(), self._loop.create_future()
        self._loop.add_writer(sock, _wake, self._writable)
        try:
            await self._writable
        finally:
            self._writable = None
            self._forget(sock, self._loop.remove_writer)

    def _forget(self, sock: socket.socket, remove: Callable[[socket.socket], bool]) -> None:
        if self._sock is sock:  # else already closed: its number may belong to another socket by now
            remove(sock)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
