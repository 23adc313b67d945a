"""Many seeds, on several processes, with what they add up to."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from regrow.sim.rules import THE_RULES, Rules
from regrow.sim.sights import SIGHTS
from regrow.sim.world import Report, SeedFailed, simulate

_CHUNK = 50


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A seed that broke a rule, and its whole story."""

    seed: int
    rule: str
    story: str


class Tally(msgspec.Struct, kw_only=True):
    """What a campaign adds up to."""

    seeds: int = 0
    events: int = 0
    rosters: int = 0
    virtual_s: float = 0.0
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    sights: Counter[str] = msgspec.field(default_factory=Counter)
    failures: list[Failure] = []

    def add(self, result: Report | Failure) -> None:
        self.seeds += 1
        if isinstance(result, Failure):
            self.failures.append(result)
            return
        self.events += result.events
        self.rosters += result.rosters
        self.virtual_s += result.virtual_s
        self.outcomes[result.outcome] += 1
        self.faults.update(result.faults)
        self.sights.update(result.sights)

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
        faults = ", ".join(f"{count} {name}" for name, count in self.faults.most_common())
        sights = ", ".join(f"{self.sights[name]} {name}" for name in SIGHTS)
        return (
            f"{self.seeds} seeds, {len(self.failures)} failed: {outcomes}\n"
            f"{self.events} events, {self.rosters} rosters, {self.virtual_s / 3600:.1f} h of virtual time\n"
            f"{self.faults.total()} faults: {faults}\n"
            f"seen: {sights}"
        )


def campaign(
    seeds: range,
    *,
    faults: int,
    jobs: int = 1,
    rules: Rules = THE_RULES,
    progress: Callable[[Tally], None] | None = None,
    stop_at_failure: bool = False,
) -> Tally:
    """Run every seed; a failing one does not stop the others, unless asked to."""
    tally = Tally()
    for results in _results(seeds, faults, jobs, rules):
        for result in results:
            tally.add(result)
        if progress is not None:
            progress(tally)
        if stop_at_failure and tally.failures:
            break
    return tally


def _results(seeds: range, faults: int, jobs: int, rules: Rules) -> Iterator[list[Report | Failure]]:
    chunks = ((seeds[i : i + _CHUNK], faults, rules) for i in range(0, len(seeds), _CHUNK))
    if jobs == 1:
        yield from map(_run, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run, chunks)


def _run(chunk: tuple[range, int, Rules]) -> list[Report | Failure]:
    seeds, faults, rules = chunk
    return [_one(seed, faults, rules) for seed in seeds]


def _one(seed: int, faults: int, rules: Rules) -> Report | Failure:
    try:
        return simulate(seed, faults=faults, rules=rules)
    except SeedFailed as failed:
        return Failure(seed=seed, rule=failed.rule, story=str(failed))
