"""The flat layout: aligned, cut anywhere at 512 bytes, and its runs against a byte-by-byte second opinion."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.errors import ConfigError, Invariant
from regrow.state.layout import ALIGN_BYTES, DTYPES, Layout, Source

shapes = st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 700)), max_size=8)


def layout_of(parameters: list[tuple[torch.dtype, int]]) -> Layout:
    return Layout([(f"p{i}", torch.empty(size, dtype=dtype)) for i, (dtype, size) in enumerate(parameters)])


@given(shapes)
def test_views_are_aligned_disjoint_and_zeroed(parameters: list[tuple[torch.dtype, int]]) -> None:
    layout = layout_of(parameters)
    buffer = layout.new_buffer()
    assert buffer.data_ptr() % ALIGN_BYTES == 0 and layout.size_bytes % ALIGN_BYTES == 0 and not buffer.any()
    views = layout.views(buffer)
    for number, view in enumerate(views):
        assert view.is_contiguous() and view.data_ptr() % ALIGN_BYTES == 0
        view.fill_(number + 1)
    for number, view in enumerate(views):
        assert (view == number + 1).all()


@given(shapes, st.integers(1, 9))
def test_slices_are_contiguous_even_and_cut_at_blocks(parameters: list[tuple[torch.dtype, int]], members: int) -> None:
    layout = layout_of(parameters)
    for bucket in layout.buckets:
        slices = layout.slices(bucket, members)
        assert [start for start, _ in slices] == [bucket.start, *(stop for _, stop in slices[:-1])]
        assert slices[-1][1] == bucket.stop
        sizes = [stop - start for start, stop in slices]
        assert max(sizes) - min(sizes) <= ALIGN_BYTES and all(size % ALIGN_BYTES == 0 for size in sizes)


@given(shapes, st.integers(1, 4096))
def test_buckets_are_runs_of_whole_parameters_from_the_end(parameters: list[tuple[torch.dtype, int]], size: int) -> None:
    named = [(f"p{i}", torch.empty(count, dtype=dtype)) for i, (dtype, count) in enumerate(parameters)]
    layout = Layout(named, bucket_bytes=size)
    ends = [*(bucket.last for bucket in layout.buckets), 0]
    assert ends[0] == len(named) and [bucket.first for bucket in layout.buckets] == ends[1:]
    for bucket in layout.buckets:
        spans = layout.spans[bucket.first : bucket.last]
        assert (bucket.start, bucket.stop) == (spans[0].start, spans[-1].stop)
        assert bucket.mask == sum(1 << index for index in range(bucket.first, bucket.last))
    for bucket in layout.buckets[:-1]:
        assert bucket.stop - bucket.start >= size, "cut too early"
        assert bucket.stop - layout.spans[bucket.first].stop < size, "cut too late"


@given(shapes, st.integers(0, 255), st.integers(0, 255), st.integers(0, 20), st.integers(0, 20))
def test_runs_name_every_block_once_and_are_maximal(
    parameters: list[tuple[torch.dtype, int]], left: int, right: int, one: int, other: int
) -> None:
    layout = layout_of(parameters)
    start, stop = sorted(min(cut * ALIGN_BYTES, layout.size_bytes) for cut in (one, other))
    expected: dict[int, tuple[torch.dtype, Source]] = {}
    for index, span in enumerate(layout.spans):
        sides = (left >> index & 1, right >> index & 1)
        if sides != (0, 0):
            source = {(1, 0): Source.LEFT, (0, 1): Source.RIGHT, (1, 1): Source.BOTH}[sides]
            for block in range(max(span.start, start), min(span.stop, stop), ALIGN_BYTES):
                expected[block] = (span.dtype, source)
    runs = layout.runs(start, stop, left, right)
    assert {b: (r.dtype, r.source) for r in runs for b in range(r.start, r.stop, ALIGN_BYTES)} == expected
    for before, after in pairwise(runs):
        assert before.stop < after.start or (before.dtype, before.source) != (after.dtype, after.source)


def test_layouts_of_different_models_differ() -> None:
    first = Layout([("a", torch.empty(3)), ("b", torch.empty(3))])
    assert first.fingerprint == Layout([("a", torch.ones(3)), ("b", torch.ones(3))]).fingerprint
    assert first.fingerprint != Layout([("b", torch.empty(3)), ("a", torch.empty(3))]).fingerprint


def test_what_cannot_be_reduced_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="table is"):
        Layout([("table", torch.empty(3, dtype=torch.int64))])
    with pytest.raises(Invariant, match="1 bytes"):
        Layout([("a", torch.empty(3))]).views(torch.empty(1, dtype=torch.uint8))
