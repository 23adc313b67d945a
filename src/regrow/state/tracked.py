"""The tracked state: the objects that must survive, their digest, and how another member's state is put in their place.

Restoring is exact. `Optimizer.load_state_dict` aliases its source and casts fp32 state of bf16 parameters, so optimizers
are restored here field by field; modules are written in place; everything else is handed its own copy and checked.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
import xxhash

from regrow.core.errors import ConfigError, StateError
from regrow.core.resolve import Manifest
from regrow.core.skeleton import Json, Path, canonical, in_order
from regrow.state.fingerprint import root
from regrow.state.memory import bytes_of, plain
from regrow.state.placement import placed
from regrow.state.ribbon import digests, digests_at_once
from regrow.state.tree import Flat, describe, flatten, paths, unflatten


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Tracked:
    """Named objects whose state is the job's state."""

    def __init__(self) -> None:
        self.objects: dict[str, Stateful] = {}
        self._walked: list[tuple[str, torch.nn.Module]] = []
        self._inner: list[int] = []

    def add(self, name: str, thing: object, looks: bool = True) -> None:
        """`looks`: whether it is refused here for what its state holds, or only by `flatten`."""
        if name in self.objects:
            raise ConfigError(f"{name!r} is tracked already: give each tracked object its own name")
        if not isinstance(thing, Stateful):
            raise ConfigError(
                f"{name} is a {type(thing).__qualname__} without state_dict() and load_state_dict(): wrap it in an object "
                "that has both"
            )
        if looks:
            flatten(thing.state_dict(), name)
        self.objects[name] = thing

    def flatten(self) -> Flat:
        """All tracked state; tensors are the live ones."""
        return flatten({name: thing.state_dict() for name, thing in self.objects.items()}, "")

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Every trainable tensor once, in tracking order: modules' parameters, then what optimizers hold beyond them."""
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for path, module in self._modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    found.setdefault(id(parameter), (f"{path}.{key}", parameter))
        for name, thing in self.objects.items():
            if isinstance(thing, torch.optim.Optimizer):
                for g, group in enumerate(thing.param_groups):
                    for p, parameter in enumerate(group["params"]):
                        found.setdefault(id(parameter), (f"{name}.param_groups[{g}].params[{p}]", parameter))
        return list(found.values())

    def buffers(self) -> list[tuple[str, torch.nn.Module, str, torch.Tensor]]:
        """Every buffer once, with the module that holds it and its name there."""
        found: dict[int, tuple[str, torch.nn.Module, str, torch.Tensor]] = {}
        for path, module in self._modules():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    found.setdefault(id(buffer), (f"{path}.{key}", module, key, buffer))
        return list(found.values())

    def _modules(self) -> list[tuple[str, torch.nn.Module]]:
        """Asked for at every step. torch takes long to walk them, so it is done again only when one came, went or was
        replaced."""
        models = [(name, thing) for name, thing in self.objects.items() if isinstance(thing, torch.nn.Module)]
        inner = [id(model) for _, model in models]
        inner += [id(child) for _, module in self._walked for child in module._modules.values()]
        if inner != self._inner:
            self._walked = [found for name, model in models for found in model.named_modules(prefix=name)]
            self._inner = [id(model) for _, model in models]
            self._inner += [id(child) for _, module in self._walked for child in module._modules.values()]
        return self._walked

    def awaken(self) -> None:
        """A GradScaler makes its scale at its first use, which a replica that is given no batch never comes to."""
        for thing in self.objects.values():
            if isinstance(thing, torch.amp.GradScaler):
                thing.scale(torch.zeros((), device=self.parameters()[0][1].device))

    def digest(self) -> str:
        """sha256 over all tracked state, in hex: equal state, equal digest, whatever path led to it."""
        flat = self.flatten()
        hasher = hashlib.sha256(canonical(flat.skeleton))
        for index in in_order(flat.skeleton):
            held = plain(flat.tensors[index])
            hasher.update(bytes_of(held))
        return hasher.hexdigest()

    def fingerprint(self, at_once: bool = False) -> str:
        """The same, thirty times faster and not against an adversary: the root of the ribbon, for transfers. `at_once`: by
        several threads."""
        flat = self.flatten()
        tensors = [flat.tensors[index] for index in in_order(flat.skeleton)]
        return root(flat.skeleton, digests_at_once(tensors) if at_once else digests(tensors))

    def structure(self) -> Manifest:
        """Path, dtype and shape of every tensor."""
        flat = self.flatten()
        return tuple((path, describe(tensor)) for path, tensor in zip(flat.paths, flat.tensors, strict=True))

    def manifest(self) -> Manifest:
        """Path of every tensor with its shape and a digest of its content, and one line for all that is no tensor."""
        flat = self.flatten()
        rest = ("everything that is not a tensor", xxhash.xxh3_64_hexdigest(canonical(flat.skeleton)))
        return (
            *(
                (path, f"{describe(tensor)} {_content(tensor)}")
                for path, tensor in zip(flat.paths, flat.tensors, strict=True)
            ),
            rest,
        )

    def places(self, skeleton: Json) -> list[torch.Tensor]:
        """Tensors to receive a state of this skeleton into, by index: of modules and optimizers the live ones, where they
        are plain bytes of the same kind, so that nothing has to be copied afterwards; else fresh ones. No two share
        memory."""
        live = self._live()
        named = sorted(paths(skeleton), key=lambda leaf: leaf[1])
        return [_place(live.get(path), dtype, shape) for path, _, dtype, shape in named]

    def _live(self) -> dict[Path, torch.Tensor]:
        flat = self.flatten()
        ours = {
            name
            for name, thing in self.objects.items()
            if isinstance(thing, torch.nn.Module) or _plain_optimizer(thing) is not None
        }
        found = [
            (path, flat.tensors[index])
            for path, index, _, _ in paths(flat.skeleton)
            if path[0][1] in ours and flat.tensors[index].device.type == "cpu" and flat.tensors[index].is_contiguous()
        ]
        live, end = {}, 0
        for path, tensor in sorted(found, key=lambda leaf: leaf[1].data_ptr()):
            if tensor.nbytes and tensor.data_ptr() >= end:  # tied weights come twice: the second place must be another
                live[path] = tensor
                end = tensor.data_ptr() + tensor.nbytes
        return live

    def restore(self, skeleton: Json, tensors: list[torch.Tensor], fingerprint: str, keeps: bool = False) -> None:
        """Take over another member's state. `keeps`: the tensors were made for this by `places`, and are ours from now on;
        else they may be reused afterwards, and nothing aliases them."""
        states = unflatten(skeleton, tensors)
        if not isinstance(states, dict) or list(states) != list(self.objects):
            raise StateError(f"the donor tracks {list(states)}, this replica {list(self.objects)}: run the same script")
        for name, thing in self.objects.items():
            _restore(name, thing, states[name], _as_is if keeps else _own)
        found = self.fingerprint(at_once=True)
        if found != fingerprint:
            raise StateError(
                f"the restored state has digest {found}, the donor's is {fingerprint}: it did not survive the way"
            )


