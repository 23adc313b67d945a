"""Deltas: what was saved comes back to the byte, each link is held to its digests, and no link that is needed goes."""

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shelf import Chained, Clinging, Dead, Interposed, Mortal, Shelf, depth, load, newest, same, save

from regrow.core.checkpoint import CHUNK_BYTES, Pointer
from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.core.retention import Retention
from regrow.state.archive import Archive
from regrow.state.planes import decoded, encoded
from regrow.state.store import Store

DTYPES = "bool int8 uint8 int16 uint16 int32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128"
DTYPES += " float8_e4m3fn float8_e5m2"


def state(step: int) -> dict[str, Any]:
    """Of all that there is, a little changes in each step."""
    generator = torch.Generator().manual_seed(0)
    tree: dict[str, Any] = {}
    for name in DTYPES.split():
        raw = torch.randint(0, 2 if name == "bool" else 255, (48 * 16,), dtype=torch.uint8, generator=generator)
        raw[step % 48 * 16] = step % 2  # of a NaN also the payload
        tree[name] = raw.view(getattr(torch, name))
    return tree | {
        "weight": torch.randn(3000, generator=generator) + step * 1e-5,
        "zeros": torch.tensor([0.0, -0.0]) * (-1.0) ** step,
        "nan": torch.tensor([0x7FC00000 + step, -1], dtype=torch.int32).view(torch.float32),
        "scalar": torch.tensor(float(step)),
        "empty": torch.empty(0, 7),
        "note": f"step {step}",
    }


def chain(store: Store, steps: int, limit: int = 9, **how: Any) -> tuple[Chained, list[Pointer]]:
    """So many saves; the first is whole."""
    saver = Chained(limit)
    return saver, [saver.save(store, step, state(step), **how) for step in range(1, steps + 1)]


# What was saved comes back


