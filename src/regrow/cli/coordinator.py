"""`regrow coordinator`: the coordinator of one job, as a process of its own."""

import asyncio
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import click

from regrow.agent.terminal import Terminal
from regrow.cli.address import parse_address
from regrow.cli.conclusion import CODES, INFRA, USAGE, conclude, short
from regrow.cli.liveness import born
from regrow.cli.run_dir import ListeningFile, RunDir
from regrow.coordinator.office import Office
from regrow.coordinator.store import Store
from regrow.core.errors import ConfigError, InfraError, RegrowError
from regrow.core.membership_effects import End
from regrow.core.roster import Endpoint
from regrow.shell.faultpoint import COORDINATOR, arm, parse
from regrow.shell.journal import Journal

_GONE = {signal.SIGINT: 130, signal.SIGTERM: 143}
_BIND_S = 15.0
"""Somebody may have been given the port of a coordinator that died; connections come and go."""
_RETRY_S = 0.2


@click.command("coordinator", options_metavar="--listen HOST:PORT --run-dir DIR")
@click.option(
    "--listen",
    "address",
    required=True,
    metavar="HOST:PORT",
    help="Where the job finds it. Port 0 takes any free one, and the same one when it is started again.",
)
@click.option(
    "--run-dir",
    required=True,
    type=click.Path(path_type=Path),
    help="The run directory: new, or the one it had before. It makes the job's token there.",
)
@click.option("--fault", "faults", multiple=True, hidden=True, metavar="SPEC", help="Arm a fault point, for tests.")
def coordinator(address: str, run_dir: Path, faults: tuple[str, ...]) -> None:
    """Decide who takes part in one job, in a process of its own.

    Start it, then the job: `regrow run --coordinator HOST:PORT --run-dir DIR ...`. When it is gone, killed or stopped,
    training goes on and nobody is replaced; started again with the same command, it goes on where it was. Ctrl-C and
    SIGTERM only send it away: to stop the job, stop `regrow run`.

    \b
    Exit codes:
      0    the job finished
      1    the job failed
      2    wrong usage: a flag, the run directory, or another coordinator has it
      3    every replica was lost, or `regrow run` is gone, and the training state with them
      4    the machine refused: disk, port
      70   a bug in Regrow
      130  the job was stopped, or Ctrl-C sent the coordinator away
      143  SIGTERM sent the coordinator away
    """
    terminal = Terminal()
    try:
        parse(",".join(faults))
        code = asyncio.run(_coordinate(parse_address("--listen", address), RunDir(run_dir.absolute()), terminal, faults))
    except ConfigError as error:
        terminal.say(f"error: {error}")
        code = USAGE
    except (RegrowError, OSError) as error:
        terminal.say(f"error: {error}")
        code = INFRA
    terminal.close()
    sys.exit(code)


async def _coordinate(wanted: Endpoint, run_dir: RunDir, terminal: Terminal, faults: tuple[str, ...]) -> int:
    sent_away = _catch_signals()
    is_new = run_dir.prepare()
    try:
        store = Store(run_dir.path)
        try:
            token = run_dir.furnish()
            arm(",".join(faults), COORDINATOR, run_dir.path)
            office = Office(store, Journal(run_dir.journal, "coordinator"), terminal.say)
            endpoint = await _listen(office, _address(office, run_dir, wanted), token)
            note = ListeningFile(endpoint=endpoint, host=socket.gethostname(), pid=os.getpid(), born=born(os.getpid()))
            run_dir.note_listening(note)
        except BaseException:
            store.close()
            raise
    except (RegrowError, OSError):
        if is_new:
            run_dir.remove()  # nothing was coordinated: the same command must work once the cause is mended
        raise
    _greet(terminal, office, run_dir, endpoint)
    try:
        return await _serve(office, run_dir, terminal, sent_away)
    finally:
        await office.close()
        store.close()


def _address(office: Office, run_dir: RunDir, wanted: Endpoint) -> Endpoint:
    """Whoever knows the job looks for its coordinator where it was."""
    former = run_dir.listening()
    if former is None or not office.has_job:
        return wanted
    if wanted.port not in (0, former.endpoint.port) or wanted.host != former.endpoint.host:
        raise ConfigError(f"--listen {wanted}: the job in {run_dir.path} looks for its coordinator at {former.endpoint}")
    return former.endpoint


async def _listen(office: Office, endpoint: Endpoint, token: str) -> Endpoint:
    end_s = time.monotonic() + (_BIND_S if office.has_job else 0.0)
    while True:
        try:
            return await office.listen(endpoint.host, endpoint.port, token)
        except InfraError:
            if time.monotonic() >= end_s:
                raise
        await asyncio.sleep(_RETRY_S)


def _greet(terminal: Terminal, office: Office, run_dir: RunDir, endpoint: Endpoint) -> None:
    shown = short(run_dir.path)
    if office.has_job:
        terminal.say(f"coordinator at {endpoint}: back in {shown}, the job goes on")
    else:
        terminal.say(
            f"coordinator at {endpoint}: start the job with: regrow run --coordinator {endpoint} --run-dir {shown} ..."
        )


def _catch_signals() -> asyncio.Future[signal.Signals]:
    """Done with the first signal that sends this process away."""
    loop = asyncio.get_running_loop()
    sent_away: asyncio.Future[signal.Signals] = loop.create_future()

    def signalled(number: signal.Signals) -> None:
        if not sent_away.done():
            sent_away.set_result(number)

    for number in _GONE:
        loop.add_signal_handler(number, signalled, number)
    return sent_away


async def _serve(office: Office, run_dir: RunDir, terminal: Terminal, sent_away: asyncio.Future[signal.Signals]) -> int:
    def crashed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        story = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        terminal.say(f"a bug in Regrow, please report it: {context['message']}\n{story}")
        office.fail(f"{context['message']}: {error!r}")

    asyncio.get_running_loop().set_exception_handler(crashed)
    running: asyncio.Task[End] = asyncio.create_task(office.run())
    both: set[asyncio.Future[Any]] = {running, sent_away}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        end = running.result()
        conclude(terminal, end, [], short(run_dir.path))
        return CODES[end.outcome]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    name = "Ctrl-C" if sent_away.result() == signal.SIGINT else sent_away.result().name
    if office.has_job:
        terminal.say(
            f"{name}: the coordinator goes, the job stays: training goes on, and nobody is replaced until it is started "
            "again with the same command. To stop the job, stop `regrow run`"
        )
    return _GONE[sent_away.result()]
