"""`regrow scale`, `regrow leave` and `regrow migrate`: other replicas for a running job.

A wish goes to the coordinator, which grants or refuses it. Whether it holds is read from what the coordinator saves, so that
waiting for it outlives a coordinator that is restarted.
"""

import asyncio
import sys
import time
from pathlib import Path

import click

from regrow.cli.conclusion import INFRA, USAGE
from regrow.cli.run_dir import RunDir, newest
from regrow.cli.status import RUNNING, JobStatus, gather
from regrow.coordinator.store import load
from regrow.core.errors import ConfigError, PeerError, RegrowError
from regrow.core.messages import OPERATOR, Reply, Request
from regrow.core.roster import Endpoint
from regrow.core.wishes import Wish, overtaken
from regrow.wire.tcp import connect

_CONNECT_S = 10.0
_LOOK_S = 0.1
_REFUSED = 1

_run_dir = click.argument("run_dir", required=False, type=click.Path(path_type=Path))
_no_wait = click.option("--no-wait", is_flag=True, help="Return once it is granted, not once it holds.")
_replica = click.option("--replica", required=True, metavar="NAME", help="As `regrow status` names it, e.g. r2.")


@click.command("scale")
@click.option("--replicas", type=int, required=True, metavar="N", help="How many are to work.")
@_no_wait
@_run_dir
def scale(run_dir: Path | None, replicas: int, no_wait: bool) -> None:
    """Have N replicas work on a running job, more or fewer than now.

    New ones get new names; they start, catch up beside the job, and are given lanes at a boundary between two steps. Those
    that are too many hand over at a boundary and leave: the highest numbers first. Nothing is computed again, and the
    weights are those of an undisturbed run. RUN_DIR defaults to the newest run in or below the current folder.

    \b
    Exit codes: 0 it holds, 1 it was refused or overtaken, 2 there is no such run, 4 the coordinator cannot be reached.
    """
    _wish(run_dir, Wish(kind="scale", replicas=replicas), no_wait)


@click.command("leave")
@_replica
@_no_wait
@_run_dir
def leave(run_dir: Path | None, replica: str, no_wait: bool) -> None:
    """Have one replica leave a running job for good.

    It hands over at a boundary between two steps, and nothing is computed again. One replica fewer works from then on. Exit
    codes as those of `regrow scale`.
    """
    _wish(run_dir, Wish(kind="leave", replica=replica), no_wait)


@click.command("migrate")
@_replica
@_no_wait
@_run_dir
def migrate(run_dir: Path | None, replica: str, no_wait: bool) -> None:
    """Have another replica take the place of this one, which leaves for good.

    The successor has a name of its own. It starts and catches up first; then, at one boundary between two steps, it takes
    the place and the old one leaves. Exit codes as those of `regrow scale`.
    """
    _wish(run_dir, Wish(kind="migrate", replica=replica), no_wait)


def _wish(where: Path | None, wish: Wish, no_wait: bool) -> None:
    try:
        run_dir = RunDir(where or newest(Path.cwd()))
        reply = asyncio.run(ask(run_dir, wish))
        if not reply.is_granted:
            click.echo(f"regrow: {reply.why}", err=True)
            sys.exit(_REFUSED)
        if no_wait:
            click.echo(f"{wish}: granted")
        else:
            sys.exit(_wait(run_dir, wish, reply.number))
    except ConfigError as error:
        click.echo(f"regrow: {error}", err=True)
        sys.exit(USAGE)
    except (RegrowError, OSError) as error:
        click.echo(f"regrow: {error}", err=True)
        sys.exit(INFRA)


async def ask(run_dir: RunDir, wish: Wish, elsewhere: Endpoint | None = None) -> Reply:
    """`elsewhere`: where the coordinator is, should its own folder be another one. PeerError while it is away."""
    state = gather(run_dir).state
    if state not in RUNNING:
        raise ConfigError(f"{run_dir.path} does not run (it is {state}): there is nobody to ask")
    listening = run_dir.listening()
    there = listening.endpoint if listening is not None else elsewhere
    if there is None:
        raise ConfigError(
            f"{run_dir.path} does not say where its coordinator listens: ask with the coordinator's own folder"
        )
    try:
        connection = await connect(there, run_dir.token(), OPERATOR, _CONNECT_S)
        try:
            await connection.send(Request(wish=wish))
            reply = await connection.receive()
        finally:
            await connection.close()
    except PeerError as error:
        raise PeerError(f"the coordinator at {there} cannot be reached ({error}): ask again once it is back") from error
    if not isinstance(reply, Reply):
        raise PeerError(f"the coordinator answered with {type(reply).__name__}: is it of the same version?")
    return reply


def _wait(run_dir: RunDir, wish: Wish, number: int) -> int:
    """Until it holds; says each change on the way."""
    said = ""
    while True:
        found, saved = gather(run_dir), load(run_dir.path)
        if saved is not None and saved.staff is not None and all(pending.number != number for pending in saved.wishes):
            why = overtaken(wish, saved.staff)
            break
        if found.state not in RUNNING:
            why = f"the job is {found.state}"
            break
        if (line := _progress(found)) != said:
            said = line
            click.echo(line)
        time.sleep(_LOOK_S)
    if why is not None:
        click.echo(f"regrow: {wish}: not any more: {why}", err=True)
        return _REFUSED
    click.echo(f"{wish}: done")
    return 0


def _progress(found: JobStatus) -> str:
    working = sum(replica.state == "running" for replica in found.replicas)
    others = [f"{r.name} {r.state}" for r in found.replicas if r.state in ("starting", "joining", "leaving", "restarting")]
    return ", ".join([f"{working} of {found.target} replicas work", *others])
