"""`regrow run`: refusals before anything starts, and every way to end."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Launch, regrow

from regrow.core.records import JobEnded
from regrow.shell.journal import read

TRAINS = """
import sys
import torch
import regrow

job = regrow.join(seed=0, **({"lanes": int(sys.argv[1])} if len(sys.argv) > 1 else {}))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.track(model=model, optimizer=optimizer)
data = job.data([torch.ones(2) * i for i in range(8)], batch_size=1)
for step in job.steps(STEPS, data):
    for batch in step:
        step.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if step.index == 2 and step.reporter:
        print("under way", flush=True)
"""
FOREVER = TRAINS.replace("STEPS", "10**9")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINS.replace("STEPS", "3"))
    return path


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Launch]:
    """A job in the middle of its steps."""
    (tmp_path / "train.py").write_text(FOREVER)
    launch = Launch(tmp_path, "--replicas", 2, "--run-dir", "run", "train.py")
    try:
        launch.wait_output("under way")
        yield launch
    finally:
        launch.process.kill()
        launch.process.wait()


# Refusals


def test_help_needs_no_torch_and_lists_the_exit_codes(tmp_path: Path) -> None:
    probe = """
import sys
from click.testing import CliRunner
from regrow.cli.main import main
for command in ([], ["run"], ["coordinator"], ["status"], ["why"], ["check"], ["soak"]):
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0, result.output
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60, cwd=tmp_path)
    text = regrow("run", "--help", cwd=tmp_path).stdout
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "75", "130", "143"):
        assert re.search(rf"^ +{code}", text, re.MULTILINE), f"exit code {code} is not documented"
    assert "--fault" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replicas", "0", "train.py"], "--replicas 0: a job needs at least 1"),
        (["--replicas", "-2", "train.py"], "--replicas -2: a job needs at least 1"),
        (["--replicas", "2", "--lanes", "0", "train.py"], "--lanes 0: a step needs at least 1"),
        (["--replicas", "2", "--min-replicas", "3", "train.py"], "--min-replicas 3 is more than --replicas 2: lower it"),
        (["--replicas", "2", "--hang-factor", "1", "train.py"], "give at least 1.5, or 0 to judge nobody"),
        (["--replicas", "2", "missing.py"], "script missing.py does not exist"),
        (["--replicas", "2", "."], "script . does not exist or is no file"),
        (["--replicas", "2", "--run-dir", "taken", "train.py"], "taken exists: choose another --run-dir"),
        (["--replicas", "2", "--host", "no.such.host.invalid", "train.py"], "cannot resolve the host name"),
        (["--replicas", "2", "--fault", "nonsense", "train.py"], "fault 'nonsense' is not TARGET:POINT"),
        (
            ["--replicas", "2", "--coordinator", "here", "--run-dir", "new", "train.py"],
            "--coordinator here: write HOST:PORT",
        ),
        (["--replicas", "2", "--coordinator", "127.0.0.1:9", "train.py"], "--coordinator without --run-dir"),
        (["--replicas", "2", "--coordinator", "127.0.0.1:9", "--port", "8", "train.py"], "--port with --coordinator"),
        (
            ["--replicas", "2", "--coordinator", "127.0.0.1:9", "--run-dir", "taken", "train.py"],
            "no coordinator's run directory",
        ),
        (["--replicas", "2", "--token-file", "t", "train.py"], "--token-file without --coordinator"),
        (["--replicas", "2", "--coordinator", "127.0.0.1:9", "--token-file", "t", "train.py"], "t cannot be read"),
        (["--replicas", "2", "--checkpoint", "", "train.py"], "a store has no URL"),
        (["--replicas", "2", "--checkpoint", "gopher://x/y", "train.py"], "use s3://, or a folder"),
        (["--replicas", "2", "--checkpoint", "s3://key:secret@bucket", "train.py"], "leave the credentials out"),
        (["--replicas", "2", "--checkpoint", "c", "--checkpoint", "./c", "train.py"], "--checkpoint ./c is given twice"),
        (["--replicas", "2", "--checkpoint-every", "5", "train.py"], "--checkpoint-every without --checkpoint: say where"),
        (["--replicas", "2", "--log-mb", "5", "train.py"], "--log-mb without --every-step: say that each committed step"),
        (["--replicas", "2", "--keep-gb", "5", "train.py"], "--keep-gb without --checkpoint: say where"),
        (["--replicas", "2", "--memory-every", "0", "train.py"], "0 is neither auto nor a number of steps"),
        (["--replicas", "2", "--memory-every", "auto", "--mtbf", "3", "train.py"], "--mtbf 3: write a time with its unit"),
        (["--replicas", "2", "--checkpoint", "c", "--overhead", "1", "train.py"], "--overhead 1: write a share of the time"),
        (["--replicas", "2", "--memory-every", "5", "--mtbf", "3h", "train.py"], "--mtbf where no save is on auto"),
        (["--replicas", "2", "--memory-every", "5", "--resume", "latest", "train.py"], "--resume without --checkpoint"),
        (
            ["--replicas", "2", "--checkpoint", "c", *["--checkpoint-every", "5"] * 2, "train.py"],
            "--checkpoint-every is given 2 times for 1 places",
        ),
        (["--replicas", "2", "--checkpoint", "c", "--resume", "newest", "train.py"], "--resume newest: write latest, or"),
        (["--replicas", "2", "--checkpoint", "c", "--resume", "0", "train.py"], "--resume 0: write latest, or"),
        (
            ["--replicas", "2", "--checkpoint", "c", "--new-mathematics", "train.py"],
            "--new-mathematics without --resume: say what to begin from",
        ),
        (["--replicas", "two", "train.py"], "'two' is not a valid integer"),
        (["train.py"], "Missing option '--replicas'"),
        (["--replicas", "2"], "Missing argument 'SCRIPT'"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(
    tmp_path: Path, script: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "taken").mkdir()
    result = regrow("run", *arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not [path for path in tmp_path.rglob("*") if path.name == "job.json"]


def test_a_taken_port_leaves_no_run_directory(tmp_path: Path, script: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = regrow("run", "--replicas", 1, "--port", port, "--run-dir", "run", script, cwd=tmp_path)
    assert result.returncode == 4
    assert f"127.0.0.1:{port}" in result.stderr and "choose another port" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_full_disk_leaves_no_run_directory(tmp_path: Path, script: Path) -> None:
    result = regrow("run", "--replicas", 1, "--run-dir", "run", script, cwd=tmp_path, limit="-f 0")
    assert result.returncode == 4
    assert "cannot write run directory" in result.stderr and "make room there" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_that_takes_no_run_directory_is_named(tmp_path: Path, script: Path) -> None:
    result = regrow("run", "--replicas", 1, "--run-dir", "/proc/run", script, cwd=tmp_path)
    assert result.returncode == 4
    assert "cannot write run directory /proc/run" in result.stderr


# Ends


def test_a_job_that_finishes(tmp_path: Path, script: Path) -> None:
    launch = Launch(tmp_path, "--replicas", 3, "--lanes", 2, "--run-dir", "run", "train.py")
    assert launch.wait() == 0, launch.output
    assert "run directory run; look at it with: regrow status run" in launch.output
    assert "warning: 3 replicas share 2 lanes: 1 of them will compute nothing" in launch.output
    assert "the job finished" in launch.output
    launch.wait_nothing_left()
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {
        "job.json",
        "token",
        "coordinator.json",
        "listening.json",
        "journal",
        "output",
        "finished.json",
    }
    assert stat.S_IMODE((run / "token").stat().st_mode) == 0o600
    token = (run / "token").read_text()
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert not [path for path in run.rglob("*") if path.is_file() and path.name != "token" and token in path.read_text()]
    assert json.loads(regrow("status", "--json", cwd=tmp_path).stdout)["state"] == "finished"
    checked = regrow("check", cwd=tmp_path)
    assert (checked.returncode, checked.stdout[:21]) == (0, "every invariant holds"), checked.stdout + checked.stderr


def test_flags_after_the_script_are_the_scripts_and_its_lanes_count(tmp_path: Path, script: Path) -> None:
    script.write_text(script.read_text() + "\nprint('args', sys.argv[1:], flush=True)\n")
    launch = Launch(tmp_path, "--replicas", 2, "train.py", "1", "--lanes", "5", "--", "-x")
    assert launch.wait() == 0, launch.output
    assert "args ['1', '--lanes', '5', '--', '-x']" in launch.output
    assert "warning: 2 replicas share 1 lanes" in launch.output
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", run.name)


def test_the_first_ctrl_c_stops_at_a_boundary(endless: Launch, tmp_path: Path) -> None:
    endless.signal(signal.SIGINT)
    assert endless.wait() == 130, endless.output
    assert "Ctrl-C: stopping at the next boundary; once more stops at once" in endless.output
    assert _ended(tmp_path).outcome == "stopped"
    endless.wait_nothing_left()
    assert regrow("check", "run", cwd=tmp_path).returncode == 0


def test_sigterm_stops_at_a_boundary(endless: Launch, tmp_path: Path) -> None:
    endless.signal(signal.SIGTERM)
    assert endless.wait() == 143, endless.output
    endless.wait_nothing_left()


def test_the_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import signal\nprint('deaf', flush=True)\nwhile True: signal.pause()\n")
    launch = Launch(tmp_path, "--replicas", 2, "--run-dir", "run", "train.py")
    launch.wait_output("deaf")
    launch.signal(signal.SIGINT)
    launch.wait_output("once more stops at once")
    launch.signal(signal.SIGINT)
    assert launch.wait() == 130, launch.output
    launch.wait_nothing_left()
    assert _ended(tmp_path).why == "stopped at once by a second Ctrl-C"


def test_ctrl_c_while_warming_up(tmp_path: Path, script: Path) -> None:
    launch = Launch(tmp_path, "--replicas", 2, "--run-dir", "run", "train.py")
    launch.wait_output("run directory run")
    launch.signal(signal.SIGINT)
    assert launch.wait() == 130, launch.output
    launch.wait_nothing_left()


def test_kill_9_of_the_launcher_leaves_nothing(endless: Launch, tmp_path: Path) -> None:
    assert len(endless.processes()) >= 3
    endless.signal(signal.SIGKILL)
    endless.wait()
    endless.wait_nothing_left()
    status = json.loads(regrow("status", "run", "--json", cwd=tmp_path).stdout)
    assert status["state"] == "dead"
    assert {replica["state"] for replica in status["replicas"]} == {"dead"}
    assert regrow("check", "run", cwd=tmp_path).returncode == 0


def test_status_of_a_running_job(endless: Launch, tmp_path: Path) -> None:
    status = json.loads(regrow("status", "--json", cwd=tmp_path).stdout)
    assert list(status)[:5] == ["job", "state", "step", "roster", "replicas"]
    assert (status["job"], status["state"], status["roster"]) == ("run", "running", "1.1")
    assert status["step"] >= 2
    first, second = status["replicas"]
    assert list(first)[:6] == ["name", "pid", "host", "state", "lanes", "step"]
    assert (first["restarts"], first["max_restarts"], first["starts_in_s"]) == (0, 20, None)
    assert (first["name"], first["state"], first["host"]) == ("r0", "running", socket.gethostname())
    assert sorted(first["lanes"] + second["lanes"]) == list(range(8))
    os.kill(first["pid"], 0)
    text = regrow("status", "run", cwd=tmp_path).stdout
    assert text.startswith("run: running, step ") and str(second["pid"]) in text


def test_a_script_that_never_joins_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('plain')\n")
    launch = Launch(tmp_path, "--replicas", 2, "--run-dir", "run", "train.py")
    assert launch.wait() == 1
    assert "the job failed: train.py never called regrow.join()" in launch.output
    assert not list((tmp_path / "run/output").glob("*.1.log")), "it was restarted"


def test_a_script_that_leaves_before_its_first_step_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys, regrow\nregrow.join()\nsys.exit(0)\n")
    launch = Launch(tmp_path, "--replicas", 2, "--run-dir", "run", "train.py")
    assert launch.wait() == 1
    assert "train.py ended before its first step" in launch.output


def test_a_bug_in_the_script_is_shown_once_first_and_whole(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import regrow\nregrow.join()\nraise ValueError('mine')\n")
    launch = Launch(tmp_path, "--replicas", 2, "--run-dir", "run", "train.py")
    assert launch.wait() == 1
    told = launch.output[launch.output.index("the first failure") :]
    assert re.match(
        r"the first failure, (r\d)\.\d at \S+train.py:3:\n\[\1\] Traceback .*\n(\[\1\] .*\n)+\[\1\] ValueError: mine\n"
        r"regrow: also: ValueError, r\d\.\d at \S+train.py:3\nregrow: the job failed: ",
        told,
    ), told


def test_every_replica_lost_is_the_end_and_no_new_beginning(endless: Launch, tmp_path: Path) -> None:
    status = json.loads(regrow("status", "run", "--json", cwd=tmp_path).stdout)
    for replica in status["replicas"]:
        os.kill(replica["pid"], signal.SIGSTOP)  # so that nobody grows back in between
    for replica in status["replicas"]:
        os.kill(replica["pid"], signal.SIGKILL)
    assert endless.wait() == 3, endless.output
    assert "the training state is lost" in endless.output
    assert "never restarts from initial weights by itself" in endless.output
    endless.wait_nothing_left()
    assert json.loads(regrow("status", "run", "--json", cwd=tmp_path).stdout)["state"] == "state-lost"


def _ended(folder: Path) -> JobEnded:
    facts = [line.what for account in read(folder / "run/journal") for line in account.lines]
    (end,) = [fact for fact in facts if isinstance(fact, JobEnded)]
    return end


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--speed", "r1=fast"), "--speed r1=fast: write NAME=X"),
        (("--speed", "slow=0.5"), "--speed slow=0.5: write NAME=X"),
        (("--speed", "r1=0"), "--speed r1=0: write NAME=X"),
        (("--shadow",), "--shadow without --spares: say how many"),
        (("--max-replicas", "1"), "--max-replicas 1 is less than --replicas 2"),
    ],
)
def test_flags_for_elastic_jobs_are_checked(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    (tmp_path / "train.py").write_text("")
    done = regrow("run", "--replicas", 2, *flags, "train.py", cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr + done.stdout
