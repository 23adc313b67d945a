"""Every bug the simulator found in core, by the mutant that brings it back: a seed that finds it, its faults, the rule.

`python -m regrow.sim --seed N --faults K --verbose` tells how the same story ends today.
"""

FOUND: dict[str, tuple[int, int, str]] = {
    "NeverRepeats": (67, 6, "liveness"),
    "SeatsTheLeftOut": (512, 20, "outcome"),
    "AwaitsNobody": (99, 6, "liveness"),
    "EvictsTheLast": (518, 6, "outcome"),
    "MournsTooEarly": (261, 20, "outcome"),
    "DistrustsCleanExits": (66, 6, "outcome"),
    "BlamesItsOwnKill": (877, 20, "outcome"),
    "TakesTheDoomedForDead": (1818, 20, "outcome"),
    "ForgetsTheStop": (67, 20, "outcome"),
    "ConcludesAtOnce": (14097, 40, "outcome"),
    "ForgetsTheBudget": (869, 6, "budget"),
}
