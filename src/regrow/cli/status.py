"""`regrow status`: who is alive, which lanes, which step. Reads the run directory and /proc, and asks nobody."""

import socket
import sys
from pathlib import Path

import click
import msgspec

from regrow.cli.liveness import is_child, is_process
from regrow.cli.run_dir import JobFile, RunDir, newest
from regrow.coordinator.store import load
from regrow.core.errors import RegrowError
from regrow.core.membership_effects import Saved
from regrow.core.records import (
    Committed,
    Departed,
    JobEnded,
    RosterAdopted,
    StateFetched,
    WorkerExited,
    WorkerStarted,
)
from regrow.core.roster import Member
from regrow.shell.journal import tail

_TAIL_BYTES = 1 << 18


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    pid: int | None
    host: str | None
    state: str
    """starting, joining (no seat yet), running, restarting, finished, dead, lost (will not be restarted)."""
    lanes: tuple[int, ...]
    step: int | None
    """The step it is at: it has committed every one below."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    state: str
    """starting, running, finished, stopped, failed, state-lost, or dead: the launcher is gone without an end."""
    step: int | None
    roster: str | None
    coordinator: str
    """inside (part of `regrow run`), up, away (nobody is replaced until it is back), or elsewhere (not seen from here)."""
    replicas: tuple[ReplicaStatus, ...]


@click.command("status")
@click.argument("run_dir", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def status(run_dir: Path | None, as_json: bool) -> None:
    """Who is alive, which lanes, which step.

    RUN_DIR defaults to the newest run in or below the current folder. Exit code 2 when there is no such run.
    """
    try:
        found = gather(RunDir(run_dir or newest(Path.cwd())))
    except RegrowError as error:
        click.echo(f"regrow: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _print(found)


def gather(run_dir: RunDir) -> JobStatus:
    job = run_dir.job_file()
    saved = load(run_dir.path)
    # The agent ends a job by its own word when the coordinator is away.
    facts = [line.what for who in ("coordinator", "agent") for line in tail(run_dir.journal, who, _TAIL_BYTES)]
    end = next((fact for fact in reversed(facts) if isinstance(fact, JobEnded)), None)
    is_launched = end is None and is_process(job.pid, job.born)
    replicas = _replicas(run_dir, job, saved, is_launched)
    steps = [replica.step for replica in replicas if replica.step is not None]
    if saved is not None and saved.roster is not None:
        steps.append(saved.floor)
    if end is not None:
        state = "failed" if end.outcome == "bug" else end.outcome
    elif not is_launched:
        state = "dead"
    else:
        state = "running" if saved is not None and saved.roster is not None else "starting"
    return JobStatus(
        job=job.job,
        state=state,
        step=max(steps, default=None),
        roster=str(saved.roster.version) if saved is not None and saved.roster is not None else None,
        coordinator=_coordinator(run_dir, job),
        replicas=replicas,
    )


def _coordinator(run_dir: RunDir, job: JobFile) -> str:
    if job.coordinator is None:
        return "inside"
    listening = run_dir.listening()
    if listening is None or listening.host != socket.gethostname():
        return "elsewhere"
    return "up" if is_process(listening.pid, listening.born) else "away"


def _replicas(run_dir: RunDir, job: JobFile, saved: Saved | None, is_launched: bool) -> tuple[ReplicaStatus, ...]:
    started: dict[str, WorkerStarted] = {}
    exited: dict[Member, WorkerExited] = {}
    for line in tail(run_dir.journal, "agent", _TAIL_BYTES):
        match line.what:
            case WorkerStarted():
                started[line.what.member.replica] = line.what
            case WorkerExited():
                exited[line.what.member] = line.what
    return tuple(_replica(run_dir, job, saved, is_launched, name, started.get(name), exited) for name in job.replicas)


def _replica(
    run_dir: RunDir,
    job: JobFile,
    saved: Saved | None,
    is_launched: bool,
    name: str,
    started: WorkerStarted | None,
    exited: dict[Member, WorkerExited],
) -> ReplicaStatus:
    if started is None:
        state = "starting" if is_launched else "dead"
        return ReplicaStatus(name=name, pid=None, host=None, state=state, lanes=(), step=None)
    member = started.member
    seat = saved.roster.seat(member) if saved is not None and saved.roster is not None else None
    end = exited.get(member)
    if end is not None and end.clean:
        state = "finished"
    elif saved is not None and name in saved.lost:
        state = "lost"
    elif end is None and is_launched and is_child(started.pid, job.pid):
        state = "running" if seat is not None else "joining"
    else:
        state = "restarting" if is_launched else "dead"
    return ReplicaStatus(
        name=name,
        pid=started.pid,
        host=started.host,
        state=state,
        lanes=seat.lanes if seat is not None and state == "running" else (),
        step=_step(run_dir, member),
    )


def _step(run_dir: RunDir, member: Member) -> int | None:
    for line in reversed(tail(run_dir.journal, str(member), _TAIL_BYTES)):
        match line.what:
            case Committed(step=step):
                return step + 1
            case RosterAdopted(step=step) | StateFetched(step=step) | Departed(step=step):
                return step
    return None


def _print(found: JobStatus) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    step = "" if found.step is None else f", step {found.step}"
    roster = "" if found.roster is None else f", roster {found.roster}"
    console.print(f"{found.job}: {found.state}{step}{roster}", markup=False)
    if found.coordinator == "away" and found.state in ("starting", "running"):
        console.print("the coordinator is away: training goes on, nobody can be replaced until it is back", markup=False)
    table = Table(box=None, pad_edge=False)
    for title in ("replica", "state", "lanes", "step", "pid", "host"):
        table.add_column(title)
    for replica in found.replicas:
        cells = (replica.step, replica.pid, replica.host)
        lanes = " ".join(map(str, replica.lanes)) or "-"
        table.add_row(replica.name, replica.state, lanes, *("-" if cell is None else str(cell) for cell in cells))
    console.print(table)
