"""Numerics: the settings that decide bits. Fixed at join, stated in the contract, equal on every replica."""

import sys

import torch


def fix(threads: int) -> None:
    """Pin what would otherwise depend on the machine or on history."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Deterministic mode fills every torch.empty with NaN to expose misuse; that costs a pass over memory each time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def terms() -> dict[str, str]:
    """What a joiner must share, by name."""
    return {
        "torch version": str(torch.__version__),  # a str of its own kind, which no message can hold
        "python version": ".".join(map(str, sys.version_info[:2])),
        "intra-op threads": str(torch.get_num_threads()),
        "default dtype": str(torch.get_default_dtype()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": str(torch.backends.mkldnn.is_available()),  # type: ignore[no-untyped-call]
        "hash randomization": str(sys.flags.hash_randomization),
    }
