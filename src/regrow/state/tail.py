"""The last microbatch of a member's last lane: its gradients travel while backward still makes the others.

They stay where autograd put them until the step is committed. What travels is made of them bucket by bucket, in the memory
that the result of that bucket will take: the lane so far plus this microbatch, then the subtrees that the lane completes.
Nothing that is kept is written to, so whatever comes of the attempt, the lane can still be finished in peace.

Two threads: the training thread says what is ready, another one takes it. Backward may add to a gradient again after it was
taken (a module that is used in several reentrant checkpoints): such a bucket is stale, and has to travel once more.
"""

import threading
from collections.abc import Sequence

import torch

from regrow.core.errors import PeerError
from regrow.state.byproducts import NOTHING, Byproducts
from regrow.state.gradient import Gradient, Part, Pool, add, combine, dense
from regrow.state.layout import Bucket, Layout

Taken = tuple[torch.Tensor | None, int]
"""A gradient as it was, and autograd's count of its changes."""


class Tail:
    def __init__(self, layout: Layout, lane: Gradient | None, siblings: Sequence[tuple[Gradient, bool]]) -> None:
        """`lane`: its microbatches before this one. `siblings`: what it is added to on its way up the tree, and whether
        that stands on the left of it."""
        self.lane = lane
        self.grads: list[torch.Tensor | None] = [None] * len(layout.spans)
        self.weight = 0.0
        self.mean_loss = 0.0
        self.byproducts: Byproducts = NOTHING
        self.stale: set[int] = set()
        """Indices of buckets that changed after they were taken."""
        self._layout = layout
        self._siblings = siblings
        self._bucket_of = [0] * len(layout.spans)
        for number, bucket in enumerate(layout.buckets):
            self._bucket_of[bucket.first : bucket.last] = [number] * (bucket.last - bucket.first)
        self._awaited = [bucket.last - bucket.first for bucket in layout.buckets]
        self._taken: dict[int, list[Taken]] = {}
        self._changed = threading.Condition()
        self._is_running = False
        self._is_complete = False
        self._is_given_up = False

    # The training thread

    def begin(self, weight: float) -> None:
        """Backward is about to run."""
        self.weight = weight
        self._is_running = True

    def ready(self, index: int, grad: torch.Tensor) -> None:
        """Backward has made this gradient. Called again for the same one, it only means that the last word was not said; and
        outside step.backward it was a backward of the script's own."""
        if self._is_running and self.grads[index] is None:
            self.grads[index] = grad
            number = self._bucket_of[index]
            self._awaited[number] -= 1
            if self._awaited[number] == 0:
                with self._changed:
                    self._changed.notify()

    def complete(self, grads: Sequence[torch.Tensor | None], mean_loss: float) -> None:
        """Backward is over: these are its gradients."""
        self._is_running = False
        self.mean_loss = mean_loss
        for index, grad in enumerate(grads):
            if grad is not None:
                dense(self._layout, index, grad)
        with self._changed:
            for number, taken in self._taken.items():
                bucket = self._layout.buckets[number]
                now = [_as_it_is(grad) for grad in grads[bucket.first : bucket.last]]
                if any(a[0] is not b[0] or a[1] != b[1] for a, b in zip(taken, now, strict=True)):
                    self.stale.add(number)
            self.grads = list(grads)
            self._is_complete = True
            self._changed.notify()

    def end(self) -> None:
        """The microbatch is closed; without a backward it has no gradients."""
        with self._changed:
            self._is_complete = True
            self._changed.notify()

    def give_up(self) -> None:
        """If it is not complete, it never will be."""
        with self._changed:
            self._is_given_up = True
            self._changed.notify()

    # Whoever reduces

    def part(self, number: int, out: torch.Tensor) -> Part:
        """A bucket of the subtree that this lane completes, made in `out`. Waits until backward has come that far."""
        bucket = self._layout.buckets[number]
        grads = self._take(number, bucket)
        views = self._layout.bucket_views(bucket, out)
        present = combine(self.lane, grads, bucket.first, views)
        part = Part(bucket.start, out, present, (self.lane.weight if self.lane else 0.0) + self.weight)
        for sibling, is_left in self._siblings:
            other = sibling.part(bucket.start, bucket.stop)
            left, right = (other, part) if is_left else (part, other)
            part = add(self._layout, left, right, out)
        return part

    @property
    def loss(self) -> float:
        """The sum of weight * loss of the subtree."""
        total = (self.lane.loss if self.lane else 0.0) + self.weight * self.mean_loss
        for sibling, is_left in self._siblings:
            total = sibling.loss + total if is_left else total + sibling.loss
        return total

    @property
    def all_byproducts(self) -> Byproducts:
        """Of the subtree."""
        total = self.byproducts
        for sibling, is_left in self._siblings:
            total = sibling.byproducts + total if is_left else total + sibling.byproducts
        return total

    def finish(self, pool: Pool) -> Gradient:
        """The lane, as if nothing of it had travelled."""
        lane = self.lane or pool.take()
        lane.absorb(self.grads, self.weight, self.mean_loss)
        lane.byproducts = self.byproducts
        return lane

    def _is_ready(self, number: int) -> bool:
        return self._awaited[number] == 0 or self._is_complete

    def _take(self, number: int, bucket: Bucket) -> list[torch.Tensor | None]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready(number) or self._is_given_up)
            if not self._is_ready(number):
                raise PeerError("the lane was given up")
            grads = self.grads[bucket.first : bucket.last]
            self._taken[number] = [_as_it_is(grad) for grad in grads]
        return grads


def _as_it_is(grad: torch.Tensor | None) -> Taken:
    return (None, 0) if grad is None else (grad, grad._version)
