"""Whoever else uses the machine is found and named, and waited for."""

import os
import subprocess
import sys

from compare.strangers import Process, Stranger, processes, strangers, wait_alone

TICKS = os.sysconf("SC_CLK_TCK")


def test_who_uses_more_than_a_share_of_a_core_is_named_the_busiest_first() -> None:
    before = {
        1: Process(0, "init"),
        7: Process(50 * TICKS, "training"),
        8: Process(5, "shell"),
        os.getpid(): Process(0, "me"),
    }
    then = {
        1: Process(TICKS // 10, "init"),
        7: Process(52 * TICKS, "training"),
        8: Process(5, "shell"),
        9: Process(TICKS, "a new one"),
        os.getpid(): Process(2 * TICKS, "me"),
    }
    assert strangers(before, then, 2.0) == [Stranger(7, 1.0, "training"), Stranger(9, 0.5, "a new one")]
    assert strangers(then, then, 2.0) == []


def test_what_runs_is_seen_with_what_it_has_used() -> None:
    spinning = "print(1, flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spinning], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None and busy.stdout.readline()
        try:
            before = processes()[busy.pid].ticks
            while (now := processes()[busy.pid]).ticks <= before + 5:
                pass
            assert "while True" in now.command
        finally:
            busy.kill()
    assert busy.pid not in processes()


def test_whoever_is_busy_is_waited_for_and_told_once() -> None:
    one, other = Stranger(7, 1.0, "training"), Stranger(9, 0.5, "a new one")
    seen, told = [[one], [one, other], [other], []], []
    wait_alone(told.append, lambda: seen.pop(0))
    assert not seen
    assert [text.split(" uses ")[0] for text in told] == ["process 7", "process 9"] and "training" in told[0]
