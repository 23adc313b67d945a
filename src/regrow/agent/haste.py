"""The last state of a job whose time is short, to one place after the other (core.emergency decides which, and whether).

What was not begun when the time is up, or is not durable by then, is told; what is durable by then stays, and nothing is
half there.
"""

import time
from collections.abc import Sequence

import msgspec

from regrow.agent.generation import Generation, Label
from regrow.agent.tier import Tier
from regrow.core.draft import Draft
from regrow.core.emergency import Candidate, in_order, is_begun, is_insured, last_call_s


class _Waiting(msgspec.Struct, frozen=True):
    """A place that is to take this."""

    tier: Tier
    label: Label
    generation: Generation

    @property
    def draft(self) -> Draft:
        return self.label.draft


class Haste:
    """Of one vault; all methods on its loop's thread."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tiers
        self.by_s: float | None = None
        """When the time is up, on the host's monotonic clock; None: nobody is in haste."""
        self.again_s: float | None = None
        """When to insure what is newest by then, unless the last state is on its way."""
        self.failures: list[str] = []
        """What was not begun, and why."""
        self._waiting: list[_Waiting] = []
        self._busy: Tier | None = None

    @property
    def is_up(self) -> bool:
        """The time."""
        return self.by_s is not None and time.monotonic() >= self.by_s

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self._busy is None

    def insure(self, label: Label, generation: Generation) -> None:
        """What is whole now, to the fastest place that has nothing as new; if not yet, `again_s` says when."""
        self.again_s = None
        if self.by_s is None:
            return
        is_safe = any(tier.durable is not None and tier.place.outlives for tier in self._tiers)
        for candidate in in_order(_candidate(tier, label.draft) for tier in self._tiers)[:1]:
            tier, now_s = self._tiers[candidate.number], time.monotonic()
            if tier.last < label.draft.step and is_insured(candidate, self.by_s - now_s, is_safe):
                tier.last = label.draft.step
                generation.mark_taken(tier.number)
                tier.persist(label, generation)
            elif candidate.seconds is not None:
                again_s = self.by_s - last_call_s(candidate.seconds)
                self.again_s = again_s if again_s > now_s else None

    def take(self, tiers: Sequence[Tier], label: Label, generation: Generation) -> None:
        """The last state is whole."""
        for tier in tiers:
            generation.wanted.add(tier.number)
            self._waiting.append(_Waiting(tier, label, generation))
        self.go_on()

    def go_on(self) -> None:
        """A place may be done."""
        if self._busy is not None and not self._busy.is_idle:
            return
        self._busy = None
        while self._waiting and self._busy is None:
            candidate = in_order(_candidate(one.tier, one.draft) for one in self._waiting)[0]
            chosen = next(one for one in self._waiting if one.tier.number == candidate.number)
            self._waiting.remove(chosen)
            left_s = (self.by_s or 0.0) - time.monotonic()
            is_safe = any(tier.durable == chosen.draft.step and tier.place.outlives for tier in self._tiers)
            if left_s > 0 and is_begun(candidate, left_s, is_safe):
                self._busy = chosen.tier
                chosen.tier.persist(chosen.label, chosen.generation)
            else:
                self._leave_out(chosen, candidate, left_s)

    def conclude(self) -> list[str]:
        """What has not come in time: nothing is begun any more."""
        for one in self._waiting:
            self._leave_out(one, _candidate(one.tier, one.draft), 0.0)
        self._waiting.clear()
        return self.failures

    def _leave_out(self, one: _Waiting, candidate: Candidate, left_s: float) -> None:
        one.generation.wanted.discard(one.tier.number)
        takes = "" if candidate.seconds is None else f"it takes about {candidate.seconds:.1f} s, and "
        self.failures.append(
            f"{one.tier.place.url}: step {one.draft.step} was not begun: {takes}{max(0.0, left_s):.1f} s were left"
        )


def _candidate(tier: Tier, draft: Draft) -> Candidate:
    return Candidate(number=tier.number, outlives=tier.place.outlives, seconds=tier.expected_s(draft.size_bytes))
