"""The joiner's side of a striped transfer: lines to all donors at once, and bytes straight into the tensors they belong to.

What is asked of whom, and what is right, is decided by core.stripes; here lines are told, and places are guarded. A piece
that two donors give is written by one of them at a time: the other's goes aside, and takes its place only if it is whole
first. When a fetch has ended, well or not, nobody writes into the tensors any more.
"""

import threading
from collections.abc import Callable, Mapping
from math import prod

import msgspec
import torch

from regrow.core.errors import PeerError, StateError
from regrow.core.messages import Offer, Want
from regrow.core.roster import Endpoint, Member
from regrow.core.skeleton import Json, in_order
from regrow.core.stripes import Ask, Failed, Kept, Outcome, Stripes, Underway, Whole, count
from regrow.state.fingerprint import root
from regrow.state.ribbon import Ribbon, layout
from regrow.state.tracked import decode_skeleton
from regrow.state.tree import leaves
from regrow.worker.healing import Received
from regrow.worker.stripe_line import StripeLine, fill

STALL_S = 10.0

Place = Callable[[Offer], list[torch.Tensor]]
"""The tensors to receive into, by index in the offer's skeleton: contiguous, on the CPU, no two over the same memory. May
refuse the offer by raising."""


class Leftover(msgspec.Struct, kw_only=True):
    """What a fetch that failed had received: the next one goes on from there."""

    kept: Kept
    tensors: list[torch.Tensor]
    """In the ribbon's order."""


class _Offered(msgspec.Struct, kw_only=True):
    offer: Offer
    skeleton: Json
    layout: str
    count: int


