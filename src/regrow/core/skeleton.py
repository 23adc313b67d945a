"""Skeletons: what a state is besides its tensors, as pure JSON in which every value is [kind, payload].

`state.tree` makes them and builds states of them again. What is here needs no torch: a tensor is an index, a dtype and a
shape.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

Json = Any
"""A value msgspec.json can encode."""

Path = tuple[tuple[str, str | int], ...]
"""The keys that lead to a leaf, each with its kind: no two leaves of a tree have the same."""


def tensors(skeleton: Json, path: Path = ()) -> Iterator[tuple[Path, int, str, list[int]]]:
    """Path, index, dtype as torch calls it, and shape of each tensor a skeleton names, in its order."""
    kind, payload = skeleton
    if kind in ("tensor", "array"):
        yield path, payload[0], payload[1], payload[2]
    elif kind in ("list", "tuple"):
        for number, item in enumerate(payload):
            yield from tensors(item, (*path, (kind, number)))
    elif kind == "dict":
        for key, item in payload:
            yield from tensors(item, (*path, (key[0], key[1])))


def canonical(skeleton: Json) -> bytes:
    """The skeleton's bytes for a digest: dicts sorted by key, tensors by shape and dtype, not by index."""
    return msgspec.json.encode(_canonical(skeleton))


def _canonical(skeleton: Json) -> Json:
    kind, payload = skeleton
    if kind in ("tensor", "array"):
        return [kind, payload[1:]]
    if kind in ("list", "tuple"):
        return [kind, [_canonical(item) for item in payload]]
    if kind == "dict":
        return [kind, [[key, _canonical(item)] for key, item in sorted(payload, key=lambda pair: pair[0])]]
    return skeleton


def in_order(skeleton: Json) -> Iterator[int]:
    """Tensor indices in canonical order, whatever order the dicts were filled in."""
    kind, payload = skeleton
    if kind in ("tensor", "array"):
        yield payload[0]
    elif kind in ("list", "tuple"):
        for item in payload:
            yield from in_order(item)
    elif kind == "dict":
        for _, item in sorted(payload, key=lambda pair: pair[0]):
            yield from in_order(item)
