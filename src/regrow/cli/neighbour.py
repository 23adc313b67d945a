"""`regrow neighbour`: keeps copies of other hosts' jobs in this host's memory."""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from regrow.agent.terminal import Terminal
from regrow.cli.address import parse_address
from regrow.cli.conclusion import INFRA, USAGE
from regrow.core.errors import ConfigError, RegrowError
from regrow.core.roster import Endpoint
from regrow.neighbour.server import Neighbour
from regrow.state.neighbour_store import TOKEN
from regrow.wire.tcp import listen

_GONE = {signal.SIGINT: 130, signal.SIGTERM: 143}
_LOOK_S = 10.0
_MB = 1_000_000


@click.command("neighbour", options_metavar="--listen HOST:PORT --memory-mb MB [OPTIONS]")
@click.option(
    "--listen", "address", required=True, metavar="HOST:PORT", help="Where jobs find it. Port 0 takes any free one."
)
@click.option(
    "--memory-mb",
    required=True,
    type=click.IntRange(min=1),
    metavar="MB",
    help="So much memory for all runs together: each needs twice its state, and its logs (--log-mb).",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help=f"The token that jobs prove; it is made where there is no such file. Default: {TOKEN}.",
)
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line, in place of words.")
def neighbour(address: str, memory_mb: int, token_file: Path | None, is_json: bool) -> None:
    """Keep the newest state and the logs of jobs on other hosts in this host's memory.

    Start it on a host of its own, then jobs with `regrow run --every-step --neighbour HOST:PORT ...`. When such a job's host
    is lost, the same command with --resume latest on any other host goes on, and computes no committed step again. What it
    keeps ends with it: Ctrl-C and SIGTERM end it at once, and jobs train on without.

    \b
    Exit codes:
      2    wrong usage: a flag, or no token
      4    the machine refused: port
      130  Ctrl-C
      143  SIGTERM
    """
    terminal = Terminal()
    try:
        say = _told(terminal, is_json)
        code = asyncio.run(_serve(parse_address("--listen", address), memory_mb * _MB, _token(token_file), say))
    except ConfigError as error:
        terminal.say(f"error: {error}")
        code = USAGE
    except (RegrowError, OSError) as error:
        terminal.say(f"error: {error}")
        code = INFRA
    terminal.close()
    sys.exit(code)


def _token(file: Path | None) -> str:
    if file is None:
        if not os.environ.get(TOKEN, "").strip():
            raise ConfigError(f"regrow neighbour has a door: name a file for its token with --token-file, or set {TOKEN}")
        return os.environ[TOKEN].strip()
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            made.write(secrets.token_hex(32))
    return read_token("--token-file", file)


def read_token(flag: str, file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{flag} {file} cannot be read ({error}): check the path") from error


Tell = Callable[[str, dict[str, object]], None]
"""In words, and what they are about."""


def _told(terminal: Terminal, is_json: bool) -> Tell:
    def say(text: str, facts: dict[str, object]) -> None:
        if is_json:
            print(msgspec.json.encode({"at": time.time(), "text": text, **facts}).decode(), flush=True)
        else:
            terminal.say(text)

    return say


async def _serve(wanted: Endpoint, limit_bytes: int, token: str, say: Tell) -> int:
    kept = Neighbour(limit_bytes, lambda text: say(text, {}))

    def used() -> dict[str, object]:
        return {"used_bytes": kept.room.used_bytes, "limit_bytes": limit_bytes}

    listener = await listen(
        wanted.host, wanted.port, token, kept.welcome, lambda peer, why: say(f"{peer} is sent away: {why}", {})
    )
    say(
        f"neighbour at {listener.endpoint}: start jobs with: regrow run --every-step --neighbour {listener.endpoint} ...",
        {"endpoint": str(listener.endpoint), **used()},
    )
    loop = asyncio.get_running_loop()
    sent_away: asyncio.Future[signal.Signals] = loop.create_future()

    def signalled(number: signal.Signals) -> None:
        if not sent_away.done():
            sent_away.set_result(number)

    for number in _GONE:
        loop.add_signal_handler(number, signalled, number)
    told_bytes = 0
    while not sent_away.done():
        await asyncio.wait([sent_away], timeout=_LOOK_S)
        if kept.room.used_bytes != told_bytes:
            told_bytes = kept.room.used_bytes
            say(f"{told_bytes / _MB:.1f} of {limit_bytes / _MB:.0f} MB are used", used())
    await listener.close()
    return _GONE[sent_away.result()]
