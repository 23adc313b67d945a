"""Where the coordinator keeps what must outlive it: one small file, replaced whole, and locked against a twin."""

import fcntl
import os
from pathlib import Path

import msgspec

from regrow.core.errors import ConfigError, StateError
from regrow.core.membership_effects import Saved

_FILE = "coordinator.json"


class Store:
    """Holds the lock until closed. The lock is on the folder: the file itself is replaced with every save."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._folder_fd)
            raise ConfigError(f"{folder} is in use by another coordinator: choose another --run-dir") from error

    def load(self) -> Saved | None:
        return load(self._path.parent)

    def save(self, saved: Saved) -> None:
        """Durable when it returns; raises OSError, and then the file is as it was."""
        fresh = self._path.with_name(_FILE + ".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            rest = memoryview(msgspec.json.encode(saved))
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError:
            fresh.unlink()
            raise
        finally:
            os.close(fd)
        fresh.replace(self._path)
        os.fsync(self._folder_fd)  # else the name may still lead to the old file after a power cut

    def close(self) -> None:
        os.close(self._folder_fd)


def load(folder: Path) -> Saved | None:
    """What a coordinator, perhaps a living one, saved last; None when it has not saved anything yet."""
    path = folder / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Saved)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StateError(f"{path} is damaged ({error}): restore it from a copy") from error
