"""Numerics: the settings that decide bits. Fixed at join, stated in the contract, equal on every replica and in every step.

A setting that the script changes between join and steps() is stated as it then is. One that it changes later is an error: a
replica that grows back begins with what was set before its first step.
"""

import sys
from collections.abc import Callable

import torch

from regrow.core.errors import ConfigError

_SUBNORMAL = sys.float_info.min / 2


def fix(threads: int) -> None:
    """Pin what would otherwise depend on the machine or on history."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Deterministic mode fills every torch.empty with NaN to expose misuse; that costs a pass over memory each time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def terms() -> dict[str, str]:
    """What a joiner must share, by name."""
    fixed = {
        "torch version": str(torch.__version__),  # a str of its own kind, which no message can hold
        "python version": ".".join(map(str, sys.version_info[:2])),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": str(torch.backends.mkldnn.is_available()),  # type: ignore[no-untyped-call]
        "hash randomization": str(sys.flags.hash_randomization),
    }
    return fixed | {name: str(read()) for name, read in _SETTINGS.items()}


class Settings:
    """Made where the terms are taken; says what was changed since."""

    def __init__(self) -> None:
        self._first = [read() for read in _READS]

    def check(self) -> None:
        """Once a step; a few microseconds."""
        now = [read() for read in _READS]
        if now[0] is True:
            raise ConfigError(
                "torch.backends.cudnn.benchmark is on: it chooses kernels by timing them, so that replicas choose "
                "differently and their gradients differ in their last bits. Leave it False, as join() sets it"
            )
        if now != self._first:
            name, before, after = next(
                (name, before, after)
                for name, before, after in zip(_SETTINGS, self._first, now, strict=True)
                if before != after
            )
            raise ConfigError(
                f"{name} was {before} at job.steps() and is {after} now: it decides bits, and a replica that grows back "
                "would begin with the former. Set it before job.steps() and leave it, or put it back before the next step"
            )


def _flushes_denormals() -> bool:
    """torch.set_flush_denormal() is a switch of this thread's processor, without a getter; Python's floats feel it too."""
    return _SUBNORMAL * 1.0 == 0.0


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # where the newer settings, by backend, are in use, torch does not answer to the older name
        return "by backend"


def _attention() -> tuple[bool, ...]:
    return tuple(bool(read()) for read in _ATTENTION)


def _precisions() -> tuple[str, ...]:
    """Of float32, by backend and operation, where torch has such settings (since 2.9)."""
    return tuple(_PRECISION(*which) for which in _BACKENDS) if _PRECISION is not None else ()


_ATTENTION: list[Callable[[], bool]] = [
    read
    for kernel in ("flash", "mem_efficient", "math", "cudnn")
    if (read := getattr(torch._C, f"_get_{kernel}_sdp_enabled", None)) is not None
]
_PRECISION: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
_BACKENDS = [(backend, kind) for backend in ("mkldnn", "cuda") for kind in ("matmul", "conv", "rnn")]
_SETTINGS: dict[str, Callable[[], object]] = {
    "cudnn benchmark": torch._C._get_cudnn_benchmark,
    "cudnn deterministic": torch._C._get_cudnn_deterministic,
    "intra-op threads": torch.get_num_threads,
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "float32 matmul precision": _matmul_precision,
    "float32 precision by backend": _precisions,
    "reduced precision in float16 sums": torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    "reduced precision in bfloat16 sums": torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    "mkldnn enabled": torch._C._get_mkldnn_enabled,
    "attention kernels allowed": _attention,
    "flush denormal": _flushes_denormals,
}
_READS = list(_SETTINGS.values())
