"""Mistakes in the user's script: the job ends with exit code 1 and says what is wrong, where, and what to do. Nothing hangs,
nothing is started over and over."""

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
from runs import HERE, Run, alone

from regrow.core.records import Departed, LaneComputed, ReplicaLost, RosterMade, WorkerExited, WorkerStarted

pytestmark = pytest.mark.process

SCRIPT = HERE / "mistaken.py"
LINES = SCRIPT.read_text().splitlines()


class Mistake(NamedTuple):
    name: str
    words: str
    """A pattern in what the job says at its end."""
    restarts: int = 0
    """At most."""
    place: str = ""
    """The comment on the line that raises; "" where the mistake only shows elsewhere."""
    flags: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


RAISES = [
    # Whoever raises first may be started again before the second one raises the same.
    Mistake("in a lane", r"ValueError: mine\n", restarts=1, place="in a lane"),
    Mistake("between", r"ValueError: mine\n", restarts=1, place="between"),
    Mistake("before join", r"ValueError: mine\n", restarts=1, place="before join"),
    Mistake("import", r"ModuleNotFoundError: No module named 'a_module_that_does_not_exist'\n", restarts=1, place="import"),
    Mistake("reporter", r"ValueError: mine\n", restarts=1, place="reporter"),
]
LEAVES = [
    Mistake("exit", r"mistaken\.py ended at step 2 while the job goes on: run the loop over job\.steps\(\) to its end"),
    Mistake("break out", r"mistaken\.py ended at step 2 while the job goes on: run the loop over job\.steps\(\) to its end"),
    Mistake("join twice", r"join\(\) was called twice", place="join twice"),
    Mistake(
        "none", r"join\(lanes=4\) but the command says --lanes 3: give one, or the same", flags=("--lanes", "3"), args=("4",)
    ),
    Mistake("empty dataset", r"data\(\) got an empty dataset: there is nothing to train on", place="empty dataset"),
]
LOOPS = [
    Mistake("break", r"step 2 was left before it was committed: loop over all of its batches \(no break"),
    Mistake("no backward", r"a batch of step 2 was left without step\.backward\(loss\)"),
    Mistake("two backwards", r"step\.backward\(\) in step 2, but .*call it once per batch", place="two backwards"),
    Mistake("parameter", r"model\.0\.weight was changed inside the inner loop of step 2: call optimizer\.step\(\) after"),
    Mistake("step in the loop", r"optimizer\.step\(\) inside the inner loop of step 2", place="step in the loop"),
    Mistake("closure", r"optimizer\.step\(closure\): the closure's gradients would be this replica's own", place="closure"),
    Mistake("LBFGS", r"optimizer is LBFGS, which evaluates the loss several times", place="LBFGS"),
]
COMPILES = [
    Mistake("tuned kernels", r"max_autotune \(the mode or the options of torch\.compile\) is on, which chooses kernels by"),
    Mistake("recompilations", r"regrow: a compiled function was compiled for so many .*dynamic=True"),
]
STEERED = r"before step [3-8] the replicas' states differ: %s on r0\.0, r1\.0 .*A local value steered the update"
PARTS = [
    Mistake("local value", STEERED % r"model\.1\.bias"),
    Mistake("local rate", STEERED % r"model\.0\.weight"),
]
REPLICAS = [
    Mistake("weights", r"model\.0\.weight"),
    Mistake("shape", r"model\.0\.(weight|bias).*(2,|\[2\]).*(3,|\[3\])|model\.0\.(weight|bias).*(3,|\[3\]).*(2,|\[2\])"),
    Mistake("dtype", r"model\.0\.(weight|bias).*float(32|64).*float(32|64)"),
    Mistake("name", r"model\.(first\.)?0\.(weight|bias)"),
    Mistake("dataset", r"replicas differ: r[01] cannot take part: dataset size is [89], the job has [89]"),
]


