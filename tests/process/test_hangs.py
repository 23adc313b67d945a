"""Replicas that stop, loop, wait for ever or are frozen: named, replaced, and the weights of an undisturbed run."""

from collections import Counter
from collections.abc import Callable

import pytest
from runs import Run, prove

from regrow.core.progress import Place
from regrow.core.records import WorkerExited

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("r1:backward:step=3:lane=3:SIGKILL", Place(step=3, lane=3, phase="microbatch")),
        ("r1:start:SIGKILL", Place(step=None, lane=None, phase="start")),
        ("r1:reduced:step=2:SIGKILL", Place(step=2, lane=None, phase="turn")),
        ("r1:passed:step=4:SIGKILL", Place(step=4, lane=None, phase="between")),
    ],
)
def test_where_a_replica_died_is_known(fault: str, place: Place, start: Callable[..., Run], reference: str) -> None:
    run = start("--replicas", "3", "--fault", fault, script_args=("--hold", "5:3"))
    run.wait()
    prove(run, reference, deaths=Counter(["r1"]))
    exits = {str(fact.member): fact.place for _, fact in run.facts(WorkerExited)}
    assert exits["r1.0"] == place
    assert {exits[member].phase for member in ("r0.0", "r1.1", "r2.0")} == {"leaving"}
