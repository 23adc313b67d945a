"""The two loops, in a job of one: what they compute, and what they say when they are misused."""

from collections.abc import Callable

import pytest
import torch

import regrow
from regrow.worker import job as job_module
from regrow.worker.job import Job

pytestmark = pytest.mark.usefixtures("one_job")


class Numbers:
    def __init__(self, size: int = 50) -> None:
        self.size = size
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        return torch.full((3,), float(index))


def build(lanes: int = 4, microbatches_per_lane: int = 1) -> tuple[Job, torch.nn.Linear, torch.optim.Optimizer]:
    job = regrow.join(lanes=lanes, microbatches_per_lane=microbatches_per_lane, seed=3)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job.track(model=model, optimizer=optimizer)
    return job, model, optimizer


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch / 50).square().mean()


def test_the_gradient_is_the_mean_over_microbatches() -> None:
    job, model, _ = build(lanes=4, microbatches_per_lane=2)
    numbers = Numbers()
    reference = torch.nn.Linear(3, 1)
    reference.load_state_dict(model.state_dict())
    losses = []
    for step in job.steps(1, job.data(numbers, batch_size=2)):
        for batch in step:
            loss = loss_of(reference, batch)
            (loss / 8).backward()
            losses.append(loss.item())
            step.backward(loss_of(model, batch))
        assert step.loss == pytest.approx(sum(losses) / 8)
        assert step.reporter
        assert model.weight.grad is not None and reference.weight.grad is not None
        torch.testing.assert_close(model.weight.grad, reference.weight.grad)
    assert len(set(numbers.asked)) == len(numbers.asked) == 16


def test_weights_weigh_and_skipped_batches_do_not_count() -> None:
    job, model, _ = build(lanes=3)
    expected, total = torch.zeros(1, 3), 0.0
    for step in job.steps(1, job.data(Numbers(), batch_size=2)):
        for number, batch in enumerate(step):
            if number == 1:
                step.skip()
                continue
            weight = float(number + 1)
            (gradient,) = torch.autograd.grad(loss_of(model, batch), [model.weight])
            expected, total = expected + weight * gradient, total + weight
            step.backward(loss_of(model, batch), weight=weight)
        assert model.weight.grad is not None
        torch.testing.assert_close(model.weight.grad, expected / total)


def test_an_epoch_uses_every_sample_once_and_steps_span_epochs() -> None:
    job, model, _ = build(lanes=4)
    numbers = Numbers(size=10)
    for step in job.steps(5, job.data(numbers, batch_size=1)):
        for batch in step:
            step.backward(loss_of(model, batch))
    assert sorted(numbers.asked[:10]) == sorted(numbers.asked[10:]) == list(range(10))


def test_a_parameter_without_gradient_keeps_none() -> None:
    job = regrow.join(lanes=2, seed=0)
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 1), "unused": torch.nn.Linear(3, 1)})
    job.track(model=model)
    for step in job.steps(1, job.data(Numbers(), batch_size=1)):
        for batch in step:
            step.backward(loss_of(model["used"], batch))
        assert model["used"].weight.grad is not None
        assert model["unused"].weight.grad is None


def test_random_state_after_the_inner_loop_does_not_depend_on_what_the_lanes_drew() -> None:
    drawn = []
    for extra in (0, 7):
        job_module.current = None
        job, model, _ = build()
        for step in job.steps(1, job.data(Numbers(), batch_size=1)):
            for batch in step:
                torch.rand(extra)
                step.backward(loss_of(model, batch))
            drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1]


def test_stop_ends_the_loop_after_the_step_under_way() -> None:
    job, model, optimizer = build()
    seen = []
    for step in job.steps(10, job.data(Numbers(), batch_size=1)):
        if step.index == 2:
            job.stop()
        for batch in step:
            step.backward(loss_of(model, batch))
        optimizer.step()
        seen.append(step.index)
    assert seen == [0, 1, 2]


def test_no_steps_is_a_loop_that_ends_at_once() -> None:
    job, _, _ = build()
    assert list(job.steps(0, job.data(Numbers(), batch_size=1))) == []


Body = Callable[[Job, regrow.worker.step.Step, torch.nn.Linear, torch.optim.Optimizer], None]


def forgot_backward(job: Job, step, model, optimizer) -> None:
    for _batch in step:
        pass


