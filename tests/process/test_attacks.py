"""Kill replicas at every moment of a step's life, exactly there, and end with the weights of an undisturbed run."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
from runs import Run, prove

pytestmark = pytest.mark.process


class Attack(NamedTuple):
    name: str
    faults: tuple[str, ...]
    deaths: str
    """The replicas that die, once per death; "*" is any."""
    replicas: int = 3


KILLS = [
    Attack("before join", ("r1:start:SIGKILL",), "r1"),
    Attack("joined, before the first roster", ("r1:join:SIGKILL",), "r1"),
    Attack("forming the first roster", ("r1:form:roster=1:SIGKILL",), "r1"),
    Attack("resolving the first roster", ("r1:resolve:roster=1:SIGKILL",), "r1"),
    Attack("in forward", ("r1:forward:step=3:SIGKILL",), "r1"),
    Attack("in backward", ("r1:backward:step=3:SIGKILL",), "r1"),
    Attack("in backward of its second lane", ("r1:backward:step=3:lane=3:SIGKILL",), "r1"),
    Attack("a lane done", ("r1:lane:step=3:SIGKILL",), "r1"),
    Attack("about to reduce", ("r1:reduce:step=3:SIGKILL",), "r1"),
    Attack("holding the result", ("r1:reduced:step=3:SIGKILL",), "r1"),
    Attack("at the boundary", ("r1:boundary:step=3:SIGKILL",), "r1"),
    Attack("between commit and optimizer", ("r1:passed:step=3:SIGKILL",), "r1"),
    Attack("after the optimizer", ("r1:entered:step=4:SIGKILL",), "r1"),
    Attack("the first member", ("r0:backward:step=3:SIGKILL",), "r0"),
    Attack("the last step's boundary", ("r1:boundary:step=23:SIGKILL",), "r1"),
    Attack("at the farewell", ("r1:farewell:step=24:SIGKILL",), "r1"),
    Attack("a segfault", ("r2:backward:step=2:SIGSEGV",), "r2"),
    Attack("an exception", ("r2:forward:step=2:raise",), "r2"),
    Attack("an exception between the loops", ("r2:passed:step=2:raise",), "r2"),
    Attack("sys.exit(1)", ("r2:forward:step=2:exit",), "r2"),
]
DOUBLES = [
    Attack("two at once", ("r1:reduce:step=3:SIGKILL", "r2:reduce:step=3:SIGKILL"), "r1 r2", 4),
    Attack("all but one", tuple(f"r{i}:backward:step=3:SIGKILL" for i in (0, 1, 2)), "r0 r1 r2", 4),
    Attack("another while forming", ("r1:boundary:step=3:SIGKILL", "r2:form:roster=2:SIGKILL"), "r1 r2", 4),
    Attack("another about to resolve", ("r1:boundary:step=3:SIGKILL", "r2:resolve:roster=2:SIGKILL"), "r1 r2", 4),
    Attack("another having resolved", ("r1:reduced:step=3:SIGKILL", "r0:resolved:roster=2:SIGKILL"), "r0 r1", 4),
    Attack(
        "a cascade", ("r1:lane:step=3:SIGKILL", "r2:form:roster=2:SIGKILL", "r3:resolve:roster=3:SIGKILL"), "r1 r2 r3", 4
    ),
    Attack("the passer and another", ("r0:passed:step=3:SIGKILL", "r1:boundary:step=4:SIGKILL"), "r0 r1", 3),
]


@pytest.mark.parametrize("attack", [*KILLS, *DOUBLES], ids=lambda attack: attack.name)
def test_the_weights_are_those_of_an_undisturbed_run(attack: Attack, start: Callable[..., Run], reference: str) -> None:
    faults = [arg for fault in attack.faults for arg in ("--fault", fault)]
    run = start("--replicas", str(attack.replicas), *faults, script_args=("--hold", f"5:{attack.replicas}"))
    run.wait()
    prove(run, reference, deaths=Counter(attack.deaths.split()))


def test_an_undisturbed_run_equals_the_script_alone(start: Callable[..., Run], reference: str) -> None:
    run = start("--replicas", "4")
    run.wait()
    prove(run, reference, deaths=Counter())
    assert len(run.digests()) == 4


def test_a_death_after_the_last_step_is_told_and_spoils_nothing(start: Callable[..., Run], reference: str) -> None:
    run = start("--replicas", "3", "--fault", "r1:after:SIGKILL")
    assert run.wait() == 1
    assert "r1.0 killed by SIGKILL after its last step" in run.output
    prove(run, reference, deaths=Counter(["r1"]), code=1)
    assert len(run.digests()) == 2
