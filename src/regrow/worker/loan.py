"""The arenas that the vault lends: mapped once each, and one of them in use at a time."""

import os
from collections.abc import Callable

import torch

from regrow.core.errors import InfraError
from regrow.worker.mapping import Mapping


class Mappings:
    """Of the vault's arenas. To map a gigabyte anew for each save would take as long as to copy into it."""

    def __init__(self) -> None:
        self._by_file: dict[int, Mapping] = {}
        self._latest: list[int] = []

    def of(self, fd: int, size_bytes: int, most: int) -> Mapping:
        """Takes the descriptor over. No more than `most` are kept, of those that were used last."""
        try:
            inode = os.fstat(fd).st_ino
            mapping = self._by_file.get(inode)
            if mapping is None or mapping.size_bytes != size_bytes:
                if mapping is not None:
                    self._by_file.pop(inode).close()
                mapping = Mapping(fd, size_bytes)
                self._by_file[inode] = mapping
                mapping.populate(mapping.size_bytes)
        except OSError as error:
            raise InfraError(f"the vault's memory of {size_bytes / 1e9:.2f} GB cannot be mapped: {error}") from error
        finally:
            os.close(fd)
        self._latest = [inode, *(other for other in self._latest if other != inode)]
        for other in self._latest[most:]:
            self._by_file.pop(other).close()
        del self._latest[most:]
        return mapping

    def close(self) -> None:
        for mapping in self._by_file.values():
            mapping.close()
        self._by_file.clear()
        self._latest.clear()


class Loan:
    """The arena of one save, as the copy sees it: it is there once `fit` has returned."""

    def __init__(self, borrow: Callable[[], Mapping]) -> None:
        self._borrow = borrow
        self._mapping: Mapping | None = None

    @property
    def address(self) -> int:
        return self._lent.address

    def fit(self, size_bytes: int, pinned: bool = False) -> None:
        self._mapping = self._borrow()
        assert self._mapping.size_bytes >= size_bytes, "the vault lends what it was asked for"
        if pinned:
            self._mapping.pin()

    def has_room(self, size_bytes: int) -> bool:
        """Never at once: that would be the vault's to answer, and training does not wait for it."""
        return False

    def tensor(self, offset: int, size_bytes: int) -> torch.Tensor:
        return self._lent.tensor(offset, size_bytes)

    @property
    def _lent(self) -> Mapping:
        assert self._mapping is not None, "fit() comes first"
        return self._mapping
