"""Frames: a 4-byte big-endian length, then that many bytes. Knows nothing of sockets or of what the bytes mean."""

from regrow.core.errors import Invariant
from regrow.wire.violation import Violation

HEADER_BYTES = 4

STRANGER_LIMIT_BYTES = 4 * 1024
"""Largest payload taken from a peer that has not yet proven the token: a stranger can make us hold this much, no more."""

PEER_LIMIT_BYTES = 16 * 1024 * 1024
"""Largest payload between proven peers. Bulk state goes as raw bytes, never in a frame."""


def frame(payload: bytes, limit_bytes: int = PEER_LIMIT_BYTES) -> bytes:
    """The payload as it goes over the wire."""
    if len(payload) > limit_bytes:
        raise Invariant(
            f"a frame of {len(payload)} bytes exceeds the limit of {limit_bytes}: send bulk as raw bytes after an Offer"
        )
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class Decoder:
    """Bytes in as they arrive, whole payloads out.

    Holds only what was fed: a header that promises much makes it reserve nothing, and one beyond the limit is refused
    before its payload is waited for.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        """Applies to the next frame; raised once the peer has proven the token."""
        self._pending = bytearray()

    def __len__(self) -> int:
        """Bytes fed and not yet taken."""
        return len(self._pending)

    def feed(self, data: bytes | memoryview) -> None:
        self._pending += data

    def next_payload(self) -> bytes | None:
        """The next whole payload; None until more is fed. Violation when it is larger than the limit."""
        pending = self._pending
        if len(pending) < HEADER_BYTES:
            return None
        size = int.from_bytes(pending[:HEADER_BYTES], "big")
        if size > self.limit_bytes:
            raise Violation(f"oversized: a frame of {size} bytes, the limit is {self.limit_bytes}")
        end = HEADER_BYTES + size
        if len(pending) < end:
            return None
        payload = bytes(memoryview(pending)[HEADER_BYTES:end])
        del pending[:end]
        return payload

    def take_all(self) -> bytes:
        """What was fed and not yet taken."""
        taken = bytes(self._pending)
        self._pending.clear()
        return taken

    def take_raw(self, view: memoryview) -> int:
        """Moves raw bytes that arrived together with the last frame into the view; says how many."""
        size = min(len(view), len(self._pending))
        view[:size] = self._pending[:size]
        del self._pending[:size]
        return size
