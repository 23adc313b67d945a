"""How a job ends whose last state is not safe."""

import pytest

from regrow.agent.terminal import Terminal
from regrow.cli.conclusion import INFRA, conclude_saves
from regrow.core.membership_effects import End

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
