"""The run directory under attack: two jobs want one, it cannot be written, it fills up in the middle. (Flags, taken ports
and existing folders: tests/cli/test_run.py.)"""

import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import REGROW, TINY, Run, wait_for
from test_ends import under_way

from regrow.core.records import Departed, Gap, WorkerExited

pytestmark = pytest.mark.process


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small disk of its own."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_of_two_jobs_that_want_one_run_directory_one_gets_it(tmp_path: Path, reference: str) -> None:
    command = [*REGROW, "run", "--replicas", "1", "--run-dir", "run", str(TINY)]
    jobs = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in "ab"
    ]
    said = [job.communicate(timeout=120)[0] for job in jobs]
    assert sorted(job.returncode for job in jobs) == [0, 2], said
    winner, loser = sorted(said, key=lambda text: "exists: choose another --run-dir" in text)
    assert f"digest {reference}" in winner and "choose another --run-dir" not in winner
    assert "digest" not in loser
    assert stat.S_IMODE((tmp_path / "run" / "token").stat().st_mode) == 0o600
    check = subprocess.run([*REGROW, "check", "run"], cwd=tmp_path, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


def test_a_read_only_disk_is_named_before_anything_starts(tmp_path: Path, disk: Callable[[str], Path]) -> None:
    folder = disk("size=64k,ro")
    command = [*REGROW, "run", "--replicas", "1", "--run-dir", str(folder / "run"), str(TINY)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4, done.stderr
    assert f"cannot write run directory {folder / 'run'} (Read-only file system): choose another --run-dir" in done.stderr


@pytest.mark.parametrize("is_freed", [True, False], ids=["freed in time", "full to the end"])
def test_training_goes_on_on_a_full_disk(
    is_freed: bool, disk: Callable[[str], Path], start: Callable[..., Run], digests: list[str]
) -> None:
    folder = disk("size=1m")
    run = start("--replicas", "2", script_args=("--steps", "100000", "--pace", "0.05", "--no-log"), run_dir=folder / "run")
    under_way(run)
    with (folder / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
        while True:
            ballast.write(bytes(4096))
    wait_for(lambda: run.output.count("Training goes on") >= 2, "both workers to say that their journals are full")
    steps = run.output.count(" loss ")
    wait_for(lambda: run.output.count(" loss ") >= steps + 3, "three more steps")
    if is_freed:
        (folder / "ballast").unlink()
        wait_for(lambda: {who for who, _ in run.facts(Gap)} >= {"r0.0", "r1.0"}, "the journals to go on, with a gap")
    run.process.terminate()
    assert run.wait() == 143, run.story()
    assert len(run.digests()) == 2 and set(run.digests()) <= set(digests), run.story()
    if is_freed:
        (step,) = {fact.step for _, fact in run.facts(Departed)}
        assert set(run.digests()) == {digests[step]}
    assert all(fact.clean for _, fact in run.facts(WorkerExited)), run.story()
