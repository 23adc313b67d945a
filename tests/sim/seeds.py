"""Every bug the simulator found in core, by the mutant that brings it back: a seed that finds it, its faults, the rule.

`python -m regrow.sim --seed N --faults K --verbose` tells how the same story ends today.
"""

FOUND: dict[str, tuple[int, int, str]] = {
    "NeverRepeats": (67, 6, "liveness"),
    "SeatsTheLeftOut": (511, 20, "outcome"),
    "AwaitsNobody": (82, 6, "liveness"),
    "EvictsTheLast": (102, 20, "outcome"),
    "MournsTooEarly": (2771, 20, "outcome"),
    "DistrustsCleanExits": (66, 6, "outcome"),
    "BlamesItsOwnKill": (3452, 40, "outcome"),
    "TakesTheDoomedForDead": (1913, 40, "outcome"),
    "ForgetsTheStop": (647, 20, "outcome"),
    "ConcludesAtOnce": (1082, 40, "outcome"),
}
