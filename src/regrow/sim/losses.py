"""The check of jobs that are brought back again and again: a dumb second count of what core.comebacks counts.

- comebacks   after so many foundings in a row that came no further the job is given up, and never before
"""

from typing import TYPE_CHECKING

from regrow.core.membership_effects import End, Saved

if TYPE_CHECKING:
    from regrow.sim.world import World


class Losses:
    def __init__(self, world: "World", limit: int) -> None:
        self._world = world
        self._limit = limit
        self._reached: list[int] = []
        """At each loss of everybody after which the job is founded again."""
        self._founded: dict[int, int] = {}
        """From which step, by how many losses there had been."""
        self._is_lost = False
        """No roster was made durable since."""
        self.is_given_up = False

    def founded(self, step: int) -> None:
        self._founded[len(self._reached)] = step

    def made_durable(self, saved: Saved) -> None:
        was_lost, self._is_lost = self._is_lost, saved.roster is None and saved.founding.reached is not None
        if was_lost or not self._is_lost:
            return
        assert saved.founding.reached is not None
        self._reached.append(saved.founding.reached)
        if self._in_vain > self._limit:
            self._world.referee.fail("comebacks", f"lost at {self._reached}, and founded once more (limit {self._limit})")

    @property
    def _in_vain(self) -> int:
        """Foundings since the job was last found to have got further than ever before."""
        count, furthest = 0, self._founded.get(0, 0)
        for losses, reached in enumerate(self._reached, 1):
            count = 1 if reached > furthest else count + 1
            furthest = max(furthest, reached, self._founded.get(losses, 0))
        return count

    def ended(self, end: End) -> None:
        self.is_given_up = end.outcome == "failed" and "--max-job-restarts" in end.why
        if not self.is_given_up:
            return
        if self._in_vain != self._limit:
            self._world.referee.fail("comebacks", f"lost at {self._reached}, and given up (limit {self._limit}): {end.why}")
        self._world.sights.see("a job without progress was given up")
