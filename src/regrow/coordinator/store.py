"""Where the coordinator keeps what must outlive it: small files, replaced whole, in a folder locked against a twin."""

import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from regrow.core.errors import ConfigError, StateError
from regrow.core.membership_effects import Saved
from regrow.core.messages import Enlist

_FILE = "coordinator.json"
_PLAN = "plan.json"

T = TypeVar("T")


class Store:
    """Holds the lock until closed. The lock is on the folder: the file itself is replaced with every save."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._folder_fd)
            raise ConfigError(f"{folder} is in use by another coordinator: choose another --run-dir") from error

    def load(self) -> Saved | None:
        return load(self._folder)

    def load_plan(self) -> Enlist | None:
        """The job that enlisted with a coordinator of its own."""
        return _load(self._folder / _PLAN, Enlist)

    def save(self, saved: Saved) -> None:
        """Durable when it returns; raises OSError, and then the file is as it was."""
        self._replace(_FILE, msgspec.json.encode(saved))

    def save_plan(self, plan: Enlist) -> None:
        """As save."""
        self._replace(_PLAN, msgspec.json.encode(plan))

    def _replace(self, name: str, data: bytes) -> None:
        fresh = self._folder / (name + ".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError:
            fresh.unlink()
            raise
        finally:
            os.close(fd)
        fresh.replace(self._folder / name)
        os.fsync(self._folder_fd)  # else the name may still lead to the old file after a power cut

    def close(self) -> None:
        os.close(self._folder_fd)


def load(folder: Path) -> Saved | None:
    """What a coordinator, perhaps a living one, saved last; None when it has not saved anything yet."""
    return _load(folder / _FILE, Saved)


def _load(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StateError(f"{path} is damaged ({error}): restore it from a copy") from error
