"""What a listener has heard: a snapshot that all its peers have taken, and then record after record, each in parts.

Pure bookkeeping for one try: who has begun, who is lost, which bytes of which step are here. The bytes are the shell's.

A step has one result, so whatever is sent of it is right, by whomever and however it was cut. A peer that is gone has sent
its parts up to some step, and the others send what would have been its part from the step on that they commit without it.
Mostly these meet. Where they do not, bytes of a step are missing that nobody will send: then the try is over.
"""

import msgspec

from regrow.core.errors import PeerError
from regrow.core.listener import Record
from regrow.core.roster import Member


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """Every peer has taken a snapshot of this step, and will send every record from it on."""

    step: int


class _Parts:
    """Of one step."""

    def __init__(self) -> None:
        self.records: dict[Member, Record] = {}
        self.spans: list[tuple[int, int]] = []
        self.size_bytes = 0
        self.has_first = False

    def is_whole(self) -> bool:
        covered = 0
        for start, stop in sorted(self.spans):
            if start > covered:
                return False
            covered = max(covered, stop)
        return self.has_first and covered == self.size_bytes


class Hearing:
    """PeerError when the peers do not say the same, or something will never come: the try is over, and nothing of it is
    used."""

    def __init__(self, peers: tuple[Member, ...]) -> None:
        self._peers = set(peers)
        """Those that are not lost."""
        self._begun: dict[Member, int] = {}
        self._parts: dict[int, _Parts] = {}
        self._next = 0

    @property
    def is_named(self) -> bool:
        """A boundary has: some peer took a snapshot, and then the others did, or were lost."""
        return bool(self._begun)

    @property
    def has_begun(self) -> bool:
        """From here on the try outlives the loss of a peer."""
        return self._peers <= self._begun.keys()

    def begins(self, peer: Member, step: int) -> Begun | None:
        if peer in self._begun or any(other != step for other in self._begun.values()):
            raise PeerError(f"{peer} begins with step {step}, others with {sorted(set(self._begun.values()))}")
        self._begun[peer] = self._next = step
        return Begun(step=step) if self.has_begun else None

    def part(self, peer: Member, record: Record, span: tuple[int, int], size_bytes: int, is_first: bool) -> list[Record]:
        """These bytes of this record are here. Returns the records that are whole now, in order."""
        parts = self._parts.setdefault(record.step, _Parts())
        if peer not in self._peers & self._begun.keys() or peer in parts.records or record.step < self._next:
            raise PeerError(f"{peer} sends a part of step {record.step} out of turn")
        parts.records[peer] = record
        parts.spans.append(span)
        parts.size_bytes = size_bytes
        parts.has_first |= is_first
        return self._whole()

    def lost(self, peer: Member) -> list[Record]:
        """It sends nothing more: it is gone, or has let this listener go. Returns the records that are whole without it."""
        if not self.has_begun:
            raise PeerError(f"{peer} was lost before all had begun")
        self._peers.discard(peer)
        if not self._peers:
            raise PeerError("every peer is lost")
        return self._whole()

    def _whole(self) -> list[Record]:
        whole = []
        while self.has_begun and (parts := self._parts.get(self._next)) and self._peers <= parts.records.keys():
            if not parts.is_whole():
                raise PeerError(f"some of step {self._next} was with a peer that is lost")
            whole.append(_agreed(parts.records))
            del self._parts[self._next]
            self._next += 1
        return whole


def _agreed(parts: dict[Member, Record]) -> Record:
    """The one record that all speak of, with a lane that one of them has digested."""
    first = next(iter(parts.values()))
    lane = next((record.lane for record in parts.values() if record.lane is not None), None)
    if len({(record.attempt, record.digest, record.holdings) for record in parts.values()}) != 1:
        raise PeerError(f"the peers sent parts of different results of step {first.step}")
    # A peer that committed by resolve has not seen the verdict of the boundary that others passed.
    switches = {record.switch for record in parts.values()}
    if len(switches) != 1:
        raise PeerError(f"not all peers passed the boundary of step {first.step}")
    return msgspec.structs.replace(first, lane=lane, last=min(record.last for record in parts.values()))
