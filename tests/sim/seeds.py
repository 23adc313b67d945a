"""Every bug the simulator found in core, by the mutant that brings it back: a seed that finds it, its faults, the rule.

`python -m regrow.sim --seed N --faults K --verbose` tells how the same story ends today.
"""

FOUND: dict[str, tuple[int, int, str]] = {
    "NeverRepeats": (153, 6, "liveness"),
    "SeatsTheLeftOut": (2586, 20, "outcome"),
    "AwaitsNobody": (18, 6, "liveness"),
    "EvictsTheLast": (326, 6, "outcome"),
    "MournsTooEarly": (382, 20, "outcome"),
    "DistrustsCleanExits": (1, 6, "outcome"),
    "BlamesItsOwnKill": (1523, 20, "outcome"),
    "TakesTheDoomedForDead": (768, 20, "outcome"),
    "ForgetsTheStop": (1009, 20, "outcome"),
    "ConcludesAtOnce": (7381, 40, "outcome"),
    "ForgetsTheBudget": (95, 6, "budget"),
}
