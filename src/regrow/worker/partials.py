"""The gradients of the step in doubt: one partial sum per held subtree, the lane under way, and the result.

Partials stay untouched until the step is committed: whatever breaks meanwhile, the reduce can be done again from them.
"""

from collections.abc import Iterable

import torch

from regrow.collectives.group import Group
from regrow.collectives.reduce import reduce
from regrow.core.attendance import Holdings
from regrow.core.errors import Invariant
from regrow.core.lanes import Node, children, leaf
from regrow.state.byproducts import Byproducts
from regrow.state.gradient import Gradient, Pool, add_, digest
from regrow.state.layout import Layout


class Partials:
    def __init__(self, parameters: list[tuple[str, torch.Tensor]], lanes: int) -> None:
        self._lanes = lanes
        self._lay_out(parameters)
        self._held: dict[Node, Gradient] = {}
        self._lane: Gradient | None = None
        self._result: Gradient | None = None
        self._published: Gradient | None = None
        """The committed result that `.grad` points into; the user may do with it what he likes."""

    def _lay_out(self, parameters: list[tuple[str, torch.Tensor]]) -> None:
        self.parameters = [parameter for _, parameter in parameters]
        self._layout = Layout(parameters)
        self._pool = Pool(self._layout)

    def begin_step(self, parameters: list[tuple[str, torch.Tensor]]) -> None:
        """These are trained from now on."""
        if [id(parameter) for _, parameter in parameters] == [id(parameter) for parameter in self.parameters]:
            return
        if self._held or self._lane or self._result or self._published:
            raise Invariant("parameters were frozen or unfrozen in the middle of a step")
        self._lay_out(parameters)

    # A lane

    def begin_lane(self) -> None:
        self._lane = self._pool.take()

    def absorb(self, weight: float, loss: float) -> None:
        """Take a microbatch's `.grad`s into the lane."""
        if self._lane is None:
            raise Invariant("a microbatch outside a lane")
        self._lane.absorb(self.parameters, weight, loss)

    def void_lane(self) -> None:
        if self._lane is not None:
            self._pool.give(self._lane)
            self._lane = None

    def end_lane(self, lane: int, byproducts: Byproducts) -> None:
        if self._lane is None or leaf(lane) in self._held:
            raise Invariant(f"lane {lane} ended twice, or never began")
        self._lane.byproducts = byproducts
        self._held[leaf(lane)], self._lane = self._lane, None

    # Subtrees

    def merge(self, parent: Node) -> None:
        left, right = (self._held.pop(child) for child in children(parent))
        add_(left, right)
        self._pool.give(right)
        self._held[parent] = left

    def drop(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._pool.give(self._held.pop(node))

    # The result

    def reduce(self, group: Group, holdings: Holdings) -> int:
        """The complete result, kept here; returns its digest."""
        if self._result is not None:
            self._pool.give(self._result)
            self._result = None
        self._result = reduce(group, group.rank, self._layout, self._lanes, holdings, self._held, self._pool)
        return digest(self._result)

    def publish(self) -> Gradient:
        """The step is committed: `.grad` of every parameter is its part of the result, None where absent everywhere."""
        if self._result is None:
            raise Invariant("a step was committed without a result")
        self.drop(list(self._held))
        self._published, self._result = self._result, None
        for index, (parameter, view) in enumerate(zip(self.parameters, self._published.views, strict=True)):
            parameter.grad = view if self._published.present >> index & 1 else None
        return self._published

    def retract(self) -> None:
        """A new step begins: `.grad` is empty again, whatever the user left there."""
        self.clear_grads()
        if self._published is not None:
            self._pool.give(self._published)
            self._published = None

    def clear_grads(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
