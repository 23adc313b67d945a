"""The thread that reduces beside backward computes as the training thread does."""

import queue
from collections.abc import Iterator

import pytest
import torch

from regrow.worker.flow import FlowThread


@pytest.fixture(params=[True, False])
def flushes(request: pytest.FixtureRequest) -> Iterator[bool]:
    torch.set_flush_denormal(request.param)
    yield request.param
    torch.set_flush_denormal(False)


def test_sums_of_the_flow_flush_denormals_where_the_training_thread_does(flushes: bool) -> None:
    tiny = torch.full((64,), 1e-40)
    sums: queue.Queue[bool] = queue.Queue()
    FlowThread().ask(lambda: sums.put(bool((tiny + tiny == 0).all())))
    assert bool((tiny + tiny == 0).all()) is flushes
    assert sums.get(timeout=20) is flushes
