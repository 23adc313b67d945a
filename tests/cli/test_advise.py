"""`regrow checkpoint advise`, and amounts as people write them."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from regrow.cli.amounts import bytes_per_s, count, seconds, share
from regrow.cli.checkpoint import checkpoint
from regrow.core.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
ASKED = ("--params", "7e9", "--replicas", "64", "--mtbf", "3h", "--bandwidth", "5GB/s")


def advised(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(checkpoint, ["advise", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_intervals_on_paper_are_told_with_what_they_cost() -> None:
    lines = advised(*ASKED).splitlines()
    assert lines[0] == (
        "7 billion parameters of 12 bytes: 84 GB, copied by 64 replicas; everything is lost once in 3 h, and back in 2 min"
    )
    assert re.split(r"  +", lines[2]) == ["memory", "53.3 s", "131 ms", "131 ms", "0.25 %", "26.8 s", "98.41 %"]
    assert re.split(r"  +", lines[3]) == ["place", "53.3 s", "131 ms", "16.8 s", "0.25 %", "43.4 s", "98.26 %"]
    assert lines[4].startswith(
        "memory: a save costs training 131 ms, and the least time is lost so where everything is lost"
    )


def test_more_is_asked_and_less_may_be_spent() -> None:
    flags = ("--bytes-per-param", "18", "--overhead", "0.1%", "--copy-bandwidth", "20GB/s", "--restart", "10min")
    memory, place = json.loads(advised(*ASKED, *flags, "--json"))["advice"]["tiers"]
    assert memory["interval"]["bound"] == "budget"
    assert memory["interval"]["toil"]["cost_s"] == pytest.approx(7e9 * 18 / 64 / 20e9)
    assert memory["interval"]["seconds"] == pytest.approx(memory["interval"]["toil"]["cost_s"] / 0.001)
    assert place["effective"] < memory["effective"] < 0.95


def test_the_document_knows_every_field() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    advice = json.loads(advised(*ASKED, "--json"))["advice"]
    (tier, _), interval = advice["tiers"], advice["tiers"][0]["interval"]
    for fields in (advice, advice["question"], tier, interval, interval["toil"], interval["loss"]):
        assert set(fields) <= told, set(fields) - told


@pytest.mark.parametrize("flag", ["--params", "--mtbf", "--bandwidth"])
def test_what_is_no_amount_is_refused_with_an_example(flag: str) -> None:
    arguments = list(ASKED)
    arguments[arguments.index(flag) + 1] = "much"
    assert f"{flag} much: write" in advised(*arguments, code=2)


def test_amounts_are_read_as_people_write_them() -> None:
    spans = [("90s", 90.0), ("1.5h", 5400.0), ("20 min", 1200.0), ("7d", 604_800.0), ("250ms", 0.25)]
    assert [seconds("--x", text) for text, _ in spans] == [value for _, value in spans]
    assert (share("--x", "1%"), share("--x", "0.5 %")) == (0.01, 0.005)
    assert (bytes_per_s("--x", "800MB/s"), bytes_per_s("--x", "5gb/s"), bytes_per_s("--x", "9B/s")) == (8e8, 5e9, 9.0)
    assert (count("--x", "7e9"), count("--x", "7B"), count("--x", "350m"), count("--x", "12")) == (7e9, 7e9, 3.5e8, 12.0)


@pytest.mark.parametrize("text", ["", "3", "h", "-3h", "0s", "3hours", "1e400h", "nan", "inf s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write a time with its unit"):
        seconds("--mtbf", text)


@pytest.mark.parametrize("text", ["1", "0%", "100%", "-1%", "%", "2%%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write a share of the time"):
        share("--overhead", text)


@pytest.mark.parametrize("text", ["5GB", "5", "0B/s", "GB/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write bytes per second"):
        bytes_per_s("--bandwidth", text)
