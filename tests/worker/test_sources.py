"""Where microbatches come from, in a job of one: what is asked for, and which random state it is made in."""

import random

import numpy
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


class Drawn:
    """Each sample is its index and what three generators say; drawing `extra` times more changes nothing."""

    def __init__(self, extra: int = 0) -> None:
        self._extra = extra

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = torch.tensor([index, torch.rand(1).item(), random.random(), numpy.random.rand()])
        for _ in range(self._extra):
            torch.rand(1), random.random(), numpy.random.rand()
        return drawn


def drawn(lanes: int, batch_size: int, steps: int, extra: int = 0) -> list[tuple[float, ...]]:
    job, model = fresh(lanes=lanes)
    rows: list[tuple[float, ...]] = []
    for step in job.steps(steps, job.data(Drawn(extra), batch_size=batch_size)):
        for batch in step:
            rows += [tuple(row) for row in batch.tolist()]
            step.backward(model(batch[:, :3]).mean())
    return rows


def test_a_samples_random_state_is_its_own_whatever_is_read_beside_it() -> None:
    rows = drawn(lanes=2, batch_size=4, steps=2)
    assert rows == drawn(lanes=4, batch_size=2, steps=2) == drawn(lanes=1, batch_size=1, steps=16, extra=3)
    first, second = rows[:8], rows[8:]
    assert sorted(row[0] for row in first) == sorted(row[0] for row in second) == list(range(8))
    assert not {row[1:] for row in first} & {row[1:] for row in second}, "the next epoch augments in another way"


def test_collating_has_a_random_state_of_its_own() -> None:
    seen = []
    for extra in (0, 2):
        job, model = fresh()
        data = job.data(Drawn(extra), batch_size=2, collate=lambda samples: torch.rand(2, 3))
        for step in job.steps(1, data):
            for batch in step:
                seen.append(batch.tolist())
                step.backward(model(batch).mean())
    assert seen[:2] == seen[2:] and seen[0] != seen[1]


def test_data_is_made_with_one_thread_and_the_rest_with_the_jobs() -> None:
    job_module.current = None
    job = regrow.join(lanes=1, threads=2)
    model = torch.nn.Linear(3, 1)
    job.track(model=model)
    threads = []

    def batch(step: int, lane: int, microbatch: int) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return torch.ones(1, 3)

    for step in job.steps(1, job.data(batch)):
        for x in step:
            threads.append(torch.get_num_threads())
            step.backward(model(x).mean())
    torch.set_num_threads(1)
    assert threads == [1, 2]


def test_an_error_names_the_sample() -> None:
    class Torn(Drawn):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise OSError("unreadable")

    job, _ = fresh()
    with pytest.raises(OSError, match="unreadable") as raised:
        for step in job.steps(1, job.data(Torn(), batch_size=1)):
            list(step)
    assert raised.value.__notes__[0].startswith("in sample ")
