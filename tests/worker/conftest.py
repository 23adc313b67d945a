"""One job per test, and torch as it was afterwards."""

from collections.abc import Iterator

import pytest
import torch

from regrow.worker import job as job_module


@pytest.fixture
def one_job() -> Iterator[None]:
    job_module.current = None
    yield
    job_module.current = None
    torch.use_deterministic_algorithms(False)
