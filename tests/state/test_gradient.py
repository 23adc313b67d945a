"""Gradients: presence, signed zeros, one division, digests, and a pool that allocates once."""

import pytest
import torch

from regrow.core.errors import ConfigError, Invariant
from regrow.state.gradient import Gradient, Pool, add, add_, dense, digest, divide
from regrow.state.layout import ALIGN_BYTES, Layout


def parameters() -> list[torch.Tensor]:
    return [torch.zeros(5), torch.zeros(300, dtype=torch.bfloat16), torch.zeros(2, 3, dtype=torch.float64)]


LAYOUT = Layout([(f"p{i}", p) for i, p in enumerate(parameters())])


def gradient(*values: float | None, weight: float = 1.0, loss: float = 0.0) -> Gradient:
    """Each parameter filled with one value, or absent."""
    made = Gradient(LAYOUT, LAYOUT.new_buffer())
    tensors = zip(parameters(), values, strict=True)
    made.absorb([None if value is None else torch.full_like(tensor, value) for tensor, value in tensors], weight, loss)
    return made


def signs(view: torch.Tensor) -> set[bool]:
    return set(view.signbit().flatten().tolist())


def test_absorbing_copies_first_and_adds_later() -> None:
    grads: list[torch.Tensor | None] = [torch.full((5,), -0.0), None, None]
    total = Gradient(LAYOUT, LAYOUT.new_buffer())
    total.absorb(grads, 2.0, 3.0)
    assert total.present == 0b001 and signs(total.views[0]) == {True}
    grads[2] = torch.ones(2, 3, dtype=torch.float64)
    total.absorb(grads, 1.0, 5.0)
    assert total.present == 0b101 and signs(total.views[0]) == {True} and (total.views[2] == 1).all()
    assert (total.weight, total.loss) == (3.0, 11.0)
    total.views[0].fill_(7)
    assert grads[0] is not None and not grads[0].any(), "the user's .grad must not share our bytes"


def test_a_sparse_gradient_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="gradient of p0"):
        dense(LAYOUT, 0, torch.zeros(5).to_sparse())


def test_absent_plus_x_is_x_with_its_sign() -> None:
    left, right = gradient(-0.0, None, 1.5, weight=1, loss=2), gradient(None, -0.0, 2.0, weight=3, loss=4)
    add_(left, right)
    assert left.present == 0b111 and (left.weight, left.loss) == (4.0, 14.0)
    assert signs(left.views[0]) == signs(left.views[1]) == {True} and (left.views[2] == 3.5).all()
    assert right.present == 0b110 and (right.views[2] == 2.0).all()


def test_sums_over_byte_ranges_are_the_sum_over_all() -> None:
    left, right = gradient(1.0, None, 2.0), gradient(0.1, 0.3, None)
    out = LAYOUT.new_buffer()
    for start in range(0, LAYOUT.size_bytes, ALIGN_BYTES):
        stop = start + ALIGN_BYTES
        add(LAYOUT, left.part(start, stop), right.part(start, stop), out[start:stop])
    add_(left, right)
    assert torch.equal(out, left.buffer)
    with pytest.raises(Invariant, match="cannot add"):
        add(LAYOUT, left.part(0, 512), right.part(512, 1024), out[:512])


def test_division_happens_once_and_of_no_weight_everything_is_absent() -> None:
    total = gradient(3.0, None, 1.0, weight=3.0, loss=2.0)
    mean = divide(LAYOUT, total.part(0, LAYOUT.size_bytes), total.buffer)
    assert (mean.present, mean.weight) == (0b101, 3.0)
    assert (total.views[0] == 1).all() and (total.views[2] == 1 / 3).all()
    empty = gradient(3.0, None, 1.0, weight=0.0)
    nothing = divide(LAYOUT, empty.part(0, LAYOUT.size_bytes), empty.buffer)
    assert (nothing.present, nothing.weight) == (0, 0.0)


def test_the_digest_sees_presence_and_present_bytes_only() -> None:
    one, same = gradient(1.0, None, 2.0), gradient(1.0, None, 2.0)
    same.views[1].fill_(9)  # absent
    assert digest(one) == digest(same)
    assert digest(one) != digest(gradient(1.0, 0.0, 2.0))
    assert digest(gradient(0.0, None, 2.0)) != digest(gradient(-0.0, None, 2.0))
    same.views[2][1, 2] = 3
    assert digest(one) != digest(same)
    layout = Layout([("a", torch.empty(4)), ("b", torch.empty(4))])
    first, second = (Gradient(layout, layout.new_buffer(), present=present) for present in (0b01, 0b10))
    assert digest(first) != digest(second), "the same bytes of another parameter"


def test_the_pool_uses_buffers_again() -> None:
    pool = Pool(LAYOUT)
    first = pool.take()
    first.present, first.weight, first.loss = 7, 1.0, 1.0
    address = first.buffer.data_ptr()
    pool.give(first)
    with pytest.raises(Invariant, match="twice"):
        pool.give(first)
    again = pool.take()
    assert again.buffer.data_ptr() == address and (again.present, again.weight, again.loss) == (0, 0.0, 0.0)
    large = pool.scratch(2048)
    assert pool.scratch(512).data_ptr() == large.data_ptr() and pool.scratch(512).numel() == 512
