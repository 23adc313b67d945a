"""What the ranks of a torch.distributed job settle among themselves, and pass to each other, when all of them restore.

They do so in a gloo group of their own, also where the job's is NCCL: what they pass lies on the host, and a rank that fails
leaves by closing its connections, which the others notice at once, whatever each is waiting for.
"""

import contextlib
import traceback
from collections.abc import Iterator
from types import TracebackType

import torch
from torch import distributed

from regrow.core.errors import PeerError


class Ranks:
    """All of the job; a process without torch.distributed is a job of one. Within `with` they hear each other: all of them
    are there, or none."""

    def __init__(self) -> None:
        is_joint = distributed.is_available() and distributed.is_initialized()
        self.count = distributed.get_world_size() if is_joint else 1
        self.rank = distributed.get_rank() if is_joint else 0
        self._group: distributed.ProcessGroup | None = None

    def __enter__(self) -> "Ranks":
        if self.count > 1:
            with _together():
                self._group = distributed.new_group(backend="gloo")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._group is not None:
            group, self._group = self._group, None
            distributed.destroy_process_group(group)

    def agreed(self, number: int, teller: int = 0) -> int:
        """What this rank says: rank 0, or another."""
        if self._group is None:
            return number
        told = torch.tensor([number], dtype=torch.int64)
        with _together():
            distributed.broadcast(told, src=teller, group=self._group)
        return int(told.item())

    def highest(self, number: int) -> int:
        """Of what all ranks say."""
        if self._group is None:
            return number
        told = torch.tensor([number], dtype=torch.int64)
        with _together():
            distributed.all_reduce(told, op=distributed.ReduceOp.MAX, group=self._group)
        return int(told.item())

    def first(self, is_one: bool) -> int | None:
        """The lowest of those ranks that are one; None: there is none."""
        lowest = -self.highest(-(self.rank if is_one else self.count))
        return None if lowest == self.count else lowest

    def passed(self, data: bytearray, teller: int) -> None:
        """Fill this with what that rank has in its own, of the same size."""
        if self._group is None:
            return
        with _together():
            distributed.broadcast(torch.frombuffer(data, dtype=torch.uint8), src=teller, group=self._group)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        traceback.clear_frames(
            error.__traceback__
        )  # else whoever keeps the error keeps the group, and its connections, open
        raise PeerError(
            f"another rank went away while all of them restore ({error}): the objects may hold parts of a checkpoint, so "
            "do not train on with these; start all ranks again"
        ) from error
