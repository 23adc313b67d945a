"""What `regrow run` is told of notices, and of places that go with the machine."""

from pathlib import Path

import pytest

from regrow.cli.noticing import notices
from regrow.core.errors import ConfigError
from regrow.core.notices import NoticeConfig


def told(
    file: str | None = None, signal: str | None = None, url: str | None = None, within: float | None = None
) -> NoticeConfig:
    return notices(notice_file=file, notice_signal=signal, notice_url=url, notice_within=within, grace_s=30.0)


def test_without_a_flag_there_are_no_notices() -> None:
    assert told() == NoticeConfig(within_s=30.0)


def test_a_notice_has_the_grace_unless_its_time_is_given(tmp_path: Path) -> None:
    assert told(signal="usr1") == told(signal="SIGUSR1") == NoticeConfig(signal="SIGUSR1", within_s=30.0)
    assert told(file=str(tmp_path / "notice"), within=5.0) == NoticeConfig(file=str(tmp_path / "notice"), within_s=5.0)


@pytest.mark.parametrize("signal", ["TERM", "INT", "KILL", "CONT", "CHLD", "USR3"])
def test_a_signal_that_means_something_else_is_refused(signal: str) -> None:
    with pytest.raises(ConfigError, match=f"--notice-signal {signal}: choose one of HUP"):
        told(signal=signal)


@pytest.mark.parametrize("url", ["169.254.169.254", "ftp://host/x", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--notice-url"):
        told(url=url)


def test_what_is_there_already_and_a_time_without_a_notice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is there already"):
        told(file=str(tmp_path))
    with pytest.raises(ConfigError, match="--notice-within without a notice"):
        told(within=5.0)
