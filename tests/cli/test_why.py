"""`regrow why`: transcripts that read well, and an answer whatever is left of the journals."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
from command import Launch, regrow
from hypothesis import given, settings
from hypothesis import strategies as st
from tales import PATHS, Story, load, transcript

from regrow.cli.run_dir import JobFile, RunDir
from regrow.cli.wording import span
from regrow.core.chronicle import Chronicle
from regrow.core.culprits import KINDS
from regrow.core.episodes import Tale, tell
from regrow.core.records import Gap, Line
from regrow.shell.journal import Journal

STORIES = [load(path) for path in PATHS]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_the_transcript_is_the_one_that_was_reviewed(story: Story) -> None:
    assert transcript("run", story.state, story.tale()) == story.words


def test_every_kind_of_cause_has_a_story() -> None:
    told = {kind for story in STORIES for kind in story.tale().summary.by_kind}
    assert set(KINDS) - told == {"exit", "left", "start"}, "these have unit tests"


# Whatever is left of the journals

WHOLE = [story for story in STORIES if story.name != "many"]


@st.composite
def remains(draw: st.DrawFn) -> tuple[str, dict[str, list[Line]], frozenset[str]]:
    """A real job's journals: some missing, the others cut at either end, in any order, with clocks that disagree."""
    story = draw(st.sampled_from(WHOLE))
    names = draw(st.permutations(sorted(story.journals)))
    names = names[: draw(st.integers(0, len(names)))] if draw(st.booleans()) else names
    journals: dict[str, list[Line]] = {}
    for who in names:
        lines = story.journals[who]
        end = draw(st.integers(0, len(lines)))
        start = draw(st.sampled_from([0, 0, 0, draw(st.integers(0, end))]))
        skew_ns = draw(st.sampled_from([0, 0, -3_000_000_000, 3_000_000_000]))
        journals[who] = [msgspec.structs.replace(line, ns=line.ns + skew_ns) for line in lines[start:end]]
    incomplete = frozenset(draw(st.sets(st.sampled_from(sorted(story.journals)))))
    return draw(st.sampled_from(["running", "dead", "failed", "finished"])), journals, incomplete


@settings(max_examples=400, deadline=None)
@given(remains())
def test_there_is_an_answer_and_no_cost_is_negative(left: tuple[str, dict[str, list[Line]], frozenset[str]]) -> None:
    state, journals, incomplete = left
    tale = tell(Chronicle(journals, incomplete))
    summary = tale.summary
    assert min(summary.stall_s, summary.training_s, summary.weakened_s, summary.recomputed_lanes, tale.took_s) >= 0
    assert summary.failures == sum(max(1, len(episode.culprits)) for episode in tale.episodes)
    for episode in tale.episodes:
        numbers = (episode.after_s, episode.stall_s, episode.restored_s, episode.recomputed_lanes)
        assert all(number is None or number >= 0 for number in numbers), episode
    for every in (False, True):
        assert transcript("run", state, tale, every=every).startswith("run ")
    assert msgspec.json.decode(msgspec.json.encode(tale), type=Tale) == tale


@given(st.sampled_from(STORIES), st.randoms(use_true_random=False))
def test_the_order_in_which_journals_are_read_does_not_matter(story: Story, chance: object) -> None:
    names = sorted(story.journals)
    chance.shuffle(names)  # type: ignore[attr-defined]
    assert tell(Chronicle({who: story.journals[who] for who in names}, story.incomplete)) == story.tale()


def test_a_death_is_told_whichever_journal_is_lost() -> None:
    (story,) = (story for story in STORIES if story.name == "exception")
    for missing in ("agent", "coordinator"):
        tale = tell(Chronicle({who: lines for who, lines in story.journals.items() if who != missing}))
        assert [culprit.member for episode in tale.episodes for culprit in episode.culprits] == ["r2.0"]


# The command


