"""Settings that decide bits: stated as they are at steps(), and left as they are from there on."""

from collections.abc import Callable, Iterator

import pytest
import torch

import regrow
from regrow.worker import numerics

pytestmark = pytest.mark.usefixtures("one_job", "settings_put_back")


@pytest.fixture
def settings_put_back() -> Iterator[None]:
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_flash_sdp(True)
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.mkldnn.matmul.fp32_precision = "none"


def train(before: Callable[[], object] = int, inside: Callable[[], object] = int) -> list[int]:
    job = regrow.join(lanes=2, seed=3)
    model = torch.nn.Linear(3, 1)
    job.track(model=model)
    before()
    done = []
    for step in job.steps(4, job.data([torch.ones(3)], batch_size=1)):
        for x in step:
            step.backward(model(x.float()).mean())
        done.append(step.index)
        if step.index == 1:
            inside()
    return done


CHANGES = {
    "intra-op threads": lambda: torch.set_num_threads(2),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(False),
    "float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "attention kernels allowed": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "flush denormal": lambda: torch.set_flush_denormal(True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changed_between_steps_is_named(name: str) -> None:
    with pytest.raises(regrow.ConfigError, match=f"^{name} was .* at job.steps\\(\\) and is .* now"):
        train(inside=CHANGES[name])


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changed_before_steps_is_a_term(name: str) -> None:
    terms: list[dict[str, str]] = []

    def change() -> None:
        terms.append(numerics.terms())
        CHANGES[name]()
        terms.append(numerics.terms())

    assert train(before=change) == [0, 1, 2, 3]
    assert {key for key in terms[0] if terms[0][key] != terms[1][key]} >= {name}


def test_precision_by_backend_is_a_term_too() -> None:
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has no precision by backend")
    before = numerics.terms()
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    after = numerics.terms()  # torch.get_float32_matmul_precision() raises by now
    assert before["float32 precision by backend"] != after["float32 precision by backend"]


@pytest.mark.parametrize("where", ["before", "inside"])
def test_kernels_chosen_by_their_time_are_refused_by_name(where: str) -> None:
    def switch_on() -> None:
        torch.backends.cudnn.benchmark = True

    with pytest.raises(regrow.ConfigError, match=r"torch\.backends\.cudnn\.benchmark is on"):
        train(**{where: switch_on})
