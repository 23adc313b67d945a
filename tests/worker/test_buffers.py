"""Buffers that the forward pass changes, metrics, and parameters that are frozen for a while, in a job of one."""

from collections.abc import Callable

import pytest
import torch

import regrow
from regrow.worker.step import Step

pytestmark = pytest.mark.usefixtures("one_job")

LANES = 4
DATA = [torch.sin(torch.arange(3.0) * (index + 1)) for index in range(50)]


class Counting(torch.nn.Module):
    """Does to its buffer what it is told, and calls what it is given."""

    def __init__(self, change: Callable[["Counting", torch.Tensor], None], start: torch.Tensor, persistent: bool = True):
        super().__init__()
        self.change = change
        self.linear = torch.nn.Linear(3, 1)
        self.register_buffer("seen", start, persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self, x)
        return self.linear(x)


def train(model: torch.nn.Module, steps: int = 1, at: Callable[[Step, torch.Tensor], None] = lambda step, x: None) -> None:
    job = regrow.join(lanes=LANES, microbatches_per_lane=2, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.track(model=model, optimizer=optimizer)
    for step in job.steps(steps, job.data(DATA, batch_size=2)):
        for x in step:
            at(step, x)
            step.backward(model(x).square().mean())
        optimizer.step()


def test_running_statistics_become_the_mean_over_the_lanes_each_begun_from_the_committed_ones() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    lanes: list[list[torch.Tensor]] = []

    def remember(step: Step, x: torch.Tensor) -> None:
        assert not model[0].running_mean.any() or step.index or len(lanes[-1]) == 1, "a lane began with another's statistics"
        if not lanes or len(lanes[-1]) == 2:
            lanes.append([])
        lanes[-1].append(x)

    train(model, at=remember)
    found = []
    for first, second in lanes:
        alone = torch.nn.BatchNorm1d(3)
        alone(first), alone(second)
        found.append(alone)
    for name in ("running_mean", "running_var"):
        values = torch.stack([getattr(alone, name) for alone in found]).double()
        total = (values[0] + values[1]) + (values[2] + values[3])
        assert torch.equal(getattr(model[0], name), (total / LANES).float())
    assert int(model[0].num_batches_tracked) == 2, "as many as a lane has microbatches"


def test_a_buffer_that_is_put_in_anothers_place_is_agreed_on_too() -> None:
    def replace(module: Counting, x: torch.Tensor) -> None:
        module.seen = module.seen + x.mean()

    model = Counting(replace, torch.zeros(()))
    first = model.seen
    means: list[float] = []
    train(model, at=lambda step, x: means.append(float(x.mean())))
    assert model.seen is first, "the tensor that others may hold stays in its place"
    assert float(model.seen) == pytest.approx(sum(means) / LANES)


def test_a_lane_that_leaves_a_buffer_alone_counts_with_the_committed_value() -> None:
    def change_once(module: Counting, x: torch.Tensor) -> None:
        if not calls:
            module.seen += 8.0
        calls.append(1)

    calls: list[int] = []
    model = Counting(change_once, torch.full((2,), 1.0))
    train(model)
    assert model.seen.tolist() == [3.0, 3.0]


def test_what_the_script_does_between_the_loops_stays() -> None:
    model = Counting(lambda module, x: module.seen.add_(1.0), torch.zeros(()))
    job = regrow.join(lanes=LANES, seed=3)
    job.track(model=model)
    for step in job.steps(2, job.data(DATA, batch_size=1)):
        for x in step:
            step.backward(model(x).mean())
        assert model.seen == 1.0
        model.seen.zero_()
        if step.index == 1:
            break


def test_what_is_no_float_must_come_out_the_same_in_every_lane() -> None:
    model = Counting(lambda module, x: module.seen.add_(1), torch.zeros((), dtype=torch.int64))
    train(model, steps=3)
    assert model.seen == 6, "two microbatches to a lane, three steps"


@pytest.mark.parametrize(
    ("change", "start", "persistent", "says"),
    [
        (
            lambda m, x: m.seen.add_((x[0, 1] > 0).int()),
            torch.zeros((), dtype=torch.int32),
            True,
            r"model\.seen .*2 different",
        ),
        (lambda m, x: m.seen.add_(1.0), torch.zeros(()), False, r"model\.seen .*persistent=True"),
        (lambda m, x: setattr(m, "seen", torch.zeros(5)), torch.zeros(()), True, r"model\.seen changed its shape"),
        (lambda m, x: setattr(m, "seen", None), torch.zeros(()), True, r"model\.seen changed its shape"),
    ],
    ids=["depends on the batch", "not persistent", "another shape", "gone"],
)
def test_what_cannot_be_agreed_on_is_refused_by_name(
    change: Callable[[Counting, torch.Tensor], None], start: torch.Tensor, persistent: bool, says: str
) -> None:
    with pytest.raises(regrow.ConfigError, match=says):
        train(Counting(change, start, persistent))


def test_a_metric_is_the_weighted_mean_over_all_batches() -> None:
    job = regrow.join(lanes=LANES, microbatches_per_lane=2, seed=3)
    model = torch.nn.Linear(3, 1)
    job.track(model=model)
    added: list[tuple[float, float]] = []
    for step in job.steps(1, job.data(DATA, batch_size=2)):
        for x in step:
            weight = float(len(added) % 3)
            added.append((float(x.sum()), weight))
            step.metrics.add("sum", x.sum(), weight=weight)
            if len(added) == 5:
                step.metrics.add("rare", 7)
            step.backward(model(x).mean())
        assert dict(step.metrics) == {"rare": 7.0, "sum": pytest.approx(sum(v * w for v, w in added) / 7)}
        with pytest.raises(KeyError):
            step.metrics["unknown"]
        with pytest.raises(regrow.ConfigError, match="outside the inner loop"):
            step.metrics.add("late", 1.0)


def test_a_metric_is_not_known_inside_the_loop_and_has_no_negative_weight() -> None:
    def read(step: Step, x: torch.Tensor) -> None:
        with pytest.raises(regrow.ConfigError, match="weight=-1"):
            step.metrics.add("m", 1.0, weight=-1)
        step.metrics["m"]

    with pytest.raises(regrow.ConfigError, match="known after it"):
        train(torch.nn.Linear(3, 1), at=read)


def test_parameters_may_be_frozen_and_unfrozen_between_steps() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    job = regrow.join(lanes=LANES, seed=3)
    job.track(model=model)
    for step in job.steps(3, job.data(DATA, batch_size=1)):
        model[0].requires_grad_(step.index == 1)
        for x in step:
            step.backward(model(x).mean())
        assert (model[0].weight.grad is not None) is (step.index == 1)
        assert model[1].weight.grad is not None
