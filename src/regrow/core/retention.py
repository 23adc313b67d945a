"""Which checkpoints are kept. The newest always is, so there is never none."""

from collections.abc import Mapping, Sequence

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


def doomed(pointers: Sequence[Pointer], retention: Retention, bases: Mapping[str, str] | None = None) -> tuple[Pointer, ...]:
    """What to remove of these, which come newest first. All are complete: what is damaged keeps nothing else from being
    kept, and must not be among them. `bases`: of each delta, by folder, what it is built on; that stays with it, and takes
    room besides. The oldest comes first, but for deltas: they come before what they are built on, so that whoever dies in
    between leaves none without its base."""
    by_folder = {pointer.folder: pointer for pointer in pointers}
    bases = {folder: base for folder, base in (bases or {}).items() if folder in by_folder and base in by_folder}
    kept: set[str] = set()
    room = retention.total_bytes
    for rank, pointer in enumerate(pointers):
        if rank > 0 and not _is_asked_for(rank, pointer, retention):
            continue
        chain = [folder for folder in _chain(pointer.folder, bases) if folder not in kept]
        if room is not None:
            room -= sum(by_folder[folder].size_bytes for folder in chain)
        if rank == 0 or room is None or room >= 0:
            kept.update(chain)
    gone = [pointer for pointer in pointers if pointer.folder not in kept]
    built = {base: folder for folder, base in bases.items()}
    order: list[str] = []
    for pointer in reversed(gone):
        order += [folder for folder in reversed(_chain(pointer.folder, built)) if folder not in order]
    return tuple(by_folder[folder] for folder in order)


def _chain(folder: str, next_of: Mapping[str, str]) -> list[str]:
    found = [folder]
    while found[-1] in next_of:
        found.append(next_of[found[-1]])
    return found


def _is_asked_for(rank: int, pointer: Pointer, retention: Retention) -> bool:
    if retention.last is None and retention.every is None:
        return True
    by_rank = retention.last is not None and rank < retention.last
    return by_rank or (retention.every is not None and pointer.step % retention.every == 0)
