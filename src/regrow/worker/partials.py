"""The gradients of the step in doubt: one partial sum per held subtree, the lane under way, and the result.

Partials stay untouched until the step is committed: whatever breaks meanwhile, the reduce can be done again from them. The
last lane's last microbatch may travel while it is computed (state.tail); until the commit it can still be taken in as any
other, and what it completes be added up.
"""

from collections.abc import Collection

import torch

from regrow.collectives.group import Group
from regrow.collectives.reduce import SMALL_BYTES, Arrived, Reduction, Terms, is_small
from regrow.core.effects import Reduce
from regrow.core.errors import Invariant
from regrow.core.lanes import Node, children, leaf, merges
from regrow.state.byproducts import Byproducts
from regrow.state.gradient import Gradient, Pool, add_, dense, digest
from regrow.state.layout import Layout
from regrow.state.record import fill
from regrow.state.tail import Tail
from regrow.worker.flow import Flow, FlowThread


class Partials:
    def __init__(self, parameters: list[tuple[str, torch.Tensor]], lanes: int, bucket_bytes: int) -> None:
        self._lanes = lanes
        self._bucket_bytes = bucket_bytes
        self._small_bytes = min(SMALL_BYTES, bucket_bytes)
        self._hooks: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._held: dict[Node, Gradient] = {}
        self._is_in_lane = False
        self._lane: Gradient | None = None
        """What the lane under way has come to so far."""
        self._tail: Tail | None = None
        """The last microbatch, while it or its lane is not among the held."""
        self._tail_lane = -1
        self._tail_node = leaf(0)
        """The subtree that it completes."""
        self._due: list[Node] = []
        """What was to be merged since the tail's lane ended."""
        self._flow: Flow | None = None
        self._thread = FlowThread()
        self._result: Gradient | None = None
        self._published: Gradient | None = None
        """The committed result that `.grad` points into; the user may do with it what he likes."""
        self._lay_out(parameters)

    def _lay_out(self, parameters: list[tuple[str, torch.Tensor]]) -> None:
        self.parameters = [parameter for _, parameter in parameters]
        self._layout = Layout(parameters, self._bucket_bytes)
        self._pool = Pool(self._layout)
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    @property
    def buffers(self) -> int:
        """How many flat gradients are kept here in all."""
        return self._pool.made

    @property
    def result_bytes(self) -> int:
        return self._layout.size_bytes

    @property
    def result(self) -> Gradient:
        """What was reduced, and is not committed yet."""
        if self._result is None:
            raise Invariant("a result is to be logged, and there is none")
        return self._result

    def begin_step(self, parameters: list[tuple[str, torch.Tensor]]) -> None:
        """These are trained from now on."""
        if len(parameters) == len(self.parameters) and all(
            a is b for (_, a), b in zip(parameters, self.parameters, strict=True)
        ):
            return
        if self._held or self._is_in_lane or self._tail or self._result or self._published:
            raise Invariant("parameters were frozen or unfrozen in the middle of a step")
        self._lay_out(parameters)

    def _terms(self, work: Reduce) -> Terms:
        return Terms(self._layout, self._lanes, work.step, work.holdings)

    # A lane

    def begin_lane(self) -> None:
        self._settle()
        self._is_in_lane = True

    def flow(self, group: Group, work: Reduce, lane: int, arrived: Arrived | None = None) -> None:
        """The lane's last microbatch is next, and this reduce will follow if nothing happens: begin it."""
        terms = self._terms(work)
        if group.size == 1 or self._layout.device.type != "cpu" or is_small(terms, self._small_bytes):
            return
        if len(self._hooks) < len(self.parameters):
            self._listen()
        siblings, self._tail_node = self._siblings(lane)
        self._tail, self._tail_lane = Tail(self._layout, self._lane, siblings), lane
        reduction = Reduction(terms, dict(self._held), self._tail, self._pool, arrived)
        self._flow = Flow(work, group, reduction, self._tail, len(self._layout.buckets))
        self._thread.ask(self._flow.run)

    def _listen(self) -> None:
        """Be told when a gradient is made; but not of parameters that the script has frozen for the moment."""
        for index, parameter in enumerate(self.parameters):
            if index not in self._hooks and parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(_Ready(self, index))  # type: ignore[no-untyped-call]
                self._hooks[index] = hook

    def begin_backward(self, weight: float) -> None:
        if self._tail is not None:
            self._tail.begin(weight)

    def ready(self, index: int, grad: torch.Tensor | None) -> None:
        """Called by autograd."""
        if self._tail is not None and grad is not None and grad.layout == torch.strided:
            self._tail.ready(index, grad)

    def absorb(self, weight: float, loss: float) -> None:
        """Take a microbatch's `.grad`s into the lane."""
        if not self._is_in_lane:
            raise Invariant("a microbatch outside a lane")
        grads = [parameter.grad for parameter in self.parameters]
        if self._tail is not None:
            self._tail.complete(grads, loss)
            return
        for index, grad in enumerate(grads):
            if grad is not None:
                dense(self._layout, index, grad)
        self._lane = self._lane or self._pool.take()
        self._lane.absorb(grads, weight, loss)

    def end_lane(self, lane: int, byproducts: Byproducts) -> None:
        if not self._is_in_lane or leaf(lane) in self._held:
            raise Invariant(f"lane {lane} ended twice, or never began")
        if self._tail is not None:
            self._tail.byproducts = byproducts
            self._tail.end()
        else:
            self._held[leaf(lane)] = self._lane or self._pool.take()
            self._held[leaf(lane)].byproducts = byproducts
        self._lane, self._is_in_lane = None, False

    def void_lane(self) -> None:
        """It will not be ended."""
        self._give_up_flow()
        if self._lane is not None:
            self._pool.give(self._lane)
        self._lane, self._tail, self._is_in_lane = None, None, False

    # Subtrees

    def merge(self, parent: Node) -> None:
        if self._tail is not None:
            self._due.append(parent)
            return
        left, right = (self._held.pop(child) for child in children(parent))
        add_(left, right)
        self._pool.give(right)
        self._held[parent] = left

    def drop(self, nodes: Collection[Node]) -> None:
        if nodes:
            self._settle()
        for node in nodes:
            self._pool.give(self._held.pop(node))

    def _siblings(self, lane: int) -> tuple[list[tuple[Gradient, bool]], Node]:
        """What this lane is added to once it is done, in order, and whether that stands on the left; and what it becomes."""
        found, node = [], leaf(lane)
        for parent in merges(self._lanes, {*self._held, node}):
            left, right = children(parent)
            if node in (left, right):
                found.append((self._held[left if node == right else right], node == right))
                node = parent
        return found, node

    def _settle(self) -> None:
        """What the tail is part of becomes a partial sum like any other. Nothing of it travels any more."""
        self._give_up_flow()
        tail, self._tail = self._tail, None
        if tail is not None:
            self._held[leaf(self._tail_lane)] = tail.finish(self._pool)
            due, self._due = self._due, []
            for parent in due:
                self.merge(parent)

    def _give_up_flow(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.give_up()
            self._pool.give(flow.reduction.result)

    # The result

    def flows(self, work: Reduce) -> bool:
        """Is this very reduce under way already?"""
        return self._flow is not None and self._flow.work == work

    def await_flow(self) -> None:
        """Wait until all of it that can go on without the training thread is done; PeerError when it broke."""
        if self._flow is not None:
            self._flow.wait()

    def reduce(self, group: Group, work: Reduce) -> int:
        """The complete result, kept here; returns its digest."""
        if self._result is not None:
            self._pool.give(self._result)
            self._result = None
        if self._flow is not None and self.flows(work):
            digest = self._flow.reduction.close(group)
            self._result, self._flow = self._flow.reduction.result, None
            return digest
        terms = self._terms(work)
        if (
            self._tail is not None
            and self._tail_node in work.holdings[group.rank]
            and not is_small(terms, self._small_bytes)
        ):
            self._give_up_flow()  # again, from the same gradients: nothing of them has changed
            self._tail.stale.clear()
        else:
            self._settle()
        reduction = Reduction(terms, self._held, self._tail, self._pool)
        try:
            digest = reduction.run(group, self._small_bytes)
        except BaseException:
            self._pool.give(reduction.result)
            raise
        self._result = reduction.result
        return digest

    def digest(self, lane: int) -> int:
        """Of a lane that has ended, before it is merged."""
        return digest(self._held[leaf(lane)])

    def take_in(self, data: torch.Tensor, summary: bytes, wanted: int) -> None:
        """A result that others committed: it is kept here as if it had been reduced. StateError when its digest differs."""
        self._result = self._result or self._pool.take()
        fill(self._result, data, summary, wanted)

    def publish(self) -> Gradient:
        """The step is committed: `.grad` of every parameter is its part of the result, None where absent everywhere."""
        if self._result is None:
            raise Invariant("a step was committed without a result")
        if self._tail is not None and self._tail.lane is not None:
            self._pool.give(self._tail.lane)
        self._tail, self._due = None, []
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


class _Ready:
    """A parameter's gradient is made: a hook must not keep more alive than it needs."""

    def __init__(self, partials: Partials, index: int) -> None:
        self._partials = partials
        self._index = index

    def __call__(self, parameter: torch.Tensor) -> None:
        self._partials.ready(self._index, parameter.grad)
