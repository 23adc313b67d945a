"""Before training begins: a place at which every save would fail is refused, and what is left there by the dead goes."""

import os
from pathlib import Path

import pytest

from regrow.agent.opening import opened
from regrow.core.retention import Retention
from regrow.shell.vaulting import Opened, Place, Unusable

DEADLINE_S = 60.0


def place(folder: Path) -> Place:
    return Place(url=str(folder), every=1, retention=Retention())


def test_a_place_without_hard_links_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put would do there, and no pointer could ever be created."""

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    answer = opened([place(tmp_path)], DEADLINE_S)
    assert isinstance(answer, Unusable)
    assert answer.why.startswith(f"checkpoints cannot be saved to {tmp_path}: ") and "has no hard links" in answer.why
    assert [*tmp_path.iterdir()] == []


def test_what_a_vault_left_that_died_while_it_opened_a_place_goes(tmp_path: Path) -> None:
    (tmp_path / "probe-0123abcd").write_text("may this be written?")
    (tmp_path / "probe-of-mine").write_text("the user's")
    assert isinstance(opened([place(tmp_path)], DEADLINE_S), Opened)
    assert [path.name for path in tmp_path.iterdir()] == ["probe-of-mine"]
