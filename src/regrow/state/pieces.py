"""The digest of each piece of a state that lies in an arena: later they say where it was harmed. Without torch."""

from itertools import zip_longest

import msgspec

from regrow.core.draft import Draft
from regrow.core.skeleton import in_order
from regrow.core.stripes import Cut
from regrow.state.fingerprint import piece_digests, root

_NAMED = 3
"""So many tensors of a piece are named where it has many."""


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    pieces: tuple[str, ...]
    """In hex, in canonical order."""


def digests(draft: Draft, arena: memoryview) -> Digests:
    """Of the state that lies in this arena."""
    tensors = (
        arena[start : start + draft.leaves[index].size_bytes]
        for index in in_order(draft.skeleton)
        for start in (draft.offsets[index],)
    )
    found = list(piece_digests(tensors))
    return Digests(root=root(draft.skeleton, found), pieces=tuple(piece.hex() for piece in found))


def harm(draft: Draft, said: Digests, found: Digests) -> str | None:
    """Which tensors' bytes are not those that were said, in words: the first piece of them. None: all are."""
    if said == found:
        return None
    differing = [n for n, (one, other) in enumerate(zip_longest(said.pieces, found.pieces)) if one != other]
    roots = f"it has the root {found.root}, its label says {said.root}"
    if not differing or len(said.pieces) != len(found.pieces):
        return roots
    order = list(in_order(draft.skeleton))
    leaves = [draft.leaves[index] for index in order]
    spans = list(Cut([leaf.size_bytes for leaf in leaves]).spans(differing[0]))
    where = ", ".join(f"{leaves[span.leaf].name} (byte {span.start} to {span.stop - 1})" for span in spans[:_NAMED])
    where += f" and {len(spans) - _NAMED} more tensors" if len(spans) > _NAMED else ""
    return f"{len(differing)} of {len(found.pieces)} pieces are harmed, the first one within {where}: {roots}"
