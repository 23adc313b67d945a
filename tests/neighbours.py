"""A `regrow neighbour` of its own process, for tests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regrow.core.roster import Endpoint

TOKEN_GIVEN = "7e57" * 16
_STILL_S = 60.0
REGROW = str(Path(sys.executable).parent / "regrow")


class Running:
    """`before`: a command in front of the command."""

    def __init__(self, memory_mb: int, listen: str = "127.0.0.1:0", before: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, REGROW, "neighbour", "--listen", listen, "--memory-mb", str(memory_mb), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "REGROW_NEIGHBOUR_TOKEN": TOKEN_GIVEN},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        host, _, port = json.loads(first)["endpoint"].rpartition(":")
        self.endpoint = Endpoint(host, int(port))

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def stand_still(pid: int) -> None:
    """Once this returns none of its threads runs: the signal alone is only on its way."""
    os.kill(pid, signal.SIGSTOP)
    end_s = time.monotonic() + _STILL_S
    while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < end_s, f"{pid} does not stand still"
        time.sleep(0.001)


@contextmanager
def serving(memory_mb: int) -> Iterator[Running]:
    running = Running(memory_mb)
    try:
        yield running
    finally:
        running.kill()
