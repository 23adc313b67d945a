"""A donor's copy of the tracked state at one committed step, as one ribbon of bytes.

Training waits for the copy and for nothing else: it is one pass over the state into memory that is there already. Memory
that was never touched costs several times as much as the copy itself, so it is made ready ahead, by another thread. It is
the snapshot's own, and gone with it. Digests are the server's to make, later.
"""

import ctypes
import threading

import torch

from regrow.core.messages import Offer
from regrow.core.skeleton import in_order
from regrow.core.stripes import PIECE_BYTES, count
from regrow.state.fingerprint import digest
from regrow.state.memory import bytes_of, plain
from regrow.state.tracked import decode_skeleton


class Snapshot:
    """One step's state."""

    def __init__(self, offer: Offer, memory: torch.Tensor, size_bytes: int) -> None:
        self.offer = offer
        """But for the digest, which is not known yet."""
        self.size_bytes = size_bytes
        self.count = count(size_bytes)
        self._bytes = bytes_of(memory)[:size_bytes]
        self._memory = memory

    @property
    def step(self) -> int:
        return self.offer.step

    def piece(self, number: int) -> memoryview:
        """Only for as long as the snapshot is referred to."""
        return self._bytes[number * PIECE_BYTES : min((number + 1) * PIECE_BYTES, self.size_bytes)]

    def digest(self, number: int) -> bytes:
        return digest([self.piece(number)])


class Darkroom:
    """Makes snapshots, in memory that was made ready for them where there was time for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: torch.Tensor | None = None

    def prepare(self, size_bytes: int, pinned: bool = False) -> None:
        """Have memory for a snapshot of this size: on any thread, before training has to wait for it."""
        with self._lock:
            self._memory = self._reserved(size_bytes, pinned)

    def take(self, offer: Offer, tensors: list[torch.Tensor]) -> Snapshot:
        """Copy these tensors, which the offer's skeleton names by index. They must not change meanwhile."""
        order = [tensors[index] for index in in_order(decode_skeleton(offer.skeleton))]
        size = sum(tensor.nbytes for tensor in order)
        with self._lock:
            memory, self._memory = self._reserved(size, pinned=any(tensor.is_cuda for tensor in order)), None
        _copy(order, memory)
        return Snapshot(offer, memory, size)

    def _reserved(self, size_bytes: int, pinned: bool) -> torch.Tensor:
        memory, self._memory = self._memory, None  # two of them may not fit
        if memory is not None and memory.nbytes >= size_bytes and memory.is_pinned() >= pinned:
            return memory
        del memory
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned).zero_()  # the pages are made here


def _copy(tensors: list[torch.Tensor], memory: torch.Tensor) -> None:
    start = 0
    devices = set()
    for tensor in tensors:
        size = tensor.nbytes
        if tensor.is_cuda and size:
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            memory[start : start + size].copy_(flat, non_blocking=True)
            devices.add(tensor.device)
        elif size:
            held = plain(tensor)
            ctypes.memmove(memory.data_ptr() + start, held.data_ptr(), size)  # as fast as memory is, and without the GIL
        start += size
    for device in devices:
        torch.cuda.synchronize(device)