def _content(tensor: torch.Tensor) -> str:
    held = plain(tensor)
    return str(xxhash.xxh3_64_hexdigest(bytes_of(held)))


def first_difference(ours: Manifest, theirs: Manifest) -> str | None:
    """The first path on which two manifests differ, in words."""
    mine, other = dict(ours), dict(theirs)
    for path in [*mine, *(p for p in other if p not in mine)]:
        if mine.get(path) != other.get(path):
            return f"{path}: {mine.get(path, '(absent)')} here, {other.get(path, '(absent)')} there"
    return None


def _plain_optimizer(thing: object) -> torch.optim.Optimizer | None:
    """The thing itself, where it loads state as torch's own optimizers do: then we do it."""
    if isinstance(thing, torch.optim.Optimizer) and type(thing).load_state_dict is torch.optim.Optimizer.load_state_dict:
        return thing
    return None


def _place(live: torch.Tensor | None, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    if live is not None and live.dtype == dtype and list(live.shape) == shape:
        return live
    return torch.empty(shape, dtype=dtype)


Own = Callable[[Any], Any]
"""Makes a received value this replica's own."""


def _restore(name: str, thing: Stateful, state: Any, own: Own) -> None:
    if isinstance(thing, torch.nn.Module):
        _restore_module(name, thing, state, own)
    elif (optimizer := _plain_optimizer(thing)) is not None:
        _restore_optimizer(optimizer, state, own)
    else:
        thing.load_state_dict(own(state))


def _restore_module(name: str, module: torch.nn.Module, state: dict[str, Any], own: Own) -> None:
    live = module.state_dict(keep_vars=True)
    if any(not isinstance(value, torch.Tensor) for value in live.values()):
        module.load_state_dict(own(state))  # extra state: only the module knows what to do with it
        return
    if live.keys() != state.keys():
        raise StateError(f"{name} has {sorted(live.keys() ^ state.keys())[0]} on one side only: run the same script")
    with torch.no_grad():
        for path, tensor in live.items():
            if tensor.shape != state[path].shape or tensor.dtype != state[path].dtype:
                raise StateError(f"{name}.{path} is {describe(tensor)} here, {describe(state[path])} at the donor")
            if tensor.data_ptr() != state[path].data_ptr():  # else it was received in its place
                tensor.copy_(state[path])


def _restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], own: Own) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(parameters) != len(numbers):
        raise StateError(f"the optimizer holds {len(parameters)} parameters here, {len(numbers)} at the donor")
    groups = [group for group in optimizer.param_groups for _ in group["params"]]
    by_number = dict(zip(numbers, zip(parameters, groups, strict=True), strict=True))
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for key in [key for key in group if key != "params" and key not in saved]:
            del group[key]
        group.update({key: own(value) for key, value in saved.items() if key != "params"})
    optimizer.state.clear()
    for number, entry in state["state"].items():
        parameter, group = by_number[number]
        optimizer.state[parameter] = placed(own(entry), parameter.device, group)


def _as_is(value: Any) -> Any:
    return value


def _own(value: Any) -> Any:
    """A copy that shares no memory with the buffers it was received in."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_own(item) for item in value)
    return value.copy() if hasattr(value, "copy") else value


def encode_skeleton(skeleton: Json) -> bytes:
    return msgspec.json.encode(skeleton)


def decode_skeleton(data: bytes) -> Json:
    return msgspec.json.decode(data)
