"""Which checkpoints are kept. The newest always is, so there is never none."""

from collections.abc import Sequence

import msgspec

from regrow.core.checkpoint import Pointer


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """None sets no rule. With both `last` and `every`, a checkpoint is kept that either asks for."""

    last: int | None = None
    """The newest so many."""
    every: int | None = None
    """Those of a step that is a multiple of this."""
    total_bytes: int | None = None
    """Of those, the newest that have so many bytes together."""


def doomed(pointers: Sequence[Pointer], retention: Retention) -> tuple[Pointer, ...]:
    """What to remove of these, which come newest first, oldest first. All are complete: what is damaged keeps nothing else
    from being kept, and must not be among them."""
    gone: list[Pointer] = []
    room = retention.total_bytes
    for rank, pointer in enumerate(pointers):
        is_kept = rank == 0 or _is_asked_for(rank, pointer, retention)
        if is_kept and room is not None:
            room -= pointer.size_bytes
            is_kept = rank == 0 or room >= 0
        if not is_kept:
            gone.append(pointer)
    return tuple(reversed(gone))


def _is_asked_for(rank: int, pointer: Pointer, retention: Retention) -> bool:
    if retention.last is None and retention.every is None:
        return True
    by_rank = retention.last is not None and rank < retention.last
    return by_rank or (retention.every is not None and pointer.step % retention.every == 0)
