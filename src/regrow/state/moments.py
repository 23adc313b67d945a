"""An optimizer's moments in fewer bits, and back. Without torch; needs the packages of `regrow[delta]`.

Made in the writer, out of the arena; decoded wherever a state is restored. Decoding takes table look-ups, integers and one
product alone, which come out the same on every machine: the root of the restored state is in the manifest, and is checked.
"""

import mmap
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy
import zstandard
from numpy.typing import NDArray

from regrow.core.checkpoint import Leaf, Manifest
from regrow.core.draft import Draft, draft
from regrow.core.errors import StateError
from regrow.core.inexact import (
    FIRST,
    LEAST,
    NUMBERS,
    SECOND,
    Coded,
    Error,
    Inexact,
    Kept,
    Linear,
    Logarithmic,
    Looked,
)
from regrow.core.skeleton import Json, Path, in_order, tensors
from regrow.state.fingerprint import piece_digests, root

_BLOCK = 256
"""So many numbers share a scale."""
_LEVELS = 254
_TABLE = 16
_ROUNDS = 8
_SAMPLE = 1 << 16
_PRUNED_BELOW = 0.5
"""Of the mean: first moments that move their weight by less than this are pruned."""

Floats = NDArray[numpy.float32]
Bytes = NDArray[Any]


def fewer(plan: Draft, arena: memoryview, mode: str) -> tuple[Draft, memoryview]:
    """Of a state that lies in this arena, all of it: what is to be written in its place."""
    return _Coding(plan, arena, mode).done()


class _Coding:
    def __init__(self, plan: Draft, arena: memoryview, mode: str) -> None:
        self._plan, self._arena, self._mode = plan, arena, mode
        self._tensors: list[tuple[str, str, tuple[int, ...], int]] = []
        self._bytes: list[memoryview] = []
        self._losses: dict[str, _Loss] = {FIRST: _Loss(), SECOND: _Loss()}
        self._restored: dict[int, memoryview] = {}
        self._coded: dict[int, Coded] = {}

    def done(self) -> tuple[Draft, memoryview]:
        plan = self._plan
        moments = self._moments()
        for parent, found in moments.items():
            self._code(parent, found)
        for index, leaf in enumerate(plan.leaves):
            if index not in self._coded:
                self._coded[index] = Kept(leaf=self._add(leaf.name, leaf.dtype, leaf.shape, self._view(index)))
        skeleton = _renamed(plan.skeleton, self._coded, self._tensors)
        largest = max((stop - start for start, stop in plan.extents), default=1)
        made = draft(
            step=plan.step,
            term=plan.term,
            mathematics=plan.mathematics,
            skeleton=skeleton,
            tensors=self._tensors,
            shard_bytes=largest,
        )
        memory = memoryview(mmap.mmap(-1, max(1, made.arena_bytes)))
        for offset, data in zip(made.offsets, self._bytes, strict=True):
            memory[offset : offset + len(data)] = data
        inexact = Inexact(
            mode=self._mode,
            ratio=round(plan.size_bytes / max(1, made.size_bytes), 4),
            errors=tuple(loss.error(kind) for kind, loss in self._losses.items() if loss.count),
            skeleton=plan.skeleton,
            leaves=tuple(self._coded[index] for index in range(len(plan.leaves))),
            shapes=tuple((leaf.dtype, leaf.size_bytes) for leaf in plan.leaves),
            root=root(plan.skeleton, piece_digests(self._restored.get(i, self._view(i)) for i in in_order(plan.skeleton))),
        )
        return msgspec.structs.replace(made, frozen=plan.frozen, inexact=inexact), memory

    def _moments(self) -> dict[Path, dict[str, int]]:
        """Of each parameter: which of its moments are stored in fewer bits."""
        found: dict[Path, dict[str, int]] = {}
        for path, index, dtype, _ in tensors(self._plan.skeleton):
            name, leaf = str(path[-1][1]) if path else "", self._plan.leaves[index]
            if name in (FIRST, SECOND) and dtype in NUMBERS and leaf.size_bytes // _width(dtype) >= LEAST:
                values = _floats(self._view(index), dtype)
                if numpy.isfinite(values).all() and (name == FIRST or bool((values >= 0).all())):
                    found.setdefault(path[:-1], {})[name] = index
        return found

    def _code(self, parent: Path, found: dict[str, int]) -> None:
        second = None if SECOND not in found else self._values(found[SECOND])
        for name, index in found.items():
            leaf, values = self._plan.leaves[index], self._values(index)
            if self._mode == "int8":
                coded: Coded = self._linear(leaf, values) if name == FIRST else self._logarithmic(leaf, values)
            elif name == FIRST:
                coded = self._looked(leaf, values, _worth(values, second))
            else:
                coded = self._looked(leaf, values, values > 0, by_logarithm=True)
            self._coded[index] = coded
            restored = memoryview(bytearray(leaf.size_bytes))
            restore(coded, [memoryview(data) for data in self._bytes], restored, leaf.dtype)
            self._restored[index] = restored
            self._losses[name].add(values, _floats(restored, leaf.dtype))

    def _linear(self, leaf: Leaf, values: Floats) -> Linear:
        blocks = _blocks(values)
        scales = (numpy.abs(blocks).max(axis=1) / numpy.float32(127)).astype(numpy.float32)
        safe = numpy.where(scales > 0, scales, numpy.float32(1))[:, None]
        codes = numpy.clip(numpy.rint(blocks / safe), -127, 127).astype(numpy.int8).reshape(-1)[: len(values)]
        return Linear(codes=self._array(leaf, "codes", "int8", codes), scales=self._array(leaf, "scales", "float32", scales))

    def _logarithmic(self, leaf: Leaf, values: Floats) -> Logarithmic:
        bits = _blocks(values).view(numpy.int32).astype(numpy.int64)
        bits[bits < 0] = 0  # -0.0
        low = numpy.where(bits > 0, bits, numpy.int64(1) << 40).min(axis=1)
        high = bits.max(axis=1)
        low = numpy.minimum(low, numpy.maximum(high, 1))
        span = numpy.maximum(high - low, 1)[:, None]
        codes = 1 + (2 * _LEVELS * (bits - low[:, None]) + span) // (2 * span)
        codes = numpy.where(bits > 0, codes, 0).astype(numpy.uint8).reshape(-1)[: len(values)]
        ends = numpy.stack([low, high], axis=1).astype(numpy.int32)
        return Logarithmic(codes=self._array(leaf, "codes", "uint8", codes), ends=self._array(leaf, "ends", "int32", ends))

    def _looked(self, leaf: Leaf, values: Floats, is_kept: NDArray[numpy.bool_], by_logarithm: bool = False) -> Looked:
        seen: Floats = values[is_kept]
        if by_logarithm:
            ranks = seen.view(numpy.int32).astype(numpy.float64)
            middles = _clusters(ranks)
            named = numpy.rint(middles).astype(numpy.int32).view(numpy.float32)
        else:
            ranks = seen.astype(numpy.float64)
            middles = _clusters(ranks)
            named = middles.astype(numpy.float32)
        table = numpy.zeros(_TABLE, numpy.float32)
        table[1 : 1 + len(named)] = named
        codes = numpy.zeros(len(values) + len(values) % 2, numpy.uint8)
        if len(middles):
            codes[: len(values)][is_kept] = 1 + numpy.searchsorted((middles[1:] + middles[:-1]) / 2, ranks)
        packed = codes[::2] | codes[1::2] << 4
        frame = numpy.frombuffer(zstandard.ZstdCompressor(level=3).compress(packed.data), numpy.uint8)
        return Looked(frame=self._array(leaf, "frame", "uint8", frame), table=self._array(leaf, "table", "float32", table))

    def _array(self, leaf: Leaf, part: str, dtype: str, array: Bytes) -> int:
        data = memoryview(numpy.ascontiguousarray(array)).cast("B")  # type: ignore[arg-type]
        return self._add(f"{leaf.name}.{part}", dtype, array.shape, data)

    def _add(self, name: str, dtype: str, shape: Sequence[int], data: memoryview) -> int:
        self._tensors.append((name, dtype, tuple(shape), len(data)))
        self._bytes.append(data)
        return len(self._bytes) - 1

    def _view(self, index: int) -> memoryview:
        start = self._plan.offsets[index]
        return self._arena[start : start + self._plan.leaves[index].size_bytes]

    def _values(self, index: int) -> Floats:
        return _floats(self._view(index), self._plan.leaves[index].dtype)


