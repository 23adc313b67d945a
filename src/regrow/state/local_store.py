"""A store in a folder of a file system: written past the page cache, named once it is durable.

A file is written under a temporary name beside its place, fsynced, renamed (or linked, which fails when the place is
taken), and the folder is fsynced. Whoever dies on the way leaves a temporary file, which nobody sees through this store, and
which the next writer in that folder removes: a living writer holds a lock on its own.

Checkpoints are large and are not read again soon, so that blocks go to the device by O_DIRECT: straight from the caller's
memory where that lies at a page's start, as an arena does, and through one aligned block otherwise.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from regrow.core.errors import ConfigError, InfraError, NoRoom, RegrowError, StateError
from regrow.shell.faultpoint import faultpoint
from regrow.shell.pacing import Pacer
from regrow.state.store import names_in

BLOCK_BYTES = 8 << 20
"""At most so much in one write. From 1 MiB on, a device is as fast as it gets."""
PAGE_BYTES = 4096
"""What O_DIRECT asks of offsets and lengths; 512 would do for some devices."""
_UNKNOWN = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system says of a call that it does not know, for a file of one's own."""
_TEMPORARY = re.compile(r"^\..+\.[0-9a-f]{16}\.part$")


class LocalStore:
    def __init__(self, folder: Path, pacer: Pacer | None = None) -> None:
        self._root = folder.resolve()
        self._pacer = pacer or Pacer()
        self.url = str(self._root)
        self._ready: set[Path] = set()
        """Folders that are there for good, and in which nobody dead has left anything."""

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        place = self._place(path)
        views = [part.cast("B") for part in parts]
        size_bytes = sum(view.nbytes for view in views)
        with self._told(path, size_bytes), self._written(place, self._paced(views)) as temporary:
            faultpoint("save-block")
            os.replace(temporary, place)
            faultpoint("save-block")
            _sync_folder(place.parent)

    def create(self, path: str, data: bytes) -> bool:
        place = self._place(path)
        with self._told(path, len(data)), self._written(place, [memoryview(data)]) as temporary:
            faultpoint("save-block")
            try:
                os.link(temporary, place)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _UNKNOWN:
                    raise ConfigError(
                        f"{self.url} has no hard links ({error.strerror}): two savers could overwrite each other's "
                        f"pointers; choose another place, or say one-writer+file://{self.url} where you are sure that no "
                        "two will ever save there at once"
                    ) from error
                raise
            faultpoint("save-block")
            _sync_folder(place.parent)
            return True

    def read(self, path: str) -> bytes | None:
        with self._told(path):
            try:
                return self._place(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_into(self, path: str, start: int, view: memoryview) -> None:
        rest, at = view.cast("B"), start
        with self._told(path), self._found(path) as fd:
            while rest:
                count = os.preadv(fd, [rest[:BLOCK_BYTES]], at)
                if count == 0:
                    size_bytes = os.fstat(fd).st_size
                    raise StateError(
                        f"{self._place(path)} is too short: it has {size_bytes} bytes, and bytes {start} to "
                        f"{start + view.nbytes} are wanted of it"
                    )
                rest, at = rest[count:], at + count

    def size_bytes(self, path: str) -> int | None:
        place = self._place(path)
        with self._told(path):
            try:
                return None if place.is_dir() else place.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def names(self, folder: str = "") -> list[str]:
        with self._told(folder):
            try:
                return sorted(name for name in os.listdir(self._place(folder)) if not _TEMPORARY.match(name))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def settle(self, folder: str) -> None:
        with self._told(folder):
            _sync_folder(self._place(folder))

    def remove(self, path: str) -> None:
        place = self._place(path)
        with self._told(path):
            try:
                if place.is_dir() and not place.is_symlink():
                    self._ready = {folder for folder in self._ready if folder != place and place not in folder.parents}
                    shutil.rmtree(place, onerror=_unless_gone)
                else:
                    place.unlink()
                _sync_folder(place.parent)
            except FileNotFoundError:
                return

    def _place(self, path: str) -> Path:
        return self._root.joinpath(*names_in(path)) if path else self._root

    @contextlib.contextmanager
    def _found(self, path: str) -> Iterator[int]:
        try:
            fd = os.open(self._place(path), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StateError(f"{self._place(path)} is missing") from error
        try:
            yield fd
        finally:
            os.close(fd)

    # Writing

    @contextlib.contextmanager
    def _written(self, place: Path, views: Iterable[memoryview]) -> Iterator[Path]:
        """A durable file of these bytes under a temporary name, which is gone afterwards."""
        temporary, fd = self._temporary(place)
        try:
            _Blocks(fd).write(views)
            os.fsync(fd)
            yield temporary
        finally:
            with contextlib.suppress(FileNotFoundError):  # renamed: this is how it should be
                temporary.unlink()
            os.close(fd)  # and with it the lock, without which another writer takes this file for a dead one's

    def _paced(self, views: Iterable[memoryview]) -> Iterator[memoryview]:
        """The same bytes, a block at a time."""
        for view in views:
            for start in range(0, len(view), BLOCK_BYTES):
                block = view[start : start + BLOCK_BYTES]
                self._pacer.wait(len(block))
                yield block

    def _temporary(self, place: Path) -> tuple[Path, int]:
        """A new file, locked."""
        while True:
            if place.parent not in self._ready:
                _make(place.parent, self._root)
                _clear(place.parent)
                self._ready.add(place.parent)
            temporary = place.parent / f".{place.name}.{secrets.token_hex(8)}.part"
            try:
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                self._ready.discard(place.parent)  # somebody removed the folder
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    return temporary, fd
            except BlockingIOError:
                pass
            except OSError:  # a file system without locks
                os.close(fd)
                temporary.unlink()
                raise
            os.close(fd)  # whoever clears this folder saw the file before it was locked

    # Errors

    @contextlib.contextmanager
    def _told(self, path: str, wanted_bytes: int | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(path, error, wanted_bytes) from error

    def _error(self, path: str, error: OSError, wanted_bytes: int | None) -> RegrowError:
        place = self._place(path)
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT if wanted_bytes is not None:
                return NoRoom(
                    f"no room for {place} ({error.strerror}): it wants {wanted_bytes} bytes, {_free(place)}: free "
                    "space there, or keep fewer checkpoints"
                )
            case errno.EACCES | errno.EPERM:
                return InfraError(
                    f"{place} is refused to user {os.geteuid()} ({error.strerror}): give it the right to {self.url}"
                )
            case errno.EROFS:
                return InfraError(f"{place} is on a read-only file system: mount it for writing, or choose another place")
            case errno.EIO:
                return InfraError(
                    f"the device under {place} failed ({error.strerror}): see the kernel's log, and replace it"
                )
            case errno.ENOTDIR | errno.EEXIST:
                return ConfigError(f"{place} cannot be: a part of its path is a file; choose another place")
        return InfraError(f"{place} cannot be used ({error.strerror or error}): see to it, or choose another place")


def _free(place: Path) -> str:
    while not place.exists():
        place = place.parent
    stat = os.statvfs(place)
    without_files = ", though no more files can be made" if stat.f_files and not stat.f_favail else ""
    return f"{stat.f_bavail * stat.f_frsize} are free{without_files}"


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


# Folders


def _make(folder: Path, root: Path) -> None:
    """Durable when it returns, whoever made it: one that died before its fsync must not take our file with it."""
    above = [folder, *folder.parents]
    oldest = next(number for number, one in enumerate(above) if one.exists())
    folder.mkdir(parents=True, exist_ok=True)
    for one in above[1 : max(oldest, above.index(root) + 1) + 1]:
        with contextlib.suppress(PermissionError):  # above the root, and not ours to write: nobody made it for us
            _sync_folder(one)


def _sync_folder(folder: Path) -> None:
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that has nothing to sync for folders says so
                raise


def _clear(folder: Path) -> None:
    """Remove what dead writers left."""
    for name in os.listdir(folder):
        if not _TEMPORARY.match(name):
            continue
        with (
            contextlib.suppress(FileNotFoundError, BlockingIOError, PermissionError),
            _opened(folder / name, os.O_RDONLY) as fd,
        ):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused: its writer lives
            (folder / name).unlink()


def _unless_gone(_function: object, _path: str, what: tuple[object, BaseException, object]) -> None:
    if not isinstance(what[1], FileNotFoundError):
        raise what[1]


# Blocks


class _Blocks:
    """Writes a new file from its start, block by block; every block starts at a page's start."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_direct = self._set_direct(True)
        self._block = memoryview(mmap.mmap(-1, BLOCK_BYTES))  # at a page's start; its pages cost nothing until used
        self._held = 0

    def write(self, views: Iterable[memoryview]) -> None:
        """All of these. Durable after an fsync."""
        for view in views:
            rest = view
            while rest:
                rest = rest[self._write_straight(rest) or self._hold(rest) :]
        whole = self._held // PAGE_BYTES * PAGE_BYTES
        self._write(self._block[:whole])
        if self._is_direct and self._held > whole:
            self._set_direct(False)  # the file ends within a page
        self._write(self._block[whole : self._held])

    def _write_straight(self, rest: memoryview) -> int:
        """From the caller's memory; 0 when that cannot be."""
        if self._held % PAGE_BYTES or not self._is_direct or len(rest) < BLOCK_BYTES:
            return 0
        self._write(self._block[: self._held])  # a header of whole pages must not make all that follows go through the block
        self._held = 0
        faultpoint("save-block")
        try:
            return os.write(self._fd, rest[:BLOCK_BYTES])
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return 0  # it does not lie at a page's start

    def _hold(self, rest: memoryview) -> int:
        count = min(BLOCK_BYTES - self._held, len(rest))
        self._block[self._held : self._held + count] = rest[:count]
        self._held += count
        if self._held == BLOCK_BYTES:
            self._write(self._block)
            self._held = 0
        return count

    def _write(self, rest: memoryview) -> None:
        if rest:
            faultpoint("save-block")
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._is_direct = self._set_direct(False)  # this file system takes the flag, but not the write

    def _set_direct(self, is_wanted: bool) -> bool:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | (os.O_DIRECT if is_wanted else 0))
        except OSError:
            return False  # a file system without it
        return is_wanted
