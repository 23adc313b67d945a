"""The canonical reduce: the members' partial sums become one result, the same bits on every member.

The flat gradient travels in buckets. Of each bucket every member owns a slice: the partials of that slice go to their owner,
the owner adds them in the order of the lane tree and divides once, and the result slices go back, together with the parts of
the next bucket. A small gradient goes whole to everybody, who all add it up: the way back would take longer. Which member
holds which subtree, and where buckets and slices are cut, changes nothing in any element's arithmetic.

What the members hold is only read: an attempt that breaks is begun again from it.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import nan
from typing import NamedTuple

import msgspec
import torch
import xxhash

from regrow.collectives.group import Group, Parcel
from regrow.core.errors import Invariant, StateError
from regrow.core.lanes import Node, fold, missing
from regrow.shell.faultpoint import faultpoint
from regrow.state.byproducts import NOTHING, Byproducts
from regrow.state.gradient import Gradient, Part, Pool, add, bucket_digest, digest, divide
from regrow.state.layout import Bucket, Layout, aligned
from regrow.state.memory import bytes_of
from regrow.state.tail import Tail

Holdings = tuple[tuple[Node, ...], ...]
"""What each member holds, in seat order, which is the order of ranks."""

SMALL_BYTES = 1 << 18

Arrived = Callable[[Gradient, int, int], None]
"""Told which bytes of a result are what they will be, bucket by bucket; again, where a bucket travels once more."""


class Terms(NamedTuple):
    """What a reduce is about: the same for all members."""

    layout: Layout
    lanes: int
    step: int
    holdings: Holdings

    @property
    def nodes(self) -> list[Node]:
        return [node for nodes in self.holdings for node in nodes]

    def fingerprints(self) -> tuple[int, int]:
        return self.layout.fingerprint, xxhash.xxh3_64_intdigest(_encoder.encode((self.step, self.holdings)))


class _Closing(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of its subtrees once all of it is computed."""

    stale: tuple[int, ...]
    losses: tuple[float, ...]
    byproducts: tuple[Byproducts, ...]


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of its subtrees where their bytes follow at once."""

    fingerprints: tuple[int, int]
    present: tuple[bytes, ...]
    weights: tuple[float, ...]
    closing: _Closing


_encoder = msgspec.msgpack.Encoder()
_whole = msgspec.msgpack.Decoder(_Whole)
_closing = msgspec.msgpack.Decoder(_Closing)
_TERMS = struct.Struct("<QQ")
_LENGTH = struct.Struct("<Q")
_WEIGHT = struct.Struct("<d")


def is_small(terms: Terms, small_bytes: int = SMALL_BYTES) -> bool:
    return terms.layout.size_bytes * len(terms.nodes) <= small_bytes or not terms.layout.buckets


class Reduction:
    """One reduce of one attempt. All members take the same steps: `agree`, each `bucket` in order, `close`; or `run`.

    `held`: what this member holds, but for the subtree that its `tail` completes.
    """

    def __init__(
        self,
        terms: Terms,
        held: Mapping[Node, Gradient],
        tail: Tail | None,
        pool: Pool,
        arrived: Arrived | None = None,
    ) -> None:
        if missing(terms.lanes, terms.nodes) is None:
            raise Invariant(f"holdings {terms.holdings} hold one of {terms.lanes} lanes twice")
        self.result = pool.take()
        self._terms = terms
        self._held = held
        self._tail = tail
        self._pool = pool
        self._fingerprints = terms.fingerprints()
        self._arrived = arrived
        self._digests = [0] * len(terms.layout.buckets)
        self._added: int | None = None
        """The bucket whose results have not gone round yet."""

    def run(self, group: Group, small_bytes: int = SMALL_BYTES) -> int:
        """All of it, where everything is computed; returns the digest of the result."""
        if is_small(self._terms, small_bytes):
            return self._whole(group)
        self.agree(group)
        for number in range(len(self._terms.layout.buckets)):
            self.bucket(group, number)
        return self.close(group)

    # In buckets

    def agree(self, group: Group) -> None:
        """Find out that two members do not speak of the same reduce before bytes move."""
        for other, row in enumerate(group.gather(_TERMS.pack(*self._fingerprints))):
            self._compare(group.rank, other, _TERMS.unpack(row))

    def bucket(self, group: Group, number: int) -> None:
        layout, lanes, step, holdings = self._terms
        bucket, rank = layout.buckets[number], group.rank
        slices = layout.slices(bucket, group.size)
        low, high = slices[rank]
        mine = [self._part(node, number) for node in holdings[rank]]
        note = _bytes(bytearray(b"".join(_noted(part, bucket) for part in mine)))
        outgoing = [[note, *(part.data[a - bucket.start : b - bucket.start] for part in mine)] for a, b in slices]
        notes = [bytearray(_note_bytes(bucket) * len(nodes)) for nodes in holdings]
        places = self._places(rank, high - low)
        self._exchange(group, [[_bytes(notes[other]), *places[other]] for other in range(group.size)], outgoing)
        parts = {node: (part.cut(low, high), False) for node, part in zip(holdings[rank], mine, strict=True)}
        for other, nodes in enumerate(holdings):
            if other != rank:
                for node, data, (present, weight) in zip(nodes, places[other], _read(notes[other], bucket), strict=True):
                    parts[node] = Part(low, data, present, weight), True
        out = self.result.buffer[low:high]
        mean = divide(layout, _total(layout, lanes, parts, low, out), out)
        faultpoint("bucket", step=step, bucket=number)
        self.result.present = self.result.present & ~bucket.mask | mean.present & bucket.mask
        self.result.weight = mean.weight
        self._added = number

    def flush(self, group: Group) -> None:
        """Send round the results of the last bucket."""
        if self._added is not None:
            self._exchange(group, [[]] * group.size, [[]] * group.size)

    def _exchange(self, group: Group, incoming: Sequence[Parcel], outgoing: Sequence[Parcel]) -> None:
        """With the results of the bucket that was added up last: one round for both."""
        number, self._added = self._added, None
        if number is None:
            group.exchange(incoming, outgoing)
            return
        bucket = self._terms.layout.buckets[number]
        slices = [self.result.buffer[a:b] for a, b in self._terms.layout.slices(bucket, group.size)]
        group.exchange(
            [[piece, *parcel] for piece, parcel in zip(slices, incoming, strict=True)],
            [[slices[group.rank], *parcel] for parcel in outgoing],
        )
        self._digests[number] = bucket_digest(self.result, bucket)
        if self._arrived is not None:
            self._arrived(self.result, bucket.start, bucket.stop)

    def close(self, group: Group) -> int:
        """Once everything is computed. Returns the digest of the result."""
        self.flush(group)
        said = [_closing.decode(data) for data in group.gather(_encoder.encode(self._said(group.rank)))]
        for number in sorted({number for each in said for number in each.stale}):
            self.bucket(group, number)
        self.flush(group)
        self._finish(said)
        return digest(self.result, self._digests)

    # Whole

    def _whole(self, group: Group) -> int:
        layout, lanes, _, holdings = self._terms
        rank, size = group.rank, layout.size_bytes
        mine = [self._held[node] for node in holdings[rank]]
        said = _Whole(
            fingerprints=self._fingerprints,
            present=tuple(each.present.to_bytes(len(layout.spans) // 8 + 1, "little") for each in mine),
            weights=tuple(each.weight for each in mine),
            closing=self._said(rank),
        )
        hosts = [each.buffer.cpu() for each in mine]
        note = _encoder.encode(said)
        heard = group.gather(b"".join((_LENGTH.pack(len(note)), note, *map(bytes_of, hosts))))
        places = self._places(rank, size)
        parts = {node: (each.part(0, size), False) for node, each in zip(holdings[rank], mine, strict=True)}
        closings = []
        for other, data in enumerate(heard):
            start = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            its = _whole.decode(memoryview(data)[_LENGTH.size : start])
            self._compare(rank, other, its.fingerprints)
            closings.append(its.closing)
            if other != rank:
                for node, place, present, weight in zip(
                    holdings[other], places[other], its.present, its.weights, strict=True
                ):
                    place.copy_(_bytes(bytearray(memoryview(data)[start : start + size])))
                    start += size
                    parts[node] = Part(0, place, int.from_bytes(present, "little"), weight), True
        mean = divide(layout, _total(layout, lanes, parts, 0, self.result.buffer), self.result.buffer)
        self.result.present, self.result.weight = mean.present, mean.weight
        self._finish(closings)
        return digest(self.result)

    # Both

    def _compare(self, rank: int, other: int, theirs: tuple[int, int]) -> None:
        if theirs[0] != self._fingerprints[0]:
            what = "names, order, shapes, dtypes, or some are frozen on one only"
            raise StateError(f"ranks {rank} and {other} train different parameters ({what})")
        if theirs[1] != self._fingerprints[1]:
            raise Invariant(f"ranks {rank} and {other} reduce different things; here: {self._terms[1:]}")

    def _places(self, rank: int, width: int) -> list[list[torch.Tensor]]:
        """Where the others' parts go, of so many bytes each."""
        holdings = self._terms.holdings
        foreign = [0 if other == rank else len(nodes) for other, nodes in enumerate(holdings)]
        places = iter(self._pool.scratch(width * sum(foreign)).reshape(sum(foreign), width))
        return [list(islice(places, count)) for count in foreign]

    def _part(self, node: Node, number: int) -> Part:
        bucket = self._terms.layout.buckets[number]
        if node in self._held or self._tail is None:
            return self._held[node].part(bucket.start, bucket.stop)
        return self._tail.part(number, self.result.buffer[bucket.start : bucket.stop])

    def _said(self, rank: int) -> _Closing:
        nodes, tail = self._terms.holdings[rank], self._tail
        shares = [self._held[node] if node in self._held or tail is None else tail for node in nodes]
        return _Closing(
            stale=tuple(sorted(tail.stale)) if tail else (),
            losses=tuple(share.loss for share in shares),
            byproducts=tuple(share.all_byproducts if isinstance(share, Tail) else share.byproducts for share in shares),
        )

    def _finish(self, said: Sequence[_Closing]) -> None:
        lanes, nodes = self._terms.lanes, self._terms.nodes
        losses = dict(zip(nodes, (loss for each in said for loss in each.losses), strict=True))
        byproducts = dict(zip(nodes, (item for each in said for item in each.byproducts), strict=True))
        total = fold(lanes, losses, lambda left, right: left + right) or 0.0
        self.result.loss = total / self.result.weight if self.result.weight else nan
        self.result.byproducts = fold(lanes, byproducts, lambda left, right: left + right) or NOTHING