class _Loss:
    """Of all numbers of one kind, so far."""

    def __init__(self) -> None:
        self.count = 0
        self._zeroed = 0
        self._largest = self._lost = self._whole = 0.0

    def add(self, was: Floats, now: Floats) -> None:
        gap = numpy.abs(was.astype(numpy.float64) - now)
        self.count += len(was)
        self._zeroed += int(((now == 0) & (was != 0)).sum())
        self._largest = max(self._largest, float(gap.max(initial=0.0)))
        self._lost += float((gap * gap).sum())
        self._whole += float((was.astype(numpy.float64) ** 2).sum())

    def error(self, kind: str) -> Error:
        relative = (self._lost / self._whole) ** 0.5 if self._whole else 0.0
        return Error(kind=kind, largest=self._largest, rms_relative=relative, zeroed=self._zeroed / self.count)


# Back


class Restoring:
    """A state in fewer bits, read: views for what lies there, and then what belongs where."""

    def __init__(self, inexact: Inexact, manifest: Manifest, places: Sequence[memoryview]) -> None:
        """Places: of the state that is restored, by index."""
        self._inexact = inexact
        self._places = places
        kept = {coded.leaf: place for coded, place in zip(inexact.leaves, places, strict=True) if isinstance(coded, Kept)}
        self.views = [
            kept[index] if index in kept else memoryview(bytearray(leaf.size_bytes))
            for index, leaf in enumerate(manifest.leaves)
        ]
        """Of the tensors that lie there, by index: for Archive.read."""

    def finish(self) -> None:
        """Once all is read. StateError when it makes no sense."""
        for coded, place, (dtype, size_bytes) in zip(self._inexact.leaves, self._places, self._inexact.shapes, strict=True):
            if len(place) != size_bytes:
                raise StateError(f"a tensor of {size_bytes} bytes has a place of {len(place)}")
            if not isinstance(coded, Kept):
                restore(coded, self.views, place, dtype)


