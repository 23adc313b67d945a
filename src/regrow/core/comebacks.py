"""How often a fully lost job is brought back without a person: as long as it gets further.

Every loss of all replicas is followed by a founding from a saved state (rule S5 of ADR 0027). One that a job comes out of
further than it ever was costs nothing but time. One after the other that does not is a cause which a restart cannot mend.
"""

import msgspec


class Comebacks(msgspec.Struct, frozen=True, kw_only=True):
    """Of one job; it must outlive the coordinator."""

    furthest: int = 0
    """The job was known to have committed every step below this one before its last loss."""
    in_vain: int = 0
    """Foundings in a row, the newest included, since the job was last found to have got further."""

    def founded(self, step: int) -> "Comebacks":
        """From the state of this step: no more was known to be committed, and it was."""
        return msgspec.structs.replace(self, furthest=max(step, self.furthest))

    def after_loss(self, reached: int, limit: int) -> "Comebacks | NoProgress":
        """Everybody is lost, and every step below `reached` was committed: is the job founded once more?"""
        in_vain = self.in_vain if reached <= self.furthest else 0
        furthest = max(reached, self.furthest)
        if in_vain >= limit:
            return NoProgress(furthest=furthest, in_vain=in_vain, limit=limit)
        return Comebacks(furthest=furthest, in_vain=in_vain + 1)


class NoProgress(msgspec.Struct, frozen=True, kw_only=True):
    """It is not: so many foundings in a row came no further."""

    furthest: int
    in_vain: int
    limit: int

    @property
    def why(self) -> str:
        if not self.limit:
            return "and --max-job-restarts 0 brings no job back"
        times = "once" if self.in_vain == 1 else f"{self.in_vain} times in a row"
        return (
            f"and it was brought back {times} (--max-job-restarts {self.limit}) without committing a step beyond the "
            f"first {self.furthest}: what ends it is not mended by another restart"
        )
