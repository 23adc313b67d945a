"""What the ranks of a torch.distributed job settle among themselves when all of them restore: which checkpoint, and whether
every one of them could."""

import torch
from torch import distributed


class Ranks:
    """All of the job; a process without torch.distributed is a job of one."""

    def __init__(self) -> None:
        self._is_joint = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        self.rank = distributed.get_rank() if self._is_joint else 0

    def agreed(self, number: int) -> int:
        """What rank 0 says."""
        if not self._is_joint:
            return number
        told = self._tensor(number)
        distributed.broadcast(told, src=0)
        return int(told.item())

    def highest(self, number: int) -> int:
        """Of what all ranks say."""
        if not self._is_joint:
            return number
        told = self._tensor(number)
        distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
        return int(told.item())

    def _tensor(self, number: int) -> torch.Tensor:
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        return torch.tensor([number], dtype=torch.int64, device=device)
