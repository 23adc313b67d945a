"""Sums of what lanes leave besides their gradients."""

from math import isnan

import msgspec
import torch

from regrow.state.byproducts import NOTHING, Byproducts, Changed, Mean, Outcomes, packed, unpacked


def changed(*values: float, dtype: torch.dtype = torch.float32) -> Changed:
    return Changed(1, packed(torch.tensor(values, dtype=dtype)))


def test_what_only_one_side_has_is_taken_over() -> None:
    left = Byproducts(1, {3: changed(1.0)}, {}, {"b": Mean(1.0, 2.0)})
    right = Byproducts(1, {0: changed(2.0)}, {1: Outcomes(1, (b"x",))}, {"a": Mean(3.0, 4.0)})
    both = left + right
    assert both == Byproducts(2, {**right.floats, **left.floats}, right.others, {**right.metrics, **left.metrics})
    assert (list(both.floats), list(both.metrics)) == ([0, 3], ["a", "b"]), "a digest is taken in this order"
    assert msgspec.msgpack.encode(left + right) == msgspec.msgpack.encode(right + left)


def test_floats_are_summed_in_float64_and_metrics_with_their_weights() -> None:
    one = Byproducts(1, {0: changed(0.1, 1e8)}, {}, {"loss": Mean(6.0, 3.0)})
    two = Byproducts(1, {0: changed(0.2, 1.0)}, {}, {"loss": Mean(2.0, 1.0)})
    total = (one + two).floats[0]
    expected = torch.tensor([0.1, 1e8]).double() + torch.tensor([0.2, 1.0]).double()
    assert total.lanes == 2 and torch.equal(unpacked(total.total), expected)
    assert (one + two).metrics["loss"].value == 2.0


def test_a_mean_of_no_weight_is_no_number() -> None:
    assert isnan(Mean(0.0, 0.0).value)


def test_outcomes_are_kept_apart_when_they_differ() -> None:
    a, b = Outcomes(1, (b"a",)), Outcomes(1, (b"b",))
    assert a + a == Outcomes(2, (b"a",)) and b + a == Outcomes(2, (b"a", b"b"))


def test_they_survive_the_wire() -> None:
    sent = Byproducts(2, {1: changed(1.5, float("inf"))}, {0: Outcomes(2, (b"\1",))}, {"m": Mean(0.5, 1.0)})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Byproducts) == sent
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(NOTHING), type=Byproducts) == NOTHING
    assert unpacked(packed(torch.empty(0))).numel() == 0


def test_every_lane_keeps_its_own_position() -> None:
    left, right = Byproducts(1, positions={10: b"ten"}), Byproducts(1, positions={9: b"nine"})
    assert list((left + right).positions.items()) == [(9, b"nine"), (10, b"ten")]
    assert msgspec.msgpack.encode(left + right) == msgspec.msgpack.encode(right + left), "a digest is taken over them"
