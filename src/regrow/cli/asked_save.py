"""`regrow checkpoint now`: a running job saves its state at once, and this waits until that is durable.

The coordinator passes the wish on to the members and remembers nothing. What became of it is read from the journals: any
state will do that is not older than the job was when it was asked, wherever the wish for it came from. A save may be void,
and a wish may reach nobody: then it is asked again.
"""

import asyncio
import sys
import time
from pathlib import Path

import click
import msgspec

from regrow.cli.address import parse_address
from regrow.cli.conclusion import INFRA, USAGE
from regrow.cli.gauge import size
from regrow.cli.liveness import is_process
from regrow.cli.run_dir import RunDir, newest
from regrow.cli.status import RUNNING, gather
from regrow.cli.wishes import ask
from regrow.cli.wording import span
from regrow.core.errors import ConfigError, PeerError, RegrowError
from regrow.core.records import (
    Line,
    OriginTaken,
    RosterMade,
    SaveDurable,
    SaveFailed,
    SaveVoided,
    StateKept,
    VaultStarted,
)
from regrow.core.save_story import reason
from regrow.core.wishes import Wish
from regrow.shell.follower import Follower

_REFUSED = 1
_LOOK_S = 0.1
_PATIENCE_STEPS = 10
"""So many steps without a save since it was asked: the wish reached nobody. Doubled each time it is asked again."""


class SavedThere(msgspec.Struct, frozen=True, kw_only=True):
    """One place, as far as it matters to who asked."""

    url: str
    step: int | None
    """Of the state that is durable there; None when that is older than what was asked for."""
    size_bytes: int | None = None
    seconds: float | None = None
    """From memory to there."""
    problem: str = ""


