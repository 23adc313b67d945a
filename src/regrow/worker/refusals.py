"""Ways to train that cannot work with agreed gradients are refused by name; state that nobody would restore is warned of."""

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from regrow.core.errors import ConfigError
from regrow.state.tracked import Tracked


def refuse(name: str, thing: object) -> None:
    if isinstance(thing, torch.optim.LBFGS):
        raise ConfigError(
            f"{name} is LBFGS, which evaluates the loss several times inside its step: the gradients of those evaluations "
            "cannot be agreed on. Use an optimizer whose step() needs no closure"
        )


def watch_steps(tracked: Tracked, is_open: Callable[[], int | None]) -> None:
    """`is_open` gives the step whose inner loop is under way, if there is one."""

    names = {id(thing): name for name, thing in tracked.objects.items()}

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = names[id(optimizer)]
        if any(callable(value) for value in (*args[1:], kwargs.get("closure"))):
            raise ConfigError(
                f"{name}.step(closure): the closure's gradients would be this replica's own. Compute the loss in the inner "
                "loop, with step.backward(loss), and call step() without arguments after it"
            )
        if (step := is_open()) is not None:
            raise ConfigError(
                f"{name}.step() inside the inner loop of step {step} (or in a hook of backward): gradients are agreed on "
                "once the loop over the step's batches is done; call it after that"
            )

    for thing in tracked.objects.values():
        if isinstance(thing, torch.optim.Optimizer):
            thing.register_step_pre_hook(before)


def warn_untracked(tracked: Tracked) -> None:
    """Optimizers of tracked parameters, and schedulers, that a replica would grow back without."""
    known = {id(thing) for thing in tracked.objects.values()}
    parameters = {id(parameter) for _, parameter in tracked.parameters()}
    for thing in gc.get_objects():
        # Not isinstance: it asks objects for their class, and some that only pretend to be another warn or import then.
        if id(thing) in known or not issubclass(type(thing), torch.optim.Optimizer | LRScheduler):
            continue
        optimizer = thing.optimizer if isinstance(thing, LRScheduler) else thing
        if any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
            kind = type(thing).__name__
            warnings.warn(
                f"this {kind} is not tracked: a replica that grows back would go on with a fresh one, and part from the "
                f"others. Name it: job.track({kind.lower()}=...)",
                stacklevel=4,
            )
