"""Placement: restored optimizers find their state where torch would have put it, in the dtype that was saved."""

from typing import Any

import pytest
import torch

from regrow.state.placement import home, placed
from regrow.state.tracked import _restore_optimizer

GPU, HOST = torch.device("cuda", 1), torch.device("cpu")
META = torch.device("meta")
"""Stands for a GPU: tensors can be moved to it, and are somewhere else then."""


@pytest.mark.parametrize(
    ("key", "options", "expected"),
    [
        ("exp_avg", {}, GPU),
        ("exp_avg", {"fused": True}, GPU),
        ("step", {}, None),
        ("step", {"capturable": False, "fused": None}, None),
        ("step", {"capturable": True, "fused": None}, GPU),
        ("step", {"capturable": False, "fused": True}, GPU),
        (None, {}, GPU),
    ],
)
def test_state_lies_with_its_parameter_and_steps_on_the_host(key: str, options: dict[str, Any], expected: Any) -> None:
    assert home(key, GPU, options) == expected
    assert home(key, HOST, options) == (None if expected is None else HOST)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"capturable": True}])
def test_a_restored_optimizer_has_its_state_where_torch_would_have_put_it(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    trained = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    trained.grad = torch.ones_like(trained)
    source = torch.optim.AdamW([trained], amsgrad=True)
    source.step()
    state = source.state_dict()
    state["param_groups"][0].update(options)
    parameter = torch.nn.Parameter(torch.empty(3, dtype=dtype, device=META))
    optimizer, theirs = torch.optim.AdamW([parameter], amsgrad=True), torch.optim.AdamW([parameter], amsgrad=True)
    _restore_optimizer(optimizer, state, lambda value: value)
    theirs.load_state_dict(state)
    found, expected = optimizer.state[parameter], theirs.state[parameter]
    assert {key: value.device for key, value in found.items()} == {key: value.device for key, value in expected.items()}
    assert found["step"].device == (META if options else HOST)
    assert {value.dtype for key, value in found.items() if key != "step"} == {dtype}


def test_state_in_lists_moves_too_without_a_cast_and_what_is_there_is_not_copied() -> None:
    wide, step = torch.ones(2, dtype=torch.float64), torch.tensor(1.0)
    state = {"old": [wide, None], "pair": (wide, 3), "inner": {"step": step}, "step": step, "word": "word"}
    moved = placed(state, META, {})
    assert moved["old"][0].device == moved["pair"][0].device == META and moved["old"][0].dtype == torch.float64
    assert moved["old"][1] is None and moved["pair"][1] == 3 and moved["word"] == "word"
    assert moved["step"] is moved["inner"]["step"] is step
    assert placed(state, HOST, {"fused": True})["pair"][0] is wide