def write(folder: Path, story: Story) -> Path:
    run = folder / "runs" / story.name
    job = JobFile(
        job=story.name, command=("train.py",), cwd="/", replicas=("r0", "r1"), lanes=2, host="h", pid=os.getpid(), born=0
    )
    RunDir(run).create(job)
    for who, lines in story.journals.items():
        (run / "journal" / f"{who}.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (story,) = (story for story in STORIES if story.name == "exception")
    return write(tmp_path, story)


def test_the_command_tells_it_and_quotes_the_last_words(tmp_path: Path, run: Path) -> None:
    text = regrow("why", cwd=tmp_path).stdout
    assert text.startswith("exception finished after ") and "1. r2.0 raised " in text and "| Traceback" in text
    killed = write(tmp_path, next(story for story in STORIES if story.name == "one_kill"))
    (killed / "output" / "r1.0.log").write_text("step 1\n\nterminate called recursively\n")
    assert "| terminate called recursively\n" in regrow("why", killed, cwd=tmp_path).stdout


def test_json_is_what_the_documents_say(tmp_path: Path, run: Path) -> None:
    report = json.loads(regrow("why", run, "--json", cwd=tmp_path).stdout)
    assert (report["format"], report["job"], report["state"]) == (1, "exception", "finished")
    (episode,) = report["tale"]["episodes"]
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text()
    told = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    parts = (report, report["tale"], report["tale"]["summary"], episode, episode["culprits"][0], episode["returns"][0])
    for field, name in (("data_workers", "data_workers"), ("wrong_states", "wrong_state")):
        folder = tmp_path / name
        folder.mkdir()
        other = write(folder, next(story for story in STORIES if story.name == name))
        parts = (*parts, *json.loads(regrow("why", other, "--json", cwd=folder).stdout)["tale"][field])
    other = write(tmp_path / "other", next(story for story in STORIES if story.name == "saves"))
    saves = json.loads(regrow("why", other, "--json", cwd=tmp_path).stdout)["tale"]["saves"]
    other = write(tmp_path / "other", next(story for story in STORIES if story.name == "resumed"))
    resumed = json.loads(regrow("why", other, "--json", cwd=tmp_path).stdout)["tale"]["resumed"]
    parts = (*parts, saves, saves["tiers"][0], saves["voided"][0], saves["vault_deaths"][0], resumed)
    assert {key for part in parts for key in part} == told
    assert set(re.findall(r"^- `([\w-]+)`:", page, re.MULTILINE)) == set(KINDS)


def test_damage_is_told_and_does_not_hide_the_rest(tmp_path: Path, run: Path) -> None:
    path = run / "journal" / "r0.0.jsonl"
    path.write_bytes(b"garbage\n" + path.read_bytes() + b'{"at":1,"ns"')
    result = regrow("why", cwd=tmp_path)
    assert result.returncode == 0 and "1. r2.0 raised " in result.stdout
    assert "note: 1 journal is not whole (r0.0)" in result.stdout


def test_a_gap_and_a_rotated_journal_are_told(tmp_path: Path, run: Path) -> None:
    Journal(run / "journal", "agent").write(Gap(lost=3))
    (run / "journal" / "r0.0.jsonl.dropped").touch()
    shutil.rmtree(run / "output")
    assert "note: 2 journals are not whole (agent, r0.0)" in regrow("why", cwd=tmp_path).stdout


def test_no_run_is_exit_code_2(tmp_path: Path) -> None:
    result = regrow("why", cwd=tmp_path)
    assert result.returncode == 2 and "there is no run in or below" in result.stderr


def test_a_job_without_journals_has_nothing_to_tell(tmp_path: Path, run: Path) -> None:
    shutil.rmtree(run / "journal")
    result = regrow("why", cwd=tmp_path)
    assert result.returncode == 0 and result.stdout.startswith("exception DIED after 0 steps")


TRAINS = """
import torch
import regrow
job = regrow.join(seed=0)
model = torch.nn.Linear(2, 1)
job.track(model=model)
for step in job.steps(10**9, job.data([torch.ones(2) * i for i in range(8)], batch_size=1)):
    for batch in step:
        step.backward(model(batch).square().mean())
    model.zero_grad()
    if step.index == 2 and step.reporter:
        print("under way", flush=True)
"""


def test_a_job_that_runs_and_one_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    launch = Launch(tmp_path, "--replicas", 2, "--run-dir", "run", "train.py")
    launch.wait_output("under way")
    text = regrow("why", cwd=tmp_path).stdout
    assert re.fullmatch(r"run is running: at step \d+ after .*, 2 replicas: nothing has failed\.\n", text), text
    launch.signal(signal.SIGKILL)
    launch.wait()
    launch.wait_nothing_left()
    assert "run DIED after" in regrow("why", cwd=tmp_path).stdout


def test_durations_as_people_say_them() -> None:
    told = [span(seconds) for seconds in (0.0, 0.0401, 0.9996, 1.25, 59.96, 125.0, 3600.0, 7322.0)]
    assert told == ["0 ms", "40 ms", "1.0 s", "1.2 s", "1 min", "2 min 5 s", "1 h", "2 h 2 min"]
