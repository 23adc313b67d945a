"""Training as symbols: a state is a hash chain over gradients, a gradient is a hash over the canonical tree of lanes.

Whoever adds a lane twice, drops one, adds in another order, or computes from another state gets another number.
"""

from collections.abc import Iterable

from regrow.core.lanes import Node, children, root
from regrow.core.order import mix

_LEAF, _SUM, _ODD, _STEP, _DIGEST = 1, 2, 3, 4, 5


def initial(seed: int) -> int:
    return mix(_STEP, seed)


def lane_gradient(step: int, lane: int, state: int) -> int:
    return mix(_LEAF, step, lane, state)


def added(left: int, right: int) -> int:
    return mix(_SUM, left, right)


def reduced(lanes: int, parts: Iterable[tuple[Node, int]]) -> int:
    """The root, from what the members hold. Parts that do not tile the tree give a number that is nobody's."""
    listed = list(parts)
    have = dict(listed)
    used: set[Node] = set()

    def value(node: Node) -> int:
        if node in have:
            used.add(node)
            return have[node]
        if node.size == 1:
            return mix(_ODD, node.start)
        left, right = children(node)
        return added(value(left), value(right))

    total = value(root(lanes))
    if len(used) != len(listed):
        return mix(_ODD, total, len(listed))
    return total


def stepped(state: int, gradient: int) -> int:
    return mix(_STEP, state, gradient)


def digest(gradient: int) -> int:
    return mix(_DIGEST, gradient)


class Reference:
    """The undisturbed run: what every step's gradient digest and state must be."""

    def __init__(self, seed: int, lanes: int, steps: int) -> None:
        state = initial(seed)
        self.states = [state]
        self.digests: list[int] = []
        for step in range(steps):
            gradient = _whole(root(lanes), step, state)
            self.digests.append(digest(gradient))
            state = stepped(state, gradient)
            self.states.append(state)


def _whole(node: Node, step: int, state: int) -> int:
    if node.size == 1:
        return lane_gradient(step, node.start, state)
    left, right = children(node)
    return added(_whole(left, step, state), _whole(right, step, state))
