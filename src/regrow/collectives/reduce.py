"""The canonical reduce: the members' partial sums become one result, the same bits on every member.

Every member owns a slice of the flat gradient. The partials of that slice travel to their owner, the owner adds them in
the order of the lane tree and divides once, and the result slices travel back. A small gradient goes whole to everybody, who
all add it up: the way back would take longer. Which member holds which subtree, and where the slices are cut, changes
nothing in any element's arithmetic.

What the members hold is only read: an attempt that breaks is begun again from it.
"""

import struct
from collections.abc import Mapping, Sequence

import msgspec
import torch
import xxhash

from regrow.collectives.group import Group
from regrow.core.errors import Invariant, PeerError, StateError
from regrow.core.lanes import Node, fold, missing
from regrow.state.byproducts import NOTHING, Byproducts
from regrow.state.gradient import Gradient, Part, Pool, add, divide
from regrow.state.layout import Layout, aligned

Holdings = tuple[tuple[Node, ...], ...]
"""What each member holds, in seat order, which is the order of ranks."""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """What must be known of a subtree besides its bytes."""

    present: bytes
    weight: float
    loss: float
    byproducts: Byproducts


class _Notes(msgspec.Struct, frozen=True, array_like=True):
    """What one member says before any bytes move."""

    layout: int
    holdings: int
    notes: tuple[_Note, ...]


_LENGTH = struct.Struct("<Q")
_ROW_BYTES = 1016
SMALL_BYTES = 1 << 18
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Notes)


def reduce(
    group: Group,
    rank: int,
    layout: Layout,
    lanes: int,
    holdings: Holdings,
    held: Mapping[Node, Gradient],
    pool: Pool,
    small_bytes: int = SMALL_BYTES,
) -> Gradient:
    """The step's gradient, divided, complete on every member; its loss is the weighted mean (nan of no weight)."""
    if len(holdings) != group.size or missing(lanes, [node for nodes in holdings for node in nodes]) is None:
        raise Invariant(f"holdings {holdings} of {group.size} members hold one of {lanes} lanes twice")
    notes = _exchange_notes(group, rank, layout, holdings, held)
    try:
        is_small = layout.size_bytes * len(notes) <= small_bytes
        return _reduce(group, rank, layout, lanes, holdings, held, notes, pool, is_small)
    except PeerError:
        pool.forget_scratch()  # a broken exchange may still write into it, and into the result, which is dropped too
        raise


def _reduce(
    group: Group,
    rank: int,
    layout: Layout,
    lanes: int,
    holdings: Holdings,
    held: Mapping[Node, Gradient],
    notes: Mapping[Node, "_Note"],
    pool: Pool,
    is_small: bool,
) -> Gradient:
    ranges = [(0, layout.size_bytes)] * group.size if is_small else layout.slices(group.size)
    parts = _collect(group, rank, ranges, holdings, held, notes, pool)
    result = pool.take()
    start, stop = ranges[rank]
    own = _total(layout, lanes, parts, start, result.buffer[start:stop])
    mean = divide(layout, own, result.buffer[start:stop])
    if not is_small:
        incoming = [result.buffer[low:high] for low, high in ranges]
        group.exchange(incoming, [incoming[rank]] * group.size)
    result.present, result.weight, result.loss = mean.present, mean.weight, mean.loss
    byproducts = {node: note.byproducts for node, note in notes.items()}
    result.byproducts = fold(lanes, byproducts, lambda left, right: left + right) or NOTHING
    return result


def _exchange_notes(
    group: Group, rank: int, layout: Layout, holdings: Holdings, held: Mapping[Node, Gradient]
) -> dict[Node, _Note]:
    """Everybody's notes. Also the last moment to find that two members do not speak of the same reduce: gloo ends the
    process when a message has another size than was expected."""
    size = len(layout.spans) // 8 + 1
    mine = [held[node] for node in holdings[rank]]
    said = _Notes(
        layout=layout.fingerprint,
        holdings=xxhash.xxh3_64_intdigest(_encoder.encode(holdings)),
        notes=tuple(_Note(g.present.to_bytes(size, "little"), g.weight, g.loss, g.byproducts) for g in mine),
    )
    found: dict[Node, _Note] = {}
    for other, data in enumerate(_gather(group, _encoder.encode(said))):
        heard = _decoder.decode(data)
        if heard.layout != said.layout:
            what = "names, order, shapes, dtypes, or some are frozen on one only"
            raise StateError(f"ranks {rank} and {other} train different parameters ({what})")
        if heard.holdings != said.holdings:
            raise Invariant(f"ranks {rank} and {other} reduce different holdings; here: {holdings}")
        found.update(zip(holdings[other], heard.notes, strict=True))
    return found


def _gather(group: Group, data: bytes) -> list[bytes]:
    """Everybody's data, in one round where all of it is short, as it is but for large by-products. Rows have the same size
    whatever they say: this is where members find out that they do not agree."""
    rows = group.gather(_LENGTH.pack(len(data)) + data[:_ROW_BYTES].ljust(_ROW_BYTES, b"\0"))
    lengths = [_LENGTH.unpack_from(row)[0] for row in rows]
    if max(lengths) > _ROW_BYTES:
        return group.gather_any(data)
    return [row[_LENGTH.size : _LENGTH.size + length] for row, length in zip(rows, lengths, strict=True)]


def _collect(
    group: Group,
    rank: int,
    ranges: Sequence[tuple[int, int]],
    holdings: Holdings,
    held: Mapping[Node, Gradient],
    notes: Mapping[Node, _Note],
    pool: Pool,
) -> dict[Node, tuple[Part, bool]]:
    """All parts of this member's slice, and whether each may be written to (what we hold ourselves may not).

    One exchange for the first subtree of everyone, one for the second, and so on.
    """
    start, stop = ranges[rank]
    width = stop - start
    nothing = torch.empty(0, dtype=torch.uint8)
    parts: dict[Node, tuple[Part, bool]] = {}
    for turn in range(max(len(nodes) for nodes in holdings)):
        senders = [other for other, nodes in enumerate(holdings) if turn < len(nodes) and other != rank]
        scratch = pool.scratch(turn, width * len(senders))
        incoming = [nothing] * group.size
        for place, other in enumerate(senders):
            incoming[other] = scratch[place * width : (place + 1) * width]
            note = notes[holdings[other][turn]]
            part = Part(start, incoming[other], int.from_bytes(note.present, "little"), note.weight, note.loss)
            parts[holdings[other][turn]] = part, True
        outgoing = [nothing] * group.size
        if turn < len(holdings[rank]):
            mine = held[holdings[rank][turn]]
            outgoing = [mine.buffer[low:high] for low, high in ranges]
            parts[holdings[rank][turn]] = mine.part(start, stop), False
        group.exchange(incoming, outgoing)
    return parts


def _total(layout: Layout, lanes: int, parts: dict[Node, tuple[Part, bool]], start: int, out: torch.Tensor) -> Part:
    """The sum of all parts in tree order. `out` may be used, and is where the last sum goes."""
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
    return whole[0] if whole is not None else Part(start, out, 0, 0.0, 0.0)
