"""Random state is set, never carried: every microbatch and every commit starts from its own seed."""

import random
import sys

import torch


def seed_everything(seed: int) -> None:
    """torch (every device), numpy if the script uses it, and random."""
    torch.manual_seed(seed & (2**63 - 1))
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
