"""What the audit compares, and that it sees every bit of it."""

import pytest
import torch

from regrow.state.tracked import Tracked
from regrow.worker.audit import PARTS, Audit


def tracked(width: int = 8, layers: int = 20) -> tuple[Tracked, torch.nn.Sequential, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)), torch.nn.BatchNorm1d(width))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()
    found = Tracked()
    found.add("model", model)
    found.add("optimizer", optimizer)
    return found, model, optimizer


def seen(audit: Audit, steps: range) -> list[int]:
    found = []
    for step in steps:
        audit.begin(step)
        found.append(audit.digest())
    return found


@pytest.mark.parametrize("width", [8, 200])
def test_each_round_sees_every_parameter_and_its_optimizer_state(width: int) -> None:
    """Small parts are digested at once, large ones in a thread."""
    state, model, optimizer = tracked(width)
    audit = Audit(state, every=1000)
    steps = range(1, 4 * PARTS)
    before = seen(audit, steps)
    assert before == seen(audit, steps)
    for tensor in (model[0].weight, model[7].bias, optimizer.state[model[19].weight]["exp_avg_sq"]):
        kept = tensor.detach().clone()
        tensor.data.view(-1)[0] += 1.0
        assert seen(audit, steps) != before
        tensor.data.copy_(kept)
    assert seen(audit, steps) == before


def test_all_of_it_is_seen_every_so_many_steps_and_at_the_end() -> None:
    state, model, optimizer = tracked()
    audit = Audit(state, every=5)
    (whole,) = seen(audit, range(5, 6))
    assert whole == audit.whole()
    kept = model[20].running_mean.clone()
    model[20].running_mean += 1.0
    assert whole != audit.whole()
    model[20].running_mean.copy_(kept)
    assert whole == audit.whole()
    optimizer.param_groups[0]["lr"] = 0.5
    assert whole != audit.whole(), "what is no tensor counts too"


def test_it_knows_when_a_part_was_last_equal() -> None:
    audit = Audit(tracked()[0], every=100)
    assert audit.last_equal(7) is None
    for step in range(5):
        audit.passed(step)
    assert audit.last_equal(7) == 0, "the whole of it, before the first step"
    audit.passed(7)
    audit.passed(100)
    assert audit.last_equal(7) == 100


def test_switched_off_it_says_nothing() -> None:
    audit = Audit(tracked()[0], every=0)
    assert set(seen(audit, range(3))) == {0} and audit.whole() == 0
