"""The checks can fail: every mutant is caught. And every bug that was mended is found again, by its seed, when undone."""

import pytest
from mutants import MUTANTS
from seeds import FOUND, LOOK_FROM, MISJUDGED

from regrow.sim.world import SeedFailed, simulate

_WITHIN = 3000


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in FOUND])
def test_a_broken_rule_is_noticed(name: str) -> None:
    first, faults = LOOK_FROM.get(name, (0, 20))
    caught = first_caught(name, range(first, first + _WITHIN), faults)
    assert caught is not None, f"{name} went unnoticed in {_WITHIN} seeds"
    assert "replay: python -m regrow.sim --seed" in str(caught)


def first_caught(name: str, seeds: range, faults: int) -> SeedFailed | None:
    for seed in seeds:
        try:
            simulate(seed, faults=faults, rules=MUTANTS[name])
        except SeedFailed as caught:
            return caught
    return None


@pytest.mark.parametrize(("name", "seed", "faults", "rule"), [(name, *found) for name, found in FOUND.items()])
def test_a_mended_bug_is_found_by_its_seed(name: str, seed: int, faults: int, rule: str) -> None:
    with pytest.raises(SeedFailed) as caught:
        simulate(seed, faults=faults, rules=MUTANTS[name])
    assert caught.value.rule == rule
    simulate(seed, faults=faults)


@pytest.mark.parametrize("seed", MISJUDGED)
def test_what_was_misjudged_once_is_not_again(seed: int) -> None:
    simulate(seed, faults=20)
