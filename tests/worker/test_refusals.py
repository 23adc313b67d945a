"""What cannot work is refused by name before it does harm; what would be lost is warned of."""

import gc
import warnings
from collections.abc import Callable

import pytest
import torch

import regrow

pytestmark = pytest.mark.usefixtures("one_job")

DATA = [torch.sin(torch.arange(3.0) * (index + 1)) for index in range(20)]


def train(model: torch.nn.Module, update: Callable[[], object], inside: Callable[[], object] = int, **tracked) -> None:
    job = regrow.join(lanes=2, seed=3)
    job.track(model=model, **tracked)
    for step in job.steps(2, job.data(DATA, batch_size=1)):
        for x in step:
            step.backward(model(x).mean())
            inside()
        update()


def test_a_closure_is_refused_and_a_step_without_one_is_not() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer.step, optimizer=optimizer)
    for call in (lambda: optimizer.step(lambda: 1.0), lambda: optimizer.step(closure=lambda: 1.0)):
        with pytest.raises(regrow.ConfigError, match=r"optimizer\.step\(closure\)"):
            call()


def test_lbfgs_is_refused_by_name() -> None:
    model = torch.nn.Linear(3, 1)
    with pytest.raises(regrow.ConfigError, match="solver is LBFGS"):
        regrow.join(lanes=2).track(model=model, solver=torch.optim.LBFGS(model.parameters()))


def test_an_optimizer_step_inside_the_loop_is_refused() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(regrow.ConfigError, match="inside the inner loop of step 0"):
        train(model, optimizer.step, inside=optimizer.step, optimizer=optimizer)


def test_an_optimizer_in_backward_is_refused() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
    with pytest.raises(regrow.ConfigError, match=r"or in a hook of backward"):
        train(model, lambda: None, optimizer=optimizer)


def test_untracked_optimizers_and_schedulers_are_warned_of_and_foreign_ones_are_not() -> None:
    gc.collect()
    model, other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.warns(UserWarning) as found:
        train(model, optimizer.step)
    assert sorted(str(warning.message).split()[1] for warning in found) == ["SGD", "StepLR"], found.list
    assert scheduler.optimizer is optimizer and foreign is not optimizer


def test_nothing_is_said_of_what_is_tracked() -> None:
    gc.collect()
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, lambda: (optimizer.step(), scheduler.step()), optimizer=optimizer, scheduler=scheduler)
