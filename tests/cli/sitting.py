"""`regrow run` with somebody in front of it: on a pseudoterminal, its own or one that does not control it."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
from contextlib import suppress
from pathlib import Path

from command import DEADLINE_S, REGROW, regrow
from screen import Screen, Viewer

SCRIPT = """
import sys, time
import torch
import regrow

job = regrow.join(seed=0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job.track(model=model, optimizer=optimizer)
data = job.data([torch.ones(2) * i for i in range(8)], batch_size=1)
for step in job.steps(int(sys.argv[1]), data):
    for batch in step:
        step.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if step.reporter:
        print(f"step {step.index} is done", flush=True)
"""
_ERASE = re.compile(rb"\r\x1b\[\d+A\x1b\[J")


class Sitting:
    def __init__(
        self,
        folder: Path,
        *arguments: object,
        columns: int = 120,
        lines: int = 30,
        environ: dict[str, str] | None = None,
        is_controlled: bool = True,
    ) -> None:
        (folder / "train.py").write_text(SCRIPT)
        self.folder = folder
        self.columns, self.lines = columns, lines
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.viewer = Viewer(self.master)
        self.process = subprocess.Popen(
            [REGROW, "run", "--run-dir", "run", *map(str, arguments)],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", **(environ or {})},
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None) if is_controlled else None,
        )
        os.close(slave)

    @property
    def frame(self) -> str:
        """The bottom of the screen as it was drawn last, without its colours; empty while there is none."""
        found = _ERASE.split(self.viewer.look())
        return re.sub(r"\x1b\[\d*m", "", found[-1].decode(errors="replace")).replace("\r\n", "\n")

    @property
    def screen(self) -> list[str]:
        return Screen(self.columns, self.lines).feed(self.viewer.look()).text

    def wait_frame(self, pattern: str) -> None:
        self.viewer.wait(lambda _: re.search(pattern, self.frame) or self.process.poll() is not None, pattern)
        assert re.search(pattern, self.frame), self.viewer.seen.decode(errors="replace")[-3000:]

    def wait_seen(self, words: str) -> None:
        self.viewer.wait(lambda seen: words.encode() in seen or self.process.poll() is not None, words)
        assert words.encode() in self.viewer.look(), self.viewer.seen.decode(errors="replace")[-3000:]

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def kill_worker(self, replica: int) -> None:
        status = json.loads(regrow("status", "run", "--json", cwd=self.folder).stdout)
        os.kill(status["replicas"][replica]["pid"], signal.SIGKILL)

    def wait(self) -> int:
        self.viewer.wait(lambda _: self.process.poll() is not None, "the end")
        self.viewer.look()
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with suppress(OSError):
            os.close(self.master)
