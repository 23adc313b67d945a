"""Runs `regrow` as a user does."""

import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REGROW = str(Path(sys.executable).parent / "regrow")
DEADLINE_S = 60.0


def regrow(*arguments: object, cwd: Path, limit: str = "") -> subprocess.CompletedProcess[str]:
    """To its end. `limit` is a ulimit, e.g. "-f 0"."""
    command = [REGROW, *map(str, arguments)]
    if limit:
        command = ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *command]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def wait_for(condition: Callable[[], object], what: str) -> object:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {DEADLINE_S:g} s in vain for {what}"
        time.sleep(0.005)
    return found


class Launch:
    """A `regrow run` under way, marked so that all its processes can be found."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.log = folder / "terminal.txt"
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self._shared = _shared_memory()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [REGROW, "run", *map(str, arguments)],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "REGROW_TEST_MARK": str(folder), "TMPDIR": str(self._temporary)},
            )
        self._mark = f"REGROW_TEST_MARK={folder}".encode()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_output(self, text: str) -> None:
        wait_for(lambda: text in self.output or self.process.poll() is not None, text)
        assert text in self.output, self.output

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"still running after {DEADLINE_S:g} s:\n{self.output}") from None

    def processes(self) -> list[int]:
        """Every living process that this command started, directly or not."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                is_ours = folder.name.isdigit() and self._mark in (folder / "environ").read_bytes().split(b"\0")
                if is_ours and (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def wait_nothing_left(self) -> None:
        """No process, no shared memory, no socket or temporary file."""
        wait_for(lambda: not self.processes(), "every process to be gone")
        # Other jobs of this machine come and go there too: theirs go.
        wait_for(lambda: _shared_memory() <= self._shared, "shared memory to be gone")
        # torch makes its compiler's cache folder whenever torch._dynamo is imported, by whomever, and keeps it.
        assert {path.name for path in self._temporary.iterdir()} <= {f"torchinductor_{getpass.getuser()}"}
        assert not [path for path in self._temporary.rglob("*") if not path.is_dir()]


def _shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))
