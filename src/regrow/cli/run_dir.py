"""A run directory: everything a job leaves behind, and all that `status`, `why` and `check` need.

job.json            who runs what
token               the job's secret, mode 0600
coordinator.json    what the coordinator must not forget
plan.json           with a coordinator of its own: the job it serves
listening.json      the coordinator's process and its address
journal/            one file of facts per process
output/             what each worker printed
evidence/           what was seen of workers that hung, one file each
finished.json       once the job is finished
"""

import os
import secrets
import shutil
import time
from pathlib import Path

import msgspec
import xxhash

from regrow.core.budget import BudgetConfig
from regrow.core.completion import Completion
from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.core.roster import Endpoint

_TOKEN_BYTES = 32
_TOKEN, _JOB, _LISTENING, _FINISHED = "token", "job.json", "listening.json", "finished.json"


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
    budget: BudgetConfig = BudgetConfig()
    min_replicas: int = 1
    coordinator: str | None = None
    """HOST:PORT of a coordinator of its own; None when it is part of `regrow run`."""
    checkpoints: tuple[str, ...] = ()
    """The places that its state is saved to, nearest first."""
    keeps: bool = False
    """Its state is saved, be it to this host's memory alone."""
    every_step: bool = False
    """Each committed step is in logs besides."""


class ListeningFile(msgspec.Struct, frozen=True, kw_only=True):
    """listening.json: the coordinator's process, written anew with each start."""

    endpoint: Endpoint
    host: str
    pid: int
    born: int


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal"
        self.output = path / "output"
        self.evidence = path / "evidence"

    def create(self, job: JobFile, token: str | None = None) -> str:
        """Make it, and the job's token unless it is given. Nothing remains when it fails."""
        try:
            self.path.mkdir(parents=True)
        except FileExistsError as error:
            raise ConfigError(
                f"run directory {self.path} exists: choose another --run-dir, or leave the flag out"
            ) from error
        except OSError as error:
            raise _refusal(self.path, error) from error
        try:
            token = token or secrets.token_hex(_TOKEN_BYTES)
            self.journal.mkdir()
            self.output.mkdir()
            _write(self.path / _TOKEN, token.encode(), 0o600)
            _write(self.path / _JOB, msgspec.json.format(msgspec.json.encode(job)) + b"\n", 0o644)
        except OSError as error:
            self.remove()
            raise _refusal(self.path, error) from error
        return token

    # With a coordinator of its own, which comes first

    def prepare(self) -> bool:
        """A folder for a coordinator, new or one that it left; false when it was there already."""
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise _refusal(self.path, error) from error
        return True

    def furnish(self) -> str:
        """Under the coordinator's lock: its token, made by the first one here. ConfigError in a folder of something else."""
        if (self.path / _JOB).exists() and self.job_file().coordinator is None:
            raise ConfigError(f"{self.path} belongs to a `regrow run` without --coordinator: choose another --run-dir")
        token = self.path / _TOKEN
        if not token.exists():
            if any(path.name != f"{_TOKEN}.new" for path in self.path.iterdir()):
                raise ConfigError(f"{self.path} exists and is no coordinator's: choose another --run-dir, or a new folder")
            fresh = token.with_name(f"{_TOKEN}.new")
            try:
                fresh.unlink(missing_ok=True)
                _write(fresh, secrets.token_hex(_TOKEN_BYTES).encode(), 0o600)
                fresh.replace(token)
            except OSError as error:
                raise _refusal(self.path, error) from error
        try:
            self.journal.mkdir(exist_ok=True)
            self.output.mkdir(exist_ok=True)
            return token.read_text()
        except OSError as error:
            raise _refusal(self.path, error) from error

    def claim(self, job: JobFile) -> str:
        """`regrow run` moves in with the coordinator whose folder this is; its token. One job may."""
        try:
            token = (self.path / _TOKEN).read_text()
        except OSError as error:
            raise ConfigError(
                f"{self.path} is no coordinator's run directory ({error.strerror}): start `regrow coordinator --listen "
                f"{job.coordinator} --run-dir {self.path}` first, or bring its token with --token-file or REGROW_TOKEN"
            ) from error
        try:
            _write(self.path / _JOB, msgspec.json.format(msgspec.json.encode(job)) + b"\n", 0o644)
        except FileExistsError as error:
            raise ConfigError(
                f"run directory {self.path} has its job already: start another coordinator with another --run-dir"
            ) from error
        except OSError as error:
            raise _refusal(self.path, error) from error
        return token

    def release(self) -> None:
        """Undo a claim: nothing ran."""
        (self.path / _JOB).unlink(missing_ok=True)

    def token(self) -> str:
        """ConfigError for whoever may not know it."""
        try:
            return (self.path / _TOKEN).read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"the token in {self.path} cannot be read ({error.strerror}): ask as the user who started the job"
            ) from error

    def listening(self) -> ListeningFile | None:
        try:
            return msgspec.json.decode((self.path / _LISTENING).read_bytes(), type=ListeningFile)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise StateError(f"{self.path / _LISTENING} is damaged: {error}") from error

    def note_listening(self, listening: ListeningFile) -> None:
        fresh = self.path / f"{_LISTENING}.new"
        fresh.unlink(missing_ok=True)
        _write(fresh, msgspec.json.encode(listening), 0o644)
        fresh.replace(self.path / _LISTENING)

    def mark_finished(self, completion: Completion) -> None:
        """Durable once this returns."""
        fresh = self.path / f"{_FINISHED}.new"
        try:
            _write(fresh, msgspec.json.encode(completion), 0o644)
            _sync(fresh)
            fresh.replace(self.path / _FINISHED)
            _sync(self.path)
        except OSError as error:
            raise _refusal(self.path, error) from error

    def completion(self) -> Completion | None:
        """Of a job that is finished."""
        try:
            return msgspec.json.decode((self.path / _FINISHED).read_bytes(), type=Completion)
        except (OSError, msgspec.MsgspecError):
            return None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def job_file(self) -> JobFile:
        path = self.path / _JOB
        try:
            return msgspec.json.decode(path.read_bytes(), type=JobFile)
        except OSError as error:
            raise ConfigError(f"{self.path} is no run directory: it has no readable job.json ({error.strerror})") from error
        except msgspec.MsgspecError as error:
            raise StateError(f"{path} is damaged: {error}") from error


def digest_of(script: Path) -> str:
    """Of the file of a script; the command that runs it is the same only as long as this is."""
    return xxhash.xxh3_128_hexdigest(script.read_bytes())


def default_path(cwd: Path) -> Path:
    """A new name below runs/. The random end keeps two jobs of one second apart."""
    return cwd / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def is_run(where: str) -> bool:
    """Is this a run directory, and not the URL of something else?"""
    return "://" not in where and (Path(where) / _JOB).is_file()


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


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refusal(path: Path, error: OSError) -> InfraError:
    return InfraError(f"cannot write run directory {path} ({error.strerror}): choose another --run-dir, or make room there")
