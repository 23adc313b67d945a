"""A checkpoint as others want it: one torch file, torch's distributed checkpoint, or a model's tensors as safetensors.

Used by `regrow checkpoint export`. The whole state is held in memory.
"""

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp

from regrow.core.checkpoint import Leaf, Pointer
from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.core.skeleton import Json, in_order
from regrow.state.archive import Archive
from regrow.state.exact import exact, read_exact
from regrow.state.fingerprint import root
from regrow.state.memory import bytes_of
from regrow.state.ribbon import digests
from regrow.state.safetensors import header
from regrow.state.shard import Told
from regrow.state.tree import describe, leaves, unflatten


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of which every byte was read and checked."""

    pointer: Pointer
    skeleton: Json
    tensors: list[torch.Tensor]


def load(archive: Archive, pointer: Pointer, told: Told) -> Loaded:
    """All of it, or StateError."""
    manifest = archive.manifest(pointer)
    skeleton, said = exact(manifest)
    named = sorted(leaves(skeleton), key=lambda leaf: leaf[0])
    tensors = [torch.empty(shape, dtype=dtype) for _, dtype, shape in named]
    read_exact(archive, pointer, manifest, [bytes_of(tensor) for tensor in tensors], told)
    found = root(skeleton, digests(tensors[index] for index in in_order(skeleton)))
    if found != said:
        raise StateError(
            f"{archive.store.url}/{pointer.folder} has the root {found}, its manifest says {said}: it was saved wrong"
        )
    return Loaded(pointer=pointer, skeleton=skeleton, tensors=tensors)


def to_torch_file(loaded: Loaded, path: Path) -> None:
    """One file that torch.load opens, also with weights_only=True: a dict of the objects' states by their names."""
    _whole(path, lambda temporary: torch.save(_state(loaded), temporary))


def to_dcp(loaded: Loaded, path: Path) -> None:
    """A folder that torch.distributed.checkpoint loads, under the same names."""

    def write(temporary: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one process without a group saves: so it is meant
            dcp.state_dict_saver.save(_state(loaded), checkpoint_id=temporary)

    _whole(path, write)


def to_safetensors(loaded: Loaded, path: Path, name: str | None) -> None:
    """One file with a model's tensors, under the names that the model itself gives them. `name`: of the model, where there
    is more than one."""
    model = _model(loaded, name)
    order = sorted(model, key=lambda key: -model[key].element_size())
    found = [
        Leaf(
            name=key,
            shard=0,
            dtype=describe(model[key]).partition("[")[0],
            shape=tuple(model[key].shape),
            size_bytes=model[key].nbytes,
        )
        for key in order
    ]

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(header(found))
            for key in order:
                file.write(bytes_of(model[key]))

    _whole(path, write)


def _state(loaded: Loaded) -> dict[str, Any]:
    state = unflatten(_without_arrays(loaded.skeleton), loaded.tensors)
    return state if isinstance(state, dict) else {"state": state}


def _without_arrays(skeleton: Json) -> Json:
    """Arrays become tensors: a file that holds numpy's objects opens for nobody who trusts nothing but tensors."""
    kind, payload = skeleton
    if kind in ("list", "tuple"):
        return [kind, [_without_arrays(item) for item in payload]]
    if kind == "dict":
        return [kind, [[key, _without_arrays(item)] for key, item in payload]]
    return ["tensor", payload] if kind == "array" else skeleton


def _model(loaded: Loaded, name: str | None) -> dict[str, torch.Tensor]:
    """What looks like a module's state: a flat dict that has tensors and names them by strings."""
    models: dict[str, dict[str, torch.Tensor]] = {}
    for key, state in _state(loaded).items():
        if isinstance(state, dict) and all(isinstance(inner, str) for inner in state):
            tensors = {inner: value for inner, value in state.items() if isinstance(value, torch.Tensor)}
            if tensors:
                models[key] = tensors
    if name is None:
        name = "model" if "model" in models else next(iter(models)) if len(models) == 1 else None
    if name not in models:
        asked = "there is no one model" if name is None else f"{name} is not a model"
        raise ConfigError(f"{asked} in this checkpoint: name one with --object: {', '.join(models) or 'there is none'}")
    return models[name]


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    """All of it under its name, or nothing: made in a folder beside its place, and moved."""
    if path.exists():
        raise ConfigError(f"{path} exists: choose another place, or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as temporary:
            made = Path(temporary) / path.name
            write(made)
            os.rename(made, path)
    except OSError as error:
        why = error.strerror or error
        raise InfraError(f"{path} cannot be written ({why}): make room there, or choose another place") from error
