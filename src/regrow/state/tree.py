"""State as a tree of plain values with tensors at its leaves.

A tree is flattened to a **skeleton**, pure JSON in which every value is [kind, payload], and a list of tensors that the
skeleton names by index. Nothing is ever pickled. Floats are written in hexadecimal and integers as text, so both survive
unchanged.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from regrow.core.errors import ConfigError, StateError
from regrow.core.skeleton import Json, Path, tensors

_ALLOWED = "tensors, numpy arrays, None, bool, int, float, str, bytes, list, tuple, dict with str or int keys"


class Flat(msgspec.Struct, kw_only=True):
    """A flattened tree. The tensors are the tree's own, not copies."""

    skeleton: Json
    tensors: list[torch.Tensor]
    paths: list[str]
    """Where each tensor stands, for people."""


def flatten(tree: object, path: str) -> Flat:
    """Flatten, or raise a ConfigError that names the path of the first leaf of another kind. The paths begin with this one,
    if it is not empty."""
    flat = Flat(skeleton=None, tensors=[], paths=[])
    flat.skeleton = _walk(tree, path, flat)
    return flat


def _walk(value: object, path: str, flat: Flat) -> Json:
    match value:
        case torch.Tensor():
            return _leaf("tensor", value, path, flat)
        case None:
            return ["none", None]
        case bool():
            return ["bool", value]
        case int():
            return ["int", str(int(value))]
        case float():
            return ["float", float(value).hex()]
        case str():
            return ["str", str(value)]
        case bytes():
            return ["bytes", value.hex()]
        case list():
            return ["list", [_walk(item, f"{path}[{i}]", flat) for i, item in enumerate(value)]]
        case tuple():
            return ["tuple", [_walk(item, f"{path}[{i}]", flat) for i, item in enumerate(value)]]
        case dict():
            return ["dict", [[_key(k, path), _walk(v, f"{path}.{k}" if path else str(k), flat)] for k, v in value.items()]]
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        try:
            return _leaf("array", torch.from_numpy(value), path, flat)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} is a numpy array of a kind torch cannot hold ({error}): convert it") from error
    raise ConfigError(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be tracked: convert it in the "
        f"object's state_dict(). State may hold {_ALLOWED}"
    )


def _leaf(kind: str, tensor: torch.Tensor, path: str, flat: Flat) -> Json:
    if tensor.layout is not torch.strided:
        raise ConfigError(f"{path} is a {tensor.layout} tensor, which cannot be tracked: use a dense one")
    if tensor.is_conj() or tensor.is_neg():
        raise ConfigError(
            f"{path} is a view that is conjugated or negated when read, which cannot be tracked: its bytes are not its "
            "numbers; use .resolve_conj().resolve_neg()"
        )
    flat.tensors.append(tensor.detach())
    flat.paths.append(path)
    return [kind, [len(flat.tensors) - 1, _dtype_name(tensor.dtype), list(tensor.shape)]]


def _key(key: object, path: str) -> Json:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ConfigError(f"{path} is a dict with the key {key!r}: keys must be str or int")
    return ["str", key] if isinstance(key, str) else ["int", str(int(key))]


def unflatten(skeleton: Json, tensors: list[torch.Tensor]) -> Any:
    """The tree again; its tensors are those given. Raises StateError on anything flatten would not have written."""
    try:
        return _build(skeleton, tensors)
    except (ValueError, TypeError, IndexError, KeyError) as error:
        raise StateError(f"a state arrived that cannot be read ({error!r})") from error


def _build(skeleton: Json, tensors: list[torch.Tensor]) -> Any:
    kind, payload = skeleton
    match kind:
        case "tensor":
            return tensors[payload[0]]
        case "array":
            return tensors[payload[0]].numpy()
        case "none":
            return None
        case "bool" | "str":
            return payload
        case "int":
            return int(payload)
        case "float":
            return float.fromhex(payload)
        case "bytes":
            return bytes.fromhex(payload)
        case "list":
            return [_build(item, tensors) for item in payload]
        case "tuple":
            return tuple(_build(item, tensors) for item in payload)
        case "dict":
            return {_build(key, tensors): _build(item, tensors) for key, item in payload}
    raise ValueError(f"unknown kind {kind!r}")


def paths(skeleton: Json) -> Iterator[tuple[Path, int, torch.dtype, list[int]]]:
    """Path, index, dtype and shape of each tensor a skeleton names, in its order."""
    for path, index, dtype, shape in tensors(skeleton):
        yield path, index, getattr(torch, dtype), shape


def leaves(skeleton: Json) -> Iterator[tuple[int, torch.dtype, list[int]]]:
    """Index, dtype and shape of each tensor a skeleton names, in its order: what to allocate before receiving."""
    for _, index, dtype, shape in paths(skeleton):
        yield index, dtype, shape


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(tensor: torch.Tensor) -> str:
    return f"{_dtype_name(tensor.dtype)}{list(tensor.shape)}"
