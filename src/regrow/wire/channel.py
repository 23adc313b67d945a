"""What a connection offers, whatever carries it. tcp.Connection and memory.MemoryChannel both satisfy it."""

from typing import Protocol

from regrow.core.messages import Message


class Channel(Protocol):
    """One end of a two-way connection. One task receives; any number may send."""

    @property
    def name(self) -> str:
        """Over TCP the name under which the client came through the door; both ends have the same."""

    async def send(self, message: Message) -> None:
        """PeerError when the peer is gone. Cancelled in the middle of a frame, the connection is aborted."""

    async def receive(self) -> Message:
        """PeerError when the peer is gone, its subclass Violation for a garbled or oversized frame. Safe to cancel."""

    async def send_raw(self, data: memoryview) -> None:
        """Bulk bytes, without a frame. The peer must know from a message before them how many come."""

    async def receive_raw_into(self, view: memoryview) -> None:
        """Fills the view, exactly. Cancelled halfway, the connection is aborted."""

    async def close(self) -> None:
        """What was sent still arrives. Idempotent; a pending receive ends with PeerError."""

    def abort(self) -> None:
        """At once, and what is still on its way may be lost. Idempotent."""
