"""Every bug the simulator found in core, by the mutant that brings it back: a seed that finds it, its faults, the rule.

`python -m regrow.sim --seed N --faults K --verbose` tells how the same story ends today. When the simulator draws other
numbers than before, find_seeds.py finds other seeds.
"""

FOUND: dict[str, tuple[int, int, str]] = {
    "NeverRepeats": (201, 6, "liveness"),
    "SeatsTheLeftOut": (2532, 20, "outcome"),
    "AwaitsNobody": (21, 6, "liveness"),
    "EvictsTheLast": (251, 20, "outcome"),
    "MournsTooEarly": (730, 20, "outcome"),
    "DistrustsCleanExits": (18, 6, "outcome"),
    "TrustsWordsAlone": (125, 20, "outcome"),
    "BlamesItsOwnKill": (59, 20, "outcome"),
    "TakesTheDoomedForDead": (2265, 20, "outcome"),
    "ForgetsTheStop": (19, 20, "outcome"),
    "ConcludesAtOnce": (2590, 40, "outcome"),
    "ForgetsTheBudget": (6, 6, "budget"),
    "ForgetsTheBase": (2244, 6, "outcome"),
    "AwaitsTheRetired": (483, 6, "wishes"),
    "ForgetsWhoHandedOver": (4365, 20, "founding"),
    "AwaitsAllToEnter": (36505, 20, "liveness"),
    "TakesAFounderForLate": (29528, 20, "outcome"),
}

LOOK_FROM: dict[str, tuple[int, int]] = {
    "BeginsAgainUnproven": (94, 20),
    "BeginsWithWhatItLoaded": (266, 20),
    "DropsItsWishWhereMembersPart": (302, 20),
    "DropsWhatOverran": (423, 20),
    "ForgetsAttempts": (470, 40),
    "ForgetsTheStaff": (10, 6),
    "ListensAgain": (795, 6),
    "ListensOnce": (707, 20),
    "LogsAtBoundariesAlone": (267, 40),
    "LogsNoStop": (418, 20),
    "NeverParks": (1049, 20),
    "RedoesUnlessPassed": (109, 20),
    "ReplaysAnotherLineage": (4905, 20),
    "ResultOutlivesRedo": (93, 20),
    "SeatsOnlyThePlanned": (60, 20),
    "SeeksBeforeTheProof": (4855, 20),
    "StatesWhatItHeard": (328, 20),
    "StopsForAnOldWish": (1258, 20),
    "TakesAnotherForTheSame": (137, 20),
    "TakesTheSameForAnother": (618, 20),
    "TestifiesAlone": (1057, 20),
}
"""Other mutants that few seeds catch: where to look first, and with how many faults."""

MISJUDGED: tuple[int, ...] = (855, 30797, 41319, 44047, 44865, 208089)
"""Jobs, with 20 faults, that broke no rule, though the simulator said so: its vault, its agent or a check was wrong."""
