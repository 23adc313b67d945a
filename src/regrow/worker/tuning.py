"""torch.compile without a memory: which kernels it makes for a microbatch may not depend on what was compiled before.

Replicas see different lanes, and one that grows back sees only the latest. What would depend on that is set to where it does
not (`pin`), or refused by name (`refuse`). Both are called when a compilation begins; see worker.compiling. Nothing is
imported here: what was not imported compiles nothing.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from regrow.core.errors import ConfigError

_PINS: dict[str, dict[str, object]] = {
    "torch._dynamo.config": {
        # The first size gets a program of its own, the second one for any size: which of them runs the first size again?
        "automatic_dynamic_shapes": False,
        # The same, remembered on disk from other runs.
        "automatic_dynamic_local_pgo": False,
        "automatic_dynamic_remote_pgo": False,
        # At its limit a function goes on uncompiled, on whichever replica reaches it. Its name in 2.6, and since.
        "fail_on_cache_limit_hit": True,
        "fail_on_recompile_limit_hit": True,
    },
    "torch._inductor.config": {
        # Nothing that decides bits is chosen by its time; in versions without this setting, padding is.
        "deterministic": True,
        "shape_padding": False,
    },
}
_TUNED = (
    "max_autotune",
    "max_autotune_gemm",
    "max_autotune_pointwise",
    "coordinate_descent_tuning",
    "benchmark_fusion",
    "benchmark_combo_kernel",
    "triton.multi_kernel",
)
"""Settings of Inductor that choose kernels by timing them."""


class Refusal(ConfigError, AssertionError):
    """An AssertionError too: what else is raised where a compilation begins, torch hides in an error of its own."""


def pin() -> None:
    for name, pins in _PINS.items():
        config = sys.modules.get(name)
        if config is None:
            continue
        for setting, value in pins.items():
            if setting == "shape_padding" and hasattr(config, "deterministic"):
                continue
            # Versions differ in what they have. And an assignment makes Inductor hash all of its settings anew.
            if getattr(config, setting, value) != value:
                setattr(config, setting, value)


def refuse() -> None:
    dynamo = sys.modules.get("torch._dynamo.config")
    if getattr(dynamo, "suppress_errors", False):
        raise Refusal(
            "torch._dynamo.config.suppress_errors is on: a function whose compilation fails would go on uncompiled, on that "
            "replica alone, and with other bits. Switch it off, and leave what cannot be compiled out of torch.compile"
        )
    for what in _tuned():
        raise Refusal(
            f"{what} is on, which chooses kernels by timing them: replicas would choose differently, and "
            'their gradients differ in their last bits. Use torch.compile without it, or with mode="default" or '
            '"reduce-overhead"'
        )


def advice(error: BaseException) -> str | None:
    """What to do about an exception that is there because of a pin."""
    if type(error).__name__ != "FailOnRecompileLimitHit":
        return None
    return (
        "regrow: a compiled function was compiled for so many different shapes or values that torch would go on without "
        "compiling it, on this replica alone and with other bits. Give it fewer shapes (pad them), compile it with "
        "torch.compile(dynamic=True), or raise torch._dynamo.config.recompile_limit (cache_size_limit before torch 2.7)"
    )


def _tuned() -> Iterator[str]:
    """What is switched on: among the settings of all, and among those given to torch.compile as its mode or its options."""
    inductor = sys.modules.get("torch._inductor.config")
    for setting in _TUNED:
        if inductor is not None and _read(inductor, setting):
            yield f"torch._inductor.config.{setting}"
    backends: dict[int, Any] = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    for backend in list(backends.values()):
        options = getattr(backend, "config", None)
        for setting in _TUNED:
            if isinstance(options, dict) and options.get(setting):
                yield f"{setting} (the mode or the options of torch.compile)"


def _read(config: ModuleType, setting: str) -> Any:
    value: Any = config
    for name in setting.split("."):
        value = getattr(value, name, None)
    return value
