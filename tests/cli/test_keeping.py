"""What `regrow run` is told of saves, as the launcher gets it."""

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from regrow.cli.keeping import Keeping, keeping_options
from regrow.core.errors import ConfigError
from regrow.core.interval import CadenceConfig
from regrow.core.retention import Retention
from regrow.shell.vaulting import Place

NONE = Retention()


def told(*arguments: object) -> Keeping:
    heard: list[Keeping] = []

    @click.command()
    @keeping_options
    @click.option("--other")
    def command(keeping, other):  # type: ignore[no-untyped-def]
        heard.append(keeping())

    done = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return heard[0]


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    found = told()
    assert found == Keeping() and not found.keeps


def test_places_are_absolute_and_have_an_interval_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    near, far = ("--checkpoint", "near"), ("--checkpoint", f"file://{tmp_path}/far")
    one, other = str(tmp_path / "near"), str(tmp_path / "far")
    by_default = tuple(Place(url=url, every=0, retention=NONE) for url in (one, other))
    assert told(*near, *far).places == by_default and told(*near, *far).keeps
    shared = told(*near, *far, "--checkpoint-every", 7).places
    assert [place.every for place in shared] == [7, 7]
    each = told(*near, "--checkpoint-every", 7, "--checkpoint-every", 70, *far).places
    assert [(place.url, place.every) for place in each] == [(one, 7), (other, 70)]
    assert list(tmp_path.iterdir()) == [], "nothing is made there yet"


def test_what_is_kept_holds_for_all_places(tmp_path: Path) -> None:
    flags = ("--keep-last", 3, "--keep-every", 1000, "--keep-gb", 1.5)
    found = told("--checkpoint", tmp_path / "a", "--checkpoint", tmp_path / "b", *flags)
    assert {place.retention for place in found.places} == {Retention(last=3, every=1000, total_bytes=1_500_000_000)}


def test_deltas_hold_for_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("--checkpoint", tmp_path / "a", "--checkpoint", tmp_path / "b")
    assert [place.delta for place in told(*there, "--checkpoint-delta", 5).places] == [5, 5]
    assert [place.delta for place in told(*there).places] == [0, 0]
    monkeypatch.delitem(sys.modules, "regrow.state.planes", raising=False)
    monkeypatch.delattr("regrow.state.planes", raising=False)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        ConfigError, match=r"--checkpoint-delta 5 needs the package zstandard: pip install 'regrow\[delta\]'"
    ):
        told(*there, "--checkpoint-delta", 5)
    assert len(told(*there).places) == 2


def test_moments_that_are_not_exact_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--moments int8: a job's checkpoints are exact"):
        told("--checkpoint", tmp_path, "--moments", "int8")


def test_memory_alone_keeps_the_state() -> None:
    found = told("--memory-every", 5)
    assert found.keeps and (found.places, found.memory_every) == ((), 5)


def test_logs_keep_the_state_without_any_interval() -> None:
    found = told("--every-step")
    assert found.keeps and (found.places, found.memory_every, found.log_bytes) == ((), 0, 1024 * 10**6)
    assert told("--every-step", "--log-mb", 64).log_bytes == 64 * 10**6


def test_what_is_on_auto_follows_what_was_said_of_losses_and_costs(tmp_path: Path) -> None:
    by_default = told("--checkpoint", tmp_path)
    assert by_default.paces_memory and by_default.cadence == CadenceConfig(overhead=0.01, mtbf_s=None)
    found = told("--memory-every", "auto", "--overhead", "0.5 %", "--mtbf", "3h")
    assert found.keeps and found.paces_memory and (found.places, found.memory_every) == ((), 0)
    assert found.cadence == CadenceConfig(overhead=0.005, mtbf_s=10_800.0)


def test_fixed_intervals_and_auto_go_together(tmp_path: Path) -> None:
    both = ("--checkpoint", tmp_path / "a", "--checkpoint", tmp_path / "b")
    mixed = told(*both, "--checkpoint-every", "auto", "--checkpoint-every", 50)
    assert [place.every for place in mixed.places] == [0, 50] and mixed.paces_memory
    fixed = told(*both, "--checkpoint-every", 50)
    assert not fixed.paces_memory and fixed.memory_every == 0
    assert told(*both, "--checkpoint-every", 50, "--memory-every", "auto").paces_memory
    assert not told(*both, "--memory-every", 7).paces_memory


def test_a_job_begins_from_the_newest_state_or_from_a_step(tmp_path: Path) -> None:
    there = ("--checkpoint", tmp_path)
    newest, one = told(*there, "--resume", "latest"), told(*there, "--resume", 40, "--new-mathematics")
    assert (newest.resumes, newest.resume_step, newest.new_mathematics) == (True, None, False)
    assert (one.resumes, one.resume_step, one.new_mathematics) == (True, 40, True)


def test_sizes_and_patience(tmp_path: Path) -> None:
    found = told("--checkpoint", tmp_path, "--shard-mb", 10, "--checkpoint-patience", 2.5)
    assert (found.shard_bytes, found.patience_s) == (10_000_000, 2.5)


def test_a_pace_holds_for_each_place_and_patience_must_be_longer_than_a_block(tmp_path: Path) -> None:
    places = ("--checkpoint", tmp_path / "a", "--checkpoint", tmp_path / "b")
    assert [place.bytes_per_s for place in told(*places).places] == [0, 0]
    assert [place.bytes_per_s for place in told(*places, "--checkpoint-mb-per-s", 50).places] == [50_000_000] * 2
    with pytest.raises(
        ConfigError, match=r"at 1 MB a second a block of 8\.4 MB takes 8\.4 s, .* have a patience of 16\.8 s"
    ):
        told(*places, "--checkpoint-mb-per-s", 1, "--checkpoint-patience", 5)


def test_a_place_goes_with_the_machine_only_where_that_is_said(tmp_path: Path) -> None:
    near, far = str(tmp_path / "near"), str(tmp_path / "far")
    kept = told("--checkpoint", near, "--checkpoint", far, "--host-local", near)
    assert [place.outlives for place in kept.places] == [False, True]
    with pytest.raises(ConfigError, match=r"--host-local .*other is no --checkpoint"):
        told("--checkpoint", near, "--host-local", str(tmp_path / "other"))


def test_a_neighbour_is_the_nearest_place_and_takes_each_state_that_memory_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_NEIGHBOUR_TOKEN", "7e57" * 16)
    kept = told("--every-step", "--neighbour", "10.0.0.2:29500", "--checkpoint", tmp_path, "--checkpoint-every", 9)
    assert [place.url for place in kept.places] == ["neighbour://10.0.0.2:29500/job", str(tmp_path)]
    assert kept.places[0].retention == Retention(last=1) and not kept.paces_memory
    assert kept.neighbour is not None and kept.neighbour.patience_s == 5.0
    assert told("--neighbour", "10.0.0.2:29500/mine").paces_memory, "else nothing would ever be saved"
    assert told("--neighbour", "10.0.0.2:29500/mine", "--resume", "latest").resumes


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--neighbour", "10.0.0.2:29500"), "REGROW_NEIGHBOUR_TOKEN"),
        (("--neighbour", "here"), "write HOST:PORT"),
        (("--neighbour-token-file", "token"), "without --neighbour"),
        (("--neighbour", "10.0.0.2:29500", "--neighbour-token-file", "/nowhere/token"), "cannot be read"),
    ],
)
def test_a_neighbour_that_cannot_be_asked_is_refused(
    flags: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGROW_NEIGHBOUR_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=why):
        told(*flags)
