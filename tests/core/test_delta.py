"""When a checkpoint is a delta, and why it is not."""

import msgspec
import pytest

from regrow.core.checkpoint import Delta, Leaf, Manifest
from regrow.core.delta import REST, Before, ChainFull, Cost, NoGain, NothingBefore, Onto, OtherLayout, OtherTerm, Thrift
from regrow.core.draft import Draft

LEAF = Leaf(name="w", shard=0, dtype="float32", shape=(2,), size_bytes=8)
DRAFT = Draft(step=2, term=1, mathematics={}, skeleton=["tensor", [0, "float32", [2]]], leaves=(LEAF,), order=((0,),))
WHOLE = Cost(size_bytes=1000, stored_bytes=1000, encode_s=0.0, seconds=10.0)
SMALLER = Cost(size_bytes=1000, stored_bytes=500, encode_s=2.0, seconds=7.0)


def before(depth: int = 0, draft: Draft = DRAFT) -> Before:
    delta = Delta(base="b", manifest="", depth=depth, ratio=2.0, shards=()) if depth else msgspec.UNSET
    manifest = Manifest(
        regrow="1", step=1, term=draft.term, made_unix_s=0.0, skeleton=[], leaves=(), shards=(), root="", delta=delta
    )
    return Before(draft=draft, manifest=manifest)


def test_a_delta_is_built_on_the_save_before_it_up_to_the_limit() -> None:
    thrift = Thrift(2)
    assert thrift.choose(None, DRAFT) == NothingBefore()
    assert thrift.choose(before(), DRAFT) == Onto(depth=1)
    assert thrift.choose(before(1), DRAFT) == Onto(depth=2)
    assert thrift.choose(before(2), DRAFT) == ChainFull(limit=2)
    assert Thrift(0).choose(before(), DRAFT) == ChainFull(limit=0)


def test_nothing_is_built_on_another_term_or_another_layout() -> None:
    newer = msgspec.structs.replace(DRAFT, term=3)
    assert Thrift(2).choose(before(), newer) == OtherTerm(before=1, now=3)
    for other in ({"leaves": (msgspec.structs.replace(LEAF, shape=(1, 2)),)}, {"order": ((), (0,))}):
        assert Thrift(2).choose(before(), msgspec.structs.replace(DRAFT, **other)) == OtherLayout()


@pytest.mark.parametrize(
    ("cost", "interval_s", "is_gain"),
    [
        (SMALLER, 0.0, True),
        (msgspec.structs.replace(SMALLER, seconds=11.0), 0.0, False),  # later than a whole one
        (msgspec.structs.replace(SMALLER, seconds=11.0), 60.0, True),  # and nobody waits for it
        (msgspec.structs.replace(SMALLER, stored_bytes=950), 60.0, False),  # hardly smaller
        (msgspec.structs.replace(SMALLER, stored_bytes=0), 60.0, True),
    ],
)
def test_a_delta_is_a_gain_when_it_is_smaller_and_soon_enough(cost: Cost, interval_s: float, is_gain: bool) -> None:
    thrift = Thrift(2)
    assert thrift.paid(NothingBefore(), WHOLE, 0.0) is None
    why = thrift.paid(Onto(depth=1), cost, interval_s)
    assert (why is None) == is_gain == (thrift.choose(before(), DRAFT) == Onto(depth=1))


def test_what_takes_no_second_is_soon_enough() -> None:
    thrift = Thrift(2)
    thrift.paid(NothingBefore(), msgspec.structs.replace(WHOLE, seconds=0.001), 0.0)
    assert thrift.paid(Onto(depth=1), msgspec.structs.replace(SMALLER, seconds=0.9), 0.0) is None
    assert thrift.paid(Onto(depth=1), msgspec.structs.replace(SMALLER, seconds=1.1), 0.0) is not None


def test_where_it_is_no_gain_it_is_tried_again_later() -> None:
    thrift = Thrift(2)
    thrift.paid(NothingBefore(), WHOLE, 0.0)
    slow = msgspec.structs.replace(SMALLER, seconds=30.0)
    told = thrift.paid(Onto(depth=1), slow, 40.0)
    assert told == NoGain(delta=slow, whole_s=10.0, may_take_s=10.0, rest=REST)
    assert "2.00 times smaller and took 30.0 s (2.0 s of them to make it), a whole one 10.0 s" in told.words()
    for rest in range(REST, 0, -1):
        choice = thrift.choose(before(), DRAFT)
        assert isinstance(choice, NoGain) and choice.rest == rest
        assert thrift.paid(choice, WHOLE, 40.0) is None
    assert thrift.choose(before(), DRAFT) == Onto(depth=1)
