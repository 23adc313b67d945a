"""Where a job's state is safe: the part of `regrow status` that is about saves."""

from collections.abc import Iterator, Mapping

import msgspec

from regrow.cli.gauge import size
from regrow.cli.interval_words import interval_words
from regrow.cli.liveness import is_child
from regrow.cli.run_dir import JobFile, RunDir
from regrow.cli.save_words import origin
from regrow.cli.wording import span
from regrow.core.chronicle import Chronicle
from regrow.core.founding import Founding, founding
from regrow.core.log import UNHELD_STEPS
from regrow.core.neighbour import is_neighbour, is_unguarded
from regrow.core.records import Committed, Line, LogMeasured, LogUnheld, VaultStarted, WorkerStarted
from regrow.core.save_story import MEMORY, Tier
from regrow.shell.journal import tail

_TAIL_BYTES = 1 << 18


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Of an every-step job: what no loss of replicas takes back."""

    step: int | None
    """So many committed steps are safe; None before the first."""
    base: int | None
    """The state that they follow; None: the job's own beginning."""
    used_bytes: int
    """Of all logs of the replicas that work, when they were measured last."""
    made_bytes: int
    limit_bytes: int
    unheld: tuple[str, ...] = ()
    """Members whose logs nobody else holds, for want of a vault: they die with them."""
    neighbour: str | None = None
    """Where what was committed lies as well, by its URL; None: the job has none."""
    unguarded: tuple[str, ...] = ()
    """Members whose records do not lie there, or do not lead on from what does: they are lost with this host."""


class SaveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """docs/checkpoints.md explains each field."""

    tiers: tuple[Tier, ...]
    """Nearest first. Memory only while the job runs: it goes with it."""
    vault: str | None
    """up, away (nothing is saved until it is back), or gone, with the job; None when nobody noted its start."""
    founding: Founding | None
    """The saved state that the job began from last."""
    logs: LogStatus | None = None
    """None but in an every-step job that runs."""


def gather_saves(run_dir: RunDir, job: JobFile, is_launched: bool) -> SaveStatus | None:
    """None: the job saves nothing."""
    if not job.keeps:
        return None
    agent = tail(run_dir.journal, "agent", _TAIL_BYTES)
    journals = {who: tail(run_dir.journal, who, _TAIL_BYTES) for who in ("vault", "coordinator")} | {"agent": agent}
    chronicle = Chronicle(journals)
    workers: dict[str, list[Line]] = {}
    if chronicle.taken or job.every_step:
        # The newest life of each replica, as nobody asks for more.
        lives = {fact.member.replica: str(fact.member) for line in agent if isinstance(fact := line.what, WorkerStarted)}
        workers = {who: tail(run_dir.journal, who, _TAIL_BYTES) for who in lives.values()}
    if chronicle.taken:
        chronicle = Chronicle({**journals, **workers})
    story = chronicle.saves.story(chronicle.ended)
    known = {tier.where: tier for tier in story.tiers} if story is not None else {}
    places = ((MEMORY,) if is_launched else ()) + job.checkpoints
    neighbour = next(filter(is_neighbour, job.checkpoints), None)
    started = next((line.what for line in reversed(agent) if isinstance(line.what, VaultStarted)), None)
    return SaveStatus(
        tiers=tuple(known.get(where, _empty(where)) for where in places),
        vault=None if started is None else _vault(started, job, is_launched),
        founding=founding(chronicle, max(chronicle.taken)) if chronicle.taken else None,
        logs=_logs(workers, known.get(MEMORY), neighbour) if job.every_step and is_launched else None,
    )


def tell_save_status(saves: SaveStatus, now_s: float) -> Iterator[str]:
    """`now_s`: on the wall clock."""
    if saves.vault == "away":
        yield "the vault is away: training goes on, and nothing is saved until it is back"
    width = max((len(tier.where) for tier in saves.tiers), default=0)
    for tier in saves.tiers:
        yield f"saved  {tier.where:{width}}  {_newest(tier, now_s)}"
        if tier.interval is not None:
            yield f"       {'':{width}}  {interval_words(tier.interval)}"
        if tier.trouble:
            yield f"       {'':{width}}  {tier.trouble}"
    if saves.logs is not None:
        yield _told(saves.logs)
    if saves.founding is not None:
        yield f"the job last began from {origin(saves.founding)}"


def _logs(workers: Mapping[str, list[Line]], memory: Tier | None, neighbour: str | None) -> LogStatus:
    steps = [fact.step + 1 for lines in workers.values() for line in lines if isinstance(fact := line.what, Committed)]
    measured = [
        next((fact for line in reversed(lines) if isinstance(fact := line.what, LogMeasured)), None)
        for lines in workers.values()
    ]
    found = [fact for fact in measured if fact is not None]
    bases = [fact.base for fact in found if fact.base > 0]
    if memory is not None and memory.step is not None:
        bases.append(memory.step)
    return LogStatus(
        step=max(steps, default=None),
        base=max(bases, default=None),
        used_bytes=sum(fact.used_bytes for fact in found),
        made_bytes=sum(fact.made_bytes for fact in found),
        limit_bytes=sum(fact.limit_bytes for fact in found),
        unheld=tuple(who for who, lines in workers.items() if _is_unheld(lines)),
        unguarded=tuple(who for who, lines in workers.items() if is_unguarded(line.what for line in lines)),
        neighbour=neighbour,
    )


def _is_unheld(lines: list[Line]) -> bool:
    """It is said again every so many steps."""
    told = max((fact.step for line in lines if isinstance(fact := line.what, LogUnheld)), default=None)
    newest = max((fact.step for line in lines if isinstance(fact := line.what, Committed)), default=0)
    return told is not None and newest < told + UNHELD_STEPS


def _told(logs: LogStatus) -> str:
    if logs.step is None:
        return "logs   nothing yet"
    if logs.unheld:
        whose = f"the log{'s' if len(logs.unheld) > 1 else ''} of {', '.join(logs.unheld)}"
        return (
            f"logs   not safe: no vault has come, and nobody else holds {whose}; all replicas lost, committed steps are too"
        )
    base = "the job's beginning" if logs.base is None else f"the state of step {logs.base}"
    memory = f"{size(logs.made_bytes)} of {size(logs.limit_bytes)}" if logs.limit_bytes else "not measured yet"
    return f"logs   the first {logs.step} steps are safe: {base} and what was committed since; {memory}{_guarded(logs)}"


def _guarded(logs: LogStatus) -> str:
    if logs.neighbour is None:
        return ""
    if logs.unguarded:
        return f"; on this host alone, for {logs.neighbour} is away or behind, by {', '.join(logs.unguarded)}"
    return f"; here and at {logs.neighbour}"


def _newest(tier: Tier, now_s: float) -> str:
    if tier.step is None or tier.at is None or tier.size_bytes is None or tier.seconds is None:
        return "nothing yet"
    return f"step {tier.step}, {span(max(0.0, now_s - tier.at))} ago: {size(tier.size_bytes)} in {span(tier.seconds)}"


def _vault(started: VaultStarted, job: JobFile, is_launched: bool) -> str:
    if not is_launched:
        return "gone"
    return "up" if is_child(started.pid, job.pid) else "away"


def _empty(where: str) -> Tier:
    return Tier(where=where, saves=0, step=None, at=None, size_bytes=None, seconds=None, refusals=0, trouble="")
