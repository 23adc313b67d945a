"""What a save costs the training of one worker: how much longer a step takes beside which the state is copied.

A step is timed from its entry to its optimizer's first step, which waits for the copy: what a user does between two steps,
an evaluation say, is no cost of anything. Laying the state out lies within, and so does whatever the copy slows down. Before
there are steps to compare with, the wait alone counts.
"""

import statistics
from collections import deque

_SAMPLES = 15
_FEW = 3


class Toll:
    """Times are given, never looked up. All of one thread."""

    def __init__(self) -> None:
        self._plain_s: deque[float] = deque(maxlen=_SAMPLES)
        self._entered_s: float | None = None
        self._step: int | None = None

    def entered(self, now_s: float) -> None:
        """A step begins."""
        self._entered_s, self._step = now_s, None

    def skipped(self) -> None:
        """It is not computed here, and its time says nothing."""
        self._entered_s = self._step = None

    def saves(self, step: int) -> None:
        """Beside it the state of this step is copied."""
        self._step = step

    def updates(self, now_s: float, waited_s: float) -> tuple[int, float] | None:
        """Its optimizer goes on, after it has waited so long. Of a step beside which there was a copy: which save, and what
        it cost. Further optimizers of the same step say nothing new."""
        entered_s, step = self._entered_s, self._step
        self._entered_s = self._step = None
        if entered_s is None:
            return None
        took_s = now_s - entered_s
        if step is None:
            self._plain_s.append(took_s)
            return None
        if len(self._plain_s) < _FEW:
            return step, waited_s
        return step, max(waited_s, took_s - statistics.median(self._plain_s))
