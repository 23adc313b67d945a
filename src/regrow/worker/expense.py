"""What a founding and a save take, as far as this process has measured it, else by the size of things (core.renewal)."""

from collections import deque
from statistics import median

from regrow.core.renewal import Costs

_BYTES_PER_S = 2e9
"""Of what was never loaded here: a first estimate."""
_FOUNDING_S = 1.0
"""Whatever is loaded: deaths are seen, workers start, groups form."""
_RECENT = 15
"""So many steps speak for those to come: one that took long, a compilation or an evaluation, does not."""


class Expense:
    """Of one member of an every-step job; the training thread's."""

    def __init__(self, startup_s: float, state_bytes: int) -> None:
        """How long its script took to its first step, and how large the state is."""
        self._startup_s = _FOUNDING_S + startup_s
        self._load_s = state_bytes / _BYTES_PER_S
        self._save_s = 0.0
        self._between_s: deque[float] = deque(maxlen=_RECENT)
        self._step_s: deque[float] = deque(maxlen=_RECENT)
        self._replay_s: float | None = None

    def loaded(self, seconds: float) -> None:
        """A base was."""
        self._load_s = seconds

    def replayed(self, records: int, seconds: float) -> None:
        """So many records were, by a founder."""
        if records > 0:
            self._replay_s = seconds / records

    def stepped(self, between_s: float, step_s: float) -> None:
        """`between_s`: from a commit to the entry into the next step, which is done in a replay too."""
        self._between_s.append(between_s)
        self._step_s.append(step_s)

    def began_save(self, seconds: float) -> None:
        """Training stood still so long to begin one."""
        self._save_s = seconds

    def waited(self, seconds: float) -> None:
        """And so long until it was copied."""
        self._save_s += seconds

    def costs(self, record_bytes: int) -> Costs | None:
        """None: nothing was measured yet."""
        if not self._between_s:
            return None
        replay_s = self._replay_s or median(self._between_s) + record_bytes / _BYTES_PER_S
        load_s = self._startup_s + self._load_s
        return Costs(load_s=load_s, replay_s=replay_s, save_s=self._save_s, step_s=median(self._step_s))
