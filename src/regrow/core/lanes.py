"""Lanes and the one binary tree in which their gradients are added.

The tree depends on the number of lanes alone. A node is the half-open range of lanes below it; the children of [a, b)
meet at a plus the largest power of two below b - a. Whoever holds both children of a node may add them; nobody ever adds
anything else. That is why the sum does not depend on who holds what. A lane that is left out of a step is no zero: its
sibling stands for their parent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import accumulate
from math import lcm
from typing import TypeVar

import msgspec

from regrow.core.errors import Invariant

T = TypeVar("T")


class Cell(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One lane of one step."""

    step: int
    lane: int

    def __str__(self) -> str:
        return f"lane {self.lane} of step {self.step}"


class Node(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A subtree: lanes start to stop - 1."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def lanes(self) -> range:
        return range(self.start, self.stop)

    def __str__(self) -> str:
        return f"[{self.start},{self.stop})"


def leaf(lane: int) -> Node:
    return Node(lane, lane + 1)


def root(lanes: int) -> Node:
    return Node(0, lanes)


def children(node: Node) -> tuple[Node, Node]:
    """Left and right child; a leaf has none and must not be asked."""
    if node.size < 2:
        raise Invariant(f"lane {node.start} is a leaf: it has no children")
    middle = node.start + (1 << ((node.size - 1).bit_length() - 1))
    return Node(node.start, middle), Node(middle, node.stop)


def cover(lanes: int, owned: Iterable[int]) -> tuple[Node, ...]:
    """The maximal subtrees all of whose lanes are owned, in lane order."""
    have = sorted(set(owned))
    if have and not (have[0] >= 0 and have[-1] < lanes):
        raise Invariant(f"lanes {have} are not all below {lanes}")
    found = set(have)

    def walk(node: Node) -> Iterator[Node]:
        inside = sum(1 for lane in node.lanes if lane in found)
        if inside == node.size:
            yield node
        elif inside:
            for child in children(node):
                yield from walk(child)

    return tuple(walk(root(lanes)))


def merges(lanes: int, held: Iterable[Node]) -> tuple[Node, ...]:
    """The parents that can be formed from these nodes, each after its children: what a holder adds, in order."""
    have = set(held)
    formed: list[Node] = []

    def walk(node: Node) -> bool:
        if node in have:
            return True
        if node.size == 1 or not any(node.start <= other.start and other.stop <= node.stop for other in have):
            return False
        left, right = (walk(child) for child in children(node))
        if left and right:
            formed.append(node)
        return left and right

    walk(root(lanes))
    return tuple(formed)


def settled(lanes: int, held: Iterable[Node]) -> frozenset[Node]:
    """What is left of these nodes once every possible merge is done."""
    have = set(held)
    for parent in merges(lanes, have):
        have -= set(children(parent))
        have.add(parent)
    return frozenset(have)


def fold(lanes: int, parts: Mapping[Node, T], add: Callable[[T, T], T]) -> T | None:
    """The sum of what these nodes hold, in tree order: `add(left, right)`. None of nothing.

    A lane that is left out is absent: its sibling stands for their parent, and is never added to a zero.
    """

    def total(node: Node) -> T | None:
        if node in parts or node.size == 1:
            return parts.get(node)
        left, right = map(total, children(node))
        return right if left is None else left if right is None else add(left, right)

    return total(root(lanes))


def lanes_in(nodes: Iterable[Node]) -> frozenset[int]:
    return frozenset(lane for node in nodes for lane in node.lanes)


def missing(lanes: int, nodes: Iterable[Node]) -> frozenset[int] | None:
    """The lanes that none of these nodes holds; None when one is held twice, or is no lane."""
    listed = [lane for node in nodes for lane in node.lanes]
    held = set(listed)
    return frozenset(range(lanes)) - held if len(held) == len(listed) and held <= set(range(lanes)) else None


_SEARCH_MAX = 2048
"""Members, times the places at which the lanes of each may end: a few milliseconds."""


@lru_cache(maxsize=4)
def deal(lanes: int, members: int) -> tuple[range, ...]:
    """Contiguous lanes for each member: as even as can be, then cut where it leaves the fewest subtrees.

    Every member gets the floor or the ceiling of lanes / members: the slowest decides the step. Among those cuts, fewest
    subtrees at the worst member (rounds of the reduce), then fewest in all (bytes sent). Members beyond the lanes get none.
    In a job so large that the search would keep a roster waiting, the first even cut is taken as it is.
    """
    if members < 1 or lanes < 1:
        raise Invariant(f"cannot deal {lanes} lanes to {members} members")
    if members >= lanes:
        return tuple(range(min(i, lanes), min(i + 1, lanes)) for i in range(members))
    least, most = lanes // members, -(-lanes // members)
    larger = lanes % members
    if members * min(larger, members - larger) > _SEARCH_MAX:
        return tuple(range(i * lanes // members, (i + 1) * lanes // members) for i in range(members))
    # best[i][stop] = (worst, total, start): the best way for the first i members to end at stop, i having begun at start.
    best: list[dict[int, tuple[int, int, int]]] = [{0: (0, 0, 0)}]
    for index in range(members):
        left = members - index - 1
        following: dict[int, tuple[int, int, int]] = {}
        for start, (worst, total, _) in best[-1].items():
            for stop in {start + least, start + most}:
                if left * least <= lanes - stop <= left * most:
                    nodes = _count(lanes, start, stop)
                    candidate = (max(worst, nodes), total + nodes, start)
                    if stop not in following or candidate < following[stop]:
                        following[stop] = candidate
        best.append(following)
    cuts = [lanes]
    for ways in reversed(best[1:]):
        cuts.append(ways[cuts[-1]][2])
    cuts.reverse()
    return tuple(range(cuts[i], cuts[i + 1]) for i in range(members))


def deal_by_weight(lanes: int, weights: Sequence[int]) -> tuple[range, ...]:
    """Contiguous lanes for each member, so that a step takes as short as it can when a member of weight w computes w lanes
    in the time in which one of weight 1 computes one.

    Everybody gets one, and each further lane goes to whoever would be done with it first: the last to be done decides the
    step, and shares rounded to the nearest would not look at it. Equal weights are dealt as evenly as can be.
    """
    if min(weights, default=0) < 1:
        raise Invariant(f"weights are whole numbers from 1: {weights}")
    if len(set(weights)) == 1 or len(weights) >= lanes:
        return deal(lanes, len(weights))
    counts = [1] * len(weights)
    lane = [lcm(*weights) // weight for weight in weights]  # how long one takes, in whole units
    done = [(2 * its, index) for index, its in enumerate(lane)]
    heapify(done)
    for _ in range(lanes - len(weights)):
        at, index = done[0]
        counts[index] += 1
        heapreplace(done, (at + lane[index], index))
    stops = list(accumulate(counts))
    return tuple(range(stop - count, stop) for stop, count in zip(stops, counts, strict=True))


def _count(lanes: int, start: int, stop: int) -> int:
    """How many maximal subtrees cover [start, stop). A subtree is a block of a power of two that begins at a multiple of it,
    cut off at the last lane."""
    if stop == lanes:
        stop = 1 << lanes.bit_length()
    found = 0
    while start < min(stop, lanes):
        start += min(start & -start or stop, 1 << ((stop - start).bit_length() - 1))
        found += 1
    return found


def spread(missing: Iterable[int], members: int) -> tuple[tuple[int, ...], ...]:
    """Deal the missing lanes of a step in doubt: contiguous runs, as even as can be."""
    todo = sorted(missing)
    base, extra = divmod(len(todo), members)
    shares, start = [], 0
    for index in range(members):
        stop = start + base + (1 if index < extra else 0)
        shares.append(tuple(todo[start:stop]))
        start = stop
    return tuple(shares)
