"""The archive: what was saved comes back to the byte, shards are plain safetensors, and nothing harmed is believed."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import xxhash
from safetensors.torch import load_file
from shelf import Shelf, drafted, load, newest, places, same, save, small

from regrow.core.checkpoint import CHUNK_BYTES, Manifest, Pointer
from regrow.core.errors import ConfigError, StateError
from regrow.state import shard
from regrow.state.archive import Archive
from regrow.state.local_store import LocalStore
from regrow.state.memory import bytes_of
from regrow.state.pointers import sealed

# What was saved comes back


def kinds() -> dict[str, Any]:
    torch.manual_seed(0)
    raw = torch.randint(0, 255, (64,), dtype=torch.uint8)
    tied = torch.randn(3, 5)
    names = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128"
    names += " float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e8m0fnu"
    tree: dict[str, Any] = {name: raw.view(getattr(torch, name)) for name in names.split() if name != "bool"}
    return tree | {
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(-0.0),
        "nan": torch.tensor([float("nan"), float("inf")], dtype=torch.bfloat16),
        "empty": torch.empty(0, 7),
        "tied": [tied, tied, tied[1:]],
        "transposed": torch.arange(12.0).reshape(3, 4).T,
        "strided": torch.arange(20, dtype=torch.int16)[::3],
        "expanded": torch.ones(1).expand(4),
        "array": torch.arange(3).numpy(),
        "plain": [None, True, 2**70, -0.0, float("nan"), "é", b"\x00", (1, []), {1: "a", "1": "b"}],
        "a": {"b": torch.tensor(1)},
        "a.b": torch.tensor(2),
        "__metadata__": torch.tensor(3),
    }


def tiny_ones() -> dict[str, Any]:
    return {f"t{i}": torch.tensor([i, i + 1]).to(torch.bfloat16 if i % 2 else torch.int64) for i in range(5000)}


def large() -> dict[str, Any]:
    """Tensors that share chunks, that fill many, and that start and end within runs."""
    sizes = (3, CHUNK_BYTES // 4 - 7, 1, shard.RUN_BYTES // 2 + 11, 5, CHUNK_BYTES, 300_000)
    return {f"x{i}": torch.arange(size, dtype=torch.int32) * (i + 1) for i, size in enumerate(sizes)}


def as_tensors(left: Any, right: Any) -> Any:
    """numpy arrays come back as arrays."""
    return {**left, "array": torch.from_numpy(left["array"])}, {**right, "array": torch.from_numpy(right["array"])}


@pytest.mark.parametrize("shard_bytes", [1, 100, 1 << 20])
def test_every_kind_of_state_comes_back_to_the_byte(tmp_path: Path, shard_bytes: int) -> None:
    archive = Archive(LocalStore(tmp_path))
    tree = kinds()
    pointer = archive.write(*drafted(tree, shard_bytes=shard_bytes))
    assert same(*as_tensors(load(archive, pointer), tree))
    assert archive.verify(pointer) == []


@pytest.mark.parametrize(
    "tree",
    [tiny_ones(), large(), {}, {"none": None}, [torch.empty(0)]],
    ids=["tiny", "large", "nothing", "no tensor", "empty"],
)
def test_states_of_every_size_come_back(tmp_path: Path, tree: Any) -> None:
    archive = Archive(LocalStore(tmp_path))
    pointer = archive.write(*drafted(tree, shard_bytes=40 << 20))
    assert same(load(archive, pointer), tree)
    told: list[int] = []
    assert archive.verify(pointer, told.append) == [] and sum(told) == pointer.size_bytes


def test_the_root_is_the_states_fingerprint(tmp_path: Path) -> None:
    from regrow.state.tracked import Tracked

    tracked = Tracked()
    model = torch.nn.Linear(300, 700)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(300)).sum().backward()
    optimizer.step()
    tracked.add("model", model)
    tracked.add("optimizer", optimizer)
    archive = Archive(LocalStore(tmp_path))
    states = {name: thing.state_dict() for name, thing in tracked.objects.items()}
    manifest = archive.manifest(archive.write(*drafted(states, shard_bytes=100_000)))
    assert manifest.root == tracked.fingerprint()


# Plain safetensors


def test_the_shards_open_with_the_safetensors_package(tmp_path: Path) -> None:
    archive = Archive(LocalStore(tmp_path))
    tree = kinds()
    pointer = archive.write(*drafted(tree, shard_bytes=200))
    manifest = archive.manifest(pointer)
    assert len(manifest.shards) > 5
    tensors = places(manifest)
    archive.read(pointer, manifest, [bytes_of(tensor) for tensor in tensors])
    found = {}
    for one in manifest.shards:
        path = tmp_path / pointer.folder / one.file
        assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 4096 == 0, "the body starts at a page"
        found |= load_file(path)
    assert set(found) == {leaf.name for leaf in manifest.leaves} and {"a.b", "a.b~2", "__metadata__~2"} <= set(found)
    for leaf, tensor in zip(manifest.leaves, tensors, strict=True):
        is_known = leaf.dtype not in ("complex128", "float8_e4m3fnuz", "float8_e8m0fnu")
        assert same(found[leaf.name], tensor if is_known else tensor.view(torch.uint8)), leaf


# Harm


TINY = {"w": torch.tensor([1.5, 2.5]), "n": torch.tensor([True]), "s": "x"}


def two() -> tuple[dict[str, bytes], Pointer]:
    """The files of two small checkpoints, and the second one's pointer."""
    shelf = Shelf()
    save(shelf, 1, tree={**TINY, "s": "older"})
    return shelf.files, save(shelf, 2, tree=TINY)


