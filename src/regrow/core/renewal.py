"""When the base of an every-step job is renewed: before replaying what follows it takes longer than loading it.

A founding starts the scripts, loads the base, and replays what was committed since. The first two cost the same however old
the base is, the third grows with every step. Where they meet a newer base is wished: so replaying at most doubles the time
of a founding, and bases are as rare as that allows. Times are measured as far as there is something to measure, else taken
from sizes.
"""

from collections import deque
from statistics import median

_BYTES_PER_S = 2e9
"""Of what was never loaded here: a first estimate."""
_FOUNDING_S = 1.0
"""Whatever is loaded: deaths are seen, workers start, groups form."""
_RECENT = 15
"""So many steps speak for those to come: one that took long, a compilation or an evaluation, does not."""


class Renewal:
    """Of one member: all hear of the same verdicts, so the first one to wish is enough."""

    def __init__(self, startup_s: float, state_bytes: int) -> None:
        """How long its script took to its first step, and how large the state is."""
        self._startup_s = _FOUNDING_S + startup_s
        self._load_s = state_bytes / _BYTES_PER_S
        self._between_s: deque[float] = deque(maxlen=_RECENT)
        self._replay_s: float | None = None

    def loaded(self, seconds: float) -> None:
        """A base was."""
        self._load_s = seconds

    def replayed(self, records: int, seconds: float) -> None:
        """So many records were, by a founder."""
        if records > 0:
            self._replay_s = seconds / records

    def stepped(self, seconds: float) -> None:
        """From a commit to the entry into the next step: what is done in a replay too."""
        self._between_s.append(seconds)

    def due(self, records: int, record_bytes: int) -> str:
        """Why the base is to be renewed when so many records follow it; empty: it need not be."""
        if not self._between_s:
            return ""
        one_s = self._replay_s or median(self._between_s) + record_bytes / _BYTES_PER_S
        replay_s, load_s = records * one_s, self._startup_s + self._load_s
        if replay_s <= load_s:
            return ""
        return f"{records} steps would be replayed in {replay_s:.2g} s, all else of a founding takes {load_s:.2g} s"
