"""Saves of a state that lies on a GPU: a side stream copies it while training goes on. Skipped where there is no GPU."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_hold import Desk

from regrow.state.memory import bytes_of
from regrow.state.tracked import Tracked
from regrow.worker.checkpointer import Checkpointer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WIDTH = 512
KINDS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "capturable": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, capturable=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
}


class Loop:
    def __init__(self, kind: str) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        ).cuda()
        self.optimizer = KINDS[kind](list(self.model.parameters()))
        self.batch = torch.randn(64, WIDTH, device="cuda")
        self.objects = {"model": self.model, "optimizer": self.optimizer}

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    @property
    def tracked(self) -> Tracked:
        tracked = Tracked()
        for name, thing in self.objects.items():
            tracked.add(name, thing)
        return tracked

    def digest(self) -> str:
        return self.tracked.digest()


def on_host(tracked: Tracked) -> list[bytes]:
    torch.cuda.synchronize()
    there = [tensor.detach().cpu().contiguous() for tensor in tracked.flatten().tensors]
    return [bytes(bytes_of(tensor)) if tensor.nbytes else b"" for tensor in there]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_copied_beside_training_is_the_state_at_the_save(kind: str) -> None:
    """Steps are asked for at once after each save, and nobody waits for the GPU in between."""
    loop, desk = Loop(kind), Desk()
    try:
        loop.train(2)
        for _ in range(40):
            tracked = loop.tracked
            want = on_host(tracked)
            plan = desk.begin(tracked)
            loop.train(2)
            outcome = desk.outcome()
            assert outcome.error is None and outcome.changed == ()
            assert desk.copied(plan) == want
    finally:
        desk.close()


def test_a_save_does_not_overtake_what_the_gpu_was_asked_before() -> None:
    """The step before the save is still queued on the GPU when the copy is begun."""
    loop, other, desk = Loop("fused"), Loop("fused"), Desk()
    try:
        loop.train(20)
        other.train(20)
        torch.cuda.synchronize()
        long = torch.randn(4096, 4096, device="cuda")
        for _ in range(10):
            for _ in range(30):
                long = long @ long / 64
            loop.train(1)
            plan = desk.begin(loop.tracked)
            other.train(1)
            outcome = desk.outcome()
            assert outcome.error is None and outcome.changed == ()
            assert desk.copied(plan) == on_host(other.tracked)
    finally:
        desk.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_loop_goes_on_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    straight = Loop(kind)
    straight.train(9)
    loop = Loop(kind)
    saving = Checkpointer(tmp_path / "run")
    loop.train(4)
    saving.save(4, **loop.objects)
    loop.train(1)  # while it is copied and written
    saving.close()
    again = Loop(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restoring = Checkpointer(tmp_path / "run")
        assert restoring.restore(**again.objects) == 4
        restoring.close()
    for state in again.optimizer.state.values():
        for name, tensor in state.items():
            is_counted_on_host = name == "step" and kind == "foreach"
            assert tensor.is_cuda != is_counted_on_host, (name, tensor.device)
    again.train(5)
    assert again.digest() == straight.digest()
