"""The intervals of a host's tiers: what the vault notes is heard by the cadence, and workers are told when a tier is due.

It decides nothing: when, is core.cadence's to say; at which step, the members'. One thread owns it.
"""

import time
from collections.abc import Callable, Sequence

from regrow.core.cadence import Cadence
from regrow.core.neighbour import is_neighbour
from regrow.core.records import Fact, IntervalChosen, SaveCosted, StateKept
from regrow.core.save_story import MEMORY
from regrow.core.saves import Urgency, takes
from regrow.shell.journal import Journal
from regrow.shell.vaulting import Due, Place, Setting

_NOTED_AGAIN = 50
"""After so many saves fixed intervals are noted once more, for whoever reads the end of the journal."""
_AGAIN_S = 1.0
"""A worker that came meanwhile, or lost its line, hears it too."""
_RECENT_BYTES = 1 << 20
"""So much of the journal of the vaults before this one is heard: thousands of saves."""


class Pacing:
    def __init__(
        self, setting: Setting, journal: Journal, tell: Callable[[Due], None], is_ready: Callable[[], bool]
    ) -> None:
        """`tell` all workers; `is_ready`: a save that is wished now would not have to wait for room."""
        self._setting = setting
        self._journal = journal
        self._tell = tell
        self._is_ready = is_ready
        paced = [place.url for place in setting.places if not place.every and not is_neighbour(place.url)]
        self._cadence = Cadence([MEMORY, *paced] if setting.paces_memory else paced, setting.cadence)
        self._told_s = 0.0
        self._has_begun = False
        self._kept = 0
        self._costed = -1
        """The step of the newest save."""
        self._payers: set[str] = set()
        """Members that have not said yet what it cost them."""
        self._paid_s: list[float] = []
        if setting.incarnation:
            for line in journal.recent(_RECENT_BYTES):
                self._cadence.hear(line.what, line.ns / 1e9)

    # What happens

    def begin(self) -> None:
        """Somebody trains."""
        if not self._has_begun:
            self._has_begun = True
            self._note_fixed()
            self._cadence.begin(time.monotonic())
            self._note_news()

    def note(self, fact: Fact) -> None:
        """In the vault's journal, and for the cadence."""
        self._journal.write(fact)
        self._cadence.hear(fact, time.monotonic())
        self._note_news()
        if isinstance(fact, StateKept):
            self._told_s = 0.0  # that is met: what is due next is another one
            self._kept += 1
            if self._kept % _NOTED_AGAIN == 0:
                self._note_fixed()

    def gathers(self, step: int, members: Sequence[str]) -> None:
        """These give the portions of a save, and will say what it cost them. Who died after the last one says no more."""
        self._settle()
        self._costed, self._payers = step, set(members)

    def paid(self, member: str, step: int, seconds: float) -> None:
        if step == self._costed and member in self._payers:
            self._payers.discard(member)
            self._paid_s.append(seconds)
            if not self._payers:
                self._settle()

    def _settle(self) -> None:
        """All wait for the member that is slowest, so what others paid is no more than that."""
        if self._paid_s:
            seconds = max(self._paid_s)
            self._paid_s.clear()
            self.note(SaveCosted(step=self._costed, seconds=seconds))

    # What follows

    def takes(self, place: Place, step: int, last: int, urgency: Urgency, made_s: float) -> bool:
        """Does this place take the state of this step, whose copy was begun at that time? `last`: the newest it took."""
        if place.every or urgency >= Urgency.ASKED:
            return takes(step, place.every, last, urgency)
        return step > last and self._cadence.takes(place.url, made_s)

    def took(self, place: Place, made_s: float) -> None:
        self._cadence.took(place.url, made_s)

    def pause_s(self) -> float | None:
        """Until `look` has something to say; None: not as far as is known."""
        now_s = time.monotonic()
        next_s = self._cadence.next_s(now_s)
        return None if next_s is None else max(next_s, self._told_s + _AGAIN_S) - now_s

    def look(self) -> None:
        """Is it time?"""
        now_s = time.monotonic()
        next_s = self._cadence.next_s(now_s)
        if next_s is not None and now_s >= max(next_s, self._told_s + _AGAIN_S):
            self._told_s = now_s
            if self._is_ready():
                self._tell(Due())

    def _note_fixed(self) -> None:
        fixed = {MEMORY: self._setting.memory_every, **{place.url: place.every for place in self._setting.places}}
        for where, every in fixed.items():
            if every:
                self._journal.write(IntervalChosen(where=where, every=every))

    def _note_news(self) -> None:
        for where, interval in self._cadence.news(time.monotonic()).items():
            self._journal.write(IntervalChosen(where=where, every=0, interval=interval))
