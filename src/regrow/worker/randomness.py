"""Random state is set, never carried: every sample, every microbatch and every commit starts from its own seed."""

import random
import sys
from functools import lru_cache

import torch


def seed_everything(seed: int) -> None:
    """torch (every device), numpy if the script uses it, and random."""
    if _has_devices():
        torch.manual_seed(seed & (2**63 - 1))
    seed_host(seed)


def seed_host(seed: int) -> None:
    """The same, short of devices: some ten microseconds, so that every sample can have a seed of its own."""
    torch.default_generator.manual_seed(seed & (2**63 - 1))
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


@lru_cache(maxsize=1)
def _has_devices() -> bool:
    """torch.manual_seed takes half a millisecond to note the seed for devices that may come up later."""
    return torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()
