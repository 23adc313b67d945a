"""What the coordinator says to many: made into bytes once, and no longer than each of them needs.

Whoever holds a roster that is still known here is told the newest one as a change of it; whoever does not, the whole one.
"""

from regrow.coordinator.line import Line
from regrow.core.change import change
from regrow.core.messages import Amend, Push, ToMember
from regrow.core.roster import NO_VERSION, Roster, Version
from regrow.wire.codec import encode
from regrow.wire.framing import frame

_KNOWN_MAX = 8
"""Rosters back to which changes are told: whoever missed more was away for long."""


class Bulletin:
    def __init__(self, *rosters: Roster | None) -> None:
        """`rosters`: those that members may hold already."""
        self._known: dict[Version, Roster] = {roster.version: roster for roster in rosters if roster is not None}
        self._newest = NO_VERSION
        self._pushes: dict[Version, bytes] = {}
        """The newest roster, as it is told to holders of each version."""
        self._last: tuple[ToMember | None, bytes] = None, b""

    def tell(self, line: Line, message: ToMember) -> None:
        if isinstance(message, Push):
            line.post(self._push(line.told, message))
            line.told = message.roster.version
            return
        if self._last[0] is not message:
            self._last = message, frame(encode(message))
        line.post(self._last[1])

    def _push(self, told: Version, push: Push) -> bytes:
        roster = push.roster
        if roster.version != self._newest:
            self._newest = roster.version
            self._pushes.clear()
            self._known[roster.version] = roster
            while len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]
        since = told if told in self._known else NO_VERSION
        if since not in self._pushes:
            old = self._known.get(since)
            self._pushes[since] = frame(encode(push if old is None else Amend(change=change(old, roster))))
        return self._pushes[since]
