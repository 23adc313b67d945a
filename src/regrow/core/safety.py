"""What is safe of a job when it ends: which state lies where, and what is lost with those who held more."""

import msgspec


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """A place, and what lies there."""

    url: str
    outlives: bool
    """It is still there when the machine is gone."""
    step: int | None
    """So many steps are committed in the newest state there; None: there is none."""


class Safety(msgspec.Struct, frozen=True, kw_only=True):
    spots: tuple[Spot, ...]
    """Nearest first."""
    reached: int
    """The job is known to have committed every step below this one."""

    @property
    def best(self) -> int | None:
        """The newest state that outlives everything of this job that is on this machine."""
        return max((spot.step for spot in self.spots if spot.outlives and spot.step is not None), default=None)

    @property
    def words(self) -> str:
        best = self.best
        if best is None:
            return "no state of this job is at any place that outlives this machine" + self._local(-1)
        where = [spot.url for spot in self.spots if spot.outlives and spot.step == best]
        lost = self.reached - best
        then = "nothing is lost" if lost <= 0 else f"{lost} step{'' if lost == 1 else 's'} committed since {_are(lost)} lost"
        return f"safe is the state of step {best}, at {' and '.join(where)}: {then}{self._local(best)}"

    def _local(self, step: int) -> str:
        """What is newer, and goes with the machine."""
        newer = [spot for spot in self.spots if not spot.outlives and spot.step is not None and spot.step > step]
        return "".join(f"; as long as this machine is there, that of step {spot.step} at {spot.url}" for spot in newer)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
