"""A minute of `regrow soak`, and the proof that a soak can fail."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from runs import DEADLINE_S, REGROW, marked, wait_for

pytestmark = pytest.mark.process


class Soak:
    """One `regrow soak`, marked so that all its processes can be found."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "terminal.txt"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        environ = {key: value for key, value in os.environ.items() if not key.startswith("REGROW_")}
        # Not one of Regrow's own variables: those are kept from the job.
        environ |= {"TMPDIR": str(self.temporary), "SOAK_TEST_MARK": str(folder)}
        self._mark = f"SOAK_TEST_MARK={folder}".encode()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*REGROW, "soak", *arguments], cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environ
            )

    def wait(self) -> int:
        try:
            return self.process.wait(2 * DEADLINE_S)
        finally:
            self.process.kill()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_nothing_left(self) -> None:
        wait_for(lambda: not marked(self._mark), "every process to be gone", 20.0)

    def wait_under_way(self) -> None:
        wait_for(lambda: re.search(r" s: step [1-9]", self.output) or self.process.poll() is not None, "a step")
        assert self.process.poll() is None, self.output


def test_a_minute_of_blows_leaves_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    soak = Soak(tmp_path, "--minutes", "1", "--seed", "1")
    assert soak.wait() == 0, soak.output
    assert soak.output.startswith("seed 1: regrow soak --minutes 1 --seed 1 --replicas 4\n")
    assert "every digest is that of an undisturbed run, and every invariant holds" in soak.output
    blows = re.search(r"^seed 1, .* (\d+) blows", soak.output, re.MULTILINE)
    assert blows is not None and int(blows[1]) > 10, soak.output
    soak.wait_nothing_left()
    assert not list(soak.temporary.glob("regrow-soak-*"))


def test_weights_that_differ_fail_the_soak(tmp_path: Path) -> None:
    soak = Soak(tmp_path, "--minutes", "0.1", "--seed", "3", "--wrong-reference")
    assert soak.wait() == 1, soak.output
    assert re.search(r"^FAILED: the digests differ after \d+ steps", soak.output, re.MULTILINE), soak.output
    assert "the same blows again: regrow soak --minutes 0.1 --seed 3 --replicas 4" in soak.output
    kept = re.search(r"^the job that failed is kept: regrow why (.+)$", soak.output, re.MULTILINE)
    assert kept is not None
    checked = subprocess.run([*REGROW, "check", kept[1]], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, "the reference was wrong, not the job"
    soak.wait_nothing_left()


def test_a_job_that_is_lost_fails_the_soak(tmp_path: Path) -> None:
    """Its launcher is killed: nobody spares that."""
    soak = Soak(tmp_path, "--minutes", "5", "--seed", "4", "--json")
    soak.wait_under_way()
    (job,) = soak.temporary.glob("regrow-soak-*/job-0/run/job.json")
    os.kill(json.loads(job.read_text())["pid"], signal.SIGKILL)
    assert soak.wait() == 1, soak.output
    report = json.loads(soak.output.splitlines()[-1])
    assert not report["clean"] and report["kept"] == str(job.parent)
    assert report["jobs"][-1]["failures"][0] == "`regrow run` ended by itself, with code -9"
    soak.wait_nothing_left()


def test_ctrl_c_ends_it_early_with_what_is_known(tmp_path: Path) -> None:
    soak = Soak(tmp_path, "--minutes", "60", "--seed", "5")
    soak.wait_under_way()
    soak.process.send_signal(signal.SIGINT)
    assert soak.wait() == 130, soak.output
    assert "every digest is that of an undisturbed run, and every invariant holds" in soak.output
    soak.wait_nothing_left()
    assert not list(soak.temporary.glob("regrow-soak-*"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "a second Ctrl-C"])
def test_ended_at_once_it_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    soak = Soak(tmp_path, "--minutes", "60", "--seed", "6")
    soak.wait_under_way()
    soak.process.send_signal(signal.SIGINT)
    wait_for(lambda: "once more ends it at once" in soak.output, "the first Ctrl-C to be answered")
    soak.process.send_signal(number)
    assert soak.wait() in (130, -signal.SIGKILL), soak.output
    soak.wait_nothing_left()
