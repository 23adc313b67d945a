"""The tree of lanes, clever against dumb: the dumb one keeps whole sets of lanes and tries everything."""

from itertools import combinations, pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from regrow.core.lanes import Node, children, cover, deal, lanes_in, leaf, merges, missing, root, settled, spread

LANES = st.integers(1, 24)


@st.composite
def owned(draw: st.DrawFn) -> tuple[int, frozenset[int]]:
    lanes = draw(LANES)
    return lanes, frozenset(draw(st.sets(st.integers(0, lanes - 1))))


def every_node(lanes: int) -> list[Node]:
    """Top down, by halving a list of lanes at the largest power of two below its length."""
    found, todo = [], [list(range(lanes))]
    while todo:
        part = todo.pop()
        found.append(Node(part[0], part[-1] + 1))
        cut = 1
        while cut * 2 < len(part):
            cut *= 2
        if len(part) > 1:
            todo += [part[:cut], part[cut:]]
    return found


@given(LANES)
def test_the_tree_has_each_lane_as_a_leaf_and_lanes_minus_one_sums(lanes: int) -> None:
    nodes = every_node(lanes)
    assert len(nodes) == 2 * lanes - 1
    for node in nodes:
        if node.size > 1:
            assert set(children(node)) <= set(nodes)


@given(owned())
def test_cover_is_the_maximal_owned_nodes(case: tuple[int, frozenset[int]]) -> None:
    lanes, mine = case
    whole = [node for node in every_node(lanes) if set(node.lanes) <= mine]
    maximal = {n for n in whole if not any(n != m and set(n.lanes) < set(m.lanes) for m in whole)}
    assert set(cover(lanes, mine)) == maximal
    assert lanes_in(cover(lanes, mine)) == mine


@given(owned())
def test_settled_leaves_are_the_cover(case: tuple[int, frozenset[int]]) -> None:
    lanes, mine = case
    assert settled(lanes, map(leaf, mine)) == frozenset(cover(lanes, mine))


@given(owned(), st.randoms(use_true_random=False))
def test_the_order_in_which_lanes_finish_does_not_matter(case: tuple[int, frozenset[int]], shuffle: object) -> None:
    lanes, mine = case
    order = sorted(mine)
    shuffle.shuffle(order)  # type: ignore[attr-defined]
    held: frozenset[Node] = frozenset()
    for lane in order:
        held = settled(lanes, held | {leaf(lane)})
    assert held == frozenset(cover(lanes, mine))


@given(owned())
def test_merges_come_after_their_children(case: tuple[int, frozenset[int]]) -> None:
    lanes, mine = case
    have = {leaf(lane) for lane in mine}
    for parent in merges(lanes, have):
        assert set(children(parent)) <= have
        have.add(parent)


@given(LANES, st.integers(1, 8))
@example(20_000, 9_999)
@example(16_384, 9_999)
@example(10_000, 9_999)
def test_deal_is_even_contiguous_and_whole(lanes: int, members: int) -> None:
    dealt = deal(lanes, members)
    assert [lane for part in dealt for lane in part] == list(range(lanes))
    sizes = [len(part) for part in dealt]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 12), st.integers(1, 5))
def test_deal_finds_the_fewest_subtrees_of_all_even_cuts(lanes: int, members: int) -> None:
    def cost(parts: list[range]) -> tuple[int, int]:
        counts = [len(cover(lanes, part)) for part in parts]
        return max(counts), sum(counts)

    best = None
    for cuts in combinations(range(1, lanes), members - 1) if members <= lanes else ():
        edges = [0, *cuts, lanes]
        parts = [range(a, b) for a, b in pairwise(edges)]
        sizes = [len(part) for part in parts]
        if max(sizes) - min(sizes) <= 1:
            best = min(best or cost(parts), cost(parts))
    if best is not None:
        assert cost(list(deal(lanes, members))) == best


@given(owned(), st.integers(1, 6))
def test_spread_deals_each_missing_lane_once_and_evenly(case: tuple[int, frozenset[int]], members: int) -> None:
    _, missing = case
    shares = spread(missing, members)
    assert sorted(lane for share in shares for lane in share) == sorted(missing)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_partition_holds_each_lane_once() -> None:
    assert missing(4, [Node(0, 2), Node(2, 4)]) == missing(4, [root(4)]) == frozenset()
    assert missing(4, [Node(0, 2), Node(1, 4)]) is None and missing(4, [Node(3, 5)]) is None
    assert missing(4, [Node(0, 2)]) == {2, 3} and missing(2, []) == {0, 1}
