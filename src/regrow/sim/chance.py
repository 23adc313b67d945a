"""Every random choice of a simulation, drawn from its seed and from nothing else."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """How long things take, and which way they go."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.draw = self._random.random
        self.between = self._random.uniform
        self.whole = self._random.randint

    def happens(self, probability: float) -> bool:
        return self.draw() < probability

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self.draw() * len(choices))]

    def some_of(self, choices: Sequence[T], count: int) -> list[T]:
        return self._random.sample(choices, min(count, len(choices)))

    def soon_s(self) -> float:
        """A message or a collective: mostly milliseconds, sometimes long enough to be overtaken by anything."""
        r = self.draw()
        return r * r * 0.1 if r < 0.93 else (r - 0.9) * 25.0

    def work_s(self) -> float:
        """The user's code: a lane, or an optimizer step."""
        r = self.draw()
        return 0.02 + r * 0.3 if r < 0.95 else r * 2.0
