"""Every bug the simulator found in core, by the mutant that brings it back: a seed that finds it, its faults, the rule.

`python -m regrow.sim --seed N --faults K --verbose` tells how the same story ends today.
"""

FOUND: dict[str, tuple[int, int, str]] = {
    "NeverRepeats": (299, 6, "liveness"),
    "SeatsTheLeftOut": (1602, 6, "one-life"),
    "AwaitsNobody": (6, 6, "liveness"),
    "EvictsTheLast": (615, 6, "outcome"),
    "MournsTooEarly": (1291, 20, "outcome"),
    "DistrustsCleanExits": (66, 6, "outcome"),
    "BlamesWhomItKilled": (23727, 20, "outcome"),
    "ConcludesAtOnce": (4451, 20, "outcome"),
}
