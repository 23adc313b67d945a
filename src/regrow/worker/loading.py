"""A joiner's loads, try after try: from whom, until when, and what stays of one that failed.

The next try is another snapshot, of a later step. Whatever has not changed since, as a frozen model, need not come again.
"""

import threading

from regrow.core.effects import Load
from regrow.core.errors import PeerError, RegrowError
from regrow.core.roster import Member, Roster
from regrow.worker.healing import Received
from regrow.worker.stripes import Fetching, Leftover, Place


class Loading:
    """From any thread; one load at a time."""

    def __init__(self, me: Member, token: str) -> None:
        self._me = me
        self._token = token
        self._lock = threading.Lock()
        self._heard: Roster | None = None
        self._fetching: Fetching | None = None
        self._leftover: Leftover | None = None

    def listen(self, roster: Roster | None) -> None:
        """To whom from now on, if to anyone. A load that is under way ends."""
        with self._lock:
            self._heard, fetching = roster, self._fetching
            self._fetching = None
        if fetching is not None:
            fetching.cancel()

    def forget(self) -> None:
        """The state comes another way."""
        with self._lock:
            self._leftover = None

    def load(self, effect: Load, place: Place) -> Received:
        """Blocks. PeerError when no donor has the snapshot or the try is over, StateError when the donors differ."""
        with self._lock:
            if self._heard is None:
                raise PeerError("the try to listen is over")
            donors = {seat.member: seat.endpoint for seat in self._heard.seats if seat.member in effect.donors}
            fetching = self._fetching = Fetching(
                self._me, self._token, donors, str(effect.listener), effect.step, leftover=self._leftover
            )
            self._leftover = None
        try:
            return fetching.run(place)
        except RegrowError:
            with self._lock:
                self._leftover = fetching.leftover
            raise
