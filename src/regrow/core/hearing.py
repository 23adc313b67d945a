"""What a listener has heard: a snapshot that all its peers have taken, and then record after record, each in parts.

Pure bookkeeping for one try: who has begun, which parts of which step are here. The bytes are the shell's.
"""

import msgspec

from regrow.core.errors import PeerError
from regrow.core.listener import Record
from regrow.core.roster import Member


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """Every peer has taken a snapshot of this step, and will send every record from it on."""

    step: int


class Hearing:
    """PeerError when the peers do not say the same: the try is over, and nothing of it is used."""

    def __init__(self, peers: tuple[Member, ...]) -> None:
        self._peers = peers
        self._begun: dict[Member, int] = {}
        self._parts: dict[int, dict[Member, Record]] = {}
        self._next = 0

    def begins(self, peer: Member, step: int) -> Begun | None:
        if peer in self._begun or any(other != step for other in self._begun.values()):
            raise PeerError(f"{peer} begins with step {step}, others with {sorted(set(self._begun.values()))}")
        self._begun[peer] = self._next = step
        return Begun(step=step) if len(self._begun) == len(self._peers) else None

    def part(self, peer: Member, record: Record) -> list[Record]:
        """This peer's part of this record is here. Returns the records that are whole now, in order."""
        parts = self._parts.setdefault(record.step, {})
        if peer not in self._begun or peer in parts or record.step < self._next:
            raise PeerError(f"{peer} sends a part of step {record.step} out of turn")
        parts[peer] = record
        whole = []
        while len(self._begun) == len(self._peers) and len(self._parts.get(self._next, ())) == len(self._peers):
            whole.append(_agreed(self._parts.pop(self._next)))
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
