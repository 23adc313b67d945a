"""Jobs that a scheduler starts again and again: what is finished does nothing, and what gets no further is given up."""

from collections import Counter
from pathlib import Path

import pytest
from runs import EVEN, TINY, prove
from test_saves import EVERY, STEPS, Start, durable, prove_saved

from regrow.cli.run_dir import RunDir
from regrow.core.records import Committed, JobEnded, OriginTaken, WorkerStarted
from regrow.state.completions import completion_at
from regrow.state.stores import open_store

pytestmark = pytest.mark.process


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def test_a_finished_job_that_is_started_again_does_nothing(
    tmp_path: Path, start: Start, place: Path, reference: str
) -> None:
    flags = ("--replicas", "2", "--checkpoint", str(place), "--checkpoint-every", "10", "--resume", "latest")
    first = start(*flags)
    assert first.wait() == 0, first.story()
    prove(first, reference, deaths=Counter())
    done = completion_at(open_store(str(place)))
    assert done is not None and (done.step, done.command) == (STEPS, (str(TINY),)), first.story()
    here = RunDir(first.folder).completion()
    assert here is not None and here.step == STEPS

    again = start(*flags)
    assert again.wait() == 0, again.story()
    assert "it was finished before, by run at step 24: nothing is left to do" in again.output, again.story()
    assert not again.folder.exists() and durable(place)[0] == STEPS

    same = start(*flags, run_dir=first.folder)
    assert same.wait() == 0 and "nothing is left to do" in same.output, same.output

    other = start(*flags, script_args=("--steps", "20"))
    assert other.wait() == 0, other.story()
    assert not other.facts(Committed) and "nothing is left to do" in other.output, "fewer steps than are done"

    more = start(*flags, script_args=("--steps", "30"))
    assert more.wait() == 0, more.story()
    assert sorted({fact.step for _, fact in more.facts(Committed)}) == list(range(STEPS, 30)), more.story()
    done = completion_at(open_store(str(place)))
    assert done is not None and done.step == 30

    wider = start(*flags, "--checkpoint", str(tmp_path / "another"), script_args=("--steps", "30"))
    assert wider.wait() == 0, wider.story()
    assert durable(tmp_path / "another") == [30], "a place that lacked the last state has it now"


def test_a_job_that_is_lost_again_and_again_without_progress_is_given_up(start: Start, place: Path) -> None:
    """Every life of every replica dies in the same step."""
    lives = [f"{name}.{life}" for name in ("r0", "r1") for life in range(4)]
    faults = [part for life in lives for part in ("--fault", f"{life}:boundary:step=6:SIGKILL")]
    flags = (*EVEN, "--checkpoint", str(place), "--checkpoint-every", str(EVERY), "--restart-backoff", "0")
    run = start("--replicas", "2", *flags, "--max-job-restarts", "2", *faults)
    assert run.wait() == 1, run.story()
    (end,) = [fact for _, fact in run.facts(JobEnded)]
    assert "brought back 2 times in a row (--max-job-restarts 2) without committing a step beyond the first 6" in end.why
    assert [fact.step for _, fact in run.facts(OriginTaken)] == [4, 4], run.story()
    assert len(run.facts(WorkerStarted)) >= 6 and f"safe is the state of step 4, at {place}" in run.output, run.story()
    assert run.check().returncode == 0, run.story()


def test_the_last_state_of_a_job_given_up_is_what_the_next_one_goes_on_from(
    start: Start, place: Path, reference: str
) -> None:
    faults = [part for name in ("r0", "r1") for part in ("--fault", f"{name}:boundary:step=6:SIGKILL")]
    flags = ("--replicas", "2", *EVEN, "--checkpoint", str(place), "--checkpoint-every", str(EVERY))
    run = start(*flags, "--max-job-restarts", "0", *faults)
    assert run.wait() == 1 and "--max-job-restarts 0" in run.output, run.story()
    again = start(*flags, "--resume", "latest")
    assert again.wait() == 0, again.story()
    prove(again, reference, deaths=Counter(), first=4)
    prove_saved(again, place, reference)
