"""How a checkpoint's files are cut for several readers."""

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.checkpoint import CHUNK_BYTES, Leaf, Manifest, Shard
from regrow.core.stretches import STRETCH_BYTES, reader_of, stretches

SIZES = st.lists(st.tuples(st.integers(1, 3 * STRETCH_BYTES), st.integers(0, 9 * STRETCH_BYTES)), max_size=5)


def manifest(sizes: list[tuple[int, int]]) -> Manifest:
    """Of shards with a header and one tensor of these sizes."""
    return Manifest(
        regrow="0",
        step=1,
        term=1,
        made_unix_s=0.0,
        skeleton=None,
        leaves=tuple(
            Leaf(name=str(number), shard=number, dtype="uint8", shape=(body,), size_bytes=body)
            for number, (_, body) in enumerate(sizes)
        ),
        shards=tuple(
            Shard(file=str(number), size_bytes=head + body, chunks=()) for number, (head, body) in enumerate(sizes)
        ),
        root="",
    )


@given(SIZES)
def test_every_byte_is_in_one_stretch_and_every_chunk_too(sizes: list[tuple[int, int]]) -> None:
    found = stretches(manifest(sizes))
    for number, (head, body) in enumerate(sizes):
        mine = [stretch for stretch in found if stretch.shard == number]
        assert [0, *(stretch.stop for stretch in mine)] == [*(stretch.start for stretch in mine), head + body]
        assert all(stretch.start % CHUNK_BYTES == 0 and stretch.size_bytes > 0 for stretch in mine)
        assert mine[0].stop >= head, "a header is in one stretch"
        assert all(stretch.size_bytes <= STRETCH_BYTES for stretch in mine[1:])


@given(SIZES, st.integers(1, 4))
def test_each_rank_reads_as_many_as_any_other(sizes: list[tuple[int, int]], ranks: int) -> None:
    everyone = tuple(range(ranks))
    counts = [0] * ranks
    for number, _ in enumerate(stretches(manifest(sizes))):
        counts[reader_of(number, everyone)] += 1
    assert max(counts) - min(counts) <= 1
