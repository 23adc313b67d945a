"""A file in memory, mapped: bytes that other processes of this host see as well.

Python's own mapping would unmap, in a forked child, whatever lies at its address there by then. A forked child does not
get this one, and so keeps no gigabytes alive.
"""

import ctypes
import mmap
import os

import torch

from regrow.core.errors import InfraError

PAGE_BYTES = 4096
_MADV_REMOVE = 9
_MADV_DONTFORK = 10
_MADV_POPULATE_WRITE = 23
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Mapping:
    """All of a file, for reading and writing. OSError when it cannot be mapped."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, size_bytes, access, mmap.MAP_SHARED, fd, 0)
        if address in (None, _FAILED):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.address: int = address
        self.size_bytes = size_bytes
        self.is_pinned = False
        _libc.madvise(address, size_bytes, _MADV_DONTFORK)

    def populate(self, size_bytes: int) -> bool:
        """Make its first pages, and have them at hand; False where that cannot be: before Linux 5.14, or no memory left."""
        return bool(_libc.madvise(self.address, size_bytes, _MADV_POPULATE_WRITE) == 0)

    def trim(self, size_bytes: int) -> bool:
        """Give its pages beyond these back, for all who have the file; False where it cannot be done."""
        return bool(_libc.madvise(self.address + size_bytes, self.size_bytes - size_bytes, _MADV_REMOVE) == 0)

    def pin(self) -> None:
        """Let the GPU copy into it at full speed."""
        if self.is_pinned:
            return
        status = torch.cuda.cudart().cudaHostRegister(self.address, self.size_bytes, 0)  # type: ignore[no-untyped-call]
        if int(status) != 0:
            raise InfraError(
                f"the GPU's driver refuses {self.size_bytes} bytes of pinned memory (status {status}): "
                "raise the limit on locked memory (ulimit -l)"
            )
        self.is_pinned = True

    def tensor(self, offset: int, size_bytes: int) -> torch.Tensor:
        """These bytes of it, only until it is closed."""
        buffer = (ctypes.c_ubyte * size_bytes).from_address(self.address + offset)
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def close(self) -> None:
        if self.is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self.address)  # type: ignore[no-untyped-call]
        _libc.munmap(self.address, self.size_bytes)
