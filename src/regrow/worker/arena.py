"""Memory that a training process and its writer share: where the copy of a state lies until it is durable.

An anonymous file in memory (memfd): it has no name that could be left behind, and lives as long as somebody holds it open or
mapped. Its pages are made ahead, by another thread than training's: to touch a page for the first time costs several times
as much as to copy into it.

A forked child does not get the mapping, and closes the descriptor (see `let_go`): no data worker keeps gigabytes alive.
"""

import os
import threading
from collections.abc import Callable

import torch

from regrow.core.errors import InfraError
from regrow.worker.mapping import PAGE_BYTES, Mapping


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

    def prepare(self, size_bytes: int, pinned: bool, count: int | None = None) -> None:
        """Make room in all that nobody uses, one after the other; or in no more than the first so many."""
        self._visit(lambda arena: arena.fit(size_bytes, pinned), count)

    def trim(self, size_bytes: int) -> None:
        """Give back what those have beyond this that nobody uses."""
        self._visit(lambda arena: arena.trim(size_bytes))

    def close(self) -> None:
        """Once nobody uses one any more."""
        for arena in self._all:
            arena.close()

    def let_go(self) -> None:
        """In a forked child."""
        for arena in self._all:
            arena.let_go()

    def _visit(self, what: Callable[["Arena"], None], count: int | None = None) -> None:
        """Each that nobody uses, and that nobody takes meanwhile."""
        for arena in self._all[:count]:
            with self._changed:
                if arena not in self._free:
                    continue
                self._free.remove(arena)
            try:
                what(arena)
            finally:
                self.give_back(arena)


class Arena:
    """One generation: room for one state. One thread at a time may `fit` it."""

    def __init__(self) -> None:
        self.fd = -1
        self._mapping: Mapping | None = None
        self._ready_bytes = 0
        self._lock = threading.Lock()

    @property
    def address(self) -> int:
        return 0 if self._mapping is None else self._mapping.address

    @property
    def size_bytes(self) -> int:
        return 0 if self._mapping is None else self._mapping.size_bytes

    def fit(self, size_bytes: int, pinned: bool = False) -> None:
        """Have room for so many bytes, with its pages made. When it has to grow, it does so in place: two may not fit."""
        with self._lock:
            whole_bytes = _whole(size_bytes)
            mapping = self._mapping
            if mapping is None or self._ready_bytes < whole_bytes:
                mapping = self._made(whole_bytes)
            if pinned:
                mapping.pin()
            self._ready_bytes = max(self._ready_bytes, whole_bytes)

    def trim(self, size_bytes: int) -> None:
        """Give back what it has beyond so many bytes. Pinned memory stays as it is: a GPU's driver holds its pages."""
        with self._lock:
            whole_bytes = _whole(size_bytes)
            if self._mapping is None or self._mapping.is_pinned or self._ready_bytes <= whole_bytes:
                return
            if self._mapping.trim(whole_bytes):
                self._ready_bytes = whole_bytes

    def has_room(self, size_bytes: int) -> bool:
        """At once: also while it is being fitted."""
        return self._ready_bytes >= size_bytes

    def tensor(self, offset: int, size_bytes: int) -> torch.Tensor:
        """These bytes of it, only for as long as it is neither fitted nor closed."""
        assert self._mapping is not None, "fit() comes first"
        return self._mapping.tensor(offset, size_bytes)

    def close(self) -> None:
        with self._lock:
            self._free()

    def let_go(self) -> None:
        """In a forked child: the mapping did not come along, and the lock is as some other thread left it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self._mapping = -1, None

    def _made(self, size_bytes: int) -> Mapping:
        """With pages for so many bytes."""
        self._ready_bytes = 0
        try:
            mapping = self._mapping
            if mapping is None or mapping.size_bytes < size_bytes:
                mapping = self._mapped(size_bytes)
            if not mapping.populate(size_bytes):
                os.posix_fallocate(self.fd, 0, size_bytes)  # says so where there is none; a bare write would be a SIGBUS
        except OSError as error:
            self._free()
            raise _refused(size_bytes, error.strerror) from error
        return mapping

    def _mapped(self, size_bytes: int) -> Mapping:
        if self.fd < 0:
            self.fd = os.memfd_create("regrow-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        self._mapping = Mapping(self.fd, size_bytes)
        return self._mapping

    def _free(self) -> None:
        self._ready_bytes = 0
        if self._mapping is not None:
            self._mapping.close()
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self._mapping = -1, None


def _whole(size_bytes: int) -> int:
    """In whole pages, of which there is one at least."""
    return -(-max(size_bytes, 1) // PAGE_BYTES) * PAGE_BYTES


def _refused(size_bytes: int, why: str | None) -> InfraError:
    return InfraError(
        f"there is no shared memory of {size_bytes / 1e9:.2f} GB for a copy of the state ({why}): a Checkpointer needs "
        "twice the size of what it saves; give the process more memory"
    )
