"""One step of the user's loop: hands out this replica's share of microbatches until the step is committed.

Before the commit `.grad` is empty outside `backward`, so that no mistake in the loop can reach the optimizer with local
gradients: whatever goes wrong, the next use of the job raises and says what to do.
"""

import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NoReturn

import torch

from regrow.core.effects import Commit, Compute, Leave, Reduce
from regrow.core.errors import ConfigError
from regrow.core.events import LaneDone
from regrow.core.lanes import lanes_in, leaf
from regrow.core.order import commit_seed, microbatch_seed
from regrow.core.progress import Phase
from regrow.core.records import Audited, Committed, Fact, LaneComputed
from regrow.shell.faultpoint import faultpoint
from regrow.state.byproducts import Byproducts
from regrow.worker.buffers import Buffers
from regrow.worker.data import Data
from regrow.worker.driver import Driver
from regrow.worker.guard import Guard
from regrow.worker.metrics import Metrics
from regrow.worker.randomness import seed_everything


class Microbatch(Enum):
    """Where the microbatch in the user's hands stands."""

    NONE = "no microbatch is open"
    OPEN = "handed out, no backward yet"
    DONE = "backward was called, or it was skipped"
    VOID = "its backward raised"


class Step:
    """What the outer loop yields."""

    def __init__(
        self,
        first: Compute | Commit | Reduce,
        driver: Driver,
        data: Data,
        guard: Guard,
        buffers: Buffers,
        note: Callable[[Fact], None],
        told: Callable[[Commit], None],
        fail: Callable[[Leave], NoReturn],
    ) -> None:
        self.index = first.step
        self.live = not (
            first.by == "record" if isinstance(first, Commit) else isinstance(first, Compute) and first.is_audit
        )
        """False while a joiner replays steps that were committed without it."""
        self.loss: float = float("nan")
        """The weighted mean over the step's microbatches: the same on every replica. Known after the inner loop."""
        self.reporter = False
        """True on exactly one live replica. Known after the inner loop."""
        self.lanes_present = 0
        """How many lanes the step's gradient is made of: the same on every replica. Known after the inner loop."""
        self.metrics = Metrics()
        """Means over the step's microbatches: the same on every replica. Known after the inner loop."""
        self.committed = False
        self.open = False
        """Is its inner loop under way?"""
        self._driver = driver
        self._data = data
        self._guard = guard
        self._buffers = buffers
        self._note = note
        self._told = told
        self._fail = fail
        self._first: Compute | Commit | Reduce | None = first
        self._microbatch = Microbatch.NONE
        self._lane: int | None = None
        self._audited: int | None = None
        self._lane_s: list[float] = []
        """How long each lane took that was computed here."""

    def __iter__(self) -> Iterator[Any]:
        if self._first is None:
            raise ConfigError(f"step {self.index} was looped over twice: each step has one inner loop")
        self._driver.partials.begin_step(self._driver.replica.trained())
        self._guard.remember()
        self._buffers.settle()
        self._driver.audit.begin(self.index)
        work: Compute | Commit | Reduce | Leave = self._first
        self._first = None
        self.open = True
        try:
            while True:
                match work:
                    case Compute():
                        yield from self._hand_out(work)
                    case Reduce():
                        self._driver.reduce(work)
                    case Commit():
                        self._commit(work)
                        return
                    case Leave():
                        self._fail(work)
                work = self._driver.advance()
        finally:
            self.open = False
            if self._lane is not None:
                self._driver.partials.void_lane()

    @property
    def lane(self) -> int | None:
        """The lane under way: where an exception is to be blamed."""
        return self._lane

    def backward(self, loss: torch.Tensor, weight: float = 1.0) -> None:
        """Compute this microbatch's gradient and keep it for the step. Once per batch."""
        if self._microbatch is not Microbatch.OPEN:
            raise ConfigError(f"step.backward() in step {self.index}, but {self._microbatch.value}: call it once per batch")
        if not weight >= 0.0:
            raise ConfigError(f"step.backward(weight={weight}): a weight must be 0 or more")
        faultpoint("backward", step=self.index, lane=-1 if self._lane is None else self._lane)
        self._microbatch = Microbatch.VOID
        self._driver.partials.begin_backward(weight)
        try:
            (loss if weight == 1.0 else loss * weight).backward()  # type: ignore[no-untyped-call]
            self._driver.partials.absorb(weight, float(loss.detach()))
        finally:
            self._driver.partials.clear_grads()
        self._microbatch = Microbatch.DONE

    def skip(self) -> None:
        """Drop this batch knowingly: it counts neither in the gradient nor in the division."""
        if self._microbatch is not Microbatch.OPEN:
            raise ConfigError(f"step.skip() in step {self.index}, but {self._microbatch.value}")
        self._microbatch = Microbatch.DONE

    def _hand_out(self, work: Compute) -> Iterator[Any]:
        lane, grid, partials = work.lane, self._data.grid, self._driver.partials
        begun_s = time.monotonic()
        partials.begin_lane()
        self._buffers.rewind()
        self.metrics.begin_lane()
        self._lane = lane
        stamp = self._driver.stamp
        for number in range(grid.microbatches_per_lane):
            stamp.enter(Phase.DATA, self.index, lane)
            batch = self._data.microbatch(self.index, lane, number)
            # After the fetch: what the data drew, and in which process, must not reach the forward pass.
            seed_everything(microbatch_seed(grid.seed, self.index, lane, number))
            stamp.enter(Phase.MICROBATCH, self.index, lane)
            faultpoint("forward", step=self.index, lane=lane)
            if work.then is not None and number == grid.microbatches_per_lane - 1:
                self._driver.flow(work.then, lane)
            self._microbatch = Microbatch.OPEN
            yield batch
            self._close()
        positions = grid.lane_positions(self.index, lane)
        floats, others = self._buffers.take(self.index)
        partials.end_lane(lane, Byproducts(1, floats, others, self.metrics.end_lane(), self._data.end_lane(lane)))
        self._lane = None
        self._lane_s.append(time.monotonic() - begun_s)
        stamp.enter(Phase.TURN)
        digest = partials.digest(lane) if work.digests else None
        if work.is_audit:
            partials.drop([leaf(lane)])
        else:
            self._note(LaneComputed(step=self.index, lane=lane, start=positions.start, stop=positions.stop))
        faultpoint("audit" if work.is_audit else "lane", step=self.index, lane=lane)
        self._driver.tell(LaneDone(lane=lane, digest=digest))
        self._audited = lane if work.is_audit else None

    def _close(self) -> None:
        if self._microbatch is Microbatch.OPEN:
            raise ConfigError(
                f"a batch of step {self.index} was left without step.backward(loss): call it once for every batch, or "
                "step.skip() to drop one knowingly"
            )
        if self._microbatch is Microbatch.VOID:
            raise ConfigError(f"a backward of step {self.index} raised and the loop went on: its lane has no gradient")
        self._microbatch = Microbatch.NONE
        if any(parameter.grad is not None for parameter in self._driver.partials.parameters):
            raise ConfigError(
                f"a gradient appeared in step {self.index} outside step.backward(): use step.backward(loss) instead of "
                "loss.backward()"
            )
        self._guard.check(self.index)

    def _commit(self, commit: Commit) -> None:
        self._driver.stamp.enter(Phase.COMMIT, self.index)
        self._guard.check(self.index)
        if commit.by == "record":
            self._driver.take_in(commit)
            if self._audited is not None:
                self._note(Audited(step=self.index, lane=self._audited))
        result = self._driver.partials.publish()
        self._driver.feed(commit, result)
        if self.live:
            self._driver.timed(len(self._lane_s), sum(self._lane_s))
        self._buffers.commit(result.byproducts, self.index)
        self._data.commit(result.byproducts.positions)
        self.metrics.agree(result.byproducts.metrics)
        self.loss = result.loss
        self.lanes_present = len(lanes_in(node for nodes in commit.holdings for node in nodes))
        self.committed = True
        self.reporter = commit.reporter == self._driver.attendance.me
        self._note(
            Committed(
                step=commit.step,
                attempt=commit.attempt,
                digest=commit.digest,
                holdings=commit.holdings,
                by=commit.by,
                loss=_number(self.loss),
                metrics={name: _number(value) for name, value in self.metrics.items()},
            )
        )
        seed_everything(commit_seed(self._data.grid.seed, self.index))
        self._driver.stamp.enter(Phase.BETWEEN, self.index)
        faultpoint("passed", step=self.index)
        self._told(commit)


def _number(value: float) -> float | None:
    """As JSON has it: not a number is none."""
    return None if value != value else value
