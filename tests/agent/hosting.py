"""Runs host.py and waits for what it reports."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from regrow.core.records import WorkerStarted
from regrow.shell.journal import read

HERE = Path(__file__).parent
DEADLINE_S = 30.0
ENTRY = "stand_in:run_script"


def wait_for(condition: Callable[[], object], what: str) -> object:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {DEADLINE_S:g} s in vain for {what}"
        time.sleep(0.002)
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Host:
    def __init__(self, folder: Path, script: str, stdout: int | None = None, entry: str = ENTRY) -> None:
        self.folder = folder
        path = folder / "script.py"
        path.write_text(script)
        self._events, theirs = os.pipe()
        self._partial = b""
        self._out = (folder / "stdout").open("wb")
        self._err = (folder / "stderr").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "host.py"), str(folder), str(path), str(theirs), entry],
            stdin=subprocess.PIPE,
            stdout=self._out if stdout is None else stdout,
            stderr=self._err,
            pass_fds=[theirs],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        )
        os.close(theirs)
        self.warm = int(str(self.event("ready")["warm"]))

    def order(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words).encode() + b"\n")
        self.process.stdin.flush()

    def event(self, key: str) -> dict[str, object]:
        """The next event, which must be of this kind."""
        while b"\n" not in self._partial:
            readable, _, _ = select.select([self._events], [], [], DEADLINE_S)
            assert readable, f"no {key!r} event within {DEADLINE_S:g} s; stderr: {self.stderr!r}"
            data = os.read(self._events, 65536)
            assert data, f"the host is gone; stderr: {self.stderr!r}"
            self._partial += data
        line, _, self._partial = self._partial.partition(b"\n")
        event: dict[str, object] = json.loads(line)
        assert key in event, event
        return event

    def gone(self, member: str) -> str:
        event = self.event("gone")
        assert event["gone"] == member, event
        return str(event["how"])

    def started(self, member: str) -> int:
        """The worker's pid, once the journal has it."""

        def find() -> int | None:
            facts = [line.what for account in read(self.folder / "journal") for line in account.lines]
            found = [fact.pid for fact in facts if isinstance(fact, WorkerStarted) and str(fact.member) == member]
            assert len(found) <= 1, f"{member} was started {len(found)} times"
            return found[0] if found else None

        pid = wait_for(find, f"{member} to start")
        assert isinstance(pid, int)
        return pid

    def close(self) -> None:
        self.order("close")
        self.event("closed")
        assert self.process.wait(DEADLINE_S) == 0, self.stderr
        self.release()

    def release(self) -> None:
        """Also for a host that was killed."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        self._out.close()
        self._err.close()

    @property
    def stdout(self) -> bytes:
        return (self.folder / "stdout").read_bytes()

    @property
    def stderr(self) -> bytes:
        return (self.folder / "stderr").read_bytes()

    def kept(self, member: str) -> bytes:
        return (self.folder / "output" / f"{member}.log").read_bytes()
