"""Exceptions of the user's script: is it this attempt's bad luck, this replica's trouble, or a bug that everyone has?

The same exception (its kind, at the same line) from a second replica, in another lane or outside lanes, is a bug in the
script: a restart would only repeat it. In the same lane of the same step it may be the samples: core.suspicion judges that.
An exception of a joiner is the joiner's own: a job that trains does not end because a late replica cannot start.
Lack of memory is never the script's bug, though replicas that share a host often run out of it at the same line: what one
holds the other cannot have. It is tried again, within the restart budget.
"""

import msgspec

from regrow.core.messages import Raised
from regrow.core.progress import Place
from regrow.core.roster import Member


class TryAgain(msgspec.Struct, frozen=True, kw_only=True):
    """It may pass elsewhere, or the next time."""


class ReplicaUnfit(msgspec.Struct, frozen=True, kw_only=True):
    """No life of this replica can take part; the others go on."""

    why: str


class ScriptBroken(msgspec.Struct, frozen=True, kw_only=True):
    """Only the user can mend it."""

    why: str


class Raises:
    """Remembers what was raised; `window_s` is how long the same exception counts as the same story."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._heard: list[tuple[float, Raised, bool]] = []

    @property
    def first(self) -> Raised | None:
        """What the user should see first."""
        return self._heard[0][1] if self._heard else None

    def place_of(self, member: Member) -> Place | None:
        """Where this member was when it raised."""
        for _, raised, _ in self._heard:
            if raised.member == member:
                return Place(step=raised.step, lane=raised.lane, phase="raised")
        return None

    def came_from(self, members: tuple[Member, ...]) -> bool:
        return any(raised.member in members for _, raised, _ in self._heard)

    def judge(self, now: float, raised: Raised, is_joiner: bool) -> TryAgain | ReplicaUnfit | ScriptBroken:
        recent = [
            other
            for at, other, by_joiner in self._heard
            if now - at < self._window_s and not by_joiner and other.memory is None
        ]
        self._heard.append((now, raised, is_joiner))
        what = f"{raised.member} raised {raised.kind}"
        if raised.scope == "replica" or (raised.scope == "job" and is_joiner):
            return ReplicaUnfit(why=what)
        if raised.scope == "job":
            return ScriptBroken(why=f"{what}, which no other replica can mend")
        if raised.memory is not None:
            return TryAgain()
        for other in recent:
            same = (other.kind, other.place) == (raised.kind, raised.place)
            if same and raised.lane is not None and (other.step, other.lane) == (raised.step, raised.lane):
                continue  # the lane's fault rather than the script's: core.suspicion judges that by the deaths
            if same and other.member.replica != raised.member.replica and not is_joiner:
                where = f"{raised.kind} at {raised.place} was raised by {other.member} and by {raised.member}"
                return ScriptBroken(why=f"{where}: an error in the script, not in a machine")
        return TryAgain()
