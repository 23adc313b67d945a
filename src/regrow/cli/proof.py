"""What one job of a soak promised, held against what it left behind: digests, invariants, blame, exit code."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from regrow.cli.check import examine
from regrow.cli.run_dir import RunDir
from regrow.cli.why import gather
from regrow.cli.wording import span
from regrow.core.culprits import is_tidying
from regrow.core.episodes import Tale
from regrow.core.errors import ConfigError, StateError
from regrow.core.records import Departed, Fact, JobEnded, WorkerExited
from regrow.faults.ordeal import Ordeal
from regrow.faults.subject import Subject, digest_alone
from regrow.shell.journal import Account, read

_ENDS = ((0, 0), (75, 130), (143, 130))
"""The exit codes of a job and its coordinator: finished, and stopped by SIGTERM with a state that is safe, or before there
was one."""
_LATE = (1, 1)
"""A replica that is struck after its last step may leave what the script does there undone."""
_BUG = "a bug in Regrow"
_AFTER = "after its last step"


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a soak."""

    failures: tuple[str, ...]
    """What was promised and did not hold; the first is the one to look at."""
    blows: dict[str, int]
    missed: int = 0
    """Blows for which nobody was there, or nobody might be hit."""
    steps: int = 0
    rosters: int = 0
    deaths: int = 0
    survivors: int = 0
    """Replicas that were there at the end; each has the same digest."""
    digest: str | None = None
    """Theirs; None when they differ, or there is none."""
    reference: str | None = None
    """Of the undisturbed job after as many steps."""
    why: str = ""
    """The summary of `regrow why`."""


def prove(subject: Subject, ordeal: Ordeal, trouble: str | None, reference: tuple[str, ...]) -> JobReport:
    """`trouble`: what went wrong already. `reference`: further arguments of the undisturbed job."""
    try:
        return _prove(subject, ordeal, trouble, reference)
    except (ConfigError, StateError) as error:  # the journals cannot be read: nothing more can be said
        return JobReport(failures=tuple(text for text in (trouble, str(error)) if text), blows=dict(ordeal.landed))


def _prove(subject: Subject, ordeal: Ordeal, trouble: str | None, reference: tuple[str, ...]) -> JobReport:
    accounts = list(read(subject.run_dir / "journal"))
    facts = [line.what for account in accounts for line in account.lines]
    departed = [fact for fact in facts if isinstance(fact, Departed) and fact.digest is not None]
    steps, digests = {fact.step for fact in departed}, {fact.digest for fact in departed}
    expected = digest_alone(max(steps), *reference) if len(steps) == 1 else None
    checked = examine(RunDir(subject.run_dir))
    tale = gather(RunDir(subject.run_dir)).tale
    failures: list[str | None] = [trouble]
    if trouble is None:
        failures.append(_wrong_end(subject, facts))
        if expected is None:
            failures.append(f"the replicas left after {sorted(steps) or 'no'} steps, not all after the same")
    if expected is not None and digests != {expected}:
        failures.append(f"the digests differ after {max(steps)} steps: {digests} instead of {expected}")
    if not checked.clean:
        failures.append(f"an invariant is broken: {checked.violations[0].rule}: {checked.violations[0].what}")
    failures.append(wrong_blame(accounts, tale))
    stood = f"everyone stood still for {span(tale.summary.stall_s)} of {span(tale.summary.training_s)}"
    return JobReport(
        steps=max(steps, default=checked.steps),
        rosters=checked.rosters,
        deaths=checked.deaths,
        survivors=len(departed),
        digest=next(iter(digests)) if len(digests) == 1 else None,
        reference=expected,
        blows=dict(ordeal.landed),
        missed=ordeal.missed,
        why=f"{tale.summary.failures} failures in {len(tale.episodes)} episodes, {stood}",
        failures=tuple(failure for failure in failures if failure is not None),
    )


def _wrong_end(subject: Subject, facts: list[Fact]) -> str | None:
    if any(_BUG in subject.said(who) for who in ("run", "coordinator")):
        return f"{_BUG} was told: see run.txt and coordinator.txt beside the run directory"
    why = next((fact.why for fact in reversed(facts) if isinstance(fact, JobEnded)), "no end was noted")
    codes = (subject.code, subject.coordinator_code)
    if codes in _ENDS or (codes == _LATE and _AFTER in why):
        return None
    return f"`regrow run` and its coordinator ended with codes {codes}: {why}"


def wrong_blame(accounts: Iterable[Account], tale: Tale) -> str | None:
    """Whoever died by itself is named once; whom the agent ended is named for what it had done before, or not at all. Who
    left as planned has not died, though it may be struck on its way out."""
    facts = [(account.who, line.what) for account in accounts for line in account.lines]
    exits = [fact for _, fact in facts if isinstance(fact, WorkerExited) and not fact.clean]
    died = {str(fact.member) for fact in exits if not fact.how.startswith("was ended") and not is_tidying(fact.how)}
    died -= {who for who, fact in facts if isinstance(fact, Departed) and fact.fault == "left"}
    blamed = Counter(culprit.member for episode in tale.episodes for culprit in episode.culprits)
    if died <= blamed.keys() and max(blamed.values(), default=1) == 1:
        return None
    twice = sorted(member for member, count in blamed.items() if count > 1)
    return f"`regrow why` does not name {sorted(died - blamed.keys())}, and names {twice} more than once"
