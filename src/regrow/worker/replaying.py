"""What was committed after the origin, out of the logs of those who are gone: a founder reads it record by record (rule L5).

Read, not mapped, as the origin is. What a record must be says its digest, which whoever takes it in holds it to.
"""

import os
from collections.abc import Mapping, Sequence

import torch

from regrow.core.errors import StateError
from regrow.core.listener import Heard
from regrow.shell.vaulting import Piece, Whole
from regrow.state.memory import bytes_of


class ReplayedGradient:
    """A record's bytes, until the training thread has taken them in."""

    def __init__(self, data: torch.Tensor, summary: bytes) -> None:
        self.data = data
        self.summary = summary

    def release(self) -> None:
        """Nothing: the next record is read into the same memory."""


class Replaying:
    """Of one founding."""

    def __init__(self, records: Sequence[Whole], logs: Mapping[str, int]) -> None:
        """`logs`: descriptors by member; takes them over."""
        self._records = {one.record.step: one for one in records}
        self._logs = dict(logs)
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.size_bytes = 0
        """Read so far."""

    def read(self, step: int) -> Heard:
        """StateError when it is not there."""
        one = self._records.pop(step, None)
        if one is None:
            raise StateError(f"step {step} is to be replayed, and no log has it: start the job again")
        size_bytes = sum(piece.size_bytes for piece in one.pieces)
        if self._memory.numel() != size_bytes:
            self._memory = torch.empty(size_bytes, dtype=torch.uint8)
        view, start = bytes_of(self._memory), 0
        for piece in one.pieces:
            self._fill(view[start : start + piece.size_bytes], piece)
            start += piece.size_bytes
        tail = bytearray(one.tail.size_bytes)
        self._fill(memoryview(tail), one.tail)
        self.size_bytes += size_bytes + len(tail)
        if not self._records:
            self.close()
        return Heard(record=one.record, gradient=ReplayedGradient(self._memory, bytes(tail)))

    def close(self) -> None:
        """Idempotent."""
        for fd in self._logs.values():
            os.close(fd)
        self._logs.clear()

    def _fill(self, view: memoryview, piece: Piece) -> None:
        rest, at = view, piece.at
        while len(rest):
            count = os.preadv(self._logs[piece.member], [rest], at)
            if not count:
                raise StateError(f"the log of {piece.member} ends at byte {at}, where a record should lie")
            rest, at = rest[count:], at + count
