"""Snapshots: a ribbon that stays as it was, in memory that was made ready; and the root that stands for it."""

import os
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.messages import Offer
from regrow.state import fingerprint, ribbon
from regrow.state.snapshot import Darkroom, Snapshot
from regrow.state.tracked import Tracked, encode_skeleton


def tracking(module: torch.nn.Module) -> Tracked:
    tracked = Tracked()
    tracked.add("module", module)
    return tracked


def snapped(darkroom: Darkroom, tracked: Tracked) -> Snapshot:
    flat = tracked.flatten()
    offer = Offer(step=3, structure=(), frozen=(), skeleton=encode_skeleton(flat.skeleton), sizes=(), digest="")
    return darkroom.take(offer, flat.tensors)


def content(snapshot: Snapshot) -> bytes:
    return b"".join(snapshot.piece(number) for number in range(snapshot.count))


def test_a_snapshot_stays_when_the_state_changes_and_has_its_root() -> None:
    model = torch.nn.Linear(1500, 1000)
    tracked = tracking(model)
    before = tracked.fingerprint()
    snapshot = snapped(Darkroom(), tracked)
    with torch.no_grad():
        model.weight.fill_(1.0)
    digests = [snapshot.digest(number) for number in range(snapshot.count)]
    assert len(digests) == 2
    assert fingerprint.root(tracked.flatten().skeleton, digests) == before != tracked.fingerprint()


def test_memory_that_was_made_ready_is_used_once_and_is_the_snapshots_own() -> None:
    darkroom, tracked = Darkroom(), tracking(torch.nn.Linear(300, 300))
    darkroom.prepare(1 << 20)
    assert darkroom._memory is not None
    address = darkroom._memory.data_ptr()
    first = snapped(darkroom, tracked)
    assert first._memory.data_ptr() == address and darkroom._memory is None
    held = content(first)
    with torch.no_grad():
        for parameter in tracked.objects["module"].parameters():
            parameter.add_(1.0)
    second = snapped(darkroom, tracked)
    assert content(first) == held != content(second)


def test_memory_that_nobody_wants_any_more_is_given_back() -> None:
    darkroom = Darkroom()
    darkroom.prepare(1 << 20)
    darkroom.forget()
    assert darkroom._memory is None


def test_memory_that_is_too_small_is_not_used() -> None:
    darkroom, tracked = Darkroom(), tracking(torch.nn.Linear(300, 300))
    darkroom.prepare(1000)
    assert snapped(darkroom, tracked).size_bytes == 300 * 301 * 4


def test_the_ribbon_is_in_canonical_order_and_of_plain_bytes() -> None:
    module = torch.nn.Module()
    module.register_buffer("z", torch.arange(3, dtype=torch.int64))
    module.register_buffer("mask", torch.tensor([True, False, True]))
    module.register_buffer("turned", torch.arange(6, dtype=torch.bfloat16).view(2, 3).t())
    module.register_buffer("none", torch.empty(0))
    module.register_buffer("a", torch.tensor(1.5))
    parts = [module.a, module.mask, module.none, module.turned.contiguous(), module.z]
    assert content(snapped(Darkroom(), tracking(module))) == b"".join(
        part.reshape(-1).view(torch.uint8).numpy().tobytes() for part in parts
    )


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 13))
def test_digests_of_scattered_tensors_are_those_of_one_ribbon(sizes: list[int], piece_bytes: int) -> None:
    tensors = [torch.tensor(list(os.urandom(size)), dtype=torch.uint8) for size in sizes]
    whole = b"".join(tensor.numpy().tobytes() for tensor in tensors)
    pieces = [whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)]
    assert list(ribbon.digests(tensors, piece_bytes)) == [fingerprint.digest([memoryview(piece)]) for piece in pieces]


@pytest.mark.parametrize("sizes", [[], [0], [3], [5 << 20, 0, 1], [3 << 20, 9 << 20, 17, 4 << 20]])
def test_digests_by_several_threads_are_those_of_one(sizes: list[int]) -> None:
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    assert list(ribbon.digests_at_once(tensors)) == list(ribbon.digests(tensors))
    turned = [*tensors, torch.randn(30, 20).t()]
    assert list(ribbon.digests_at_once(turned)) == list(ribbon.digests(turned))


def test_large_tensors_that_are_not_contiguous_are_digested_as_their_contiguous_twins() -> None:
    """Their plain copy lives only as long as somebody holds it; of freed memory any digest may come."""
    base = torch.randn(3000, 2000)
    turned, plain = torch.nn.Module(), torch.nn.Module()
    turned.register_buffer("w", base.t())
    plain.register_buffer("w", base.t().contiguous())
    for word in ("digest", "fingerprint", "manifest"):
        assert getattr(tracking(turned), word)() == getattr(tracking(plain), word)()


def test_places_are_the_live_tensors_but_no_two_over_the_same_memory() -> None:
    module = torch.nn.Module()
    flat = torch.zeros(40)
    module.register_buffer("first", flat[:20])
    module.register_buffer("second", flat[20:])
    module.register_buffer("overlapping", flat[10:30])
    module.register_buffer("turned", torch.zeros(3, 4).t())
    tracked = tracking(module)
    skeleton = tracked.flatten().skeleton
    places = dict(zip(["first", "second", "overlapping", "turned"], tracked.places(skeleton), strict=True))
    assert places["first"].data_ptr() == module.first.data_ptr()
    assert places["second"].data_ptr() == module.second.data_ptr()
    spans = sorted((place.data_ptr(), place.data_ptr() + place.nbytes) for place in places.values())
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert places["turned"].is_contiguous() and places["turned"].shape == (4, 3)
