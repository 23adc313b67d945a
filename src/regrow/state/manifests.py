"""Manifests, read and held to the digest that somebody gave of them."""

import re

import msgspec
import xxhash

from regrow.core.checkpoint import CHUNK_BYTES, FORMAT, PLAIN, VERSION, Manifest
from regrow.core.errors import ConfigError, StateError
from regrow.core.release import RELEASE
from regrow.core.skeleton import in_order
from regrow.state.store import Store

MANIFEST = "manifest.json"
FOLDER = re.compile(r"step-(\d{12,})-(\d+)-[0-9a-f]{8}")


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every version of a manifest has."""

    format: str
    version: int
    regrow: str


def read_manifest(store: Store, folder: str, digest: str, named_by: str) -> Manifest:
    """ConfigError when it takes a newer release to read it: an older checkpoint must not silently take its place."""
    path = f"{folder}/{MANIFEST}"
    where = f"{store.url}/{path}"
    data = store.read(path)
    if data is None:
        raise StateError(f"{where} is missing, although {named_by} names it")
    found = xxhash.xxh3_128_hexdigest(data)
    if found != digest:
        raise StateError(f"{where} is damaged: its {len(data)} bytes have digest {found}, {named_by} says {digest}")
    return _decoded(where, data)


def _decoded(where: str, data: bytes) -> Manifest:
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format == FORMAT and head.version > VERSION:
            raise ConfigError(
                f"{where} is in version {head.version} of the format, this release ({RELEASE}) reads up to version "
                f"{VERSION}: install regrow {head.regrow} or later, which wrote it"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise StateError(f"{where} cannot be read: {error}") from error
    strange = [shard.file for shard in manifest.shards if "/" in shard.file]
    strange += [leaf.name for leaf in manifest.leaves if not 0 <= leaf.shard < len(manifest.shards)]
    strange += _strange_delta(manifest) + _strange_moments(manifest)
    if manifest.format != FORMAT or strange or sorted(in_order(manifest.skeleton)) != list(range(len(manifest.leaves))):
        raise StateError(f"{where} is not a manifest of a checkpoint: {', '.join(strange) or 'its parts do not fit'}")
    return manifest


def _strange_delta(manifest: Manifest) -> list[str]:
    delta = manifest.delta
    if isinstance(delta, msgspec.UnsetType):
        return []
    strange = [shard.file for shard in delta.shards if "/" in shard.file]
    if manifest.version == PLAIN or not FOLDER.fullmatch(delta.base) or len(delta.shards) != len(manifest.shards):
        return [*strange, f"a delta on {delta.base}"]
    for shard, whole in zip(delta.shards, manifest.shards, strict=True):
        if len(shard.parts) != -(-whole.size_bytes // CHUNK_BYTES) or any(part.width < 1 for part in shard.parts):
            strange.append(shard.file)
    return strange


def _strange_moments(manifest: Manifest) -> list[str]:
    inexact = manifest.inexact
    if isinstance(inexact, msgspec.UnsetType):
        return []
    named = {getattr(coded, name) for coded in inexact.leaves for name in coded.__struct_fields__}
    counts = {len(inexact.leaves), len(inexact.shapes), len(list(in_order(inexact.skeleton)))}
    is_sound = manifest.version != PLAIN and named == set(range(len(manifest.leaves))) and len(counts) == 1
    return [] if is_sound else [f"moments={inexact.mode}"]
