"""What is told of simulated jobs, whose coordinators crash and whose rosters overtake one another: every death once."""

from collections import Counter

import msgspec
import pytest

from regrow.core.chronicle import Chronicle
from regrow.core.episodes import Tale, tell
from regrow.core.records import Departed, Fact, Line, WorkerExited
from regrow.sim.world import simulate


def job(seed: int, faults: int) -> tuple[dict[str, list[Line]], Tale]:
    journals: dict[str, list[Line]] = {}

    def write(now: float, who: str, fact: Fact) -> None:
        if isinstance(fact, WorkerExited) and fact.how.startswith("killed by the agent: "):
            # As the real agent says it.
            fact = msgspec.structs.replace(fact, how=f"was ended: {fact.how.removeprefix('killed by the agent: ')}")
        journals.setdefault(who, []).append(Line(at=now, ns=round(now * 1e9), who=who, what=fact))

    simulate(seed, faults=faults, journal=write)
    return journals, tell(Chronicle(journals))


def _is_leave(fact: Fact) -> bool:
    return isinstance(fact, Departed) and fact.fault == "left"


@pytest.mark.parametrize("faults", [6, 20])
def test_every_death_is_told_once_and_nothing_costs_less_than_nothing(faults: int) -> None:
    told: Counter[str] = Counter()
    for seed in range(300):
        journals, tale = job(seed, faults)
        died = {
            str(line.what.member)
            for line in journals.get("agent", [])
            if isinstance(line.what, WorkerExited)
            and not line.what.clean
            and not line.what.how.startswith(("was ended: the job is", "was ended: it "))
        }
        left = {who for who, lines in journals.items() if any(_is_leave(line.what) for line in lines)}
        died -= left
        named = [culprit.member for episode in tale.episodes for culprit in episode.culprits]
        assert not left & set(named), f"seed {seed}: {left & set(named)} left as planned, and are called failures"
        assert len(named) == len(set(named)) and set(named) >= died, f"seed {seed}: {named}, died: {died}"
        for episode in tale.episodes:
            numbers = (episode.after_s, episode.stall_s, episode.restored_s, episode.recomputed_lanes)
            assert all(number is None or number >= 0 for number in numbers), f"seed {seed}: {episode}"
            assert len(episode.returns) == len(episode.culprits)
        assert tale.summary.stall_s <= tale.took_s and tale.summary.weakened_s <= tale.took_s, f"seed {seed}"
        told.update(["together"] * any(len(episode.culprits) > 1 for episode in tale.episodes))
        told.update(["again"] * bool(tale.summary.recomputed_lanes), **tale.summary.by_kind)
    assert told["together"] and told["again"] and told["signal"] and told["eviction"] and told["connection"], told
