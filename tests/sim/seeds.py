"""Every bug the simulator found in core, by the mutant that brings it back: a seed that finds it, its faults, the rule.

`python -m regrow.sim --seed N --faults K --verbose` tells how the same story ends today.
"""

FOUND: dict[str, tuple[int, int, str]] = {
    "NeverRepeats": (67, 6, "liveness"),
    "SeatsTheLeftOut": (223, 6, "one-life"),
    "AwaitsNobody": (2, 6, "liveness"),
    "EvictsTheLast": (672, 6, "outcome"),
    "MournsTooEarly": (277, 20, "outcome"),
    "DistrustsCleanExits": (66, 6, "outcome"),
    "ConcludesAtOnce": (7484, 20, "outcome"),
    "BlamesItsOwnKill": (2964, 20, "outcome"),
    "ForgetsTheBudget": (631, 6, "budget"),
}
