"""How a job ends whose last state is not safe."""

import pytest

from regrow.agent.terminal import Terminal
from regrow.cli.conclusion import (
    FAILED,
    FINISHED,
    INFRA,
    INTERRUPTED,
    STATE_LOST,
    STOPPED,
    UNSAFE,
    conclude_saves,
    exit_code,
)
from regrow.core.membership_effects import End
from regrow.core.safety import Safety, Spot

WHY = "s3://bucket/run1: no room for 5 bytes"


def ended(outcome: str, *failures: str) -> tuple[int | None, str]:
    terminal = Terminal()
    code = conclude_saves(terminal, End(outcome=outcome, why="every member has left"), failures, "runs/a")
    said = "\n".join(line.text for line in terminal.said)
    terminal.close()
    return code, said


def test_what_is_safe_needs_no_word() -> None:
    assert ended("finished") == (None, "")


@pytest.mark.parametrize(
    ("outcome", "code"), [("finished", INFRA), ("stopped", INFRA), ("failed", None), ("state-lost", None)]
)
def test_what_is_not_safe_is_told_and_is_exit_code_4_unless_worse_happened(outcome: str, code: int | None) -> None:
    found, said = ended(outcome, WHY, "the last state (step 7) is not saved: r1.0 died")
    assert found == code
    assert said.splitlines()[:3] == [
        "the last state of the job is not durable everywhere:",
        f"  {WHY}",
        "  the last state (step 7) is not saved: r1.0 died",
    ]
    assert len(ended(outcome, *[WHY] * 30)[1].splitlines()) == 7, "no more than a person reads"
    assert "regrow checkpoint list runs/a" in said and "--resume latest" in said


@pytest.mark.parametrize(
    ("outcome", "unsaved", "is_interrupted", "step", "code"),
    [
        ("stopped", None, True, 7, INTERRUPTED),
        ("stopped", INFRA, True, 7, INTERRUPTED),  # another place failed: there is something to go on from all the same
        ("stopped", INFRA, True, None, UNSAFE),
        ("stopped", None, False, 7, STOPPED),
        ("stopped", INFRA, False, 7, INFRA),
        ("finished", None, True, 7, FINISHED),  # it came to its end before the time was up
        ("finished", INFRA, True, 7, INFRA),
        ("failed", None, True, 7, FAILED),
        ("state-lost", None, True, 7, INTERRUPTED),  # all were lost before they could stop
        ("state-lost", INFRA, True, 7, INTERRUPTED),
        ("state-lost", None, True, None, STATE_LOST),
        ("state-lost", None, False, 7, STATE_LOST),
    ],
)
def test_a_scheduler_is_told_to_start_a_job_again_where_there_is_something_to_go_on_from(
    outcome: str, unsaved: int | None, is_interrupted: bool, step: int | None, code: int
) -> None:
    safety = Safety(spots=(Spot(url="/a", outlives=True, step=step),), reached=7)
    assert exit_code(End(outcome=outcome, why=""), safety, unsaved, is_interrupted) == code


def test_what_goes_with_the_machine_or_was_never_saved_is_nothing_to_go_on_from() -> None:
    local = Safety(spots=(Spot(url="/nvme", outlives=False, step=7),), reached=7)
    assert [exit_code(End(outcome="stopped", why=""), safety, None, True) for safety in (local, None)] == [UNSAFE, UNSAFE]
