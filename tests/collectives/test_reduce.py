"""The canonical reduce gives the bits of the local tree sum, whoever holds what and wherever buckets and slices are cut."""

import random
import threading

import pytest
import torch
from cases import Case, assert_is_mean, dumb_mean, random_case
from circle import formed, together, twins
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.collectives.group import Group, Solo
from regrow.collectives.reduce import SMALL_BYTES, Reduction, Terms
from regrow.core.errors import Invariant, StateError
from regrow.core.lanes import Node, children, cover, leaf, root
from regrow.state.byproducts import NOTHING
from regrow.state.gradient import Gradient, Pool, digest
from regrow.state.layout import Layout
from regrow.state.tail import Tail

WAYS = [0, SMALL_BYTES]
"""In buckets, and whole to everybody: these gradients are small."""


def reduce_all(case: Case, groups: list[Group], small_bytes: int) -> list[Gradient]:
    def play(rank: int) -> Gradient:
        held = case.held(rank)
        before = {node: (g.buffer.clone(), g.present, g.weight, g.loss) for node, g in held.items()}
        reduction = Reduction(case.terms, held, None, Pool(case.layout))
        assert reduction.run(groups[rank], small_bytes) == digest(reduction.result)
        for node, (buffer, *rest) in before.items():
            assert (
                torch.equal(held[node].buffer, buffer) and [held[node].present, held[node].weight, held[node].loss] == rest
            )
        return reduction.result

    return together(case.members, play)


def alone(case: Case) -> Gradient:
    top = root(len(case.lanes))
    terms = Terms(case.layout, len(case.lanes), 0, ((top,),))
    reduction = Reduction(terms, {top: case.subtree(top)}, None, Pool(case.layout))
    reduction.run(Solo())
    return reduction.result


@given(st.integers(0, 1 << 32), st.integers(1, 6), st.sampled_from(WAYS))
@settings(max_examples=250, deadline=None)
def test_any_holdings_give_the_tree_sum(seed: int, members: int, small_bytes: int) -> None:
    case = random_case(seed, members)
    results = reduce_all(case, list(twins(members)), small_bytes)
    assert_is_mean(results[0], dumb_mean(case))
    assert {digest(result) for result in results} == {digest(alone(case))}


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_over_sockets_too(members: int) -> None:
    groups: list[Group] = list(formed(members)) if members > 1 else [Solo()]
    for seed in range(25):
        case = random_case(seed, members)
        results = reduce_all(case, groups, WAYS[seed % 2])
        assert_is_mean(results[0], dumb_mean(case))
        assert {digest(result) for result in results} == {digest(alone(case))}
    for group in groups:
        group.close()


class Streamed:
    """One member's part in which the last lane is still computed: in a random order, some gradients twice, some late."""

    def __init__(self, case: Case, rank: int, rng: random.Random) -> None:
        self.case, self.rng = case, rng
        node = rng.choice(case.holdings[rank]) if case.holdings[rank] else None
        self.held = case.held(rank)
        self.pool = Pool(case.layout)
        self.tail: Tail | None = None
        self.lane = -1
        self.pieces: dict[Node, Gradient] = {}
        if node is not None:
            self.lane = rng.choice(list(node.lanes))
            del self.held[node]
            siblings, at = [], node
            while at.size > 1:
                left, right = children(at)
                on_left = self.lane >= right.start
                self.pieces[left if on_left else right] = case.subtree(left if on_left else right)
                siblings.append((self.pieces[left if on_left else right], on_left))
                at = right if on_left else left
            self.tail = Tail(case.layout, None, siblings[::-1])

    def backward(self) -> None:
        """As autograd would: gradient after gradient; what is made twice changes after it was ready."""
        if self.tail is None:
            return
        lane = self.case.lanes[self.lane]
        self.tail.begin(lane.weight)
        indices = [index for index in range(len(lane.views)) if lane.present >> index & 1]
        self.rng.shuffle(indices)
        grads: list[torch.Tensor | None] = [None] * len(lane.views)
        for index in indices:
            grad = grads[index] = lane.views[index].clone()
            twice = self.rng.random() < 0.2
            if twice:
                grad.fill_(7.0)
            self.tail.ready(index, grad)
            if twice:
                grad.copy_(lane.views[index])
        self.tail.complete(grads, lane.loss / lane.weight if lane.weight else 0.0)
        self.tail.byproducts = lane.byproducts


