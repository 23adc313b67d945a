"""A `regrow coordinator` under attack: started, killed, and started again on the same folder."""

import os
import signal
import subprocess
from pathlib import Path

import msgspec
from ports import free_port
from runs import DEADLINE_S, REGROW, wait_for

from regrow.cli.run_dir import ListeningFile
from regrow.core.roster import Endpoint


class Coordinator:
    """All lives of one coordinator."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.log = folder / "coordinator.txt"
        self.endpoint = Endpoint("127.0.0.1", port or free_port())
        self.process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    def start(self, *faults: str, wait: bool = True) -> None:
        """Returns once it listens, unless it is to be struck before."""
        command = [*REGROW, "coordinator", "--listen", str(self.endpoint), "--run-dir", str(self.run_dir)]
        command += [argument for fault in faults for argument in ("--fault", f"coordinator:{fault}")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True
            )
        self.lives += 1
        if wait:
            wait_for(lambda: self.is_listening() or self._poll() is not None, "the coordinator to listen")
            assert self._poll() is None or faults, self.output

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """After the test."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def wait(self) -> int:
        assert self.process is not None
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the coordinator did not end within {DEADLINE_S:g} s\n{self.output}") from None

    def wait_struck(self) -> None:
        """Until its fault point has killed it."""
        assert self.wait() == -signal.SIGKILL, self.output

    def terminate(self) -> None:
        assert self.process is not None
        self.process.terminate()

    def is_listening(self) -> bool:
        assert self.process is not None
        try:
            noted = msgspec.json.decode((self.run_dir / "listening.json").read_bytes(), type=ListeningFile)
        except (FileNotFoundError, msgspec.MsgspecError):
            return False
        return noted.pid == self.process.pid

    def _poll(self) -> int | None:
        assert self.process is not None
        return self.process.poll()

    @property
    def arguments(self) -> tuple[str, ...]:
        """What `regrow run` must be told."""
        return ("--coordinator", str(self.endpoint))

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
