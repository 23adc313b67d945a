"""Which donor is asked for which piece of the state: the decisions of one transfer.

The state is one ribbon of bytes, the tensors one after the other, cut into pieces of equal size: a large tensor is split,
tiny ones share a piece. A donor's stripe is what it gives of them. Every donor has a few pieces to give, so that its line
never idles, and whoever gives one is asked for the next: speed shows by itself. When nothing is left to ask for, an idle
donor is asked for what another still owes, and the first to come counts. So a donor that dies or stalls costs what it had
not given, a line that breaks what was on its way, and a slow one costs nothing.

Pieces come before it is known whose state is right. Each is kept with the digest of what came, and is held to the agreed
digests once there are any: one that differs is asked for again, elsewhere. Whoever gave it is blamed, by name, and asked
for nothing more.
"""

import heapq
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from regrow.core.agreement import Agreed, Agreement, Parted
from regrow.core.roster import Member

PIECE_BYTES = 4 << 20
"""Large enough that a piece costs a system call or two, small enough that a lost one is cheap. Part of what a root means."""

AHEAD = 3
"""Pieces that one donor has to give at a time."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Bytes start to stop - 1 of one tensor."""

    leaf: int
    start: int
    stop: int


def count(size_bytes: int, piece_bytes: int = PIECE_BYTES) -> int:
    return -(-size_bytes // piece_bytes)


class Cut:
    """Where the pieces of tensors of these sizes lie."""

    def __init__(self, sizes: Sequence[int], piece_bytes: int = PIECE_BYTES) -> None:
        self._starts = [0, *accumulate(sizes)]
        self._piece_bytes = piece_bytes
        self.size_bytes = self._starts.pop()
        self.count = count(self.size_bytes, piece_bytes)
        self._sizes = sizes

    def bounds(self, piece: int) -> tuple[int, int]:
        """The piece's first byte in the ribbon, and the one behind its last."""
        start = piece * self._piece_bytes
        return start, min(start + self._piece_bytes, self.size_bytes)

    def spans(self, piece: int) -> Iterator[Span]:
        """What the piece is made of, in order. Tensors of no size are in none."""
        start, stop = self.bounds(piece)
        leaf = bisect_right(self._starts, start) - 1
        while start < stop:
            offset = start - self._starts[leaf]
            taken = min(self._sizes[leaf] - offset, stop - start)
            if taken:
                yield Span(leaf, offset, offset + taken)
            start += taken
            leaf += 1


class Stripe(msgspec.Struct, kw_only=True):
    """What one donor gave that was kept, and how long it took from the first piece asked of it to the last."""

    size_bytes: int = 0
    seconds: float = 0.0


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Ask this donor for this piece."""

    donor: Member
    piece: int


class Underway(msgspec.Struct, frozen=True, kw_only=True):
    missing: int | None
    """Pieces that have not come; None before anybody said how many there are."""
    silent: tuple[Member, ...]
    """Donors that have not declared what they hold."""


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """Every byte is here and is what the job agreed on."""

    root: str
    witnesses: tuple[Member, ...]


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    is_parted: bool
    """The donors' states differ; else there is no donor left."""


Outcome = Underway | Whole | Failed


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an earlier transfer that failed, with the digests of what came."""

    layout: str
    digests: dict[int, bytes]


class _Piece(msgspec.Struct, kw_only=True):
    digest: bytes
    giver: Member | None
    """None: kept from an earlier transfer."""


class Stripes:
    """One transfer. Events in any order; then `asks` says what to ask for, `outcome` where it stands."""

    def __init__(self, donors: Collection[Member], kept: Kept | None = None, ahead: int = AHEAD) -> None:
        self._agreement = Agreement(donors)
        self._kept = kept
        self._ahead = ahead
        self.layout: str | None = None
        """Of the tensors that are received into: that of the first donor to offer."""
        self._layouts: dict[Member, str] = {}
        self._count = 0
        self._unasked: list[int] = []
        self._doubtful: list[int] = []
        """Kept, and perhaps of another state by now: asked for as well while nobody knows and nothing else is to do."""
        self._come: dict[int, _Piece] = {}
        self._owed: dict[Member, list[int]] = {donor: [] for donor in donors}
        """By those who take part, oldest first."""
        self._away: set[Member] = set()
        """Of them, those whose lines broke, until they are reached again."""
        self._digests: dict[Member, Sequence[bytes]] = {}
        self._agreed: Agreed | None = None
        self.lost: dict[Member, str] = {}
        self.blamed: dict[Member, str] = {}

    # Events

    def offered(self, donor: Member, layout: str, pieces: int) -> None:
        """The donor holds a snapshot of tensors of this layout, which is so many pieces."""
        if donor not in self._owed:
            return
        self._away.discard(donor)
        self._layouts[donor] = layout
        if self.layout is not None:
            return
        self.layout, self._count = layout, pieces
        if self._kept is not None and self._kept.layout == layout:
            self._come = {piece: _Piece(digest=digest, giver=None) for piece, digest in self._kept.digests.items()}
        self._unasked = [piece for piece in range(pieces) if piece not in self._come]
        self._doubtful = sorted(self._come)

    def declared(self, donor: Member, root: str, digests: Sequence[bytes]) -> None:
        """The digest of each piece, as the donor holds it, and the root of them all."""
        if donor not in self._owed or donor in self._digests:
            return
        self._digests[donor] = digests
        self._agreement.declare(donor, root)
        for piece, come in list(self._come.items()):
            if come.giver == donor:
                self._hold_to(piece, come, digests)
        self._settle()

    def arrived(self, donor: Member, piece: int, digest: bytes) -> bool:
        """The donor gave this piece. Is it kept? Another may have given it before."""
        if donor not in self._owed:
            return False
        self._owed[donor].remove(piece)
        if piece in self._come and (not self._is_doubtful(piece) or self._come[piece].digest == digest):
            return False
        come = self._come[piece] = _Piece(digest=digest, giver=donor)
        self._hold_to(piece, come, self._truth() or self._digests.get(donor))
        self._settle()
        return piece in self._come

    def wasted(self, donor: Member, piece: int) -> None:
        """The donor gave this piece when another had taken its place, and nobody looked at it."""
        if donor in self._owed:
            self._owed[donor].remove(piece)
            self._return([piece])

    def interrupted(self, donor: Member) -> None:
        """Its line broke, and it is being reached again: meanwhile others are asked for what it owed."""
        if donor in self._owed:
            self._away.add(donor)
            owed, self._owed[donor] = self._owed[donor], []
            self._return(owed)

    def gone(self, donor: Member, why: str) -> None:
        """It died, or stalled, or never answered."""
        if donor in self._owed:
            self.lost[donor] = why
            self._agreement.leave(donor)
            self._release(donor)
            self._settle()

    # What to do

    def asks(self) -> list[Ask]:
        """What to ask for now. Each is said once."""
        asks = []
        for number in range(self._ahead):
            for donor in self._usable():
                if len(self._owed[donor]) == number:
                    piece = self._next(donor)
                    if piece is not None:
                        self._owed[donor].append(piece)
                        asks.append(Ask(donor=donor, piece=piece))
        return asks

    def outcome(self) -> Outcome:
        if self._agreed is not None:
            if self._truth() is None:
                return Failed(why="the donor that was first to answer has other tensors than the job", is_parted=False)
            if len(self._come) == self._count:
                return Whole(root=self._agreed.root, witnesses=self._agreed.witnesses)
        elif self._owed or self._agreement.roots:
            verdict = self._agreement.verdict()
            if isinstance(verdict, Parted):
                return Failed(why=verdict.why, is_parted=True)
        able = [donor for donor in self._owed if self._layouts.get(donor, self.layout) == self.layout]
        if not able and (len(self._come) < self._count or self.layout is None or not self._owed):
            whys = "; ".join(f"{donor}: {why}" for donor, why in sorted({**self.lost, **self.blamed}.items()))
            return Failed(why=f"no donor is left that could give the rest of the state ({whys})", is_parted=False)
        missing = None if self.layout is None else self._count - len(self._come)
        return Underway(missing=missing, silent=tuple(donor for donor in self._owed if donor not in self._digests))

    # What is known

    def owes(self, donor: Member) -> bool:
        """Is it this donor's turn to send something? Nobody owes a snapshot before another has one."""
        if donor not in self._owed:
            return False
        return bool(self._owed[donor]) or (self.layout is not None and donor not in self._digests)

    def is_asked(self, donor: Member, piece: int) -> bool:
        return piece in self._owed.get(donor, ())

    def has(self, piece: int) -> bool:
        return piece in self._come

    def takes_part(self, donor: Member) -> bool:
        """Neither gone nor blamed."""
        return donor in self._owed

    def kept(self) -> Kept | None:
        """For a later transfer."""
        if self.layout is None:
            return self._kept
        return Kept(layout=self.layout, digests={piece: come.digest for piece, come in self._come.items()})

    # Inside

    def _usable(self) -> list[Member]:
        there = [donor for donor in self._owed if donor not in self._away]
        return [donor for donor in there if self._layouts.get(donor) == self.layout is not None]

    def _next(self, donor: Member) -> int | None:
        while self._unasked:
            piece = heapq.heappop(self._unasked)
            if piece not in self._come:
                return piece
        while self._doubtful and self._agreed is None:
            piece = heapq.heappop(self._doubtful)
            if self._is_doubtful(piece):
                return piece
        if self._owed[donor]:
            return None
        # Nothing is left to ask for but what others owe: first what fewest are asked for, and what was asked for last.
        askers: dict[int, list[int]] = {}
        for owed in self._owed.values():
            for place, piece in enumerate(owed):
                if piece not in self._come:
                    askers.setdefault(piece, []).append(place)
        return min(askers, key=lambda piece: (len(askers[piece]), -min(askers[piece]), piece), default=None)

    def _is_doubtful(self, piece: int) -> bool:
        come = self._come.get(piece)
        return come is not None and come.giver is None and self._agreed is None

    def _truth(self) -> Sequence[bytes] | None:
        """What every piece must be, once that is agreed; None also where the agreed state is cut into other pieces."""
        if self._agreed is None or self._layouts[self._agreed.witnesses[0]] != self.layout:
            return None
        return self._digests[self._agreed.witnesses[0]]

    def _hold_to(self, piece: int, come: _Piece, digests: Sequence[bytes] | None) -> None:
        """If it is another than these digests say, ask for it again, and blame whoever gave it."""
        if digests is None or come.digest == digests[piece]:
            return
        del self._come[piece]
        heapq.heappush(self._unasked, piece)
        if come.giver is not None and come.giver not in self.blamed:
            self._agreement.withdraw(come.giver)
            self._blame(come.giver, f"gave piece {piece} with another digest than it should have")

    def _settle(self) -> None:
        verdict = self._agreement.verdict()
        is_new = self._agreed is None and isinstance(verdict, Agreed)
        if isinstance(verdict, Agreed):
            self._agreed = self._agreed or verdict
        if self._agreed is None:
            return
        for donor, root in self._agreement.roots.items():
            if root != self._agreed.root and donor not in self.blamed:
                self._blame(donor, f"holds another state, {root}, than the job's, {self._agreed.root}")
        if is_new:
            for piece, come in list(self._come.items()):
                self._hold_to(piece, come, self._truth())

    def _blame(self, donor: Member, why: str) -> None:
        self.blamed[donor] = why
        self._release(donor)

    def _release(self, donor: Member) -> None:
        """What it had still to give is asked of others."""
        self._return(self._owed.pop(donor, ()))

    def _return(self, pieces: Iterable[int]) -> None:
        for piece in pieces:
            if piece not in self._come and not any(piece in owed for owed in self._owed.values()):
                heapq.heappush(self._unasked, piece)