@given(st.integers(0, 1 << 32), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_a_lane_that_is_still_computed_gives_the_same_bits(seed: int, members: int) -> None:
    case, rng = random_case(seed, members), random.Random(seed)
    for lane in case.lanes:  # a mean loss times its weight must be the sum again
        lane.weight, lane.loss = float(lane.weight != 0.0), lane.loss * (lane.weight != 0.0)
    parts = [Streamed(case, rank, random.Random(rng.random())) for rank in range(members)]
    groups = twins(members)

    def play(rank: int) -> Gradient:
        part = parts[rank]
        reduction = Reduction(case.terms, part.held, part.tail, part.pool)
        backward = threading.Thread(target=part.backward)
        backward.start()
        reduction.agree(groups[rank])
        for number in range(len(case.layout.buckets)):
            reduction.bucket(groups[rank], number)
        backward.join()
        assert reduction.close(groups[rank]) == digest(reduction.result)
        return reduction.result

    results = together(members, play)
    assert_is_mean(results[0], dumb_mean(case))
    assert {digest(result) for result in results} == {digest(alone(case))}
    for part in parts:  # nothing that is kept was written to, and the lane can still be finished
        if part.tail is not None:
            finished = part.tail.finish(part.pool)
            assert digest(finished) == digest(_with_byproducts(case, leaf(part.lane)))
            assert all(digest(piece) == digest(case.subtree(node)) for node, piece in part.pieces.items())


def _with_byproducts(case: Case, node: Node) -> Gradient:
    return case.subtree(node)


def test_what_changes_after_it_has_travelled_travels_again() -> None:
    layout = Layout([("a", torch.empty(200)), ("b", torch.empty(200))], bucket_bytes=1)
    holdings = ((leaf(0),), (leaf(1),))
    groups = twins(2)
    grads = [torch.ones(200), torch.ones(200)]

    def play(rank: int) -> tuple[set[int], list[list[float]]]:
        tail = Tail(layout, None, ())
        reduction = Reduction(Terms(layout, 2, 0, holdings), {}, tail, Pool(layout))
        tail.begin(1.0)
        mine = [grad.clone() for grad in grads]
        for index in (1, 0):
            tail.ready(index, mine[index])
        reduction.agree(groups[rank])
        for number in range(2):
            reduction.bucket(groups[rank], number)
        if rank == 1:
            mine[0].add_(2.0)
        tail.complete(list(mine), 0.0)
        reduction.close(groups[rank])
        return tail.stale, [view.unique().tolist() for view in reduction.result.views]

    assert together(2, play) == [(set(), [[2.0], [1.0]]), ({1}, [[2.0], [1.0]])]


def test_a_reduce_in_steady_state_allocates_nothing() -> None:
    case = random_case(7, 1)
    pool = Pool(case.layout)
    held = case.held(0)
    addresses = set()
    for _ in range(5):
        reduction = Reduction(case.terms, held, None, pool)
        reduction.run(Solo())
        addresses.add(reduction.result.buffer.data_ptr())
        pool.give(reduction.result)
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
            Reduction(Terms(layout, 2, 0, holdings), {}, None, Pool(layout))


@pytest.mark.parametrize("small_bytes", WAYS)
def test_different_models_are_told_apart_before_bytes_move(small_bytes: int) -> None:
    layouts = [Layout([("a", torch.empty(3))]), Layout([("a", torch.empty(300))])]
    holdings = ((Node(0, 1),), (Node(1, 2),))
    groups = twins(2)

    def play(rank: int) -> None:
        held = {holdings[rank][0]: Pool(layouts[rank]).take()}
        with pytest.raises(StateError, match="different parameters"):
            Reduction(Terms(layouts[rank], 2, 0, holdings), held, None, Pool(layouts[rank])).run(groups[rank], small_bytes)

    together(2, play)
