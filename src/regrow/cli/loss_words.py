"""Who holds a job's state, and what a loss would cost, in words."""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from regrow.cli.wording import and_, plural, span
from regrow.core.holders import Holders
from regrow.core.losses import Ended, Foretold, Founded, Redealt, Unharmed, foretell
from regrow.core.save_story import MEMORY


class Held(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    """A replica, memory, or a URL."""
    step: int
    """So many steps are committed in what it holds."""
    records: int = 0
    """So many more lie beside it, in the logs of an every-step job."""
    is_replica: bool
    is_far: bool
    """It outlives this host."""


def held_by(held: Iterable[Held]) -> str:
    """Replicas by their names, all at one step; then what was saved."""
    everything = list(held)
    replicas = [each for each in everything if each.is_replica]
    saved = [f"{_where(each.where)} (step {each.step}{_after(each.records)})" for each in everything if not each.is_replica]
    told = [f"{and_(each.where for each in replicas)} (step {replicas[0].step})"] if replicas else []
    return "; ".join([*told, *saved]) or "nobody yet"


def consequence(foretold: Foretold) -> str:
    match foretold.outcome:
        case Unharmed():
            return "training goes on as it is"
        case Redealt(waits=waits) if waits:
            return f"nothing is lost, and the job waits: {waits}"
        case Redealt(lanes=lanes):
            dealt = ", ".join(f"{name} {_lanes(each)}" for name, each in lanes.items())
            return f"nothing is lost, and lanes are dealt anew: {dealt}"
        case Founded() as founded:
            return f"the job is founded again from {_origin(founded)}"
        case Ended() as ended:
            return _ended(ended)
    assert_never(foretold.outcome)


def unique(holders: Holders) -> str:
    """Of a job in which one replica alone holds the state; empty else."""
    if holders.sole is None:
        return ""
    match foretell(holders, (holders.sole,)).outcome:
        case Founded() as founded:
            return f"only {holders.sole} holds the state: its loss takes the job back to {_origin(founded)}"
        case _:
            saved = " of this job" if holders.copies else ", and nothing is saved"
            return f"only {holders.sole} holds the state{saved}: its loss ends the job"


def _ended(ended: Ended) -> str:
    over = "the job ends" if ended.exit is None else f"the job ends (exit code {ended.exit})"
    if ended.where is None:
        return f"{over}, and nothing is left of its state: {plural(ended.redone, 'step')} lost{_took(ended.redone_s)}"
    again = _again(ended.redone, ended.redone_s)
    return f"{over}; with --resume latest another goes on from step {ended.step} ({_where(ended.where)}): {again}"


def _origin(founded: Founded) -> str:
    where = f"step {founded.step} ({_where(founded.where)}){_after(founded.records)}"
    return f"{where}: {_again(founded.redone, founded.redone_s)}"


def _after(records: int) -> str:
    return f" and {plural(records, 'record')} after it" if records else ""


def _again(steps: int, seconds: float | None) -> str:
    if not steps:
        return "no step is computed again"
    return f"{plural(steps, 'step')} {'is' if steps == 1 else 'are'} computed again{_took(seconds)}"


def _took(seconds: float | None) -> str:
    return f", about {span(seconds)} at the present rate" if seconds else ""


def _lanes(lanes: tuple[int, ...]) -> str:
    return " ".join(map(str, lanes)) or "none"


def _where(where: str) -> str:
    return "this host's memory" if where == MEMORY else where
