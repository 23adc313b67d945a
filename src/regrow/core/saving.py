"""One member's part in saves: what it wishes at a boundary, and what it copies once the verdict has decided.

A save belongs to (step, roster version): the members of the roster whose boundary decided it each give a portion when they
enter the step, whatever roster there is by then: their state is that step's. Where one cannot, because it died, or committed
the step without having seen the verdict, nobody patches anything together: the vault calls the save void, and the next
boundary decides anew (rule S3). So a wish is dropped by one thing alone, a verdict to save.
"""

from regrow.core.boundary import Pass
from regrow.core.effects import Save
from regrow.core.roster import Roster
from regrow.core.saves import Urgency, is_due


class Saving:
    """Of a job with a vault, or without."""

    def __init__(self, every: tuple[int, ...] | None) -> None:
        """Intervals in steps; None: there is no vault."""
        self._every = every
        self._wish = Urgency.NONE
        self._decided: tuple[Roster, Urgency] | None = None
        """By the last boundary, for the step that is entered next."""
        self.is_owed = False
        """A wish gave way to a planned roster: the next boundary is for the save, however many rosters are planned."""

    def wish(self, urgency: Urgency) -> None:
        """By an operator, or because the last save is void."""
        self._wish = max(self._wish, urgency)

    def due(self) -> None:
        """The vault says so until a state is kept: it need not be told that one is decided and not yet on its way."""
        if self._decided is None:
            self.wish(Urgency.DUE)

    def stated(self, step: int, last: int) -> Urgency:
        """In the row of this step: shall the state after it be saved? The last one is saved at the farewell."""
        if self._every is None or step + 1 >= last:
            return Urgency.NONE
        return max(self._wish, Urgency.DUE if is_due(step + 1, self._every) else Urgency.NONE)

    @property
    def stated_last(self) -> Urgency:
        """In the row of the farewell."""
        return Urgency.NONE if self._every is None else Urgency.LAST

    def decide(self, roster: Roster, verdict: Pass) -> None:
        """At the boundary of a roster. Where its members part, the wish of one is from then on the wish of all."""
        if verdict.save is Urgency.NONE:
            return
        if verdict.switch is None:
            self._wish, self._decided = Urgency.NONE, (roster, verdict.save)
        else:
            self.wish(verdict.save)
        self.is_owed = verdict.switch is not None

    def guard(self) -> bool:
        """Nobody else holds the state from here on (rule S8). Is there somebody who could take a copy?"""
        if self._every is None:
            return False
        self.wish(Urgency.DUE)
        return True

    def missed(self) -> None:
        """A step was committed without its verdict. That may have decided a save, due or wished by others, who have dropped
        their wish and wait for this member's portion in vain."""
        self.wish(Urgency.DUE)

    def enter(self, step: int, last: int) -> list[Save]:
        """What to copy of the state of this step."""
        decided, self._decided = self._decided, None
        if decided is None or step >= last:
            return []
        roster, urgency = decided
        return [Save(step=step, version=roster.version, members=roster.members, urgency=urgency)]
