"""What a checkpoint is: the words of its manifest and of the pointers that make it count.

    URL/
      step-000000000100-1-ab12cd34/     one checkpoint: step, term, and a random end, so that no two saves share a folder
        shard-00000.safetensors         the tensors' bytes
        manifest.json                   everything else: skeleton, names, digests
      pointers/
        000000000007.json               the seventh checkpoint that was completed here

A checkpoint exists once a pointer names it. A pointer is written last, is created or not created as a whole, and is never
changed: the one with the highest number is the latest. Whoever saves creates the pointer after the highest one that it has
seen, and of two that try, one succeeds: this is the compare-and-set that keeps "latest" moving forward, and the term in it
fences whoever was replaced (see `may_follow`).

Every byte is under a digest: a shard's chunks are in the manifest, the manifest in the pointer, and a pointer carries its
own. This room computes none of them.

A delta has files of another kind: what differs from the checkpoint before it, its base. Its manifest says what its shards
would be if they lay there, and where the base is; a whole checkpoint is at the end of each such chain.
"""

from typing import Any

import msgspec

from regrow.core.inexact import Inexact
from regrow.core.roster import Version

FORMAT = "regrow-checkpoint"
VERSION = 2
"""The newest that this release reads."""
PLAIN = 1
"""Of checkpoints that are whole and exact: those stay as they are, and every release reads them."""
CHUNK_BYTES = 4 << 20
"""A shard has a digest for each run of so many bytes of its file, the header included."""


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of the skeleton; manifests list them by the index under which the skeleton names them."""

    name: str
    """In its safetensors file: its path, made unique."""
    shard: int
    dtype: str
    """As torch calls it, for example bfloat16."""
    shape: tuple[int, ...]
    size_bytes: int


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    size_bytes: int
    """Of the whole file."""
    chunks: tuple[str, ...]
    """xxh3-128 of each chunk, in hex."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk of a shard, as a delta's file has it."""

    size_bytes: int
    digest: str
    """xxh3-128 of these bytes, in hex; what they decode to has its own among the shard's chunks."""
    width: int
    """The chunk's bytes are regrouped by their place in numbers of so many bytes."""


class DeltaShard(msgspec.Struct, frozen=True, kw_only=True):
    """A file that lies there in place of a shard: the parts of its chunks, one after the other."""

    file: str
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    base: str
    """The folder of the checkpoint before it, at the same store."""
    manifest: str
    """xxh3-128 of the base's manifest, in hex."""
    depth: int
    """So many deltas lie on the whole one at the end of the chain, this one included."""
    ratio: float
    """So many times smaller than the shards would be."""
    shards: tuple[DeltaShard, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: str = FORMAT
    version: int = PLAIN
    regrow: str
    """The release that wrote it."""
    step: int
    """So many steps are committed in this state."""
    term: int
    made_unix_s: float
    mathematics: dict[str, str] = {}
    """What must be equal for a resumed run to end with the same bits; empty where nothing is promised."""
    skeleton: Any
    """state.tree's skeleton: pure JSON in which tensors are named by index."""
    leaves: tuple[Leaf, ...]
    shards: tuple[Shard, ...]
    frozen: tuple[str, ...] = ()
    """Parameters that were not trained just then, by name, where a job saved it."""
    root: str
    """state.ribbon's root over all of it: the digest that a restored state must have."""
    roster: Version | None = None
    """Where a job saved it, the version of the roster under which: what was committed after it is of this one or a newer."""
    delta: Delta | msgspec.UnsetType = msgspec.UNSET
    """Of version 2: its files hold what differs from another checkpoint."""
    inexact: Inexact | msgspec.UnsetType = msgspec.UNSET
    """Of version 2: skeleton, leaves and root are of what lies there, and this says of which state."""


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    """Of this very file with this field empty."""
    number: int
    term: int
    step: int
    folder: str
    manifest: str
    """xxh3-128 of the manifest's bytes, in hex."""
    size_bytes: int
    """Of all its files but the manifest."""


def may_follow(newest: Pointer | None, term: int, step: int) -> str | None:
    """Why a save of this term and step may not become the latest, in words; None: it may. A newer term fences all older
    ones, also where it went back to an earlier step; within a term steps go up."""
    if newest is None or term > newest.term:
        return None
    if term < newest.term:
        return (
            f"step {step} of term {term} is fenced: term {newest.term} has saved step {newest.step} since, so another "
            "process has taken over"
        )
    if step <= newest.step:
        return f"step {step} of term {term} does not follow step {newest.step}, which that term has saved already"
    return None
