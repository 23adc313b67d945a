"""SIGTERM to a worker, in a process of its own."""

import signal
import subprocess
import sys

from regrow.worker.dismissal import TOLD_CODE

DEADLINE_S = 30.0
SCRIPT = """
import os, queue, signal, sys, threading
from regrow.worker.dismissal import Dismissal

work = queue.Queue()
threading.Thread(target=lambda: [each() for each in iter(work.get, None)], daemon=True).start()
told = queue.Queue()
if "own" in sys.argv:
    signal.signal(signal.SIGTERM, lambda number, frame: print("the script's own", flush=True))
Dismissal(work.put, told.put, float(sys.argv[1])).install()
print("ready", flush=True)
while True:
    try:
        print("within", told.get(timeout=0.05), flush=True)
        if "leaves" in sys.argv:
            sys.exit(66)
    except queue.Empty:
        pass
"""


def begin(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    return process


def test_it_is_told_how_long_it_has_and_leaves_by_itself() -> None:
    process = begin("600", "leaves")
    assert process.communicate(timeout=DEADLINE_S)[0] == "within 600.0\n" and process.returncode == 66


def test_it_ends_when_its_time_is_up() -> None:
    process = begin("2")
    assert process.communicate(timeout=DEADLINE_S)[0] == "within 2.0\n" and process.returncode == TOLD_CODE


def test_a_second_notice_ends_it_at_once() -> None:
    process = begin("600")
    assert process.stdout is not None and process.stdout.readline() == "within 600.0\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == TOLD_CODE


def test_the_scripts_own_handler_is_called_too() -> None:
    process = begin("600", "own", "leaves")
    assert set(process.communicate(timeout=DEADLINE_S)[0].splitlines()) == {"the script's own", "within 600.0"}
