"""`regrow check`: do the facts in a run's journals satisfy every invariant?"""

import sys
from pathlib import Path

import click
import msgspec

from regrow.cli.run_dir import RunDir, newest
from regrow.core.errors import ConfigError, RegrowError
from regrow.core.invariants import Ledger, Violation
from regrow.core.records import Committed, Departed, Fact, Gap, JobEnded, RosterMade, WorkerExited
from regrow.shell.journal import Account, read


class Report(msgspec.Struct, frozen=True, kw_only=True):
    clean: bool
    steps: int
    commits: int
    rosters: int
    deaths: int
    violations: tuple[Violation, ...]
    """In the order found; the first is the one to look at, later ones often follow from it."""


@click.command("check")
@click.argument("run_dir", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def check(run_dir: Path | None, as_json: bool) -> None:
    """Do the journal's facts satisfy every invariant?

    RUN_DIR defaults to the newest run in or below the current folder. Exit codes: 0 all hold, 1 one is broken (its story
    is told) or a journal is damaged, 2 there is no such run.
    """
    try:
        found = examine(RunDir(run_dir or newest(Path.cwd())))
    except ConfigError as error:
        click.echo(f"regrow: {error}", err=True)
        sys.exit(2)
    except RegrowError as error:
        click.echo(f"regrow: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _print(found)
    sys.exit(0 if found.clean else 1)


def examine(run_dir: RunDir) -> Report:
    run_dir.job_file()  # says so when this is no run
    accounts = _accounts(run_dir)
    if not any(account.lines for account in accounts):
        raise ConfigError(f"{run_dir.path} has no journals yet: nothing to check")
    is_over = any(isinstance(line.what, JobEnded) for account in accounts for line in account.lines)
    read_until = {account.who: account.lines[-1].ns if account.lines else 0 for account in accounts}
    if not is_over:
        # The journals were not read at one moment: what led to a fact in the last one may be missing in the first. Now all
        # of it is there; what only this second look shows is evidence, and is not judged itself.
        accounts = _accounts(run_dir)
    ledger = Ledger()
    for account in accounts:
        if account.incomplete or any(isinstance(line.what, Gap) for line in account.lines):
            ledger.incomplete.add(account.who)
    violations: list[Violation] = []
    for account in accounts:
        for line in account.lines:
            violations += ledger.observe(account.who, line.what)
    violations += ledger.settle()
    if not is_over:
        fresh = {id(line.what) for a in accounts for line in a.lines if line.ns > read_until.get(a.who, 0)}
        violations = [found for found in violations if not any(id(fact) in fresh for _, fact in found.story)]
    return _report(accounts, tuple(violations))


def _accounts(run_dir: RunDir) -> list[Account]:
    return sorted(read(run_dir.journal), key=lambda account: (account.who != "coordinator", account.who))


def _report(accounts: list[Account], violations: tuple[Violation, ...]) -> Report:
    facts = [line.what for account in accounts for line in account.lines]
    commits = [fact for fact in facts if isinstance(fact, Committed)]
    left = {account.who for account in accounts for line in account.lines if _is_leave(line.what)}
    deaths = [fact for fact in facts if isinstance(fact, WorkerExited) and not fact.clean]
    return Report(
        clean=not violations,
        steps=len({commit.step for commit in commits}),
        commits=len(commits),
        rosters=sum(isinstance(fact, RosterMade) for fact in facts),
        deaths=sum(str(fact.member) not in left for fact in deaths),
        violations=violations,
    )


def _is_leave(fact: Fact) -> bool:
    return isinstance(fact, Departed) and fact.fault == "left"


def _print(found: Report) -> None:
    counts = f"{found.steps} steps, {found.commits} commits, {found.rosters} rosters, {found.deaths} deaths"
    if found.clean:
        click.echo(f"every invariant holds: {counts}")
        return
    first = found.violations[0]
    click.echo(f"broken: {first.rule}: {first.what}")
    for who, fact in first.story:
        click.echo(f"  {who}: {_tell(fact)}")
    more = len(found.violations) - 1
    click.echo(f"({counts}; {more} further violations: --json lists them)" if more else f"({counts})")


def _tell(fact: Fact) -> str:
    return msgspec.json.encode(fact).decode()
