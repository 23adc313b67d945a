"""Where microbatches come from, in a job of one: what is asked for, and which random state it is made in."""

import pytest
import torch

import regrow
from regrow.worker import job as job_module
from regrow.worker.job import Job

pytestmark = pytest.mark.usefixtures("one_job")


def fresh(lanes: int = 2, microbatches_per_lane: int = 1) -> tuple[Job, torch.nn.Linear]:
    job_module.current = None
    job = regrow.join(lanes=lanes, microbatches_per_lane=microbatches_per_lane, seed=3)
    model = torch.nn.Linear(3, 1)
    job.track(model=model)
    return job, model


def test_a_function_is_asked_for_every_microbatch_once_and_in_order() -> None:
    job, model = fresh(lanes=3, microbatches_per_lane=2)
    asked: list[tuple[int, int, int]] = []

    def batch(step: int, lane: int, microbatch: int) -> torch.Tensor:
        asked.append((step, lane, microbatch))
        return torch.full((1, 3), float(microbatch))

    for step in job.steps(2, job.data(batch)):
        for number, x in enumerate(step):
            assert x[0, 0] == number % 2
            step.backward(model(x).mean())
    assert asked == [(step, lane, number) for step in range(2) for lane in range(3) for number in range(2)]


def test_what_a_function_draws_is_its_own_and_does_not_reach_the_forward_pass() -> None:
    seen = []
    for draws in (1, 5):
        job, model = fresh()
        data, passes = [], []

        def batch(step: int, lane: int, microbatch: int, draws: int = draws, data: list[float] = data) -> torch.Tensor:
            data.append(torch.rand(draws)[0].item())
            return torch.ones(1, 3)

        for step in job.steps(2, job.data(batch)):
            for x in step:
                passes.append(torch.rand(1).item())
                step.backward(model(x).mean())
        assert len({*data, *passes}) == 8, "every microbatch has random states of its own"
        seen.append((data, passes))
    assert seen[0] == seen[1]
