"""Where a checkpoint's tensors go: every byte has one place, and every tensor lies as its dtype needs it."""

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.checkpoint import Pointer, may_follow
from regrow.core.draft import ALIGNED_BYTES, Draft, distinct, draft
from regrow.core.errors import Invariant
from regrow.core.skeleton import in_order

Tensor = tuple[str, str, tuple[int, ...], int]
WIDTHS = {"bool": 1, "bfloat16": 2, "float32": 4, "int64": 8, "complex128": 16}


@st.composite
def states(draw: st.DrawFn) -> tuple[Any, list[Tensor]]:
    """A skeleton with its tensors, numbered in any order, under paths that may be the same."""
    shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)
    paths = st.sampled_from(["", "a", "a~2", "a~2~2", "b.c", "__metadata__", "é"])
    kinds = draw(st.lists(st.tuples(paths, st.sampled_from(sorted(WIDTHS)), shapes), max_size=9))
    tensors = [(path, dtype, shape, prod(shape) * WIDTHS[dtype]) for path, dtype, shape in kinds]
    leaves = [
        ["tensor", [index, tensors[index][1], [*tensors[index][2]]]] for index in draw(st.permutations(range(len(kinds))))
    ]
    cut = draw(st.integers(0, len(leaves)))
    keyed = [[["str", draw(st.sampled_from("zab")) + str(number)], leaf] for number, leaf in enumerate(leaves[cut:])]
    return ["tuple", [["list", leaves[:cut]], ["none", None], ["dict", keyed]]], tensors


def made(state: tuple[Any, list[Tensor]], shard_bytes: int) -> Draft:
    skeleton, tensors = state
    return draft(step=1, term=1, mathematics={}, skeleton=skeleton, tensors=tensors, shard_bytes=shard_bytes)


def dumb_places(found: Draft) -> dict[int, tuple[int, int]]:
    """The second implementation: walk the arena byte by byte, tensor after tensor, from page to page."""
    places, at = {}, 0
    for shard in found.order:
        while at % ALIGNED_BYTES:
            at += 1
        for index in shard:
            first = at
            for _ in range(found.leaves[index].size_bytes):
                at += 1
            places[index] = (first, at)
    return places


@given(states(), st.integers(1, 3000))
def test_every_tensor_has_its_own_bytes_where_its_dtype_may_lie(state: tuple[Any, list[Tensor]], shard_bytes: int) -> None:
    found = made(state, shard_bytes)
    places = dumb_places(found)
    assert sorted(places) == list(range(len(state[1]))), "every leaf is in one shard"
    assert {
        index: (start, start + leaf.size_bytes)
        for index, (start, leaf) in enumerate(zip(found.offsets, found.leaves, strict=True))
    } == places
    taken: set[int] = set()
    for index, (first, last) in places.items():
        assert taken.isdisjoint(range(first, last))
        taken.update(range(first, last))
        assert first == last or first % WIDTHS[found.leaves[index].dtype] == 0
    assert found.arena_bytes >= max([0, *taken]) and found.arena_bytes % ALIGNED_BYTES == 0
    assert found.size_bytes == len(taken)


@given(states(), st.integers(1, 3000))
def test_shards_follow_the_canonical_order_and_are_as_large_as_they_may_be(
    state: tuple[Any, list[Tensor]], shard_bytes: int
) -> None:
    found = made(state, shard_bytes)
    canonical = list(in_order(state[0]))
    assert [sorted(canonical[a:b]) for a, b in cuts(found)] == [sorted(shard) for shard in found.order]
    for number, shard in enumerate(found.order):
        start, stop = found.extents[number]
        assert start % ALIGNED_BYTES == 0 and stop - start == sum(found.leaves[index].size_bytes for index in shard)
        assert {found.leaves[index].shard for index in shard} == {number}
        assert stop - start <= shard_bytes or sum(found.leaves[index].size_bytes > 0 for index in shard) == 1, "never split"
        following = [index for index in canonical if found.leaves[index].shard == number + 1]
        assert not following or stop - start + found.leaves[following[0]].size_bytes > shard_bytes, "room was left"


def cuts(found: Draft) -> list[tuple[int, int]]:
    stops = [sum(len(shard) for shard in found.order[: n + 1]) for n in range(len(found.order))]
    return list(zip([0, *stops], stops, strict=False))


@given(states())
def test_a_draft_holds_what_it_was_made_of(state: tuple[Any, list[Tensor]]) -> None:
    found = made(state, 1000)
    assert [(leaf.dtype, leaf.shape, leaf.size_bytes) for leaf in found.leaves] == [tensor[1:] for tensor in state[1]]


@given(st.lists(st.text("a~2_", max_size=4) | st.sampled_from(["__metadata__", "a", "a~2"])))
def test_names_are_distinct_whatever_the_paths(paths: list[str]) -> None:
    names = distinct(paths)
    assert len(set(names)) == len(names) == len(paths) and "__metadata__" not in names
    assert all(name.startswith(path) for name, path in zip(names, paths, strict=True))
    firsts = [index for index, path in enumerate(paths) if path not in paths[:index] and path not in names[:index]]
    assert [names[i] for i in firsts if paths[i] != "__metadata__"] == [
        paths[i] for i in firsts if paths[i] != "__metadata__"
    ]


def test_what_cannot_be_a_state_is_our_bug() -> None:
    leaf = ["tensor", [0, "float32", [2]]]
    with pytest.raises(Invariant, match="does not name each of 1 tensors once"):
        made((["list", [leaf, leaf]], [("a", "float32", (2,), 8)]), 100)
    with pytest.raises(Invariant, match=r"a is float32\[2\] and said to have 9 bytes"):
        made((leaf, [("a", "float32", (2,), 9)]), 100)


# What may become the latest


def pointer(number: int, term: int, step: int, size_bytes: int = 10) -> Pointer:
    return Pointer(digest="", number=number, term=term, step=step, folder=f"f{number}", manifest="", size_bytes=size_bytes)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=30))
def test_latest_only_moves_forward(saves: list[tuple[int, int]]) -> None:
    newest = None
    accepted: list[tuple[int, int]] = []
    for term, step in saves:
        why = may_follow(newest, term, step)
        assert (why is None) == (not accepted or ((term, step) > accepted[-1] and (term, step) > max(accepted)))
        if why is None:
            accepted.append((term, step))
            newest = pointer(len(accepted), term, step)
    assert accepted == sorted(set(accepted))


def test_who_is_refused_is_told_why() -> None:
    newest = pointer(3, 2, 50)
    assert may_follow(newest, 1, 60) == (
        "step 60 of term 1 is fenced: term 2 has saved step 50 since, so another process has taken over"
    )
    assert may_follow(newest, 2, 50) == "step 50 of term 2 does not follow step 50, which that term has saved already"
    assert may_follow(newest, 3, 10) is None, "a new term may go back"