def _noted(part: Part, bucket: Bucket) -> bytes:
    """What must be known of a bucket's part besides its bytes."""
    present = (part.present & bucket.mask) >> bucket.first
    return _WEIGHT.pack(part.weight) + present.to_bytes(_note_bytes(bucket) - _WEIGHT.size, "little")


def _note_bytes(bucket: Bucket) -> int:
    return _WEIGHT.size + (bucket.last - bucket.first + 7) // 8


def _read(notes: bytearray, bucket: Bucket) -> Iterator[tuple[int, float]]:
    """Presence and weight of each part."""
    width = _note_bytes(bucket)
    for at in range(0, len(notes), width):
        present = int.from_bytes(notes[at + _WEIGHT.size : at + width], "little")
        yield present << bucket.first, _WEIGHT.unpack_from(notes, at)[0]


def _bytes(data: bytearray) -> torch.Tensor:
    """The same memory as a tensor."""
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _total(layout: Layout, lanes: int, parts: dict[Node, tuple[Part, bool]], start: int, out: torch.Tensor) -> Part:
    """The sum of all parts in tree order. `out` may be used, and is where the last sum goes.

    With each part comes whether it may be written to.
    """
    spare: list[torch.Tensor] = []
    left_to_add = len(parts) - 1

    def plus(one: tuple[Part, bool], other: tuple[Part, bool]) -> tuple[Part, bool]:
        nonlocal left_to_add
        (left, left_free), (right, right_free) = one, other
        spare.extend(part.data for part, free in ((right, right_free), (left, left_free)) if free)
        left_to_add -= 1
        where = out if not left_to_add else spare.pop() if spare else aligned(out.numel(), out.device)
        return add(layout, left, right, where), where is not out

    whole = fold(lanes, parts, plus)
    return whole[0] if whole is not None else Part(start, out, 0, 0.0)
