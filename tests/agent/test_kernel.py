"""What the kernel says of a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hosting import wait_for

from regrow.agent import kernel

WAITS = "import signal\nwhile True: signal.pause()"


@pytest.fixture
def pid() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", WAITS])
    yield process.pid
    process.kill()
    process.wait()


def test_a_stopped_process_is_told_from_a_waiting_one(pid: int) -> None:
    assert kernel.standstill(pid) is None
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: kernel.standstill(pid) == "stopped", "it to be stopped")
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: kernel.standstill(pid) is None, "it to go on")


def test_each_thread_is_told_with_what_it_waits_in(pid: int) -> None:
    wait_for(lambda: "wchan: " in kernel.told(pid), "the kernel's view")
    told = kernel.told(pid)
    assert f"/proc/{pid}/status" in told and "State:" in told
    assert f"thread {pid} (" in told and "syscall: " in told


def test_a_process_that_is_gone_has_no_view_and_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert kernel.standstill(process.pid) is None
    assert "No such file" in kernel.told(process.pid)
