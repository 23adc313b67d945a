"""What `regrow run` is told of notices that its machine will be taken away: its flags, checked."""

import functools
import os
from collections.abc import Callable
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

import click

from regrow.core.errors import ConfigError
from regrow.core.notices import SIGNALS, NoticeConfig

_OPTIONS = (
    click.option(
        "--notice-file", metavar="PATH", help="A file that appears there is a notice: this machine will be taken away."
    ),
    click.option("--notice-signal", metavar="NAME", help="This signal to `regrow run` is such a notice, e.g. USR1."),
    click.option(
        "--notice-url", metavar="URL", help="Asked every second: such a notice once it answers 200 and says something."
    ),
    click.option(
        "--notice-within",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="So long after a notice the job must have ended, with its last state durable. Default: --grace.",
    ),
)


def notice_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command gets them as one function that checks them: `noticing(grace_s)`, which may raise ConfigError."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        own = {name: arguments.pop(name) for name in signature(notices).parameters if name != "grace_s"}
        command(noticing=lambda grace_s: notices(grace_s=grace_s, **own), **arguments)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


def notices(
    *,
    notice_file: str | None,
    notice_signal: str | None,
    notice_url: str | None,
    notice_within: float | None,
    grace_s: float,
) -> NoticeConfig:
    if notice_within is not None and not (notice_file or notice_signal or notice_url):
        raise ConfigError("--notice-within without a notice: say where it comes from with --notice-file, -signal or -url")
    if notice_file and os.path.lexists(notice_file):
        raise ConfigError(f"--notice-file {notice_file} is there already, as from an earlier notice: remove it first")
    if notice_url and (urlsplit(notice_url).scheme not in ("http", "https") or not urlsplit(notice_url).hostname):
        raise ConfigError(f"--notice-url {notice_url}: write an address as in http://169.254.169.254/path")
    return NoticeConfig(
        file=os.path.abspath(notice_file) if notice_file else "",
        signal=_signal(notice_signal) if notice_signal else "",
        url=notice_url or "",
        within_s=grace_s if notice_within is None else notice_within,
    )


def _signal(name: str) -> str:
    found = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    if found not in SIGNALS:
        raise ConfigError(f"--notice-signal {name}: choose one of {', '.join(one[3:] for one in SIGNALS)}")
    return found