@pytest.mark.parametrize(
    "mistakes",
    [RAISES, LEAVES, LOOPS, COMPILES, PARTS, REPLICAS],
    ids=["raises", "leaves", "loops", "compiles", "parts", "replicas"],
)
def test_a_mistake_ends_the_job_and_is_named(mistakes: list[Mistake], start: Callable[..., Run]) -> None:
    runs = [start("--replicas", "2", *m.flags, script=SCRIPT, script_args=(m.name, *m.args)) for m in mistakes]
    codes = [run.wait() for run in runs]
    for mistake, run, code in zip(mistakes, runs, codes, strict=True):
        story = f"{mistake.name}\n{run.story()}"
        assert code == 1, story
        end = run.output[run.output.index("regrow: the first failure, ") if mistake.name != "dataset" else 0 :]
        assert re.search(mistake.words, end), story
        assert "regrow: the job failed: " in end, story
        if mistake.place:
            (number,) = (number for number, line in enumerate(LINES, 1) if line.endswith(f"# {mistake.place}"))
            first = re.match(r"regrow: the first failure, r\d\.0(?: in step \d(?:, lane \d)?)? at (\S+):(\d+):\n", end)
            assert first and (first[1], int(first[2])) == (str(SCRIPT), number), story
            assert f'File "{SCRIPT}", line {number}, in <module>\n' in end, story
        assert len(run.facts(WorkerStarted)) <= 2 + mistake.restarts, story
        assert mistake.name == "break out" or not run.digests(), story
    assert runs[0].status()["state"] == "failed"


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The digest of the script without a mistake, run alone with its default of 8 lanes."""
    return alone("none", script=SCRIPT)


def test_lanes_come_from_the_flag_the_script_or_the_default(start: Callable[..., Run], undisturbed: str) -> None:
    flag = start("--replicas", "3", "--lanes", "2", script=SCRIPT, script_args=("none",))
    both = start("--replicas", "1", "--lanes", "2", script=SCRIPT, script_args=("none", "2"))
    neither = start("--replicas", "2", script=SCRIPT, script_args=("none",))
    assert [run.wait() for run in (flag, both, neither)] == [0, 0, 0]
    assert Counter(re.findall(r"lanes \d+$", flag.output, re.MULTILINE)) == {"lanes 2": 3}
    assert Counter(re.findall(r"lanes \d+$", neither.output, re.MULTILINE)) == {"lanes 8": 2}
    assert "warning: 3 replicas share 2 lanes: 1 of them will compute nothing" in flag.output
    (made,) = (fact for _, fact in flag.facts(RosterMade))
    assert sorted(seat.lanes for seat in made.seats) == [(), (0,), (1,)]
    # The idle replica ends with the same weights, and they are those of any other number of replicas.
    assert len(flag.digests()) == 3 and set(flag.digests()) == set(both.digests())
    assert set(neither.digests()) == {undisturbed}
    assert flag.check().returncode == 0


def test_a_joiner_that_computes_other_bits_is_refused_before_it_has_lanes(
    start: Callable[..., Run], undisturbed: str
) -> None:
    flags = ("--replicas", "3", "--fault", "r1:backward:step=2:SIGKILL")
    run = start(*flags, script=SCRIPT, script_args=("other bits",))
    assert run.wait() == 0, run.story()
    (lost,) = (fact for _, fact in run.facts(ReplicaLost))
    assert lost.replica == "r1" and "the admission audit failed" in run.output, run.story()
    assert not run.facts(LaneComputed, "r1.1")
    assert set(run.digests()) == {undisturbed} and len(run.digests()) == 2


def test_a_joiner_that_builds_another_state_is_refused_and_the_others_go_on(
    start: Callable[..., Run], undisturbed: str
) -> None:
    flags = ("--replicas", "3", "--fault", "r1:backward:step=2:SIGKILL")
    run = start(*flags, script=SCRIPT, script_args=("joiner",))
    assert run.wait() == 0, run.story()
    (lost,) = (fact for _, fact in run.facts(ReplicaLost))
    assert lost.replica == "r1" and "r1.1 raised regrow.core.errors.Mismatch" in lost.why, run.story()
    assert re.search(r"the job goes on without r1: .*", run.output)
    assert re.search(r"another state than the job's: model\.0\.(weight|bias)", run.output), run.output
    assert len(run.facts(WorkerStarted)) == 4, "it was started again"
    assert set(run.digests()) == {undisturbed} and len(run.digests()) == 2
    assert {who for who, fact in run.facts(Departed) if fact.fault is None} == {"r0.0", "r2.0"}
    exits = Counter(str(fact.member) for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert exits == {"r1.0": 1, "r1.1": 1}
    assert run.check().returncode == 0, run.check().stdout
