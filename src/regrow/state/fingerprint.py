"""The digest of a whole state, from its bytes. Without torch: the process that writes checkpoints has none.

The bytes of all tensors, in canonical order, are one ribbon; each piece of it has a digest, and the root is one over these
and all that is no tensor.
"""

from collections.abc import Iterable, Iterator

import xxhash

from regrow.core.skeleton import Json, canonical
from regrow.core.stripes import PIECE_BYTES

DIGEST_BYTES = 16


def digest(views: Iterable[memoryview]) -> bytes:
    """Of one piece. Of large views without the GIL."""
    hasher = xxhash.xxh3_128()
    for view in views:
        hasher.update(view)
    return hasher.digest()


def piece_digests(views: Iterable[memoryview], piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Of each piece of the ribbon that these tensors' bytes are, in this order. A view is done with when the next one is
    asked for."""
    hasher, room = xxhash.xxh3_128(), piece_bytes
    for view in views:
        rest = view
        while len(rest):
            part = rest[:room]
            hasher.update(part)
            rest, room = rest[len(part) :], room - len(part)
            if not room:
                yield hasher.digest()
                hasher, room = xxhash.xxh3_128(), piece_bytes
    if room < piece_bytes:
        yield hasher.digest()


def root(skeleton: Json, digests: Iterable[bytes]) -> str:
    """What stands for the whole state, in hex."""
    hasher = xxhash.xxh3_128(canonical(skeleton))
    for each in digests:
        hasher.update(each)
    return str(hasher.hexdigest())
