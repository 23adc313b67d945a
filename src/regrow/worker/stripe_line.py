"""One donor's line, as the joiner sees it: a thread that asks, receives into place, and takes digests of what came.

It reads without blocking and waits apart from that, so that at any moment the place it writes into can be taken from it, and
the rest of the piece goes aside: another donor was faster.

A line that breaks is made again: the donor still holds the snapshot, and what has come stays. Two in a row that bring
nothing are one too many.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from regrow.core.errors import PeerError, RegrowError
from regrow.core.messages import Digests, Message, Need, Offer, Piece, Want
from regrow.core.roster import Endpoint, Member
from regrow.core.stripes import PIECE_BYTES, Stripe
from regrow.state.fingerprint import DIGEST_BYTES, digest
from regrow.wire.blocking import Blocking, LineBroken
from regrow.wire.tcp import connect
from regrow.worker.niceness import be_nice

_FRUITLESS = 2
"""Connections in a row that brought no piece: the donor is given up."""


class Desk(Protocol):
    """Who is told what comes over a line, on the line's thread."""

    def offered(self, donor: Member, offer: Offer) -> int:
        """How many pieces that is."""

    def declared(self, donor: Member, digests: list[bytes]) -> None: ...

    def claim(self, donor: Member, piece: int) -> tuple[list[memoryview], bool]:
        """The piece's place, and whether this line may write into it."""

    def arrived(self, donor: Member, piece: int, digest: bytes, aside: memoryview | None) -> None: ...

    def wasted(self, donor: Member, piece: int) -> None: ...

    def owes(self, donor: Member) -> bool: ...

    def interrupted(self, donor: Member) -> None:
        """The line broke: it is made again."""

    def lost(self, donor: Member, why: str) -> None: ...

    def broke(self, error: Exception) -> None:
        """A bug of ours."""


