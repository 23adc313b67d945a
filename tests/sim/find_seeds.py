"""Seeds that catch mutants, for seeds.py: PYTHONPATH=src python tests/sim/find_seeds.py 20000 20 NeverRepeats.

Whatever draws another number in the simulator makes another story of every seed: then they are found anew with this.
"""

import sys

from mutants import MUTANTS

from regrow.sim.campaign import campaign
from regrow.sim.world import SeedFailed, simulate


def find(name: str, within: int, faults: int, rule: str | None = None) -> tuple[int, int, str] | None:
    """The first seed that catches it, where the rules as they are have nothing to say against it."""
    for first in range(0, within, 50):
        tally = campaign(range(first, min(first + 50, within)), faults=faults, rules=MUTANTS[name])
        for failure in tally.failures:
            try:
                simulate(failure.seed, faults=faults)
            except SeedFailed:
                continue
            if rule in (None, failure.rule):
                return failure.seed, faults, failure.rule
    return None


if __name__ == "__main__":
    for each in sys.argv[3:] or MUTANTS:
        print(f'    "{each}": {find(each, int(sys.argv[1]), int(sys.argv[2]))},', flush=True)
