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
from regrow.core.emergency import Candidate, chosen, in_order, is_insured, last_call_s, turn_s


class _Waiting(msgspec.Struct, frozen=True):
    """A place that is to take this."""

    tier: Tier
    label: Label
    generation: Generation

    @property
    def draft(self) -> Draft:
        return self.label.draft


class _Begun(msgspec.Struct, frozen=True):
    """A place has this state, and is or was at work on it."""

    candidate: Candidate
    """As it was before."""
    at_s: float


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
        self._begun: dict[tuple[int, int], _Begun] = {}
        """By place and step."""
        self._turn_over_s: float | None = None
        """When to go on, though no place may be done."""

    @property
    def is_up(self) -> bool:
        """The time."""
        return self.by_s is not None and time.monotonic() >= self.by_s

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    @property
    def looks_s(self) -> list[float]:
        """When there is something to do again, even if nothing happens."""
        return [at_s for at_s in (self.again_s, self._turn_over_s) if at_s is not None]

    def insure(self, label: Label, generation: Generation) -> None:
        """What is whole now, to the fastest place that has nothing as new, past those that stand still with it; if not yet,
        `again_s` says when."""
        self.again_s = None
        if self.by_s is None or self._waiting:
            return
        step = label.draft.step
        ranked = in_order(_candidate(tier, label.draft) for tier in self._tiers)
        for n, candidate in enumerate(ranked):
            tier, now_s = self._tiers[candidate.number], time.monotonic()
            if tier.last < step and is_insured(candidate, self.by_s - now_s, self._has_any(ranked[n:])):
                tier.last = step
                generation.mark_taken(tier.number)
                tier.persist(label, generation)
            again_s, stands_still = now_s, candidate.is_failing
            if tier.number in generation.wanted:
                begun = self._begun.setdefault((tier.number, step), _Begun(candidate, now_s))
                again_s = self._ends_s(begun, ranked[n + 1 :])
                stands_still |= again_s <= now_s
            elif tier.last < step and candidate.seconds is not None:
                again_s = self.by_s - last_call_s(candidate.seconds)
            if again_s > now_s:
                self.again_s = min(again_s, self.again_s or again_s)
            if not stands_still:
                return

    def take(self, tiers: Sequence[Tier], label: Label, generation: Generation) -> None:
        """The last state is whole."""
        for tier in tiers:
            generation.wanted.add(tier.number)
            self._waiting.append(_Waiting(tier, label, generation))
        self.go_on()

    def go_on(self) -> None:
        """A place may be done, or fail, or have had its turn."""
        self._turn_over_s = None
        while self._waiting:
            step, now_s = self._waiting[0].draft.step, time.monotonic()
            candidates = [_candidate(one.tier, one.draft) for one in self._waiting]
            begun = [self._begun[number, step] for number in self._at_work(step)]
            over_s = max((self._ends_s(one, candidates) for one in begun), default=now_s)
            if over_s > now_s:
                self._turn_over_s = over_s
                return
            left_s = (self.by_s or 0.0) - now_s
            is_safe = any(tier.durable == step and tier.place.outlives for tier in self._tiers)
            candidate = chosen(candidates, left_s, is_spared=is_safe or bool(begun))
            if candidate is not None:
                self._begin(candidate, now_s)
            elif begun:
                return  # what should not be done in time waits until nobody is at work
            else:
                self._leave_out(left_s)

    def conclude(self) -> list[str]:
        """What has not come in time: nothing is begun any more."""
        self._leave_out(0.0)
        return self.failures

    def _begin(self, candidate: Candidate, now_s: float) -> None:
        one = next(one for one in self._waiting if one.tier.number == candidate.number)
        self._waiting.remove(one)
        self._begun[candidate.number, one.draft.step] = _Begun(candidate, now_s)
        one.tier.persist(one.label, one.generation)

    def _at_work(self, step: int) -> list[int]:
        """Places that may make it durable yet."""
        return [
            tier.number
            for tier in self._tiers
            if (tier.number, step) in self._begun and not tier.is_idle and not tier.is_failing
        ]

    def _ends_s(self, begun: _Begun, others: Sequence[Candidate]) -> float:
        """When its turn is over."""
        assert self.by_s is not None
        return begun.at_s + turn_s(begun.candidate, others, self.by_s - begun.at_s)

    def _has_any(self, candidates: Sequence[Candidate]) -> bool:
        """Does one of these hold any state that outlives the machine? What a place held that fails may be gone."""
        return any(one.outlives and not one.is_failing and self._tiers[one.number].durable is not None for one in candidates)

    def _leave_out(self, left_s: float) -> None:
        for one in self._waiting:
            one.generation.wanted.discard(one.tier.number)
            seconds = _candidate(one.tier, one.draft).seconds
            takes = "" if seconds is None else f"it takes about {seconds:.1f} s, and "
            self.failures.append(
                f"{one.tier.place.url}: step {one.draft.step} was not begun: {takes}{max(0.0, left_s):.1f} s were left"
            )
        self._waiting.clear()


def _candidate(tier: Tier, draft: Draft) -> Candidate:
    return Candidate(
        number=tier.number,
        outlives=tier.place.outlives,
        seconds=tier.expected_s(draft.size_bytes),
        is_failing=tier.is_failing,
    )