FILES, LATEST = two()
OF_LATEST = {name: data for name, data in FILES.items() if name.startswith(LATEST.folder) or name.endswith("2.json")}


def believed(name: str, data: bytes | None) -> str | None:
    """None when the harm was found, told by the file's name, and the older checkpoint took over; else what went wrong."""
    shelf = Shelf({**FILES, name: data} if data is not None else {key: value for key, value in FILES.items() if key != name})
    step, state, damages = newest(Archive(shelf))
    if step != 1 or state["s"] != "older":
        return f"{name}: step {step} was believed"
    return None if any(name in damage for damage in damages) else f"{name}: told {damages}"


def flips() -> Iterator[tuple[str, bytes]]:
    """Every byte of every file, with one bit flipped."""
    for name, data in OF_LATEST.items():
        for at in range(len(data)):
            yield name, data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def test_a_flipped_bit_in_any_byte_is_found_and_named_and_the_checkpoint_before_it_serves() -> None:
    assert len(OF_LATEST) == 3
    assert [wrong for name, data in flips() if (wrong := believed(name, data)) is not None] == []


def stride(name: str) -> int:
    return 1 if name.endswith(".json") else 13


def test_a_file_cut_at_any_length_is_found_and_named() -> None:
    cuts = ((name, data[:length]) for name, data in OF_LATEST.items() for length in range(0, len(data), stride(name)))
    assert [wrong for name, data in cuts if (wrong := believed(name, data)) is not None] == []
    longer = [(name, data + b"\0") for name, data in OF_LATEST.items()]
    assert [wrong for name, data in longer if (wrong := believed(name, data)) is not None] == []


def test_missing_files_are_named_and_a_missing_pointer_is_no_checkpoint() -> None:
    for name in OF_LATEST:
        if not name.startswith("pointers/"):
            assert believed(name, None) is None
    step, _, damages = newest(Archive(Shelf({name: data for name, data in FILES.items() if not name.endswith("2.json")})))
    assert (step, damages) == (1, [])


def test_a_pointer_under_another_number_is_not_believed() -> None:
    copy = {**FILES, "pointers/000000000003.json": FILES["pointers/000000000001.json"]}
    step, _, damages = newest(Archive(Shelf(copy)))
    assert step == 2 and len(damages) == 1 and "says that it is number 1" in damages[0]


def test_damage_is_told_with_the_bytes_that_are_wrong(tmp_path: Path) -> None:
    archive = Archive(LocalStore(tmp_path))
    pointer = archive.write(*drafted(large(), shard_bytes=40 << 20))
    manifest = archive.manifest(pointer)
    path = tmp_path / pointer.folder / manifest.shards[0].file
    data = bytearray(path.read_bytes())
    for at in (2 * CHUNK_BYTES + 5, 3 * CHUNK_BYTES - 1, 4 * CHUNK_BYTES):
        data[at] ^= 4
    path.write_bytes(data)
    damages = archive.verify(pointer)
    assert len(damages) == 2, damages
    assert f"{path} is damaged between byte 8388608 and byte 12582911: they have digest " in damages[0]
    assert f"{path} is damaged between byte 16777216 and byte " in damages[1]
    with pytest.raises(StateError, match="is damaged between byte"):
        load(archive, pointer)
    path.unlink()
    assert archive.verify(pointer) == [f"{path} is missing"]