class Fetching:
    """One fetch of the snapshot that all donors hold under one key.

    `stall_s`: a donor that gives no byte for so long while it owes some is set aside. `leftover`: of an earlier fetch.
    """

    def __init__(
        self,
        me: Member,
        token: str,
        donors: Mapping[Member, Endpoint],
        key: str,
        step: int,
        *,
        stall_s: float = STALL_S,
        leftover: Leftover | None = None,
    ) -> None:
        self._want = Want(member=me, key=key, step=step)
        self._stripes = Stripes(tuple(donors), leftover.kept if leftover else None)
        self._former = leftover
        self._changed = threading.Condition()
        self._lines = {
            donor: StripeLine(self, donor, endpoint, token, self._want, stall_s) for donor, endpoint in donors.items()
        }
        self._offers: dict[Member, _Offered] = {}
        self._ribbon: Ribbon | None = None
        self._tensors: list[torch.Tensor] = []
        self._writers: dict[int, Member] = {}
        """Whose line writes a piece into its place just now. Such a piece has not come yet."""
        self._error: Exception | None = None

    def run(self, place: Place) -> Received:
        """Blocks. PeerError when no donor is left or it was cancelled, StateError when the donors differ: see `leftover`."""
        try:
            for line in self._lines.values():
                line.start()
            outcome = self._wait(place)
        finally:
            self._end(PeerError("the fetch is over"))
            for line in self._lines.values():
                line.stop()
            for line in self._lines.values():
                if line.ident is not None:
                    line.join()
        if isinstance(outcome, Failed):
            raise (StateError if outcome.is_parted else PeerError)(outcome.why)
        return self._received(outcome)

    def cancel(self) -> None:
        """From another thread, also before it began: `run` raises within moments."""
        self._end(PeerError(f"the fetch of step {self._want.step} was cancelled"))

    def outcome(self) -> Outcome:
        """Where it stands."""
        with self._changed:
            return self._stripes.outcome()

    @property
    def leftover(self) -> Leftover | None:
        """After a fetch that failed."""
        kept = self._stripes.kept()
        return self._former if kept is None or self._ribbon is None else Leftover(kept=kept, tensors=self._tensors)

    @property
    def blamed(self) -> dict[Member, str]:
        return dict(self._stripes.blamed)

    def _wait(self, place: Place) -> Whole | Failed:
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if self._ribbon is None and self._offers:
                    self._lay_out(next(iter(self._offers.values())), place)
                    self._changed.notify_all()
                outcome = self._stripes.outcome()
                if not isinstance(outcome, Underway):
                    return outcome
                self._changed.wait()

    def _lay_out(self, offered: _Offered, place: Place) -> None:
        if self._former is not None and self._former.kept.layout == offered.layout:
            self._tensors = self._former.tensors
        else:
            tensors = place(offered.offer)
            self._tensors = [tensors[index] for index in in_order(offered.skeleton)]
        self._ribbon = Ribbon(self._tensors)

    def _received(self, whole: Whole) -> Received:
        assert self._ribbon is not None
        offered = self._offers[whole.witnesses[0]]
        by_index = dict(zip(in_order(offered.skeleton), self._tensors, strict=True))
        return Received(
            offer=msgspec.structs.replace(offered.offer, digest=whole.root),
            tensors=[by_index[index] for index in range(len(by_index))],
            size_bytes=self._ribbon.size_bytes,
            is_ours=True,
            stripes={donor: line.stripe for donor, line in self._lines.items()},
            witnesses=whole.witnesses,
            blamed=self.blamed,
            lost=dict(self._stripes.lost),
        )

    def _end(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # On the lines' threads

    def offered(self, donor: Member, offer: Offer) -> int:
        if offer.step != self._want.step:
            raise PeerError(f"{donor} offers step {offer.step} instead of {self._want.step}")
        found = _read(donor, offer)
        with self._changed:
            if donor in self._offers and self._offers[donor].offer != offer:
                raise PeerError(f"{donor} offers another state than before its line broke")
            self._offers[donor] = found
            self._changed.notify_all()
            while self._ribbon is None and self._error is None:
                self._changed.wait()
            if self._ribbon is None:
                raise PeerError("the fetch is over")
            self._stripes.offered(donor, found.layout, found.count)
            self._go_on()
        return found.count

    def declared(self, donor: Member, digests: list[bytes]) -> None:
        found = root(self._offers[donor].skeleton, digests)
        with self._changed:
            self._stripes.declared(donor, found, digests)
            self._go_on()

    def claim(self, donor: Member, piece: int) -> tuple[list[memoryview], bool]:
        with self._changed:
            if self._ribbon is None or not self._stripes.is_asked(donor, piece):
                raise PeerError(f"{donor} gives piece {piece}, which it was not asked for")
            is_free = not self._stripes.has(piece) and piece not in self._writers
            if is_free:
                self._writers[piece] = donor
            return self._ribbon.piece(piece), is_free

    def arrived(self, donor: Member, piece: int, digest: bytes, aside: memoryview | None) -> None:
        with self._changed:
            assert self._ribbon is not None
            if aside is None:
                if self._writers.get(piece) != donor:
                    self._stripes.wasted(donor, piece)  # its place was taken from it after its last byte, and filled
                    self._go_on()
                    return
                del self._writers[piece]
            place = self._ribbon.piece(piece)
            is_kept = self._stripes.arrived(donor, piece, digest)
            if is_kept:
                self._lines[donor].credit(sum(map(len, place)))
            if is_kept and aside is not None:
                writer = self._writers.pop(piece, None)
                if writer is not None:
                    self._lines[writer].divert()
                fill(place, aside)
            self._go_on()

    def wasted(self, donor: Member, piece: int) -> None:
        with self._changed:
            self._stripes.wasted(donor, piece)
            self._go_on()

    def owes(self, donor: Member) -> bool:
        with self._changed:
            return self._stripes.owes(donor)

    def interrupted(self, donor: Member) -> None:
        with self._changed:
            self._take_places_from(donor)
            self._stripes.interrupted(donor)
            self._go_on()

    def lost(self, donor: Member, why: str) -> None:
        with self._changed:
            if self._error is not None:
                return
            self._take_places_from(donor)
            self._stripes.gone(donor, why)
            self._go_on()

    def broke(self, error: Exception) -> None:
        self._end(error)

    def _take_places_from(self, donor: Member) -> None:
        """It writes nothing any more."""
        self._writers = {piece: writer for piece, writer in self._writers.items() if writer != donor}

    def _go_on(self) -> None:
        """After every event: ask for what is to be asked for, hang up on the blamed, wake whoever waits for the end."""
        while asks := self._stripes.asks():
            for donor in {ask.donor for ask in asks}:
                self._ask(donor, asks)
        for donor in self._stripes.blamed:
            self._lines[donor].stop()
        if not isinstance(self._stripes.outcome(), Underway):
            self._changed.notify_all()

    def _ask(self, donor: Member, asks: list[Ask]) -> None:
        try:
            self._lines[donor].ask(tuple(ask.piece for ask in asks if ask.donor == donor))
        except PeerError:
            self._lines[donor].hang_up()  # it finds out, and says so


def _read(donor: Member, offer: Offer) -> _Offered:
    try:
        skeleton = decode_skeleton(offer.skeleton)
        size = sum(dtype.itemsize * prod(shape) for _, dtype, shape in leaves(skeleton))
        return _Offered(offer=offer, skeleton=skeleton, layout=layout(skeleton), count=count(size))
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise PeerError(f"{donor} offers a state that cannot be read ({error!r})") from error
