"""Memory that a training process and its writer share: where the copy of a state lies until it is durable.

An anonymous file in memory (memfd): it has no name that could be left behind, and lives as long as somebody holds it open or
mapped. Its pages are made ahead, by another thread than training's: to touch a page for the first time costs several times
as much as to copy into it.

A forked child does not get the mapping, and closes the descriptor (see `let_go`): no data worker keeps gigabytes alive.
"""

import ctypes
import mmap
import os
import threading

import torch

from regrow.core.errors import InfraError

PAGE_BYTES = 4096
_MADV_DONTFORK = 10
_MADV_POPULATE_WRITE = 23
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Arenas:
    """The generations that are free. A save takes one, and gives it back when it is durable or given up."""

    def __init__(self, count: int) -> None:
        self._all = [Arena() for _ in range(count)]
        self._free = list(self._all)
        self._changed = threading.Condition()

    def wait(self, timeout_s: float) -> bool:
        """Until one is free; False when none has become so in this time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._free), timeout_s)

    def take(self, size_bytes: int) -> "Arena":
        """One that is free, with room for this at once if there is such a one. The one that was used last, if it can be: the
        writer has its pages mapped already."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._free))
            arena = max(reversed(self._free), key=lambda arena: arena.has_room(size_bytes))
            self._free.remove(arena)
            return arena

    def give_back(self, arena: "Arena") -> None:
        with self._changed:
            self._free.append(arena)
            self._changed.notify_all()

    def prepare(self, size_bytes: int, pinned: bool) -> None:
        """Make room in all that nobody uses, one after the other."""
        for arena in self._all:
            with self._changed:
                if arena not in self._free:
                    continue
                self._free.remove(arena)
            try:
                arena.fit(size_bytes, pinned)
            finally:
                self.give_back(arena)

    def close(self) -> None:
        """Once nobody uses one any more."""
        for arena in self._all:
            arena.close()

    def let_go(self) -> None:
        """In a forked child."""
        for arena in self._all:
            arena.let_go()


class Arena:
    """One generation: room for one state. One thread at a time may `fit` it."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.address = 0
        self.fd = -1
        self._ready_bytes = 0
        self._is_pinned = False
        self._lock = threading.Lock()

    def fit(self, size_bytes: int, pinned: bool = False) -> None:
        """Have room for so many bytes, with its pages made. What it held is gone when it has to grow."""
        with self._lock:
            if self.fd < 0 or self.size_bytes < size_bytes:
                self._free()  # two of them may not fit
                self._make(-(-max(size_bytes, 1) // PAGE_BYTES) * PAGE_BYTES)
            if pinned and not self._is_pinned:
                self._pin()
            self._ready_bytes = self.size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """At once: also while it is being fitted."""
        return self._ready_bytes >= size_bytes

    def tensor(self, offset: int, size_bytes: int) -> torch.Tensor:
        """These bytes of it, only for as long as it is neither fitted nor closed."""
        buffer = (ctypes.c_ubyte * size_bytes).from_address(self.address + offset)
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def close(self) -> None:
        with self._lock:
            self._free()

    def let_go(self) -> None:
        """In a forked child: the mapping did not come along, and the lock is as some other thread left it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.address, self.size_bytes = -1, 0, 0

    def _make(self, size_bytes: int) -> None:
        # Python's own mmap object would unmap, in a forked child, whatever lies at this address there by then.
        try:
            self.fd = os.memfd_create("regrow-arena", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, size_bytes)
        except OSError as error:
            raise _refused(size_bytes, error.strerror) from error
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, size_bytes, access, mmap.MAP_SHARED, self.fd, 0)
        if address in (None, _FAILED):
            raise _refused(size_bytes, os.strerror(ctypes.get_errno()))
        self.address, self.size_bytes = address, size_bytes
        _libc.madvise(address, size_bytes, _MADV_DONTFORK)
        if _libc.madvise(address, size_bytes, _MADV_POPULATE_WRITE) != 0:  # before Linux 5.14, or no memory left
            try:
                os.posix_fallocate(self.fd, 0, size_bytes)  # says so where there is none; a bare write would be a SIGBUS
            except OSError as error:
                raise _refused(size_bytes, error.strerror) from error

    def _pin(self) -> None:
        """Let the GPU copy into it at full speed."""
        status = torch.cuda.cudart().cudaHostRegister(self.address, self.size_bytes, 0)  # type: ignore[no-untyped-call]
        if int(status) != 0:
            raise InfraError(
                f"the GPU's driver refuses {self.size_bytes} bytes of pinned memory (status {status}): "
                "raise the limit on locked memory (ulimit -l)"
            )
        self._is_pinned = True

    def _free(self) -> None:
        self._ready_bytes = 0
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self.address)  # type: ignore[no-untyped-call]
            self._is_pinned = False
        if self.address:
            _libc.munmap(self.address, self.size_bytes)
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.address, self.size_bytes = -1, 0, 0


def _refused(size_bytes: int, why: str | None) -> InfraError:
    return InfraError(
        f"there is no shared memory of {size_bytes / 1e9:.2f} GB for a copy of the state ({why}): a Checkpointer needs "
        "twice the size of what it saves; give the process more memory"
    )
