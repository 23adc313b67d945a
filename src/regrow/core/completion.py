"""That a job is finished: so that the same command, started again by a scheduler, does nothing.

The marker lies beside the checkpoint that is the job's last, and counts as long as that one is the newest at its place. A
job counts as finished when every place it names says so: at one that does not, its last state may be lacking.

- The same command, of the same script, does nothing, whatever the script would say.
- Another command goes on if it asks for more steps than are done; else it ends before it trains.
- `--resume STEP` and `--new-mathematics` are somebody's word to go on, and so is `--checkpoint` with a place besides.
"""

from collections.abc import Sequence

import msgspec

from regrow.core.release import RELEASE


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The marker, as it lies there."""

    format: int = 1
    regrow: str = RELEASE
    job: str
    step: int
    """So many steps are committed in the last state."""
    root: str
    """The digest of that state; empty in the run directory of a job that saved nothing."""
    command: tuple[str, ...]
    """The script with its arguments."""
    script: str
    """A digest of the script's file."""
    made_unix_s: float

    def is_of(self, command: tuple[str, ...], script: str) -> bool:
        """Would this command do again what was done?"""
        return (self.command, self.script) == (command, script)

    @property
    def words(self) -> str:
        return f"it was finished before, by {self.job} at step {self.step}: nothing is left to do"


def settled(places: Sequence[Completion | None]) -> Completion | None:
    """The job's, when all of its places agree that it is finished."""
    first = places[0] if places else None
    if first is None or any(other is None or other.step != first.step for other in places):
        return None
    return first


def has_more(steps: str, done: int) -> bool:
    """Does a contract with this term ask for more than was done? What no number tells may."""
    return not steps.isdecimal() or int(steps) > done