def broke(job: Job, step, model, optimizer) -> None:
    for batch in step:
        step.backward(loss_of(model, batch))
        break
    assert model.weight.grad is None
    optimizer.step()


def never_looped(job: Job, step, model, optimizer) -> None:
    optimizer.step()


def twice(job: Job, step, model, optimizer) -> None:
    for batch in step:
        step.backward(loss_of(model, batch))
        step.backward(loss_of(model, batch))


def plain_backward(job: Job, step, model, optimizer) -> None:
    for batch in step:
        loss_of(model, batch).backward()
        step.skip()


def optimizer_inside(job: Job, step, model, optimizer) -> None:
    for batch in step:
        step.backward(loss_of(model, batch))
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()


def parameter_inside(job: Job, step, model, optimizer) -> None:
    for batch in step:
        step.backward(loss_of(model, batch))
        with torch.no_grad():
            model.weight.mul_(0.5)


def swallowed(job: Job, step, model, optimizer) -> None:
    for batch in step:
        try:
            step.backward(loss_of(model, batch).detach())
        except RuntimeError:
            pass


def looped_twice(job: Job, step, model, optimizer) -> None:
    for batch in step:
        step.backward(loss_of(model, batch))
    for batch in step:
        step.backward(loss_of(model, batch))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (forgot_backward, "without step.backward"),
        (broke, "was left before it was committed"),
        (never_looped, "was left before it was committed"),
        (twice, "once per batch"),
        (plain_backward, "instead of loss.backward"),
        (optimizer_inside, r"optimizer\.step\(\) inside the inner loop"),
        (parameter_inside, r"model\.weight was changed inside the inner loop"),
        (swallowed, "raised and the loop went on"),
        (looped_twice, "looped over twice"),
    ],
)
def test_misuse_of_the_loop_is_named(body: Body, says: str) -> None:
    job, model, optimizer = build()
    before = model.weight.detach().clone()
    with pytest.raises(regrow.ConfigError, match=says):
        for step in job.steps(3, job.data(Numbers(), batch_size=1)):
            body(job, step, model, optimizer)
    if body is not parameter_inside:
        assert torch.equal(model.weight, before), "a mistake in the loop reached the optimizer"


def test_sparse_gradients_are_refused_by_name() -> None:
    job = regrow.join(lanes=1, seed=0)
    model = torch.nn.Embedding(60, 1, sparse=True)
    job.track(model=model)
    with pytest.raises(regrow.ConfigError, match=r"model\.weight"):
        for step in job.steps(1, job.data(Numbers(), batch_size=2)):
            for batch in step:
                step.backward(model(batch.long()).square().mean())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda job: job.data(Numbers(0), batch_size=1), "empty dataset"),
        (lambda job: job.data(Numbers(), batch_size=0), "batch_size=0"),
        (lambda job: job.data(3, batch_size=1), "neither a map-style dataset"),
        (lambda job: job.data(Numbers()), "say how many samples"),
        (lambda job: job.data(Numbers(), 1, num_workers=-1), "num_workers=-1"),
        (lambda job: job.data(Numbers(), 1, prefetch=0), "prefetch=0"),
        (lambda job: job.data(Numbers(), 1, timeout_s=1.0), "for data workers"),
        (lambda job: job.data(Numbers(), 1, num_workers=1, timeout_s=0.0), "more than 0"),
        (lambda job: job.data(lambda step, lane, microbatch: 0, batch_size=2), "leave batch_size out"),
        (lambda job: job.data(lambda step, lane, microbatch: 0, collate=list), "leave collate out"),
        (lambda job: job.steps(3, job.data(Numbers(), batch_size=1)), "before track"),
        (lambda job: job.track(thing=3), "without state_dict"),
        (lambda job: job.stop(), "before steps"),
        (lambda job: regrow.join(), "called twice"),
    ],
)
def test_bad_calls_say_what_to_do(call: Callable[[Job], object], says: str) -> None:
    job = regrow.join(lanes=2)
    with pytest.raises(regrow.ConfigError, match=says):
        call(job)


@pytest.mark.parametrize("bad", [{"lanes": 0}, {"microbatches_per_lane": 0}, {"threads": 0}])
def test_join_refuses_less_than_one(bad: dict[str, int]) -> None:
    with pytest.raises(regrow.ConfigError, match="must be at least 1"):
        regrow.join(**bad)


def test_importing_regrow_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, regrow; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
