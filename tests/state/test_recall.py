"""Recalls: every byte of an arena in its tensor, and the root of what was really read."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from shelf import drafted, same

from regrow.core.draft import Draft
from regrow.core.errors import StateError
from regrow.core.skeleton import in_order
from regrow.core.stripes import PIECE_BYTES
from regrow.state import recall
from regrow.state.fingerprint import root
from regrow.state.memory import bytes_of
from regrow.state.ribbon import digests
from regrow.state.tree import leaves, unflatten

_BLOCK = recall.BLOCK_BYTES


def large() -> dict[str, Any]:
    """Tensors that share pieces and blocks, that fill many, and whose place in the arena is not that in the ribbon."""
    sizes = (3, _BLOCK - 7, 1, PIECE_BYTES + 11, 0, 5, PIECE_BYTES, 2 * _BLOCK, 300_001)
    return {f"x{i}": (torch.arange(size) * (i + 1)).to(torch.int8 if i % 3 else torch.int16) for i, size in enumerate(sizes)}


def many() -> dict[str, Any]:
    return {f"t{i:04d}": torch.tensor([i, -i]) for i in range(3 * recall._PARTS // 2)}


TREES: dict[str, Any] = {"large": large(), "many": many(), "nothing": {}, "no bytes": [torch.empty(0)], "word": ["word"]}


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("arena")
    yield fd
    os.close(fd)


def laid_out(fd: int, tree: Any, shard_bytes: int = 1 << 20) -> Draft:
    draft, arena = drafted(tree, shard_bytes=shard_bytes)
    assert os.pwrite(fd, arena, 0) == len(arena)
    return draft


def places(draft: Draft) -> list[torch.Tensor]:
    named = sorted(leaves(draft.skeleton), key=lambda leaf: leaf[0])
    return [torch.empty(shape, dtype=dtype) for _, dtype, shape in named]


def root_of(draft: Draft, tensors: list[torch.Tensor]) -> str:
    return root(draft.skeleton, digests(tensors[index] for index in in_order(draft.skeleton)))


@pytest.mark.parametrize("shard_bytes", [1, 1 << 20, 1 << 40])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_what_lies_in_an_arena_comes_into_tensors_with_its_root(fd: int, tree: Any, shard_bytes: int) -> None:
    draft = laid_out(fd, tree, shard_bytes)
    tensors = places(draft)
    found = recall.fill(fd, draft, tensors)
    assert same(unflatten(draft.skeleton, tensors), tree)
    assert found == root_of(draft, tensors)


def test_the_root_is_that_of_the_bytes_that_came(fd: int) -> None:
    draft = laid_out(fd, large())
    tensors = places(draft)
    sound = recall.fill(fd, draft, tensors)
    at = draft.offsets[3] + PIECE_BYTES
    harmed = bytes([os.pread(fd, 1, at)[0] ^ 4])
    os.pwrite(fd, harmed, at)
    assert recall.fill(fd, draft, tensors) == root_of(draft, tensors) != sound
    assert bytes_of(tensors[3])[PIECE_BYTES : PIECE_BYTES + 1] == harmed


def test_an_arena_that_is_too_short_is_named_and_nothing_is_written(fd: int) -> None:
    draft = laid_out(fd, large())
    os.ftruncate(fd, draft.extents[-1][1] - 1)
    tensors = [tensor.zero_() for tensor in places(draft)]
    with pytest.raises(StateError, match=rf"has {draft.extents[-1][1] - 1} bytes, and its state wants"):
        recall.fill(fd, draft, tensors)
    assert not any(tensor.any() for tensor in tensors)


def test_tensors_that_do_not_fit_are_refused_by_name(fd: int) -> None:
    draft = laid_out(fd, large())
    tensors = places(draft)
    tensors[0] = tensors[0][:-1]
    with pytest.raises(ValueError, match=r"x0 has 6 bytes, its tensor 4"):
        recall.fill(fd, draft, tensors)
    with pytest.raises(ValueError, match="shorter"):
        recall.fill(fd, draft, places(draft)[:-1])
