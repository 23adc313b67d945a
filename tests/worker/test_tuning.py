"""What torch.compile makes of a microbatch depends on nothing that came before: pinned, or refused by name."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import regrow
from regrow.shell.stamp import Stamp
from regrow.worker import tuning
from regrow.worker.compiling import Compilations

pytest.importorskip("torch._dynamo.callback")
pytest.importorskip("torch._inductor.config")
pytestmark = pytest.mark.usefixtures("one_job", "fresh_compiler")

DATA = [torch.sin(torch.arange(3.0) * (index + 1)) for index in range(20)]
LIMIT = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Compiled functions, and settings, are no other test's."""
    torch._dynamo.reset()
    names = {LIMIT, "suppress_errors", *(name for pins in tuning._PINS.values() for name in pins)}
    configs = torch._dynamo.config, torch._inductor.config
    kept = [(config, name, getattr(config, name)) for config in configs for name in names if hasattr(config, name)]
    yield
    for config, name, value in kept:
        setattr(config, name, value)
    torch._dynamo.reset()


def train(compiled: Callable[[torch.nn.Module], Any], inside: Callable[[int], object] = lambda step: None) -> None:
    """A job of one. Each of its six steps has another size of microbatch."""
    job = regrow.join(lanes=2, seed=3)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.track(model=model, optimizer=optimizer)
    forward = compiled(model)
    for step in job.steps(6, job.data(DATA, batch_size=1)):
        inside(step.index)
        for x in step:
            step.backward(forward(x.expand(2 + step.index, 3)).mean())
        optimizer.step()
        optimizer.zero_grad()


def test_every_size_has_a_program_of_its_own() -> None:
    sizes: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        sizes.extend(size for value in inputs for size in getattr(value, "shape", (value,)))
        return graph.forward

    def switched_on_again(step: int) -> None:
        torch._dynamo.config.automatic_dynamic_shapes = True

    for inside in (lambda step: None, switched_on_again):
        sizes.clear()
        regrow.worker.job.current = None
        torch._dynamo.reset()
        train(lambda model: torch.compile(model, backend=backend), inside)
        assert {type(size) for size in sizes} == {int} and {2, 3, 4, 5, 6, 7} <= set(sizes)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the Inductor backend needs a C++ compiler")
def test_the_bits_of_a_size_do_not_depend_on_the_sizes_before() -> None:
    """In a variance over the batch they do, where they may."""
    found: dict[int, set[tuple[float, ...]]] = {3: set(), 20: set()}
    for sizes in ((3, 20), (20, 3)):
        torch._dynamo.reset()
        compilations = Compilations(Stamp())
        compilations.watch()
        fast = torch.compile(lambda x: torch.var_mean(x, dim=0)[0].sum())
        for size in sizes:
            x = torch.randn(size, 5, generator=torch.Generator().manual_seed(size))
            found[size].add(float(fast(x)))
    assert [len(bits) for bits in found.values()] == [1, 1]


def test_at_the_limit_of_recompilations_a_function_fails_and_does_not_go_on_uncompiled() -> None:
    setattr(torch._dynamo.config, LIMIT, 3)
    with pytest.raises(Exception, match=r"(?i)hard failure") as caught:
        train(lambda model: torch.compile(model, backend="eager"))
    assert "torch.compile(dynamic=True)" in (tuning.advice(caught.value) or "")
    assert tuning.advice(ValueError("mine")) is None


def test_sizes_that_were_said_to_be_dynamic_share_a_program() -> None:
    setattr(torch._dynamo.config, LIMIT, 1)
    train(lambda model: torch.compile(model, backend="eager", dynamic=True))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"mode": "max-autotune"}, r"max_autotune \(the mode or the options of torch\.compile\)"),
        ({"mode": "max-autotune-no-cudagraphs"}, r"max_autotune \(the mode or the options of torch\.compile\)"),
        ({"options": {"coordinate_descent_tuning": True}}, r"coordinate_descent_tuning \(the mode or the options"),
    ],
)
def test_kernels_chosen_by_their_time_are_refused_by_name(how: dict[str, Any], words: str) -> None:
    with pytest.raises(regrow.ConfigError, match=words):
        train(lambda model: torch.compile(model, **how))


def test_they_are_refused_wherever_they_are_switched_on() -> None:
    words = r"torch\._inductor\.config\.max_autotune_gemm is on"
    with torch._inductor.config.patch(max_autotune_gemm=True), pytest.raises(regrow.ConfigError, match=words):
        train(lambda model: torch.compile(model, backend="eager"))
    regrow.worker.job.current = None

    def late(model: torch.nn.Module) -> Callable[[torch.Tensor], Any]:
        return lambda x: torch.compile(model, mode="max-autotune")(x)

    with pytest.raises(regrow.ConfigError, match="max_autotune"):
        train(late)


def test_what_is_swallowed_is_raised_at_the_next_step() -> None:
    reached: list[int] = []

    def inside(step: int) -> None:
        reached.append(step)
        if step == 2:
            torch._dynamo.config.suppress_errors = True

    with pytest.raises(regrow.ConfigError, match=r"suppress_errors is on"):
        train(lambda model: torch.compile(model, backend="eager"), inside)
    assert reached == [0, 1, 2]


def test_nothing_is_imported_for_it() -> None:
    code = (
        "import sys; from regrow.worker import numerics, tuning; numerics.Settings().check(); tuning.pin(); "
        "tuning.refuse(); print([name for name in sys.modules if name in ('torch._dynamo', 'torch._inductor')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
