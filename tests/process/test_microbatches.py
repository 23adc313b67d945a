"""A lane of several microbatches is one whole: a death in the middle of it leaves nothing of it behind."""

from collections import Counter
from collections.abc import Callable

import pytest
from runs import Run, alone, prove

pytestmark = pytest.mark.process


def test_a_kill_in_the_second_microbatch_of_a_lane(start: Callable[..., Run], reference: str) -> None:
    # nth counts passes of step 3 alone: r1 has two lanes, so the second backward is the second half of its first lane.
    run = start(
        "--replicas",
        "3",
        "--fault",
        "r1:backward:step=3:nth=2:SIGKILL",
        script_args=("--microbatches", "2", "--hold", "5:3"),
    )
    expected = alone("--microbatches", "2")
    run.wait()
    assert expected != reference, "one microbatch a lane trains alike: this test would prove nothing"
    prove(run, expected, deaths=Counter({"r1": 1}), microbatches=2)
    rows = (run.folder / "used-r1.0.txt").read_text().splitlines()
    assert sum(row.startswith("3 ") for row in rows) == 2, "it died elsewhere"