class StripeLine(threading.Thread):
    def __init__(self, desk: Desk, donor: Member, endpoint: Endpoint, token: str, want: Want, stall_s: float) -> None:
        super().__init__(name=f"regrow-stripe {donor}", daemon=True)
        self.stripe = Stripe()
        self._desk = desk
        self._donor = donor
        self._endpoint = endpoint
        self._token = token
        self._want = want
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._is_stopped = False
        self._connecting: tuple[asyncio.AbstractEventLoop, asyncio.Task[object]] | None = None
        self._wire: Blocking | None = None
        self._writing = threading.Lock()
        """Held for each read into a place, and by whoever takes the place away."""
        self._views: list[memoryview] = []
        self._is_diverted = False
        self._aside: memoryview | None = None
        self._began: float | None = None
        self._given = 0
        """Pieces that came over this connection."""

    # Any thread

    def stop(self) -> None:
        """It ends within moments, wherever it is."""
        with self._lock:
            self._is_stopped = True
            if self._wire is not None:
                self._wire.shut()
            elif self._connecting is not None:
                loop, task = self._connecting
                loop.call_soon_threadsafe(task.cancel)

    def ask(self, pieces: tuple[int, ...]) -> None:
        """Never blocks; PeerError when the donor takes nothing any more. Only for a donor that has offered."""
        assert self._wire is not None
        if self._began is None:
            self._began = time.monotonic()
        self._wire.send_now(Need(pieces=pieces))

    def hang_up(self) -> None:
        """This connection takes nothing any more: another may."""
        with self._lock:
            if self._wire is not None:
                self._wire.shut()

    def divert(self) -> None:
        """The piece it writes has come from another donor: from now on nothing is written into its place."""
        with self._writing:
            self._is_diverted = True
            rest = sum(map(len, self._views))
            self._views = [self._buffer()[:rest]] if rest else []

    def credit(self, size_bytes: int) -> None:
        """So much of what it gave was kept."""
        assert self._began is not None
        self.stripe.size_bytes += size_bytes
        self.stripe.seconds = time.monotonic() - self._began

    # Its own thread

    def run(self) -> None:
        be_nice()
        try:
            self._keep_conversing()
        except RegrowError as error:
            self._desk.lost(self._donor, str(error))
        except Exception as error:  # the edge of the thread: whoever waits for the fetch must not wait for ever
            self._desk.broke(error)
        finally:
            self._drop()
            del self._desk  # else the two would keep each other alive, and with them the tensors

    def _keep_conversing(self) -> None:
        fruitless = 0
        while True:
            self._given = 0
            try:
                self._converse()
            except LineBroken:
                fruitless = 0 if self._given else fruitless + 1
                if self._is_stopped or fruitless == _FRUITLESS:
                    raise
                self._desk.interrupted(self._donor)
                self._drop()

    def _drop(self) -> None:
        with self._lock:
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _converse(self) -> None:
        wire = self._connect()
        wire.send_now(self._want)
        offer = self._hear(wire)
        if not isinstance(offer, Offer):
            raise PeerError(f"{self._donor} answered {type(offer).__name__} instead of its offer")
        count = self._desk.offered(self._donor, offer)
        digests: list[bytes] = []
        if not count:
            self._desk.declared(self._donor, digests)
        while True:
            message = self._hear(wire)
            match message:
                case Piece(number=number):
                    self._receive(wire, number)
                case Digests(start=start, digests=data) if start == len(digests) <= count - len(data) // DIGEST_BYTES:
                    digests += [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]
                    if len(digests) == count:
                        self._desk.declared(self._donor, digests)
                case _:
                    raise PeerError(f"{self._donor} sent {type(message).__name__} out of place")

    def _connect(self) -> Blocking:
        async def go() -> Blocking:
            task = asyncio.current_task()
            assert task is not None
            with self._lock:
                if self._is_stopped:
                    raise PeerError("stopped")
                self._connecting = asyncio.get_running_loop(), task
            connection = await connect(self._endpoint, self._token, str(self._want.member), self._stall_s)
            with self._lock:
                self._connecting = None
                self._wire = Blocking(*connection.detach(), str(self._donor))
                if self._is_stopped:
                    self._wire.shut()
                return self._wire

        try:
            return asyncio.run(go())
        except asyncio.CancelledError as error:
            raise PeerError("stopped") from error
        finally:
            with self._lock:
                self._connecting = None

    def _hear(self, wire: Blocking) -> Message:
        while True:
            message = wire.next_message()
            if message is not None:
                return message
            self._wait(wire)

    def _receive(self, wire: Blocking, piece: int) -> None:
        place, is_ours = self._desk.claim(self._donor, piece)
        size = sum(map(len, place))
        aside = None if is_ours else self._buffer()[:size]
        with self._writing:
            self._is_diverted = False
            self._views = list(place) if aside is None else [aside]
        while self._views:
            with self._writing:
                count = wire.read_some(self._views)
                _advance(self._views, count)
            if not count:
                self._wait(wire)
        self._given += 1
        if self._is_diverted:
            self._desk.wasted(self._donor, piece)
        else:
            self._desk.arrived(self._donor, piece, digest(place if aside is None else [aside]), aside)

    def _wait(self, wire: Blocking) -> None:
        """For the next byte. PeerError when there is none for too long while some are owed."""
        quiet = time.monotonic()
        while not wire.wait_readable(self._stall_s / 4):
            now = time.monotonic()
            if not self._desk.owes(self._donor):
                quiet = now
            elif now - quiet >= self._stall_s:
                raise PeerError(f"{self._donor} gave no byte for {self._stall_s:g} s while it owed some")

    def _buffer(self) -> memoryview:
        if self._aside is None:
            self._aside = memoryview(bytearray(PIECE_BYTES))
        return self._aside


def _advance(views: list[memoryview], count: int) -> None:
    done = 0
    for view in views:
        if count < len(view):
            break
        count -= len(view)
        done += 1
    del views[:done]
    if count:
        views[0] = views[0][count:]


def fill(place: Sequence[memoryview], source: memoryview) -> None:
    for view in place:
        view[:] = source[: len(view)]
        source = source[len(view) :]
