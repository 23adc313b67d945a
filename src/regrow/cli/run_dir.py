"""A run directory: everything a job leaves behind, and all that `status` and `check` need.

job.json            who runs what
token               the job's secret, mode 0600
coordinator.json    what the coordinator must not forget
journal/            one file of facts per process
output/             what each worker printed
evidence/           what was seen of workers that hung, one file each
"""

import os
import secrets
import shutil
import time
from pathlib import Path

import msgspec

from regrow.core.errors import ConfigError, InfraError, StateError

_TOKEN_BYTES = 32


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """job.json."""

    job: str
    command: tuple[str, ...]
    cwd: str
    replicas: tuple[str, ...]
    lanes: int | None
    """The --lanes flag."""
    host: str
    pid: int
    """The launcher's, with the moment of its birth: together they name one process for good."""
    born: int


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal"
        self.output = path / "output"
        self.evidence = path / "evidence"

    def create(self, job: JobFile) -> str:
        """Make it, and the job's token. Nothing remains when it fails."""
        try:
            self.path.mkdir(parents=True)
        except FileExistsError as error:
            raise ConfigError(
                f"run directory {self.path} exists: choose another --run-dir, or leave the flag out"
            ) from error
        except OSError as error:
            raise _refusal(self.path, error) from error
        try:
            token = secrets.token_hex(_TOKEN_BYTES)
            self.journal.mkdir()
            self.output.mkdir()
            _write(self.path / "token", token.encode(), 0o600)
            _write(self.path / "job.json", msgspec.json.format(msgspec.json.encode(job)) + b"\n", 0o644)
        except OSError as error:
            self.remove()
            raise _refusal(self.path, error) from error
        return token

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def job_file(self) -> JobFile:
        path = self.path / "job.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=JobFile)
        except OSError as error:
            raise ConfigError(f"{self.path} is no run directory: it has no readable job.json ({error.strerror})") from error
        except msgspec.MsgspecError as error:
            raise StateError(f"{path} is damaged: {error}") from error


def default_path(cwd: Path) -> Path:
    """A new name below runs/. The random end keeps two jobs of one second apart."""
    return cwd / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def newest(cwd: Path) -> Path:
    """The run that started last in or below this folder."""
    found: list[tuple[float, Path]] = []
    for folder, subfolders, files in os.walk(cwd):
        if "job.json" in files:
            found.append(((Path(folder) / "job.json").stat().st_mtime, Path(folder)))
            subfolders.clear()  # a run holds no runs
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    if not found:
        raise ConfigError(f"there is no run in or below {cwd}: name a run directory, or start one with `regrow run`")
    return max(found)[1]


def _write(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def _refusal(path: Path, error: OSError) -> InfraError:
    return InfraError(f"cannot write run directory {path} ({error.strerror}): choose another --run-dir, or make room there")
