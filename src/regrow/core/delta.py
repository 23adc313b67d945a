"""Whether a checkpoint is written whole, or as a delta: as what differs from the checkpoint before it.

A delta is smaller, and it takes time to make and needs its whole chain to be read. So it is used where it was measured to be
a gain: the first one of a writer is the measurement, and where it is none, whole ones are written for a while before it is
tried again. A chain is bounded, stays within one term (whoever restores takes a new one, maybe because the newest checkpoint
was damaged: nothing may be built on that), and its states are of one layout.
"""

import msgspec

from regrow.core.checkpoint import Manifest
from regrow.core.draft import Draft

_LEAST_RATIO = 1.1
"""Less is not worth a chain."""
_SHARE = 0.25
"""A save that is durable within such a share of the time from one to the next holds nobody up."""
_SOON_S = 1.0
"""Nor does one that takes no longer than this."""
REST = 16
"""So many saves are whole before a delta is tried again."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one save took."""

    size_bytes: int
    """Of the shards, whole."""
    stored_bytes: int
    encode_s: float
    """Of the seconds, those in which deltas were made."""
    seconds: float
    """Until all was stored, by all lines together, without the time in which they waited for the copy."""

    @property
    def ratio(self) -> float:
        return self.size_bytes / max(1, self.stored_bytes)


class Onto(msgspec.Struct, frozen=True, kw_only=True):
    """A delta, so many of them on the whole one."""

    depth: int


class NothingBefore(msgspec.Struct, frozen=True, kw_only=True):
    """This writer has saved nothing yet: it has no copy of what lies there."""

    def words(self) -> str:
        return "this writer has no copy of the checkpoint before it"


class OtherTerm(msgspec.Struct, frozen=True, kw_only=True):
    before: int
    now: int

    def words(self) -> str:
        return f"the checkpoint before it is of term {self.before}, this one of term {self.now}"


class OtherLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors came, went, or changed their shapes."""

    def words(self) -> str:
        return "the checkpoint before it has other tensors"


class ChainFull(msgspec.Struct, frozen=True, kw_only=True):
    limit: int

    def words(self) -> str:
        return f"{self.limit} deltas lie on the whole one already"


class NoGain(msgspec.Struct, frozen=True, kw_only=True):
    """As the last delta was."""

    delta: Cost
    whole_s: float
    may_take_s: float
    rest: int
    """So many saves are whole before it is tried again, this one included."""

    def words(self) -> str:
        cost = self.delta
        return (
            f"a delta is {cost.ratio:.2f} times smaller and took {cost.seconds:.1f} s ({cost.encode_s:.1f} s of them to "
            f"make it), a whole one {self.whole_s:.1f} s: it is worth it from {_LEAST_RATIO} times on, within "
            f"{self.may_take_s:.1f} s; the next {self.rest} are whole, then it is tried again"
        )


Whole = NothingBefore | OtherTerm | OtherLayout | ChainFull | NoGain
Choice = Onto | Whole


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that a writer has made last."""

    draft: Draft
    manifest: Manifest

    @property
    def depth(self) -> int:
        delta = self.manifest.delta
        return 0 if isinstance(delta, msgspec.UnsetType) else delta.depth


class Thrift:
    """One writer's account of what its saves took."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._whole: Cost | None = None
        self._resting: NoGain | None = None

    def choose(self, before: Before | None, draft: Draft) -> Choice:
        if before is None:
            return NothingBefore()
        if before.draft.term != draft.term:
            return OtherTerm(before=before.draft.term, now=draft.term)
        if (before.draft.leaves, before.draft.order) != (draft.leaves, draft.order):
            return OtherLayout()
        if before.depth >= self._limit:
            return ChainFull(limit=self._limit)
        return self._resting or Onto(depth=before.depth + 1)

    def paid(self, choice: Choice, cost: Cost, interval_s: float) -> NoGain | None:
        """What a save of this choice has cost, so long after the one before it was begun. Why there are no deltas from now
        on, when that is news."""
        if not isinstance(choice, Onto):
            self._whole = cost
            if self._resting is not None:
                rest = self._resting.rest - 1
                self._resting = msgspec.structs.replace(self._resting, rest=rest) if rest else None
            return None
        whole_s = cost.seconds if self._whole is None else self._whole.seconds
        may_take_s = max(whole_s, _SHARE * interval_s, _SOON_S)
        if cost.ratio >= _LEAST_RATIO and cost.seconds <= may_take_s:
            return None
        self._resting = NoGain(delta=cost, whole_s=whole_s, may_take_s=may_take_s, rest=REST)
        return self._resting
