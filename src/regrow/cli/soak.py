"""`regrow soak`: a job under random blows and the proof that its weights are those of an undisturbed run."""

import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click
import msgspec

from regrow.cli.conclusion import FAILED, INFRA, STOPPED
from regrow.cli.proof import JobReport, prove
from regrow.core.errors import RegrowError
from regrow.faults.ordeal import Glimpse, Ordeal
from regrow.faults.schedule import flows, length, logs, saves, volleys
from regrow.faults.subject import Subject

_JOB_S = 120.0
"""The longest that one job of a soak trains: a failure is found soon, and leaves a run directory that can be read."""
_SHORTEST_S = 10.0
"""With less time than this left, no further job is begun."""


class SoakReport(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints."""

    seed: int
    minutes: float
    """That it took."""
    clean: bool
    jobs: tuple[JobReport, ...]
    kept: str | None
    """The run directory of the job that failed."""


@click.command("soak")
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="How long to go on."
)
@click.option("--seed", type=int, help="Of the blows. Default: drawn from the clock, and printed.")
@click.option(
    "--replicas", type=click.IntRange(min=2), default=4, show_default=True, metavar="R", help="Replicas of the job."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout at the end, progress on stderr.")
@click.option("--wrong-reference", is_flag=True, hidden=True, help="Compare with another job: shows that a soak can fail.")
def soak(minutes: float, seed: int | None, replicas: int, as_json: bool, wrong_reference: bool) -> None:
    """Attack a small training job on this machine, and prove that nothing was lost.

    Workers are killed, stopped and sent into endless loops; coordinator, vault and warm parent are killed; one at a time
    and in bursts. One replica that holds the state is left unhurt, unless all are killed at once in a job that saves.
    A job ends by itself or is stopped after two minutes; its digest is compared with that of an undisturbed run of as many
    steps, and its journals are checked. Then the next job begins.

    The same seed gives the same blows at the same moments. What they hit is up to the machine. Only processes that the
    soak started are touched. Ctrl-C ends it early, with the same checks; once more ends it at once.

    \b
    Exit codes:
      0    every digest was equal and every invariant held
      1    something did not hold: it is told, and the run directory is kept
      2    wrong usage
      4    the machine refused: disk, port, processes
      130  ended by Ctrl-C or SIGTERM; everything held until then
    """
    seed = int(time.time()) if seed is None else seed
    click.echo(f"seed {seed}: regrow soak --minutes {minutes:g} --seed {seed} --replicas {replicas}", err=as_json)
    session = _Soak(seed, replicas, as_json, ("--seed", "12") if wrong_reference else ())
    try:
        with _patience() as wish:
            report = session.run(minutes * 60.0, wish)
    except KeyboardInterrupt:
        click.echo("ended at once: the job under way was not checked", err=True)
        sys.exit(STOPPED)
    except (RegrowError, OSError) as error:
        click.echo(f"regrow: {error}", err=True)
        sys.exit(INFRA)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        _print(report, minutes, replicas)
    sys.exit(FAILED if not report.clean else STOPPED if wish.is_there else 0)


class _Wish:
    """To end early."""

    is_there = False


@contextlib.contextmanager
def _patience() -> Iterator[_Wish]:
    """The first signal asks for the end, the second is a KeyboardInterrupt."""
    wish = _Wish()

    def signalled(number: int, frame: FrameType | None) -> None:
        if wish.is_there:
            raise KeyboardInterrupt
        wish.is_there = True
        click.echo("ending: the job stops at its next boundary and is checked; once more ends it at once", err=True)

    former = {number: signal.signal(number, signalled) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _Soak:
    def __init__(self, seed: int, replicas: int, as_json: bool, reference: tuple[str, ...]) -> None:
        self._seed = seed
        self._replicas = replicas
        self._as_json = as_json
        self._reference = reference
        """Arguments for the undisturbed job."""

    def run(self, lasts_s: float, wish: _Wish) -> SoakReport:
        folder = Path(tempfile.mkdtemp(prefix="regrow-soak-"))
        started_s = time.monotonic()
        jobs: list[JobReport] = []
        kept: Path | None = None
        try:
            while not jobs or (not wish.is_there and time.monotonic() < started_s + lasts_s - _SHORTEST_S):
                place = folder / f"job-{len(jobs)}"
                until_s = min(time.monotonic() + _JOB_S, started_s + lasts_s)
                jobs.append(self._run_one(place, f"{self._seed}-{len(jobs)}", until_s, wish))
                if jobs[-1].failures:
                    kept = place / "run"
                    break
                self._say(f"job {len(jobs)}: {_tell(jobs[-1])}")
                shutil.rmtree(place)
        finally:
            if kept is None:
                shutil.rmtree(folder, ignore_errors=True)
        return SoakReport(
            seed=self._seed,
            minutes=round((time.monotonic() - started_s) / 60.0, 2),
            clean=kept is None,
            jobs=tuple(jobs),
            kept=None if kept is None else str(kept),
        )

    def _run_one(self, place: Path, seed: str, until_s: float, wish: _Wish) -> JobReport:
        subject = Subject(place, self._replicas, length(seed), flows(seed), saves(seed), logs(seed))
        ordeal = Ordeal(subject, volleys(seed, self._replicas), self._watch)
        try:
            trouble = ordeal.run(until_s, lambda: wish.is_there)
        finally:
            subject.close()
        self._say("comparing with an undisturbed job ...")
        return prove(subject, ordeal, trouble, self._reference)

    def _watch(self, seen: Glimpse) -> None:
        away = "" if seen.coordinator == "up" else ", the coordinator is away"
        living = f"{seen.workers} of {self._replicas} workers live"
        self._say(f"{seen.after_s:4.0f} s: step {seen.step}, roster {seen.roster}, {living}{away}; {_counts(seen.landed)}")

    def _say(self, text: str) -> None:
        click.echo(text, err=self._as_json)


def _tell(job: JobReport) -> str:
    result = f"{job.steps} steps, {job.rosters} rosters, {job.deaths} deaths, {job.survivors} replicas with equal digests"
    return f"{result}, every invariant holds; {job.why}; {_counts(job.blows)}"


def _counts(blows: dict[str, int]) -> str:
    bursts = blows.get("burst", 0)
    kinds = {kind: count for kind, count in blows.items() if kind != "burst"}
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0])))
    return f"{sum(kinds.values())} blows" + (f" ({told}; {bursts} bursts)" if kinds else "")


def _print(report: SoakReport, minutes: float, replicas: int) -> None:
    total: Counter[str] = Counter()
    for job in report.jobs:
        total.update(job.blows)
    steps, rosters = sum(job.steps for job in report.jobs), sum(job.rosters for job in report.jobs)
    click.echo(f"seed {report.seed}, {report.minutes:g} minutes, {_counts(total)}: {steps} steps, {rosters} rosters")
    if report.clean:
        click.echo("every digest is that of an undisturbed run, and every invariant holds")
        return
    for failure in report.jobs[-1].failures:
        click.echo(f"FAILED: {failure}")
    click.echo(f"the same blows again: regrow soak --minutes {minutes:g} --seed {report.seed} --replicas {replicas}")
    click.echo(f"the job that failed is kept: regrow why {report.kept}")
