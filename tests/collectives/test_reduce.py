"""The canonical reduce gives the bits of the local tree sum, whoever holds what and wherever slices are cut."""

import pytest
import torch
from cases import Case, assert_is_mean, dumb_mean, random_case
from circle import formed, together, twins
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.collectives.group import Group, Solo
from regrow.collectives.reduce import SMALL_BYTES, reduce
from regrow.core.errors import Invariant, StateError
from regrow.core.lanes import Node, cover, root
from regrow.state.byproducts import NOTHING
from regrow.state.gradient import Gradient, Pool, digest
from regrow.state.layout import Layout

WAYS = [0, SMALL_BYTES]
"""In slices, and whole to everybody: these gradients are small."""


def reduce_all(case: Case, groups: list[Group], small_bytes: int) -> list[Gradient]:
    def play(rank: int) -> Gradient:
        held = case.held(rank)
        before = {node: (g.buffer.clone(), g.present, g.weight, g.loss) for node, g in held.items()}
        pool = Pool(case.layout)
        result = reduce(groups[rank], rank, case.layout, len(case.lanes), case.holdings, held, pool, small_bytes)
        for node, (buffer, *rest) in before.items():
            assert (
                torch.equal(held[node].buffer, buffer) and [held[node].present, held[node].weight, held[node].loss] == rest
            )
        return result

    return together(case.members, play)


def alone(case: Case) -> Gradient:
    top = root(len(case.lanes))
    return reduce(Solo(), 0, case.layout, len(case.lanes), ((top,),), {top: case.subtree(top)}, Pool(case.layout))


@given(st.integers(0, 1 << 32), st.integers(1, 6), st.sampled_from(WAYS))
@settings(max_examples=250, deadline=None)
def test_any_holdings_give_the_tree_sum(seed: int, members: int, small_bytes: int) -> None:
    case = random_case(seed, members)
    results = reduce_all(case, list(twins(members)), small_bytes)
    assert_is_mean(results[0], dumb_mean(case))
    assert {digest(result) for result in results} == {digest(alone(case))}


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_over_sockets_too(members: int) -> None:
    groups: list[Group] = formed(members) if members > 1 else [Solo()]
    for seed in range(25):
        case = random_case(seed, members)
        results = reduce_all(case, groups, WAYS[seed % 2])
        assert_is_mean(results[0], dumb_mean(case))
        assert {digest(result) for result in results} == {digest(alone(case))}
    for group in groups:
        group.close()


def test_a_reduce_in_steady_state_allocates_nothing() -> None:
    case, pool = random_case(7, 1), None
    pool = Pool(case.layout)
    held = case.held(0)
    addresses = set()
    for _ in range(5):
        result = reduce(Solo(), 0, case.layout, len(case.lanes), case.holdings, held, pool)
        addresses.add(result.buffer.data_ptr())
        pool.give(result)
    assert len(addresses) == 1


@given(st.integers(0, 1 << 32), st.integers(1, 5), st.data(), st.sampled_from(WAYS))
@settings(max_examples=250, deadline=None)
def test_a_lane_left_out_is_absent_and_not_zero(seed: int, members: int, data: st.DataObject, small_bytes: int) -> None:
    case = random_case(seed, members)
    out = data.draw(st.sets(st.integers(0, len(case.lanes) - 1)))
    lanes = [[lane for node in nodes for lane in node.lanes if lane not in out] for nodes in case.holdings]
    fewer = Case(case.layout, case.lanes, tuple(cover(len(case.lanes), kept) for kept in lanes))
    results = reduce_all(fewer, list(twins(members)), small_bytes)
    for lane in out:
        empty = case.lanes[lane]
        empty.present, empty.weight, empty.loss, empty.byproducts = 0, 0.0, 0.0, NOTHING
    assert_is_mean(results[0], dumb_mean(case))
    assert {digest(result) for result in results} == {digest(alone(case))}


def test_lanes_held_twice_are_refused() -> None:
    layout = Layout([("a", torch.empty(3))])
    for holdings in (((Node(1, 3),),), ((Node(0, 2), Node(1, 2)),)):
        with pytest.raises(Invariant, match="one of 2 lanes twice"):
            reduce(Solo(), 0, layout, 2, holdings, {}, Pool(layout))


def test_different_models_are_told_apart_before_bytes_move() -> None:
    layouts = [Layout([("a", torch.empty(3))]), Layout([("a", torch.empty(300))])]
    holdings = ((Node(0, 1),), (Node(1, 2),))
    groups = twins(2)

    def play(rank: int) -> None:
        held = {holdings[rank][0]: Pool(layouts[rank]).take()}
        with pytest.raises(StateError, match="different parameters"):
            reduce(groups[rank], rank, layouts[rank], 2, holdings, held, Pool(layouts[rank]))

    together(2, play)