@given(st.data())
@settings(deadline=None)
def test_any_chunk_comes_back_whatever_its_bytes_and_its_width(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    new = data.draw(st.binary(max_size=200))
    old = data.draw(st.binary(min_size=len(new), max_size=len(new)))
    frame = encoded(memoryview(new), memoryview(old), width)
    assert bytes(decoded(frame, memoryview(old), width)) == new
    for wrong in (frame[:-1], frame + b"x", b"", old):
        try:
            assert bytes(decoded(wrong, memoryview(old), width)) == new, "what is appended may be ignored, and no more"
        except StateError:
            pass


@given(st.lists(st.tuples(st.sampled_from(DTYPES.split()), st.integers(0, 70)), max_size=6), st.integers(1, 400), st.data())
@settings(deadline=None, max_examples=60)
def test_any_states_come_back_through_a_chain(kinds: list[tuple[str, int]], shard_bytes: int, data: st.DataObject) -> None:
    shelf, saver = Shelf(), Chained(3)
    for step in range(1, 6):
        tree: dict[str, Any] = {}
        for number, (name, count) in enumerate(kinds):
            blank = torch.zeros(count, dtype=getattr(torch, name))
            raw = data.draw(st.binary(min_size=blank.nbytes, max_size=blank.nbytes))
            if blank.nbytes:
                blank.view(torch.uint8)[:] = torch.tensor([x % 2 if name == "bool" else x for x in raw], dtype=torch.uint8)
            tree[f"{name}{number}"] = blank
        pointer = saver.save(shelf, step, tree, shard_bytes=shard_bytes)
        archive = Archive(shelf)
        assert same(load(archive, pointer), tree) and archive.verify(pointer) == []


@pytest.mark.parametrize("shard_bytes", [100, 1 << 20])
def test_a_chain_comes_back_link_by_link_and_is_bounded(store: Store, shard_bytes: int) -> None:
    _, pointers = chain(store, 7, limit=2, shard_bytes=shard_bytes)
    archive = Archive(store)
    assert [depth(archive, pointer) for pointer in pointers] == [0, 1, 2, 0, 1, 2, 0]
    for step, pointer in enumerate(pointers, 1):
        assert same(load(archive, pointer), state(step))
        told: list[int] = []
        assert archive.verify(pointer, told.append) == [] and sum(told) == pointer.size_bytes


def test_chunks_that_mix_tensors_and_end_anywhere_come_back() -> None:
    def large(step: int) -> dict[str, Any]:
        sizes = (3, CHUNK_BYTES // 4 - 7, 1, CHUNK_BYTES, 300_001)
        tree: dict[str, Any] = {f"x{i}": torch.arange(size, dtype=torch.int32) * step for i, size in enumerate(sizes)}
        return tree | {"half": torch.full((CHUNK_BYTES // 3,), step, dtype=torch.bfloat16), "wide": torch.ones(5).double()}

    shelf, saver = Shelf(), Chained(5)
    pointers = [saver.save(shelf, step, large(step), shard_bytes=64 << 20) for step in (1, 2, 3)]
    archive = Archive(shelf)
    assert depth(archive, pointers[2]) == 2 and len(archive.manifest(pointers[2]).shards[0].chunks) > 5
    delta = archive.manifest(pointers[2]).delta
    assert not isinstance(delta, msgspec.UnsetType)
    assert {part.width for part in delta.shards[0].parts} == {2, 4} and delta.ratio > 1.5
    assert all(same(load(archive, pointer), large(step)) for step, pointer in enumerate(pointers, 1))


def test_checkpoints_without_deltas_stay_as_they_are() -> None:
    shelf, other = Shelf(), Shelf()
    plain = save(shelf, 1, tree=state(1))
    _, (first, second) = chain(other, 2)
    files = [msgspec.json.decode(s.files[f"{p.folder}/manifest.json"]) for s, p in ((shelf, plain), (other, first))]
    assert {**files[0], "made_unix_s": 0} == {**files[1], "made_unix_s": 0}
    assert files[0]["version"] == 1 and "delta" not in files[0]
    manifest = msgspec.json.decode(other.files[f"{second.folder}/manifest.json"])
    assert manifest["version"] == 2, "a release that knows nothing of deltas refuses it"
    assert manifest["delta"]["base"] == first.folder and manifest["delta"]["depth"] == 1
    assert second.size_bytes < first.size_bytes / 2, "it counts what lies there"


# When it is not a delta


def test_what_has_no_fitting_base_is_whole() -> None:
    shelf = Shelf()
    saver, (_, second) = chain(shelf, 2)
    archive = Archive(shelf)
    assert depth(archive, second) == 1
    assert depth(archive, saver.save(shelf, 1, state(1), term=2)) == 0, "whoever restored may have done so from an older one"
    assert depth(archive, saver.save(shelf, 2, {**state(2), "more": torch.ones(1)}, term=2)) == 0, "another layout"
    assert depth(archive, saver.save(shelf, 3, {**state(3), "more": torch.ones(1)}, term=2)) == 1
    save(shelf, 4, term=2)
    assert depth(archive, saver.save(shelf, 5, {**state(5), "more": torch.ones(1)}, term=2)) == 0, "the latest is another's"
    assert all(archive.verify(pointer) == [] for pointer in archive.pointers()[0])


def test_nothing_is_built_on_what_has_lost_a_file() -> None:
    shelf = Shelf()
    saver, (_, second) = chain(shelf, 2)
    shelf.remove(f"{second.folder}/shard-00000.xor.zst")
    third = saver.save(shelf, 3, state(3))
    assert depth(Archive(shelf), third) == 0 and newest(Archive(shelf))[0] == 3


def test_nothing_is_built_on_a_copy_that_is_not_what_was_saved() -> None:
    shelf = Shelf()
    saver, _ = chain(shelf, 1)
    assert saver.chaining._memory is not None
    saver.chaining._memory[100] ^= 1
    third = saver.save(shelf, 3, state(3))
    assert depth(Archive(shelf), third) == 0 and same(load(Archive(shelf), third), state(3))
    assert len(shelf.names()) == 3, "nothing is left of the try"


def test_a_checkpoint_that_came_in_between_is_not_built_past() -> None:
    """Retention may remove the base as soon as it is not the latest any more."""
    shelf = Shelf()
    saver, _ = chain(shelf, 1)
    has_come = False

    def come(_path: str) -> None:
        nonlocal has_come
        if not has_come:
            has_come = True
            save(shelf, 2)
            Archive(shelf).prune(Retention(last=1))

    third = saver.save(Interposed(shelf, before=come), 3, state(3))
    archive = Archive(shelf)
    assert depth(archive, third) == 0 and archive.verify(third) == [] and third.number == 3
    assert sorted(shelf.names()) == sorted(["pointers", *(pointer.folder for pointer in archive.pointers()[0])])


def test_where_it_is_no_gain_the_next_ones_are_whole_and_it_is_told() -> None:
    def noise(step: int) -> dict[str, Any]:
        return {"x": torch.randint(0, 255, (50_000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(step))}

    shelf, saver = Shelf(), Chained(9)
    pointers = [saver.save(shelf, step, noise(step)) for step in range(1, 5)]
    archive = Archive(shelf)
    assert [depth(archive, pointer) for pointer in pointers] == [0, 1, 0, 0]
    assert len(saver.news) == 1 and "no longer written as deltas: a delta is 1.0" in saver.news[0]
    assert same(load(archive, pointers[1]), noise(2))


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from regrow.state.chain import need_packages

    shelf = Shelf()
    _, (first, second) = chain(shelf, 2)
    monkeypatch.delitem(sys.modules, "regrow.state.planes", raising=False)
    monkeypatch.delattr("regrow.state.planes", raising=False)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"delta=3 needs the package zstandard: pip install 'regrow\[delta\]'"):
        need_packages("delta=3")
    archive = Archive(shelf)
    with pytest.raises(ConfigError, match=rf"{second.folder}, which is a delta, needs .*regrow\[delta\]"):
        load(archive, second)
    assert same(load(archive, first), state(1))


# Harm


def tiny(step: int) -> dict[str, Any]:
    return {"w": torch.tensor([1.5, 2.5 + step]), "s": f"step {step}"}


def four() -> tuple[dict[str, bytes], list[Pointer]]:
    """A whole one, and a whole one on which two deltas lie."""
    shelf, saver = Shelf(), Chained(5)
    pointers = [save(shelf, 1, tree=tiny(1))] + [saver.save(shelf, step, tiny(step)) for step in (2, 3, 4)]
    assert [depth(Archive(shelf), pointer) for pointer in pointers] == [0, 0, 1, 2]
    return shelf.files, pointers


FILES, POINTERS = four()


def harmed() -> Iterator[tuple[str, bytes | None, int]]:
    """Each file of the chain flipped in any byte, cut, or gone; and the step that has to serve then."""
    for pointer in POINTERS[1:]:
        for name, data in FILES.items():
            if name.startswith(pointer.folder):
                for at in range(len(data)):
                    yield name, data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :], pointer.step - 1
                for length in range(0, len(data), 1 + len(data) // 40):
                    yield name, data[:length], pointer.step - 1
                yield name, data + b"\0", pointer.step - 1
                yield name, None, pointer.step - 1


def test_any_harm_to_a_link_is_found_and_named_and_the_newest_that_does_not_need_it_serves() -> None:
    wrong = []
    for name, data, serves in harmed():
        shelf = Shelf({key: value for key, value in {**FILES, name: data}.items() if value is not None})
        step, found, damages = newest(Archive(shelf))
        if step != serves or not same(found, tiny(serves)):
            wrong.append(f"{name}: step {step} was believed, {serves} is whole")
        elif len(damages) != 4 - serves or not all(name in damage for damage in damages):
            wrong.append(f"{name}: told {damages}")
    assert wrong == []


def test_a_harmed_link_is_told_of_everything_that_is_built_on_it() -> None:
    name = f"{POINTERS[2].folder}/shard-00000.xor.zst"
    shelf = Shelf({**FILES, name: FILES[name][:-1] + b"\xff"})
    archive = Archive(shelf)
    told = [archive.verify(pointer) for pointer in archive.pointers()[0]]
    assert [len(damages) for damages in told] == [1, 1, 0, 0] and all(name in told[number][0] for number in (0, 1))


@pytest.mark.parametrize(
    "change",
    [
        {"base": "../../secret"},
        {"base": POINTERS[0].folder},
        {"manifest": POINTERS[0].manifest},
        {"depth": 7},
        {"shards": []},
        {"shards": [{"file": "../x", "parts": []}]},
    ],
    ids=["elsewhere", "no base", "no manifest", "depth", "no shards", "a shard elsewhere"],
)
def test_a_chain_that_makes_no_sense_is_damage(change: dict[str, Any]) -> None:
    import xxhash

    from regrow.state.pointers import sealed

    path = f"{POINTERS[3].folder}/manifest.json"
    manifest = msgspec.json.decode(FILES[path])
    manifest["delta"].update(change)
    data = msgspec.json.encode(manifest)
    pointer = sealed(msgspec.structs.replace(POINTERS[3], manifest=xxhash.xxh3_128_hexdigest(data)))
    shelf = Shelf({**FILES, path: data, f"pointers/{pointer.number:012d}.json": msgspec.json.encode(pointer)})
    step, _, damages = newest(Archive(shelf))
    assert step == 3 and len(damages) == 1


# Saves that die


def test_a_delta_that_died_at_any_change_is_complete_or_absent() -> None:
    for at, after in ((at, after) for at in itertools.count(1) for after in (False, True)):
        shelf = Shelf()
        saver, _ = chain(shelf, 2, shard_bytes=2000)
        mortal = Mortal(shelf, at, after)
        try:
            saver.save(mortal, 3, state(3), shard_bytes=2000)
        except Dead:
            pass
        else:
            break
        archive = Archive(shelf)
        step, found, damages = newest(archive)
        assert damages == [] and step in (2, 3) and same(found, state(step))
        fresh = Chained(9)  # a new writer, which has no copy
        fourth = fresh.save(shelf, 4, state(4), shard_bytes=2000)
        assert depth(archive, fourth) == 0
        archive.sweep()
        assert all(archive.verify(pointer) == [] for pointer in archive.pointers()[0])
        assert len(shelf.names()) == 1 + len(archive.pointers()[0])
    assert at > 5, "shards, a manifest, a pointer"


def test_a_save_that_is_tried_again_is_a_delta_all_the_same() -> None:
    shelf = Shelf()
    saver, _ = chain(shelf, 2)
    with pytest.raises(Dead):  # the store went away, as far as this writer can tell
        saver.save(Mortal(shelf, 2), 3, state(3))
    third = saver.save(shelf, 3, state(3))
    assert depth(Archive(shelf), third) == 2 and same(load(Archive(shelf), third), state(3))


# Removing


def test_retention_never_removes_what_a_kept_one_is_built_on() -> None:
    shelf = Shelf()
    chain(shelf, 8, limit=2)  # whole: 1, 4, 7
    archive = Archive(shelf)
    assert [pointer.step for pointer in archive.prune(Retention(last=1))] == [3, 2, 1, 6, 5, 4]
    assert [pointer.step for pointer in archive.pointers()[0]] == [8, 7] and archive.prune(Retention(last=1)) == ()
    assert all(archive.verify(pointer) == [] for pointer in archive.pointers()[0])


def test_a_delta_that_is_kept_for_its_step_keeps_its_chain() -> None:
    shelf = Shelf()
    _, pointers = chain(shelf, 8, limit=3)  # whole: 1, 5
    archive = Archive(shelf)
    assert [pointer.step for pointer in archive.prune(Retention(every=3))] == [4]
    sizes = {pointer.step: pointer.size_bytes for pointer in pointers}
    room = sum(sizes[step] for step in (8, 7, 6, 5))
    assert [pointer.step for pointer in archive.doomed(Retention(total_bytes=room - 1))] == [3, 2, 1], "they are the newest"
    below = sizes[1] + sizes[2]
    assert [pointer.step for pointer in archive.doomed(Retention(total_bytes=room + below))] == [3, 2, 1], "3 needs them all"
    assert archive.doomed(Retention(total_bytes=room + below + sizes[3])) == ()


def test_whoever_dies_while_removing_leaves_no_delta_without_its_base() -> None:
    whole = Shelf()
    chain(whole, 7, limit=2)
    for at, after in ((at, after) for at in itertools.count(1) for after in (False, True)):
        shelf = Shelf(whole.files)
        try:
            Archive(Mortal(shelf, at, after)).prune(Retention(last=1))
        except Dead:
            pass
        else:
            break
        archive = Archive(shelf)
        assert all(archive.verify(pointer) == [] for pointer in archive.pointers()[0])
    assert at == 13, "six pointers, six folders"


@pytest.mark.parametrize(("held", "left"), [(1, [1]), (2, [2, 1]), (3, [3, 2, 1]), (5, [5, 4])])
def test_a_delta_that_cannot_be_removed_keeps_what_it_is_built_on_and_no_other(held: int, left: list[int]) -> None:
    whole = Shelf()
    chain(whole, 8, limit=2)  # whole: 1, 4, 7
    shelf = Clinging(whole.files, [f"pointers/{held:012d}.json"])
    archive = Archive(shelf)
    for _ in range(2):
        with pytest.raises(InfraError, match="is locked"):
            archive.prune(Retention(last=1))
        assert [pointer.step for pointer in archive.pointers()[0]] == [8, 7, *left]
        assert all(archive.verify(pointer) == [] for pointer in archive.pointers()[0])
    shelf.held.clear()
    archive.prune(Retention(last=1))
    assert [pointer.step for pointer in archive.pointers()[0]] == [8, 7] and len(shelf.names()) == 1 + 2


def test_nothing_is_removed_in_favour_of_a_delta_whose_chain_is_broken() -> None:
    shelf = Shelf()
    _, pointers = chain(shelf, 5, limit=2)  # whole: 1, 4
    shelf.remove(f"{pointers[3].folder}/shard-00000.safetensors")
    archive = Archive(shelf)
    assert [pointer.step for pointer in archive.prune(Retention(last=1))] == []
    assert newest(archive)[0] == 3
