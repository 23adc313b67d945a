"""Memory runs out in a replica: it is said so, with the numbers, and the weights are those of an undisturbed run."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import HERE, Run, prove, wait_for

from regrow.core.records import WorkerExited, WorkerRaised
from regrow.shell.memory import Cgroup, cgroup_of

pytestmark = pytest.mark.process

PATIENT = ("--hang-factor", "0")
"""At its limit a cgroup may take seconds to kill: who is judged first, as hanging, dies of that."""

HOG = HERE / "hog.py"
LIMIT_BYTES = 3 << 30


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """A cgroup with a limit, for this test alone."""
    mine = cgroup_of()
    if mine is None:
        pytest.skip("no memory cgroup is mounted here")
    folder = mine.mount / f"regrow-test-{os.getpid()}"
    limit = "memory.max" if mine.version == 2 else "memory.limit_in_bytes"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT_BYTES))
    except OSError as error:
        folder.rmdir() if folder.is_dir() else None
        pytest.skip(f"a cgroup with a limit cannot be made here: {error}")
    yield Cgroup(folder=folder, mount=mine.mount, version=mine.version)
    wait_for(lambda: not (folder / "cgroup.procs").read_text(), "the cgroup to be empty")
    folder.rmdir()


def within(cgroup: Cgroup, command: Path) -> Path:
    """A script that goes into the cgroup and then runs `regrow`: all that it starts is born there."""
    command.write_text(f'#!/bin/sh\necho $$ > {cgroup.folder / "cgroup.procs"} && exec "$@"\n')
    command.chmod(0o755)
    return command


def test_the_kernels_killer_is_recognised(start: Callable[..., Run], cgroup: Cgroup, tmp_path: Path, reference: str) -> None:
    before = within(cgroup, tmp_path / "within.sh")
    run = start("--replicas", "3", *PATIENT, script=HOG, script_args=("kill", "--hold", "5:3"), before=(str(before),))
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(["r1"]))
    (died,) = (fact for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert re.match(r"was (probably )?killed by the kernel's out-of-memory killer \(it held up to ", died.how), died.how
    assert f"cgroup {cgroup.name}: limit 3.0 GiB" in died.how and " available of " in died.how
    memory = died.memory
    assert memory is not None and memory.cgroup_limit_bytes == LIMIT_BYTES
    assert memory.peak_bytes is not None and memory.peak_bytes > LIMIT_BYTES // 3
    assert memory.cgroup_peak_bytes is not None and memory.cgroup_peak_bytes > LIMIT_BYTES // 2
    assert f"r1.0 {died.how}" in run.output


def test_a_plain_kill_in_the_same_cgroup_is_a_plain_kill(
    start: Callable[..., Run], cgroup: Cgroup, tmp_path: Path, reference: str
) -> None:
    before = within(cgroup, tmp_path / "within.sh")
    faults = ("--fault", "r2:backward:step=4:SIGKILL")
    run = start(
        "--replicas", "3", *PATIENT, *faults, script=HOG, script_args=("kill", "--hold", "5:3"), before=(str(before),)
    )
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(["r1", "r2"]))
    how = {str(fact.member): fact.how for _, fact in run.facts(WorkerExited) if not fact.clean}
    assert "out-of-memory killer" in how["r1.0"] and how["r2.0"] == "killed by SIGKILL", how


@pytest.mark.parametrize(
    ("mode", "kind", "died"), [("raise", "MemoryError", 1), ("torch", "RuntimeError", 1), ("both", "MemoryError", 2)]
)
def test_an_exception_for_lack_of_memory_is_recognised(
    start: Callable[..., Run], reference: str, mode: str, kind: str, died: int
) -> None:
    """Two replicas that run out of memory at one line are not taken for a bug in the script."""
    run = start("--replicas", "3", *PATIENT, script=HOG, script_args=(mode, "--hold", "5:3"))
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(["r1", "r2"][:died]))
    raised = [fact for _, fact in run.facts(WorkerRaised)]
    assert [fact.kind for fact in raised] == [kind] * died and {fact.scope for fact in raised} == {"step"}
    for fact in raised:
        assert fact.memory is not None and fact.memory.evidence == f"{kind} in the script"
        assert fact.memory.limit_bytes is not None and fact.memory.peak_bytes is not None
        assert fact.place.startswith(str(HOG))
    assert re.search(
        r"^\[r1\] regrow: out of memory \(it held up to .* its own limit \(ulimit -v\) is ", run.output, re.MULTILINE
    )
