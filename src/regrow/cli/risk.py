"""Who holds a running job's state, and what each loss would cost: the part of `regrow status` that is about both.

Read from the run directory, as the rest of it; what the facts mean is core.holders' and core.losses'.
"""

import time
from collections.abc import Iterator, Mapping

import msgspec

from regrow.cli.loss_words import Held, consequence, held_by, unique
from regrow.cli.run_dir import JobFile, RunDir
from regrow.cli.wording import and_
from regrow.coordinator.store import load
from regrow.core.chronicle import Chronicle
from regrow.core.errors import ConfigError
from regrow.core.holders import Copy, Holders, step_s
from regrow.core.losses import Foretold, foretell, known, named
from regrow.core.membership_effects import Saved
from regrow.core.neighbour import is_neighbour, is_unguarded
from regrow.core.records import Committed, Line, OriginFound, SaveDurable, StateKept
from regrow.core.roster import Member, Roster
from regrow.core.save_story import MEMORY
from regrow.core.staff import found as founded
from regrow.shell.journal import tail

_TAIL_BYTES = 1 << 18
_ALL = "all"
_FEW = 4
"""So many answers are told with their reasons."""


class Risk(msgspec.Struct, frozen=True, kw_only=True):
    """docs/losses.md explains each field."""

    held: tuple[Held, ...]
    """The state, whole: replicas first, then what was saved, nearest first."""
    unique: str
    """What nobody else holds, and what its loss would cost; empty when nothing is unique."""
    what_if: tuple[Foretold, ...]
    """One for each question."""


def gather_risk(
    run_dir: RunDir,
    job: JobFile,
    reached: int,
    alive: tuple[str, ...],
    questions: tuple[str, ...],
    is_vault_away: bool,
) -> Risk:
    """`reached`: every step below is committed; `alive`: replicas that have a seat. ConfigError where a question names
    nothing of this job."""
    saved = load(run_dir.path)
    if saved is None and questions:
        raise ConfigError(f"{run_dir.path} has no coordinator.json yet: ask once its coordinator runs, in its own folder")
    holders = _holders(run_dir, job, saved, reached, alive, is_vault_away)
    asked: list[tuple[str, ...]] = []
    for question in questions:
        asked += [(name,) for name in known(holders)] if question == _ALL else [named(holders, question)]
    return Risk(
        held=(
            *(Held(where=name, step=reached, is_replica=True, is_far=False) for name in holders.replicas),
            *(
                Held(where=copy.where, step=copy.step, records=copy.records, is_replica=False, is_far=copy.is_far)
                for copy in holders.copies
            ),
        ),
        unique=unique(holders),
        what_if=tuple(foretell(holders, lost) for lost in asked),
    )


def tell_risk(risk: Risk) -> Iterator[str]:
    """What is unique, and the answers; of many the outcome alone."""
    if risk.unique:
        yield risk.unique
    if not risk.what_if:
        return
    yield f"the state is held by {held_by(risk.held)}"
    if len(risk.what_if) > _FEW:
        yield from _table(risk.what_if)
        return
    for foretold in risk.what_if:
        yield f"what if {and_(foretold.lost)} {'is' if len(foretold.lost) == 1 else 'are'} lost: {consequence(foretold)}"
        yield from (f"   {why}" for why in foretold.why)


def _table(answers: tuple[Foretold, ...]) -> Iterator[str]:
    rows = [(and_(each.lost), str(each.redone), consequence(each)) for each in answers]
    rows.insert(0, ("lost", "steps again", "what becomes of the job"))
    name, steps = (max(len(row[column]) for row in rows) for column in (0, 1))
    yield from (f"{lost:{name}}  {redone:>{steps}}  {what}" for lost, redone, what in rows)


def _holders(
    run_dir: RunDir, job: JobFile, saved: Saved | None, reached: int, alive: tuple[str, ...], is_vault_away: bool
) -> Holders:
    roster = saved.roster if saved is not None else None
    coordinator = tail(run_dir.journal, "coordinator", _TAIL_BYTES)
    seated = dict.fromkeys(member for each in _testifying(saved) for member in each.members)
    members = [member for member in seated if member.replica in alive]
    journals = {str(member): tail(run_dir.journal, str(member), _TAIL_BYTES) for member in members}
    chronicle = Chronicle({"coordinator": coordinator, **journals})
    there = tuple(member.replica for member in members if _holds(chronicle, journals[str(member)], member))
    paces = [step_s(_commits(lines)) for lines in journals.values()]
    lanes = saved.lanes if saved is not None else None
    return Holders(
        reached=reached,
        step_s=max((pace for pace in paces if pace is not None), default=None),
        replicas=there,
        copies=_copies(job, tail(run_dir.journal, "vault", _TAIL_BYTES), reached, _is_guarded(journals)),
        places=job.checkpoints,
        keeps=job.keeps,
        roster=roster,
        staff=saved.staff if saved is not None and saved.staff is not None else founded(job.replicas, 0),
        lanes=lanes or job.lanes or 0,
        min_replicas=job.min_replicas,
        budget=job.budget,
        spent=saved.spent if saved is not None else {},
        now_s=time.monotonic(),
        has_own_coordinator=job.coordinator is not None,
        is_vault_away=is_vault_away,
        is_stopping=saved is not None and (saved.stopping or saved.halt is not None),
        is_ending=saved is not None and saved.ending,
    )


def _testifying(saved: Saved | None) -> list[Roster]:
    """The newest roster, and the one that it is entered from until all have entered it."""
    return [each for each in (saved.roster, saved.base) if each is not None] if saved is not None else []


def _holds(chronicle: Chronicle, lines: list[Line], member: Member) -> bool:
    """One with a seat, by its own journal: it has committed as a member, or entered a roster with the state in hand."""
    if any(isinstance(line.what, Committed) and line.what.by != "record" for line in lines):
        return True
    life = chronicle.life(member)
    return life is not None and bool(life.entered)


def _commits(lines: list[Line]) -> Iterator[tuple[int, int]]:
    for line in lines:
        if isinstance(line.what, Committed) and line.what.by == "boundary":
            yield line.what.step, line.ns


def _is_guarded(journals: Mapping[str, list[Line]]) -> bool:
    """Does all that is committed lie at the neighbour, where there is one?"""
    return bool(journals) and not any(is_unguarded(line.what for line in lines) for lines in journals.values())


def _copies(job: JobFile, lines: list[Line], reached: int, is_guarded: bool) -> tuple[Copy, ...]:
    """The newest state in each tier, by the vault's journal. What a job began from lies in memory as well, and in an
    every-step job so do the records of all that was committed since; at a neighbour, too, or nothing there is counted on."""
    logged = [where for where in (MEMORY, *job.checkpoints) if _is_logged(job, where)]
    newest: dict[str, int] = dict.fromkeys(logged, 0) if reached else {}
    for line in lines:
        match line.what:
            case StateKept(step=step):
                newest[MEMORY] = step
            case SaveDurable(step=step, url=url):
                newest[url] = step
            case OriginFound(step=step, where=where):
                newest[MEMORY] = step
                if where in job.checkpoints:
                    newest[where] = step
    return tuple(
        Copy(where=where, step=newest[where], through=reached if _is_logged(job, where) else newest[where])
        for where in (MEMORY, *job.checkpoints)
        if where in newest and (is_guarded or where == MEMORY or not _is_logged(job, where))
    )


def _is_logged(job: JobFile, where: str) -> bool:
    return job.every_step and (where == MEMORY or is_neighbour(where))
