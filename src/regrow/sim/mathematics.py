"""Training as symbols: a state is a hash chain over gradients, a gradient is a hash over the canonical tree of lanes.

Whoever adds a lane twice, drops one, adds in another order, or computes from another state gets another number.
"""

from collections.abc import Iterable

from regrow.core.lanes import Node, children, leaf, root
from regrow.core.order import mix

_LEAF, _SUM, _ODD, _STEP, _DIGEST = 1, 2, 3, 4, 5


def initial(seed: int) -> int:
    return mix(_STEP, seed)


def lane_gradient(step: int, lane: int, state: int) -> int:
    return mix(_LEAF, step, lane, state)


def added(left: int, right: int) -> int:
    return mix(_SUM, left, right)


def reduced(lanes: int, parts: Iterable[tuple[Node, int]]) -> int:
    """The root, from what the members hold. Parts that overlap give a number that is nobody's."""
    listed = list(parts)
    have = dict(listed)
    used: set[Node] = set()

    def value(node: Node) -> int | None:
        if node in have:
            used.add(node)
            return have[node]
        if node.size == 1:
            return None  # left out
        sides = [side for side in map(value, children(node)) if side is not None]
        return added(*sides) if len(sides) == 2 else sides[0] if sides else None

    total = value(root(lanes))
    if total is None or len(used) != len(listed):
        return mix(_ODD, total or 0, len(listed))
    return total


def stepped(state: int, gradient: int) -> int:
    return mix(_STEP, state, gradient)


def digest(gradient: int) -> int:
    return mix(_DIGEST, gradient)


class Reference:
    """The undisturbed run: what every step's gradient digest and state must be, of the lanes that make it up."""

    def __init__(self, seed: int, lanes: int) -> None:
        self._lanes = lanes
        self.states = [initial(seed)]
        self._digests: list[int] = []

    def branch(self, step: int) -> "Reference":
        """The same up to the state of this step; from there on other lanes may be left out than here."""
        line = Reference(0, self._lanes)
        line.states, line._digests = self.states[: step + 1], self._digests[:step]
        return line

    def digest(self, step: int, left_out: frozenset[int]) -> int:
        """Of a step committed without these lanes; the first to commit a step says which."""
        if step == len(self._digests):
            state = self.states[step]
            parts = [(leaf(n), lane_gradient(step, n, state)) for n in range(self._lanes) if n not in left_out]
            gradient = reduced(self._lanes, parts)
            self._digests.append(digest(gradient))
            self.states.append(stepped(state, gradient))
        return self._digests[step]
