"""`regrow why`: the story of a job: what failed, how that is known, what was decided, what it cost."""

import shutil
import sys
import time
from pathlib import Path

import click
import msgspec

from regrow.cli.liveness import is_process
from regrow.cli.run_dir import RunDir, newest
from regrow.cli.telling import tell_people
from regrow.cli.wording import Manner
from regrow.core.chronicle import Chronicle
from regrow.core.episodes import Tale, tell
from regrow.core.errors import RegrowError
from regrow.core.records import Gap
from regrow.shell.journal import read

_FORMAT = 1
_LAST_WORDS_BYTES = 4096


class WhyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints. docs/why.md explains each field; fields are only ever added within one format."""

    format: int
    job: str
    state: str
    """running, finished, stopped, failed, state-lost, or dead: `regrow run` is gone without having noted an end."""
    tale: Tale


@click.command("why")
@click.argument("run_dir", required=False, type=click.Path(path_type=Path))
@click.option("--all", "every", is_flag=True, help="Every failure in full, however many there are.")
@click.option("--last", type=click.IntRange(min=0), default=5, show_default=True, metavar="N", help="Of many, the last N.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def why(run_dir: Path | None, every: bool, last: int, as_json: bool) -> None:
    """What went wrong, how that is known, what was decided, and what it cost.

    Reads the journals of a job that runs, has ended or was killed. Of many failures: a summary, the first one in full, and
    the last ones. RUN_DIR defaults to the newest run in or below the current folder. Exit code 2 when there is no such run.
    """
    try:
        place = RunDir(run_dir or newest(Path.cwd()))
        report = gather(place)
    except RegrowError as error:
        click.echo(f"regrow: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    manner = Manner(
        width=min(120, shutil.get_terminal_size().columns),
        every=every,
        last=last,
        clock=lambda at: time.strftime("%H:%M:%S", time.localtime(at)),
        last_words=lambda output: _last_words(place.path / output),
    )
    for line in tell_people(report.job, report.state, report.tale, manner):
        click.echo(line)


def gather(run_dir: RunDir) -> WhyReport:
    job = run_dir.job_file()
    accounts = list(read(run_dir.journal, lenient=True))
    incomplete = {
        account.who
        for account in accounts
        if account.incomplete or any(isinstance(line.what, Gap) for line in account.lines)
    }
    tale = tell(Chronicle({account.who: account.lines for account in accounts}, incomplete))
    if tale.outcome is not None:
        state = "failed" if tale.outcome == "bug" else tale.outcome
    else:
        state = "running" if is_process(job.pid, job.born) else "dead"
    return WhyReport(format=_FORMAT, job=job.job, state=state, tale=tale)


def _last_words(path: Path) -> list[str]:
    """The last lines that a worker printed, as far as they can be had."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST_WORDS_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-3:]
