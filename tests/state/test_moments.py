"""Moments in fewer bits: how far off they are, what stays exact, and that what is restored is what was measured."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shelf import Shelf, drafted, load, same

from regrow.core.checkpoint import Manifest
from regrow.core.inexact import MODES, Inexact, Kept
from regrow.state.archive import Archive
from regrow.state.moments import fewer
from regrow.state.tree import flatten


def state(first: torch.Tensor, second: torch.Tensor) -> dict[str, Any]:
    entry = {"step": torch.tensor(3.0), "exp_avg": first, "exp_avg_sq": second}
    return {"model": {"w": first * 2}, "optimizer": {"state": {0: entry}, "param_groups": [{"lr": 0.1, "params": [0]}]}}


def through(tree: Any, mode: str) -> tuple[Any, Manifest, Inexact]:
    """Saved in fewer bits, and read again."""
    archive = Archive(Shelf())
    pointer = archive.write(*fewer(*drafted(tree), mode))
    assert archive.verify(pointer) == []
    manifest = archive.manifest(pointer)
    assert isinstance(manifest.inexact, Inexact)
    return load(archive, pointer), manifest, manifest.inexact


def adam(found: Any) -> tuple[torch.Tensor, torch.Tensor]:
    entry = found["optimizer"]["state"][0]
    return entry["exp_avg"], entry["exp_avg_sq"]


def root(tree: Any) -> str:
    """As the tensors have it."""
    from regrow.core.skeleton import in_order
    from regrow.state import fingerprint
    from regrow.state.ribbon import digests

    flat = flatten(tree, "")
    return fingerprint.root(flat.skeleton, digests(flat.tensors[index] for index in in_order(flat.skeleton)))


def moments(dtype: torch.dtype = torch.float32, count: int = 70_001) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(count, generator=generator) * 1e-3
    second = torch.exp(torch.randn(count, generator=generator) * 4 - 25)
    if dtype == torch.float16:
        first, second = first * 1e3, second * 1e7
    return first.to(dtype), second.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_is_close_and_no_second_moment_becomes_zero(dtype: torch.dtype) -> None:
    first, second = moments(dtype)
    found, manifest, inexact = through(state(first, second), "int8")
    one, other = (tensor.double() for tensor in adam(found))
    coarse = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert ((one - first.double()).abs().max() <= first.double().abs().max() * (1 / 254 + coarse)).item()
    assert bool(((other > 0) == (second > 0)).all())
    seen = second > (1e-3 if dtype == torch.float16 else 1e-30)  # what is not subnormal
    assert ((other[seen] / second[seen].double()).log2().abs().max() < 0.15).item()
    assert same(found["model"], {"w": first * 2}), "weights are exact"
    errors = {error.kind: error for error in inexact.errors}
    lost = (one - first.double()).square().sum().sqrt() / first.double().square().sum().sqrt()
    assert errors["exp_avg"].rms_relative == pytest.approx(lost.item(), rel=1e-6) and lost < 0.01
    assert errors["exp_avg"].largest == pytest.approx((one - first.double()).abs().max().item())
    assert errors["exp_avg_sq"].zeroed == 0 and errors["exp_avg_sq"].rms_relative < 0.05
    assert manifest.version == 2 and inexact.ratio > (1.9 if dtype == torch.float32 else 1.4)


def test_pruned_is_smaller_still_and_says_how_far_off_it_is() -> None:
    first, second = moments()
    found, _, inexact = through(state(first, second), "pruned")
    one, other = adam(found)
    errors = {error.kind: error for error in inexact.errors}
    zeroed = ((one == 0) & (first != 0)).double().mean().item()
    assert 0.1 < zeroed < 0.9 and errors["exp_avg"].zeroed == pytest.approx(zeroed)
    moves = first.abs() / second.sqrt()
    assert moves[one == 0].max() <= moves[one != 0].min(), "what moves its weight least is pruned"
    assert bool((other > 0).all()) and errors["exp_avg_sq"].zeroed == 0
    assert len(one.unique()) <= 16 and len(other.unique()) <= 15
    exact_ones = through(state(first, second), "int8")[2]
    assert inexact.ratio > exact_ones.ratio and errors["exp_avg"].rms_relative > exact_ones.errors[0].rms_relative
    assert "exp_avg by" in inexact.words() and "moments='pruned'" in inexact.words()


@given(st.data())
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_restored_has_the_root_that_was_promised(mode: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    width = 4 if dtype == torch.float32 else 2
    count = data.draw(st.integers(0, 700))
    raw = data.draw(st.lists(st.binary(min_size=width, max_size=width), min_size=1, max_size=40))
    bits = torch.tensor(list(b"".join(raw * (1 + count // len(raw)))[: count * width]), dtype=torch.uint8)
    first = bits.view(dtype) if count else torch.empty(0, dtype=dtype)
    tree = state(first, first.abs())
    found, _, inexact = through(tree, mode)
    assert inexact.root == root(found)
    for was, now in zip(adam(tree), adam(found), strict=True):
        if count < 256 or not bool(was.isfinite().all()):
            assert same(was, now), "few numbers, and what is not finite, stay as they are"
        else:
            assert bool(now.isfinite().all()) and bool((now[was == 0] == 0).all())
    second, restored = adam(tree)[1], adam(found)[1]
    assert bool(((restored > 0) == (second > 0)).all()) or not bool(second.isfinite().all())


def test_what_is_no_moment_or_no_fit_stays_exact() -> None:
    odd = torch.linspace(-1, 1, 1000)
    tree = {
        "negative": {"exp_avg_sq": odd},
        "nan": {"exp_avg": torch.full((1000,), float("nan"))},
        "double": {"exp_avg": odd.double()},
        "few": {"exp_avg": odd[:255]},
        "other": {"momentum_buffer": odd},
        "counts": {"exp_avg": torch.arange(1000)},
    }
    for mode in MODES:
        found, _, inexact = through(tree, mode)
        assert same(found, tree) and all(isinstance(coded, Kept) for coded in inexact.leaves)
        assert inexact.errors == () and "nothing lost" in inexact.words()


def test_moments_that_are_all_zero_stay_so() -> None:
    for mode in MODES:
        found, _, _ = through(state(torch.zeros(1000), torch.zeros(1000)), mode)
        assert all(bool((tensor == 0).all()) for tensor in adam(found))
