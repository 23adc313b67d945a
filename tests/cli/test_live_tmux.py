"""The live view on a real terminal emulator: what tmux shows of it, through deaths, resizes, a stop and the end."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import REGROW, wait_for
from sitting import SCRIPT

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux"),
]


class Tmux:
    """A server of its own with one window, in which a shell runs."""

    def __init__(self, folder: Path, columns: int, lines: int) -> None:
        self._socket = str(folder / "tmux")
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TMUX")}
        shell = "env PS1='shell: ' bash --norc --noprofile"
        size = ["-x", str(columns), "-y", str(lines)]
        # A job prints thousands of lines while a busy machine comes to the end of a test, and all of them are looked at.
        history = ["start-server", ";", "set-option", "-g", "history-limit", "1000000", ";"]
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *history, "new-session", "-d", *size, shell]
        subprocess.run(command, cwd=folder, env=environ, check=True, timeout=60)

    def __call__(self, *command: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *command], capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        self("send-keys", *keys)

    @property
    def screen(self) -> str:
        """What is to be seen now."""
        return self("capture-pane", "-p")

    @property
    def scroll(self) -> list[str]:
        """All of it, from the beginning; rows that were wrapped are one."""
        return self("capture-pane", "-p", "-J", "-S", "-").rstrip().splitlines()

    def wait(self, pattern: str) -> None:
        seen: list[str] = []

        def is_there() -> bool:
            seen[:] = [self.screen]
            return re.search(pattern, seen[0]) is not None

        try:
            wait_for(is_there, pattern)
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen:\n{seen[0]}") from None


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    made = Tmux(tmp_path, 110, 30)
    yield made
    made("kill-server")


def test_the_view_in_tmux(tmux: Tmux, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    tmux.wait(r"^shell:")  # what is typed before there is a prompt is shown twice
    tmux.type(f"{REGROW} run --run-dir run --replicas 2 train.py 1000000", "Enter")
    tmux.wait(
        r"run \| step \d+ of 1000000 \| loss .* coordinator here\n  r0.0 +\d+  lanes 0-3 .*\n  r1.0 +(\d+)  lanes 4-7 "
    )
    pid = re.search(r"  r1.0 +(\d+) ", tmux.screen)
    assert pid is not None
    tmux("resize-window", "-x", "50", "-y", "24")
    tmux.wait(r"run \| step \d+ of 1000000 .*\n(  .*\n)?  (.* )?coordinator here\n  r0\.0 ")
    tmux.type("C-z")
    tmux.wait(r"(?s)Stopped.*\nshell:")
    tmux.type(f"kill -9 {pid[1]}; fg", "Enter")
    tmux.wait(r"  r1.1 +\d+  lanes? \d")  # how many depends on how fast it seemed
    tmux("resize-window", "-x", "110", "-y", "30")
    tmux.wait(r"1 of 200 restarts \| coordinator here\n")
    tmux.type("C-c")
    tmux.wait(r"the job was stopped: every member has left\nshell:")
    scroll = tmux.scroll
    typed = [at for at, row in enumerate(scroll) if row.rstrip().endswith("; fg")]
    assert len(typed) == 1, f"what was typed is there once: {scroll}"
    rows = scroll[typed[0] + 2 : -1]  # after what the shell says to it, up to the prompt
    assert rows and all(row.startswith(("[r", "regrow: ")) for row in rows), f"something of the view is left: {rows}"
    steps = [int(found) for found in re.findall(r"^\[r\d\] step (\d+) is done$", "\n".join(scroll), re.MULTILINE)]
    assert steps == list(range(len(steps))), "every line of the script is there once, in order"
