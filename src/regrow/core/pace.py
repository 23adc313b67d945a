"""How fast a writer may write: so many bytes a second, over all that it does at once."""

_BLOCK_MB = 8.4
"""Stores let so much through at a time."""


class Pace:
    """Whoever is about to write asks, in turn; times are of one clock, and come with the question."""

    def __init__(self, bytes_per_s: int) -> None:
        """0: as fast as it goes."""
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        """When all that was let through is through, at this pace."""

    def wait_s(self, size_bytes: int, now_s: float) -> float:
        """So long must whoever writes so many bytes now wait first. Time in which nobody wrote is not made up for."""
        if not self._bytes_per_s:
            return 0.0
        begin_s = max(now_s, self._free_s)
        self._free_s = begin_s + size_bytes / self._bytes_per_s
        return begin_s - now_s


def refusal(mb_per_s: int, patience_s: float) -> str | None:
    """Why a writer of this pace cannot be judged with this patience, in words; None: it can."""
    if not mb_per_s or patience_s >= 2 * _BLOCK_MB / mb_per_s:
        return None
    return (
        f"at {mb_per_s} MB a second a block of {_BLOCK_MB} MB takes {_BLOCK_MB / mb_per_s:.1f} s, and a save is given up "
        f"when nothing was written for {patience_s:g} s: have a patience of {2 * _BLOCK_MB / mb_per_s:.1f} s or more"
    )
