"""`regrow status`: who is alive, which lanes, which step. Reads the run directory and /proc, and asks nobody."""

import socket
import sys
import time
from pathlib import Path

import click
import msgspec

from regrow.cli.liveness import is_child, is_process
from regrow.cli.risk import Risk, gather_risk, tell_risk
from regrow.cli.run_dir import JobFile, RunDir, newest
from regrow.cli.save_status import SaveStatus, gather_saves, tell_save_status
from regrow.coordinator.store import load
from regrow.core.errors import ConfigError, RegrowError
from regrow.core.membership_effects import Saved
from regrow.core.records import (
    Committed,
    Departed,
    JobEnded,
    Line,
    RestartPlanned,
    RosterAdopted,
    SnapshotLoaded,
    StateFetched,
    WorkerExited,
    WorkerStarted,
)
from regrow.core.roster import Member, Seat
from regrow.shell.journal import tail

_TAIL_BYTES = 1 << 18
RUNNING = ("starting", "running", "waiting")
"""States of a job that is not over."""
_SEATED = ("running", "leaving", "shadow")


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    pid: int | None
    host: str | None
    state: str
    """starting, joining (no seat yet), running, restarting, finished, dead, lost (will not be restarted), leaving, shadow
    (in step, without lanes), spare (parked until it is needed)."""
    lanes: tuple[int, ...]
    step: int | None
    """The step it is at: it has committed every one below."""
    restarts: int
    """Within the window: what of `max_restarts` is spent."""
    max_restarts: int
    starts_in_s: float | None
    """How long the back-off keeps it waiting; None unless it is restarting."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    state: str
    """starting, running, waiting (too few replicas), finished, stopped, failed, state-lost, or dead: the launcher is gone
    without an end."""
    step: int | None
    roster: str | None
    replicas: tuple[ReplicaStatus, ...]
    waits: str
    """Why it waits; empty unless it does."""
    target: int
    """How many replicas are to work."""
    wishes: tuple[str, ...]
    """What the operator asked for and does not hold yet."""
    coordinator: str
    """inside (part of `regrow run`), up, away (nobody is replaced until it is back), or elsewhere (not seen from here)."""
    restarts: int
    """Of all replicas together, within the window."""
    max_all_restarts: int
    restart_window_s: float
    min_replicas: int
    saves: SaveStatus | None = None
    """Of a job that saves its state, when it was asked for."""
    risk: Risk | None = None
    """Of a job that runs, when it was asked for: who holds the state, and what losses would cost."""


@click.command("status")
@click.argument("run_dir", required=False, type=click.Path(path_type=Path))
@click.option(
    "--what-if",
    "questions",
    multiple=True,
    metavar="NAMES",
    help="What the loss of these would cost, all at once: r1,r2; host; launcher; coordinator; vault; place URL. Or all: "
    "each of them alone. May be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def status(run_dir: Path | None, questions: tuple[str, ...], as_json: bool) -> None:
    """Who is alive, which lanes, which step, where the state is safe, how much of the restart budget is spent.

    RUN_DIR defaults to the newest run in or below the current folder. Exit code 2 when there is no such run, or nothing of
    the name that --what-if was given.
    """
    try:
        place = RunDir(run_dir or newest(Path.cwd()))
        found, job = gather(place), place.job_file()
        is_launched = found.state in RUNNING or is_process(job.pid, job.born)
        found = msgspec.structs.replace(found, saves=gather_saves(place, job, is_launched))
        found = msgspec.structs.replace(found, risk=_risk(place, job, found, questions))
    except RegrowError as error:
        click.echo(f"regrow: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _print(found)


def _risk(run_dir: RunDir, job: JobFile, found: JobStatus, questions: tuple[str, ...]) -> Risk | None:
    if found.state in RUNNING:
        alive = tuple(each.name for each in found.replicas if each.state in _SEATED)
        is_vault_away = found.saves is not None and found.saves.vault == "away"
        return gather_risk(run_dir, job, found.step or 0, alive, questions, is_vault_away)
    if questions:
        raise ConfigError(f"{run_dir.path} does not run (it is {found.state}): there is nothing left to lose")
    return None


def gather(run_dir: RunDir) -> JobStatus:
    job = run_dir.job_file()
    saved = load(run_dir.path)
    lines = tail(run_dir.journal, "coordinator", _TAIL_BYTES)
    # The agent ends a job by its own word when the coordinator is away.
    facts = [line.what for line in [*lines, *tail(run_dir.journal, "agent", _TAIL_BYTES)]]
    end = next((fact for fact in reversed(facts) if isinstance(fact, JobEnded)), None)
    is_launched = end is None and is_process(job.pid, job.born)
    # Of a job that is over, what was spent when it ended.
    now_s = time.monotonic() if is_launched or not lines else lines[-1].ns / 1e9
    spending = _Spending(job, saved, lines, now_s)
    replicas = _replicas(run_dir, job, saved, spending, is_launched)
    steps = [replica.step for replica in replicas if replica.step is not None]
    if saved is not None and saved.roster is not None:
        steps.append(saved.floor)
    if end is not None:
        state = "failed" if end.outcome == "bug" else end.outcome
    elif not is_launched:
        state = "dead"
    elif saved is None or saved.roster is None:
        state = "starting"
    else:
        state = "waiting" if saved.roster.waits else "running"
    staff = saved.staff if saved is not None else None
    return JobStatus(
        job=job.job,
        state=state,
        waits=saved.roster.waits if saved is not None and saved.roster is not None and state == "waiting" else "",
        target=staff.target if staff is not None else len(job.replicas),
        wishes=tuple(map(str, saved.wishes)) if saved is not None else (),
        step=max(steps, default=None),
        roster=str(saved.roster.version) if saved is not None and saved.roster is not None else None,
        coordinator=_coordinator(run_dir, job),
        replicas=replicas,
        restarts=spending.all_used,
        max_all_restarts=job.budget.max_all_restarts,
        restart_window_s=job.budget.window_s,
        min_replicas=job.min_replicas,
    )


class _Spending:
    """What of the restart budget is spent, and who waits for its next start."""

    def __init__(self, job: JobFile, saved: Saved | None, lines: list[Line], now_s: float) -> None:
        self._window_s = job.budget.window_s
        self._spent = saved.spent if saved is not None else {}
        self._planned = {line.what.member: line for line in lines if isinstance(line.what, RestartPlanned)}
        self._now_s = now_s

    @property
    def all_used(self) -> int:
        return sum(self.used(name) for name in self._spent)

    def used(self, replica: str) -> int:
        return sum(self._now_s - at < self._window_s for at in self._spent.get(replica, ()))

    def starts_in_s(self, after: Member) -> float | None:
        """Until the life after this one begins."""
        line = self._planned.get(Member(after.replica, after.incarnation + 1))
        if line is None or not isinstance(line.what, RestartPlanned):
            return None
        return max(0.0, round(line.ns / 1e9 + line.what.delay_s - self._now_s, 3))


def _coordinator(run_dir: RunDir, job: JobFile) -> str:
    if job.coordinator is None:
        return "inside"
    listening = run_dir.listening()
    if listening is None or listening.host != socket.gethostname():
        return "elsewhere"
    return "up" if is_process(listening.pid, listening.born) else "away"


def _replicas(
    run_dir: RunDir, job: JobFile, saved: Saved | None, spending: _Spending, is_launched: bool
) -> tuple[ReplicaStatus, ...]:
    started: dict[str, WorkerStarted] = {}
    exited: dict[Member, WorkerExited] = {}
    for line in tail(run_dir.journal, "agent", _TAIL_BYTES):
        match line.what:
            case WorkerStarted():
                started[line.what.member.replica] = line.what
            case WorkerExited():
                exited[line.what.member] = line.what
    staff = saved.staff if saved is not None else None
    names = [name for name in staff.names if name not in staff.retired] if staff is not None else job.replicas
    return tuple(_replica(run_dir, job, saved, spending, is_launched, name, started.get(name), exited) for name in names)


def _replica(
    run_dir: RunDir,
    job: JobFile,
    saved: Saved | None,
    spending: _Spending,
    is_launched: bool,
    name: str,
    started: WorkerStarted | None,
    exited: dict[Member, WorkerExited],
) -> ReplicaStatus:
    if started is None:
        state = "starting" if is_launched else "dead"
        return ReplicaStatus(
            name=name,
            pid=None,
            host=None,
            state=state,
            lanes=(),
            step=None,
            restarts=spending.used(name),
            max_restarts=job.budget.max_restarts,
            starts_in_s=None,
        )
    member = started.member
    seat = saved.roster.seat(member) if saved is not None and saved.roster is not None else None
    end = exited.get(member)
    if end is not None and end.clean:
        state = "finished"
    elif saved is not None and saved.staff is not None and name in saved.staff.lost:
        state = "lost"
    elif end is None and is_launched and is_child(started.pid, job.pid):
        state = _presence(saved, name, seat)
    else:
        state = "restarting" if is_launched else "dead"
    return ReplicaStatus(
        name=name,
        pid=started.pid,
        host=started.host,
        state=state,
        lanes=seat.lanes if seat is not None and state in ("running", "leaving") else (),
        step=_step(run_dir, member),
        restarts=spending.used(name),
        max_restarts=job.budget.max_restarts,
        starts_in_s=spending.starts_in_s(member) if state == "restarting" else None,
    )


def _presence(saved: Saved | None, name: str, seat: Seat | None) -> str:
    """Of a replica that lives."""
    staff, roster = (saved.staff, saved.roster) if saved is not None else (None, None)
    if staff is not None and name in staff.leaving:
        return "leaving"
    if seat is not None:
        return "shadow" if seat.spectates else "running"
    there = {member.replica for member in roster.members} if roster is not None else set()
    is_needed = staff is None or name in staff.places or staff.wanted(there) > 0
    return "joining" if is_needed else "spare"


def _step(run_dir: RunDir, member: Member) -> int | None:
    for line in reversed(tail(run_dir.journal, str(member), _TAIL_BYTES)):
        match line.what:
            case Committed(step=step):
                return step + 1
            case RosterAdopted(step=step) | StateFetched(step=step) | SnapshotLoaded(step=step) | Departed(step=step):
                return step
    return None


def _print(found: JobStatus) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    step = "" if found.step is None else f", step {found.step}"
    roster = "" if found.roster is None else f", roster {found.roster}"
    console.print(f"{found.job}: {found.state}{step}{roster}", markup=False)
    if found.waits:
        console.print(f"the job waits: {found.waits}", markup=False)
    for wish in found.wishes:
        console.print(f"asked for: {wish}", markup=False)
    if found.coordinator == "away" and found.state in RUNNING:
        console.print("the coordinator is away: training goes on, nobody can be replaced until it is back", markup=False)
    if found.state in RUNNING:
        working = sum(replica.state == "running" for replica in found.replicas)
        console.print(f"{working} of {found.target} replicas work", markup=False)
    table = Table(box=None, pad_edge=False)
    for title in ("replica", "state", "lanes", "step", "restarts", "pid", "host"):
        table.add_column(title)
    for replica in found.replicas:
        restarts = f"{replica.restarts}/{replica.max_restarts}"
        state = f"restarting in {replica.starts_in_s:.1f} s" if replica.starts_in_s else replica.state
        lanes = " ".join(map(str, replica.lanes)) or "-"
        cells = (replica.step, restarts, replica.pid, replica.host)
        table.add_row(replica.name, state, lanes, *("-" if cell is None else str(cell) for cell in cells))
    console.print(table)
    for line in tell_save_status(found.saves, time.time()) if found.saves is not None else ():
        console.print(line, markup=False, soft_wrap=True)
    for line in tell_risk(found.risk) if found.risk is not None else ():
        console.print(line, markup=False, soft_wrap=True)
    if found.restarts:
        spent = f"{found.restarts} of {found.max_all_restarts} restarts of the job were used"
        console.print(f"{spent} within the last {found.restart_window_s:g} s", markup=False)
    lost = [replica.name for replica in found.replicas if replica.state == "lost"]
    if lost:
        left = len(found.replicas) - len(lost)
        console.print(
            f"{', '.join(lost)} will not be restarted: {left} left, the job needs {found.min_replicas}", markup=False
        )