class AskedSave(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints. docs/checkpoints.md explains each field; fields are only ever added within one format."""

    format: int = 1
    run: str
    asked_at_step: int
    """The state of this step, or a later one, will do."""
    is_durable: bool
    """At all places; of a job without any, in memory."""
    memory_step: int | None
    places: tuple[SavedThere, ...]
    why: str
    """Why it is not durable."""


class SaveWatch:
    """What the journals tell of the save that was asked for."""

    def __init__(self, urls: tuple[str, ...], step: int) -> None:
        self.step = step
        self.kept: StateKept | None = None
        self.durable: dict[str, SaveDurable] = {}
        self.given_up: dict[str, str] = {}
        """Why, by place."""
        self.is_lost = False
        """Nothing will come of the last wish: ask again."""
        self._urls = urls
        self._is_kept_since = False
        self._asked_at = step
        self._patience_steps = _PATIENCE_STEPS

    @property
    def is_durable(self) -> bool:
        return all(url in self.durable for url in self._urls) if self._urls else self.kept is not None

    @property
    def is_settled(self) -> bool:
        """It is durable wherever it will be."""
        return self.is_durable or (
            bool(self._urls) and all(url in self.durable or url in self.given_up for url in self._urls)
        )

    def asked(self, step: int) -> None:
        self.is_lost = self._is_kept_since = False
        self.given_up.clear()
        self._asked_at = max(step, self.step)

    def reached(self, step: int) -> None:
        """The job is at this step. One that goes on and on without a save has not heard the wish."""
        if not self._is_kept_since and step - self._asked_at > self._patience_steps:
            self._patience_steps *= 2
            self.is_lost = True

    def remember(self, line: Line) -> None:
        """From before it was asked: what is there already."""
        if isinstance(line.what, StateKept | SaveDurable):
            self.hear(line)
        self._is_kept_since = False

    def hear(self, line: Line) -> str:
        """In words; empty when it is no news to who asked."""
        match line.what:
            case StateKept(step=step, size_bytes=size_bytes, seconds=seconds) if step >= self.step:
                self.kept, self._is_kept_since = line.what, True
                return f"step {step} is whole in memory: {size(size_bytes)} in {span(seconds)}"
            case SaveDurable(step=step, url=url, seconds=seconds) if step >= self.step and url in self._urls:
                self.durable[url] = line.what
                self.given_up.pop(url, None)
                return f"step {step} is durable at {url}, {span(seconds)} later"
            case SaveFailed(step=step, url=url, is_final=is_final) if step >= self.step and url in self._urls:
                # A state as old as the wish was on its way already: the one that was asked for comes after it.
                is_given_up = is_final and line.what.newer is None  # else a newer state, which will do, is on its way there
                if is_given_up and url not in self.durable and step > self._asked_at:
                    self.given_up[url] = reason(line.what)
                then = "given up" if is_final else "tried again"
                return f"step {step} is not durable at {url}: {reason(line.what)}; {then}"
            case SaveVoided(step=step, why=why) if step >= self.step and not self.is_durable:
                self.is_lost = True
                return f"the save of step {step} is void: {why}"
            case RosterMade() | VaultStarted() if not self._is_kept_since or isinstance(line.what, VaultStarted):
                self.is_lost = not self.is_durable  # the wish may have gone with somebody
            case OriginTaken(through=through):
                self.step, self.is_lost = min(self.step, through), not self.is_durable
                return f"every replica was lost, and the job goes on from step {through}"
        return ""

    def told(self, run: str, why: str) -> AskedSave:
        return AskedSave(
            run=run,
            asked_at_step=self.step,
            is_durable=self.is_durable,
            memory_step=self.kept.step if self.kept is not None else None,
            places=tuple(map(self._there, self._urls)),
            why="" if self.is_durable else why,
        )

    def _there(self, url: str) -> SavedThere:
        found = self.durable.get(url)
        if found is None:
            return SavedThere(url=url, step=None, problem=self.given_up.get(url, ""))
        return SavedThere(url=url, step=found.step, size_bytes=found.size_bytes, seconds=found.seconds)


@click.command("now")
@click.argument("run_dir", required=False, type=click.Path(path_type=Path))
@click.option("--no-wait", is_flag=True, help="Return once it is granted, not once it is durable.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def now(run_dir: Path | None, no_wait: bool, as_json: bool) -> None:
    """Have a running job save its state, and wait until that is durable at all of its places.

    What counts is a state of this moment or a later one; where the save was void it is asked for again. Of a job that ends
    meanwhile the last save counts. RUN_DIR defaults to the newest run in or below the current folder.

    \b
    Exit codes: 0 it is durable, 1 it was refused or the job ended without it, 2 there is no such run, 4 a place gave it up
    or the coordinator cannot be reached.
    """
    try:
        code = _Asking(RunDir(run_dir or newest(Path.cwd())), as_json).run(no_wait)
    except ConfigError as error:
        click.echo(f"regrow: {error}", err=True)
        code = USAGE
    except (RegrowError, OSError) as error:
        click.echo(f"regrow: {error}", err=True)
        code = INFRA
    sys.exit(code)


class _Asking:
    def __init__(self, run_dir: RunDir, as_json: bool) -> None:
        self._run_dir = run_dir
        self._job = run_dir.job_file()
        self._as_json = as_json
        self._vault = Follower(run_dir.journal / "vault.jsonl")
        self._others = [
            Follower(run_dir.journal / "coordinator.jsonl", b'"fact":"RosterMade"'),
            Follower(run_dir.journal / "coordinator.jsonl", b'"fact":"OriginTaken"'),
            Follower(run_dir.journal / "agent.jsonl", b'"fact":"VaultStarted"'),
        ]

    def run(self, no_wait: bool) -> int:
        watch = SaveWatch(self._job.checkpoints, gather(self._run_dir).step or 0)
        for line in self._vault.read():
            watch.remember(line)
        for follower in self._others:
            follower.read()  # what was before it was asked
        if (refusal := self._ask()) is not None:
            click.echo(f"regrow: {refusal}", err=True)
            return _REFUSED
        if no_wait:
            if self._as_json:
                self._print(watch, "nobody waited for it")
            else:
                click.echo("the state is saved: granted")
            return 0
        self._say(f"asked at step {watch.step}")
        return self._wait(watch)

    def _wait(self, watch: SaveWatch) -> int:
        why, is_away = "", False
        while True:
            found = gather(self._run_dir)
            # Its processes make the last save durable after the job has ended.
            is_over = found.state not in RUNNING and not is_process(self._job.pid, self._job.born)
            self._listen(watch)
            if watch.is_settled or is_over:
                break
            watch.reached(found.step or 0)
            if watch.is_lost:
                try:
                    why = self._ask() or ""
                except ConfigError:
                    watch.is_lost = False  # it has just ended, and its last save counts
                except PeerError as error:
                    if not is_away:
                        self._say(str(error))
                    is_away = True
                else:
                    if why:
                        break
                    watch.asked(found.step or 0)
                    self._say("asked again")
                    is_away = False
            time.sleep(_LOOK_S)
        return self._conclude(watch, why)

    def _conclude(self, watch: SaveWatch, why: str) -> int:
        if watch.given_up and not why:
            why = "; ".join(f"{url} gave it up: {given_up}" for url, given_up in watch.given_up.items())
            code = INFRA
        else:
            why = why or f"the job is {gather(self._run_dir).state}, and its last save is not durable everywhere"
            code = _REFUSED
        if self._as_json:
            self._print(watch, why)
        elif watch.is_durable:
            there = ", ".join(f"step {watch.durable[url].step} at {url}" for url in self._job.checkpoints)
            memory = f"step {watch.kept.step} in memory" if watch.kept is not None else ""
            click.echo(f"the state is saved: {there or memory}")
        if watch.is_durable:
            return 0
        click.echo(f"regrow: the state is not saved: {why}", err=True)
        return code

    def _listen(self, watch: SaveWatch) -> None:
        lines = [line for follower in (*self._others, self._vault) for line in follower.read()]
        for line in sorted(lines, key=lambda line: line.ns):
            if said := watch.hear(line):
                self._say(said)

    def _ask(self) -> str | None:
        """Why it is refused, None when it is granted. PeerError while the coordinator is away, ConfigError after the end."""
        address = self._job.coordinator
        there = parse_address("--coordinator", address) if address is not None else None
        reply = asyncio.run(ask(self._run_dir, Wish(kind="save"), there))
        return None if reply.is_granted else reply.why

    def _print(self, watch: SaveWatch, why: str) -> None:
        click.echo(msgspec.json.encode(watch.told(str(self._run_dir.path), why)).decode())

    def _say(self, text: str) -> None:
        click.echo(text, err=self._as_json)
