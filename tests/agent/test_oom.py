"""Whose kill was it: the kernel's log proves it, a count makes it probable, and one kill is not given to two deaths."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regrow.agent.oom import OomWatch, peak_bytes
from regrow.shell.memory import Cgroup

KILLED = int(signal.SIGKILL)
EXITED = 3 << 8


class Kernel:
    """A cgroup and a log as the kernel would write them."""

    def __init__(self, folder: Path, has_log: bool = True) -> None:
        self._events = folder / "memory.events"
        (folder / "memory.max").write_text(f"{512 << 20}\n")
        (folder / "memory.current").write_text(f"{20 << 20}\n")
        self._kills = 3
        self._write()
        self._log = folder / "kmsg"
        if has_log:
            self._log.write_text("6,1,0,-;Memory cgroup out of memory: Killed process 77 (python) before any of this\n")
        self.now = 0.0
        cgroup = Cgroup(folder=folder, mount=folder, version=2)
        self.watch = OomWatch(self._log, lambda: self.now, lambda pid: cgroup, lambda: None)

    def kill(self, pid: int | None = None) -> None:
        """The count rises; the log names the pid, or cannot be read."""
        self._kills += 1
        self._write()
        if pid is not None:
            with self._log.open("a") as log:
                log.write(f"3,9,5,-;Memory cgroup out of memory: Killed process {pid} (python) total-vm:82700kB\n")

    def _write(self) -> None:
        self._events.write_text(f"low 0\nhigh 0\nmax 9\noom 5\noom_kill {self._kills}\n")

    def ended(self, pid: int, status: int = KILLED, is_ours: bool = False) -> str:
        kill = self.watch.ended(pid, status, is_ours)
        return kill.how.partition(" (")[0] if kill else ""


OOM = "was killed by the kernel's out-of-memory killer"
PROBABLY = "was probably killed by the kernel's out-of-memory killer"
PERHAPS = "killed by SIGKILL, perhaps by the kernel's out-of-memory killer"


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.fixture
def silent(tmp_path: Path) -> Kernel:
    """Its log cannot be read."""
    return Kernel(tmp_path, has_log=False)


def test_the_log_proves_it_and_the_numbers_are_told(kernel: Kernel) -> None:
    kernel.watch.began(10)
    kernel.kill(10)
    kill = kernel.watch.ended(10, KILLED, is_ours=False)
    assert kill is not None
    assert kill.how.startswith(f"{OOM} (cgroup /: limit 512 MiB, now in use 20 MiB; host: ")
    assert (kill.memory.evidence, kill.memory.cgroup_limit_bytes) == ("the kernel's log names its pid", 512 << 20)


def test_other_ends_are_something_else(kernel: Kernel) -> None:
    for pid in (10, 11, 12, 77):
        kernel.watch.began(pid)
    assert kernel.ended(10) == "", "nobody was killed for memory since it began"
    kernel.kill(11)
    assert kernel.ended(11, EXITED) == ""
    assert kernel.ended(12, is_ours=True) == ""
    assert kernel.ended(77) == PROBABLY, "the log named an earlier process of this number"


def test_a_count_alone_is_only_probable(silent: Kernel) -> None:
    silent.watch.began(10)
    silent.kill()
    assert silent.ended(10) == PROBABLY


def test_one_kill_is_given_to_one_death(silent: Kernel) -> None:
    for pid in (10, 11, 12):
        silent.watch.began(pid)
    silent.kill()
    assert [silent.ended(10), silent.ended(11)] == [PROBABLY, PERHAPS]
    silent.now = 60.0
    assert silent.ended(12) == "", "long after"


def test_two_kills_are_two_deaths(silent: Kernel) -> None:
    for pid in (10, 11):
        silent.watch.began(pid)
    silent.kill()
    silent.kill()
    assert [silent.ended(10), silent.ended(11)] == [PROBABLY, PROBABLY]


@pytest.mark.parametrize("order", [(10, 11), (11, 10)])
def test_a_kill_that_the_log_gives_to_another_is_not_shared(kernel: Kernel, order: tuple[int, int]) -> None:
    for pid in order:
        kernel.watch.began(pid)
    kernel.kill(10)
    assert {pid: kernel.ended(pid) for pid in order} == {10: OOM, 11: ""}


def test_a_dead_childs_peak_is_known_before_it_is_reaped() -> None:
    # Until it runs its own program a child has what this process has, and that counts as its peak.
    size_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (200 << 20)
    child = subprocess.Popen([sys.executable, "-c", f"x = bytearray({size_bytes})"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    peak = peak_bytes(child.pid)
    assert peak is not None and size_bytes < peak < size_bytes + (200 << 20)
    assert child.wait() == 0