def restore(coded: Coded, data: Sequence[memoryview], place: memoryview, dtype: str) -> None:
    """The numbers of a tensor, into its place."""
    count = len(place) // _width(dtype)
    try:
        match coded:
            case Linear(codes=codes, scales=scales):
                values = numpy.frombuffer(data[codes], numpy.int8).astype(numpy.float32)
                values = values * _spread(numpy.frombuffer(data[scales], numpy.float32), count)
            case Logarithmic(codes=codes, ends=ends):
                found = numpy.frombuffer(data[codes], numpy.uint8).astype(numpy.int64)
                pairs = numpy.frombuffer(data[ends], numpy.int32).reshape(-1, 2).astype(numpy.int64)
                low, high = _spread(pairs[:, 0], count), _spread(pairs[:, 1], count)
                bits = low + ((found - 1) * (high - low) + _LEVELS // 2) // _LEVELS
                values = numpy.where(found > 0, bits, 0).astype(numpy.int32).view(numpy.float32)
            case Looked(frame=frame, table=table):
                packed = numpy.frombuffer(zstandard.ZstdDecompressor().decompress(data[frame]), numpy.uint8)
                found = numpy.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:count].astype(numpy.int64)
                values = numpy.frombuffer(data[table], numpy.float32)[found]
            case Kept():
                return
        place[:] = _bytes(values, dtype)
    except (ValueError, IndexError, zstandard.ZstdError) as error:
        raise StateError(f"moments in fewer bits cannot be read: {error}") from error


def _spread(of_blocks: Bytes, count: int) -> Bytes:
    """For each number what its block has."""
    return numpy.repeat(of_blocks, _BLOCK)[:count]


def _blocks(values: Floats) -> Floats:
    padded = numpy.zeros(-(-len(values) // _BLOCK) * _BLOCK, numpy.float32)
    padded[: len(values)] = values
    return padded.reshape(-1, _BLOCK)


def _worth(first: Floats, second: Floats | None) -> NDArray[numpy.bool_]:
    """Which first moments are kept: those that move their weight, judged by both moments together as Adam does."""
    moves = numpy.abs(first.astype(numpy.float64))
    if second is not None:
        moves = moves / (numpy.sqrt(second.astype(numpy.float64)) + 1e-30)
    worth: NDArray[numpy.bool_] = moves > _PRUNED_BELOW * moves.mean()
    return worth


def _clusters(values: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """At most 15 middles, ascending, close to where the values are: k-means on a sample, begun at quantiles."""
    if not len(values):
        return values
    sample = numpy.sort(values[:: -(-len(values) // _SAMPLE)])
    middles = numpy.unique(numpy.quantile(sample, (numpy.arange(_TABLE - 1) + 0.5) / (_TABLE - 1)))
    sums = numpy.concatenate([[0.0], numpy.cumsum(sample)])
    for _ in range(_ROUNDS):
        cuts = numpy.searchsorted(sample, (middles[1:] + middles[:-1]) / 2)
        ends = numpy.concatenate([[0], cuts, [len(sample)]])
        counts = numpy.diff(ends)
        means = (sums[ends[1:]] - sums[ends[:-1]]) / numpy.maximum(counts, 1)
        middles = numpy.unique(numpy.where(counts > 0, means, middles))
    return middles


def _width(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def _floats(data: memoryview, dtype: str) -> Floats:
    if dtype == "bfloat16":
        return (numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    return numpy.frombuffer(data, numpy.float32 if dtype == "float32" else numpy.float16).astype(numpy.float32)


def _bytes(values: Floats, dtype: str) -> memoryview:
    if dtype == "bfloat16":
        bits = values.astype(numpy.float32).view(numpy.uint32).astype(numpy.uint64)
        rounded: Bytes = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)
    else:
        rounded = values.astype(numpy.float32 if dtype == "float32" else numpy.float16)
    return memoryview(numpy.ascontiguousarray(rounded)).cast("B")  # type: ignore[arg-type]


def _renamed(skeleton: Json, coded: dict[int, Coded], stored: Sequence[tuple[str, str, tuple[int, ...], int]]) -> Json:
    """The skeleton of what lies there: in the place of a tensor in fewer bits, a dict of its parts."""
    kind, payload = skeleton
    if kind in ("list", "tuple"):
        return [kind, [_renamed(item, coded, stored) for item in payload]]
    if kind == "dict":
        return [kind, [[key, _renamed(item, coded, stored)] for key, item in payload]]
    if kind not in ("tensor", "array"):
        return skeleton
    found = coded[payload[0]]
    if isinstance(found, Kept):
        return [kind, [found.leaf, payload[1], payload[2]]]
    parts = [(name, getattr(found, name)) for name in found.__struct_fields__]
    return ["dict", [[["str", name], ["tensor", [i, stored[i][1], list(stored[i][2])]]] for name, i in parts]]