def test_what_was_saved_wrong_is_found_by_its_root() -> None:
    """Memory that changed after its digest was taken, or a writer's bug: every chunk is as the manifest says."""
    manifest = rewritten(root="0" * 32)
    archive = Archive(Shelf(manifest))
    (damage,) = archive.verify(archive.pointers()[0][0])
    assert "its manifest says 00000000000000000000000000000000: it was saved wrong" in damage


def rewritten(**changes: Any) -> dict[str, bytes]:
    """The two checkpoints, the manifest of the latest changed by somebody who keeps the digests right."""
    path = f"{LATEST.folder}/manifest.json"
    manifest = {**msgspec.json.decode(FILES[path]), **changes}
    data = msgspec.json.encode(manifest)
    pointer = sealed(msgspec.structs.replace(LATEST, manifest=xxhash.xxh3_128_hexdigest(data)))
    return {**FILES, path: data, "pointers/000000000002.json": msgspec.json.encode(pointer)}


def test_a_newer_version_of_the_format_is_refused_with_the_release_to_install() -> None:
    archive = Archive(Shelf(rewritten(version=3, regrow="0.9.1", leaves="other")))
    with pytest.raises(ConfigError, match=r"version 3 of the format, this release .* install regrow 0\.9\.1 or later"):
        newest(archive)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"shards": [{"file": "../../secret", "size_bytes": 1, "chunks": []}]},
        {"leaves": []},
        {"skeleton": ["pickle", "gASVCg=="]},
        {"leaves": 3},
        {"version": "1"},
    ],
    ids=str,
)
def test_a_manifest_that_makes_no_sense_is_damage(changes: dict[str, Any]) -> None:
    step, _, damages = newest(Archive(Shelf(rewritten(**changes))))
    assert step == 1 and len(damages) == 1 and re.search("is not a manifest of a checkpoint|cannot be read", damages[0])


def test_fields_that_a_later_release_adds_do_not_look_like_damage() -> None:
    files = rewritten(weather="fine")
    pointer = msgspec.json.decode(files["pointers/000000000002.json"])
    data = msgspec.json.encode({**pointer, "digest": "", "weather": "fine"})
    digest = xxhash.xxh3_128_hexdigest(data)
    files["pointers/000000000002.json"] = data.replace(b'"digest":""', f'"digest":"{digest}"'.encode())
    step, _, damages = newest(Archive(Shelf(files)))
    assert (step, damages) == (2, [])


def test_a_view_of_another_size_is_refused(tmp_path: Path) -> None:
    archive = Archive(Shelf(FILES))
    manifest = archive.manifest(LATEST)
    with pytest.raises(ValueError, match="has 8 bytes, its view 7"):
        archive.read(LATEST, manifest, [memoryview(bytearray(7)), memoryview(bytearray(1))])


NOTHING_UNPICKLED = """
import pickle, sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from regrow.state.archive import Archive
from regrow.state.local_store import LocalStore
assert "torch" not in sys.modules

import torch
from shelf import newest, save

class Bomb:
    def __reduce__(self):
        return (print, ("unpickled",))

store = LocalStore(Path(sys.argv[1]))
save(store, 1)
bomb = pickle.dumps(Bomb())
pointer = save(store, 2, tree={"x": torch.frombuffer(bytearray(bomb), dtype=torch.uint8), "b": bomb})

def watch(event, arguments):
    if event == "pickle.find_class":
        raise SystemExit("something was unpickled")

sys.addaudithook(watch)
assert newest(Archive(store))[0] == 2
for name in ("manifest.json", "shard-00000.safetensors"):
    (Path(sys.argv[1]) / pointer.folder / name).write_bytes(pickle.dumps(Bomb()))
    assert newest(Archive(store))[0] == 1
assert not Archive(store).verify(pointer) == []
print("fine")
"""


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NOTHING_UNPICKLED, str(tmp_path), str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "fine\n", done.stdout + done.stderr


def test_a_pickle_would_have_been_noticed() -> None:
    """The watch of the test before this one works."""
    script = "import pickle, sys\nsys.addaudithook(lambda event, _: sys.exit(7) if event == 'pickle.find_class' else None)\n"
    script += "pickle.loads(pickle.dumps(print))"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 7


def test_small_states_are_one_shard_and_two_more_files(tmp_path: Path) -> None:
    pointer = save(LocalStore(tmp_path), 7, tree=small(7))
    assert sorted(path.name for path in (tmp_path / pointer.folder).iterdir()) == [
        "manifest.json",
        "shard-00000.safetensors",
    ]
    assert pointer.number == 1 and isinstance(Archive(LocalStore(tmp_path)).manifest(pointer), Manifest)
