"""How long to wait before trying to reach somebody again."""

_FIRST_S = 0.05
_CAP_S = 0.5
"""Low: whoever comes back is found soon, and a try that nobody answers costs next to nothing."""


class Backoff:
    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def delay_s(self) -> float:
        """Twice the last one, up to a cap."""
        delay_s, self._next_s = self._next_s, min(_CAP_S, self._next_s * 2)
        return delay_s
