"""Tracked state: what may be in it, that digests see everything, and that restoring is exact and aliases nothing."""

from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.errors import ConfigError, StateError
from regrow.state.memory import bytes_of
from regrow.state.tracked import Tracked, decode_skeleton, encode_skeleton, first_difference
from regrow.state.tree import flatten, leaves, unflatten


class Box:
    """A tracked object whose state is whatever it was given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type and bits (nan is nan, 0.0 is not -0.0)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a.hex() == b.hex() if isinstance(a, float) else a == b


@given(plain)
def test_plain_values_survive_the_way_unchanged(value: Any) -> None:
    flat = flatten(value, "x")
    assert same(unflatten(decode_skeleton(encode_skeleton(flat.skeleton)), flat.tensors), value)


def copy_of(tracked: Tracked) -> tuple[Any, list[torch.Tensor], str]:
    flat = tracked.flatten()
    received = [torch.empty(shape, dtype=dtype) for _, dtype, shape in sorted(leaves(flat.skeleton), key=lambda x: x[0])]
    for target, source in zip(received, flat.tensors, strict=True):
        bytes_of(target)[:] = bytes_of(source.contiguous())
    return decode_skeleton(encode_skeleton(flat.skeleton)), received, tracked.fingerprint()


def trained(dtype: torch.dtype, optimizer_type: Any, steps: int, **options: Any) -> tuple[Tracked, torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 2)).to(dtype)
    optimizer = optimizer_type(model.parameters(), lr=0.01, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    for _ in range(steps):
        model(torch.randn(4, 5, dtype=dtype)).square().sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    tracked = Tracked()
    for name, thing in {"model": model, "optimizer": optimizer, "schedule": schedule}.items():
        tracked.add(name, thing)
    return tracked, model, optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("optimizer_type", "options"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Adafactor, {}),
    ],
)
def test_restored_state_has_the_same_digest_and_trains_on_the_same(
    dtype: torch.dtype, optimizer_type: Any, options: Any
) -> None:
    donor, donor_model, donor_optimizer = trained(dtype, optimizer_type, 3, **options)
    joiner, joiner_model, joiner_optimizer = trained(dtype, optimizer_type, 0, **options)
    skeleton, received, fingerprint = copy_of(donor)
    joiner.restore(skeleton, received, fingerprint)
    assert joiner.digest() == donor.digest()
    for tensor in received:
        tensor.view(-1).fill_(7)
    assert joiner.digest() == donor.digest(), "restored state aliases the buffers it was received in"
    for model, optimizer in ((donor_model, donor_optimizer), (joiner_model, joiner_optimizer)):
        model(torch.ones(4, 5, dtype=dtype)).square().sum().backward()
        optimizer.step()
    assert joiner.digest() == donor.digest()


def test_fp32_moments_of_bf16_parameters_stay_fp32() -> None:
    donor, _, donor_optimizer = trained(torch.bfloat16, torch.optim.AdamW, 2)
    for entry in donor_optimizer.state.values():
        entry["exp_avg"] = entry["exp_avg"].float() + 2**-20
    joiner, _, _ = trained(torch.bfloat16, torch.optim.AdamW, 0)
    joiner.restore(*copy_of(donor))
    assert joiner.digest() == donor.digest()


def test_a_flipped_bit_on_the_way_is_noticed() -> None:
    donor, _, _ = trained(torch.float32, torch.optim.AdamW, 1)
    joiner, _, _ = trained(torch.float32, torch.optim.AdamW, 0)
    skeleton, received, fingerprint = copy_of(donor)
    bytes_of(received[0])[0] ^= 1
    with pytest.raises(StateError, match="did not survive the way"):
        joiner.restore(skeleton, received, fingerprint)


def test_the_digest_sees_every_kind_of_change_and_no_order() -> None:
    def digest(state: Any) -> str:
        tracked = Tracked()
        tracked.add("box", Box(state))
        return tracked.digest()

    tensor = torch.zeros(3)
    base = digest({"a": tensor, "b": 1})
    assert digest({"b": 1, "a": tensor.clone()}) == base
    different = [
        {"a": tensor, "b": 1.0},
        {"a": tensor, "b": True},
        {"a": tensor, "c": 1},
        {"a": -tensor, "b": 1},
        {"a": tensor.double(), "b": 1},
        {"a": tensor.view(3, 1), "b": 1},
        {"a": tensor.numpy(), "b": 1},
        {"a": tensor, "b": [1]},
        {"a": [tensor], "b": 1},
    ]
    digests = [digest(state) for state in different]
    assert len({base, *digests}) == len(different) + 1


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": [1, {"b": object()}]}, r"box\.a\[1\]\.b"),
        ({"a": {(1, 2): 3}}, r"box\.a"),
        ({"a": {True: 3}}, r"box\.a"),
        ({"a": {1, 2}}, r"box\.a"),
        ({"a": numpy.int64(3)}, r"box\.a"),
        ({"a": torch.eye(2).to_sparse()}, r"box\.a"),
        ({"a": numpy.array(["x"])}, r"box\.a"),
        ({"a": numpy.arange(3)[::-1]}, r"box\.a"),
        ({"a": numpy.arange(3, dtype=">i4")}, r"box\.a"),
        ({"a": torch.ones(2, dtype=torch.complex64).conj()}, r"box\.a is a view that is conjugated"),
        ({"a": torch.ones(2, dtype=torch.complex64).conj().imag}, r"box\.a is a view that is conjugated"),
        ({"a": lambda: 0}, r"box\.a"),
    ],
)
def test_what_cannot_be_tracked_is_named_by_its_path(state: Any, path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        Tracked().add("box", Box(state))


def test_numpy_arrays_are_leaves() -> None:
    donor, joiner = Tracked(), Tracked()
    donor.add("box", Box({"a": numpy.arange(4, dtype=numpy.int32)}))
    box = Box({"a": numpy.zeros(4, dtype=numpy.int32)})
    joiner.add("box", box)
    joiner.restore(*copy_of(donor))
    assert isinstance(box.state["a"], numpy.ndarray) and box.state["a"].tolist() == [0, 1, 2, 3]


def test_the_first_difference_is_named() -> None:
    a, _, _ = trained(torch.float32, torch.optim.AdamW, 0)
    torch.manual_seed(0)
    b = Tracked()
    b.add("model", torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3)))
    assert first_difference(a.structure(), a.structure()) is None
    assert first_difference(a.structure(), b.structure()) == "model.2.weight: float32[2, 7] here, float32[3, 7] there"


def test_parameters_are_listed_once_even_when_tied_or_only_in_an_optimizer() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    lone = torch.nn.Parameter(torch.zeros(1))
    tracked = Tracked()
    tracked.add("model", model)
    tracked.add("optimizer", torch.optim.SGD([*model.parameters(), lone], lr=0.1))
    assert [name for name, _ in tracked.parameters()] == [
        "model.a.weight",
        "model.a.bias",
        "model.b.bias",
        "optimizer.param_groups[0].params[3]",
    ]
