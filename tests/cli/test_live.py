"""`regrow run` on a terminal: the live view below the output, and plain lines everywhere else."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import REGROW, Launch, regrow, wait_for
from ports import free_port
from sitting import SCRIPT, Sitting

pytestmark = pytest.mark.process

HEAD = r"run \| step (\d+) of {steps} \| loss \S+ \| .* \| \d:\d\d:\d\d \| {restarts} of 200 restarts \| coordinator here\n"


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Callable[..., Sitting]]:
    made: list[Sitting] = []

    def begin(*arguments: object, **more: object) -> Sitting:
        made.append(Sitting(tmp_path, *arguments, **more))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    for sitting in made:
        sitting.close()


def done(rows: list[str]) -> list[int]:
    return [int(found[1]) for row in rows if (found := re.fullmatch(r"\[r\d\] step (\d+) is done", row))]


def is_clean(rows: list[str]) -> bool:
    """Nothing but whole lines of the script and of Regrow."""
    return all(row.startswith(("[r", "regrow: ")) for row in rows)


def test_the_view_stands_below_the_output_while_replicas_die_and_leaves_nothing_behind(
    sit: Callable[..., Sitting],
) -> None:
    sitting = sit("--replicas", 2, "train.py", 1000000)
    sitting.wait_frame(r"r0 +- +- +starting")
    sitting.wait_frame(HEAD.format(steps=1000000, restarts=0))
    sitting.wait_frame(
        r"  r0\.0 +\d+  lanes 0-3  (computing|between|adding|waiting|committing|fetching).*\n  r1\.0 +\d+  lanes 4-7 "
    )
    sitting.kill_worker(1)
    sitting.wait_frame(HEAD.format(steps=1000000, restarts=1))
    sitting.wait_frame(r"  r1\.1 +\d+  lanes? \d")
    sitting.kill_worker(1)
    sitting.wait_frame(r"  \d\d:\d\d:\d\d r1\.2 starts in 0\.5 s: restart 2 of 20 within 600 s\n")
    sitting.wait_frame(r"  r1\.2 +\d+  lanes? \d")
    sitting.press(b"\x03")
    sitting.wait_seen("Ctrl-C: stopping at the next boundary")
    assert sitting.wait() == 130
    rows = sitting.screen
    assert is_clean(rows), rows
    assert rows[-1] == "regrow: the job was stopped: every member has left"
    steps = done(rows)
    assert steps == list(range(len(steps))) and len(steps) > 3, "every line of the script is there once, in order"
    for words in ("regrow: run directory run; ", "regrow: roster 1.1 ", "regrow: r1.0 killed by SIGKILL", "regrow: r1.1 "):
        assert sum(row.startswith(words) for row in rows) >= 1, words
    assert regrow("check", "run", cwd=sitting.folder).returncode == 0


def test_on_a_small_terminal_without_colours(sit: Callable[..., Sitting]) -> None:
    sitting = sit("--replicas", 2, "train.py", 40, columns=30, lines=9, environ={"NO_COLOR": "1"})
    sitting.wait_frame(r"run \| step \d+ of 40 \|")
    assert sitting.wait() == 0
    assert set(re.findall(rb"\x1b\[\d*([A-Za-z])", sitting.viewer.seen)) == {b"A", b"J"}, "no colours"
    rows = sitting.screen
    assert done(rows) == list(range(40))
    assert not [row for row in rows if "|" in row], rows


@pytest.mark.parametrize(
    ("flags", "environ"), [(["--plain"], {}), ([], {"TERM": "dumb"})], ids=["--plain", "a dumb terminal"]
)
def test_plain_lines_where_the_view_is_not_wanted_or_not_possible(
    sit: Callable[..., Sitting], flags: list[str], environ: dict[str, str]
) -> None:
    sitting = sit("--replicas", 1, *flags, "train.py", 5, environ=environ)
    assert sitting.wait() == 0
    assert b"\x1b" not in sitting.viewer.seen
    assert is_clean(sitting.screen) and done(sitting.screen) == list(range(5))


def test_plain_lines_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = Launch(tmp_path, "--replicas", 2, "--run-dir", "run", "train.py", 5)
    assert launch.wait() == 0
    rows = launch.output.splitlines()
    assert is_clean(rows) and "\x1b" not in launch.output and done(rows) == list(range(5))
    assert rows[0].startswith("regrow: run directory run; ") and rows[-1].startswith("regrow: the job finished")


def test_quiet_shows_failures_the_end_and_the_scripts_own_output(sit: Callable[..., Sitting]) -> None:
    sitting = sit("--replicas", 2, "--quiet", "train.py", 1000000)
    sitting.wait_seen("step 2 is done")
    sitting.kill_worker(1)
    wait_for(lambda: (sitting.folder / "run/journal/r1.1.jsonl").exists(), "its replacement")
    sitting.press(b"\x03")
    assert sitting.wait() == 130
    assert b"\x1b" not in sitting.viewer.seen
    said = [row for row in sitting.screen if "regrow: " in row]
    assert [row.replace("^C", "") for row in said] == [
        "regrow: r1.0 killed by SIGKILL",
        "regrow: Ctrl-C: stopping at the next boundary; once more stops at once",
        "regrow: the job was stopped: every member has left",
    ]


def test_a_terminal_that_is_closed_in_mid_run_takes_only_the_view_with_it(sit: Callable[..., Sitting]) -> None:
    sitting = sit("--replicas", 2, "train.py", 60, is_controlled=False)
    sitting.wait_frame(HEAD.format(steps=60, restarts=0))
    os.close(sitting.master)
    assert sitting.process.wait(60) == 0
    status = json.loads(regrow("status", "run", "--json", cwd=sitting.folder).stdout)
    assert (status["state"], status["step"], status["restarts"]) == ("finished", 60, 0)
    kept = (sitting.folder / "run/output/r0.0.log").read_text().splitlines()
    assert kept == [f"step {number} is done" for number in range(60)]
    assert regrow("check", "run", cwd=sitting.folder).returncode == 0


def test_the_view_says_when_the_coordinator_is_away(sit: Callable[..., Sitting], tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "coordinator.txt").open("wb") as log:
        command = [REGROW, "coordinator", "--listen", address, "--run-dir", "run"]
        coordinator = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: "start the job with" in (tmp_path / "coordinator.txt").read_text(), "the coordinator")
        sitting = sit("--replicas", 2, "--coordinator", address, "train.py", 1000000)
        sitting.wait_frame(HEAD.format(steps=1000000, restarts=0))
        sitting.wait_frame(r"  r0\.0 +\d+  lanes 0-3 ")
        coordinator.kill()
        sitting.wait_frame("coordinator away")
        sitting.kill_worker(1)
        sitting.wait_frame("r1.0 +- +- +killed by SIGKILL, not replaced while the coordinator is away")
    finally:
        coordinator.kill()
        coordinator.wait()
