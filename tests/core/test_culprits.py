"""Who failed, and how that is known: the kinds that no transcript in tests/cli shows."""

import pytest

from regrow.core.chronicle import Chronicle
from regrow.core.culprits import culprits
from regrow.core.records import Departed, Fact, Line, WorkerExited
from regrow.core.roster import Member

R1 = Member("r1", 0)


def lines(who: str, *facts: Fact) -> list[Line]:
    return [Line(at=float(number), ns=number, who=who, what=fact) for number, fact in enumerate(facts)]


def exited(how: str, clean: bool = False) -> WorkerExited:
    return WorkerExited(member=R1, pid=7, how=how, clean=clean, cause="died-r1.0")


@pytest.mark.parametrize(
    ("how", "kind", "told"),
    [
        ("exited with code 3", "exit", "exited with code 3"),
        ("killed by signal 40", "signal", "was killed by signal 40"),
        ("could not be started: no space left", "start", "could not be started: no space left"),
        ("was lost while starting", "start", "was lost while starting"),
    ],
)
def test_an_end_tells_its_kind(how: str, kind: str, told: str) -> None:
    (culprit,) = culprits(Chronicle({"agent": lines("agent", exited(how))}))
    assert (culprit.kind, culprit.how, culprit.is_seated) == (kind, told, False)


@pytest.mark.parametrize(
    "how", ["was ended: the job is over", "was ended: the job is ending", "was ended before it started: the job is over"]
)
def test_tidying_up_is_no_failure(how: str) -> None:
    assert culprits(Chronicle({"agent": lines("agent", exited(how))})) == []


def test_a_clean_exit_is_no_failure() -> None:
    assert culprits(Chronicle({"agent": lines("agent", exited("exited with code 0", clean=True))})) == []


def test_whoever_left_by_itself_says_why() -> None:
    left = Departed(step=3, why="the result of step 3 differs here from the others'", fault="corrupt", digest=None)
    journals = {"agent": lines("agent", exited("exited with code 66")), "r1.0": lines("r1.0", left)}
    (culprit,) = culprits(Chronicle(journals))
    assert (culprit.kind, culprit.how) == ("left", "left the job: the result of step 3 differs here from the others'")
