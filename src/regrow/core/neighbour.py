"""The neighbour: a process on another host that keeps a copy of a job's newest base and of its logs in its memory (rule L8).

What is decided of it, by whomever: whether a line may still write there, which records are whole there behind its base, what
a member makes of its answers, and when a founding asks for its logs beside those of the host. Training never waits for a
neighbour that is away, slow or full: then committed steps lie on one host alone, which is told.
"""

from collections.abc import Iterable

import msgspec

from regrow.core.log import Chain, Part, follow
from regrow.core.records import Fact, NeighbourBack, NeighbourLost
from regrow.core.roster import NO_VERSION, Version

SCHEME = "neighbour"
PATIENCE_S = 5.0
"""A member waits no longer for it, and the others wait as long for that member: far less than what counts as a hang."""
AGAIN_STEPS = 20
"""A newer base that was wished there, and has not come, is wished again after so many steps, and its lack said again."""


def is_neighbour(url: str) -> bool:
    """Does this URL name what a neighbour keeps of a run?"""
    return url.startswith(f"{SCHEME}://")


def fenced(claim: int, newest: int) -> str:
    """Why a line under this claim may not write there any more; empty: it may. Whoever takes a run over has a claim of its
    own, and claims only grow: one that was cut off, and comes back, finds out."""
    if claim >= newest:
        return ""
    return f"claim {claim} is fenced: another `regrow run` has taken over since, under claim {newest}"


def lacking(chain: Chain, harms: int) -> str:
    """Why more may have been committed than the logs of a host show, in which so many places are harmed; empty: nothing says
    so. That the newest step is not whole is no reason: every loss in the middle of a step looks like that."""
    if chain.beyond is not None:
        return f"step {chain.beyond} was begun, and one before it is whole in no log of this host"
    if harms:
        return f"the logs of this host are harmed in {harms} places, and what was there may be the newest step"
    return ""


class Count:
    """How far the records that are whole at a neighbour lead on from its newest base, without a gap: what a founding would
    find there. It is counted as that is (core.log.follow), and never beyond it."""

    def __init__(self) -> None:
        self.through = 0
        """The base and the records lead to this step."""
        self._base = (0, NO_VERSION)
        self._since = NO_VERSION
        self._parts: dict[int, list[Part]] = {}

    def hear(self, part: Part) -> None:
        """It lies there, closed."""
        self._parts.setdefault(part.record.step, []).append(part)
        if part.record.step < self.through:  # of a newer attempt, maybe: then what follows the older one is no part of it
            self.through, self._since = self._base
        self._lead_on()

    def rebase(self, step: int, since: Version) -> None:
        """A state of this step is whole there, saved under this version: nothing before it is needed."""
        self._parts = {each: parts for each, parts in self._parts.items() if each >= step}
        self.through, self._since = self._base = step, since
        self._lead_on()

    def _lead_on(self) -> None:
        while chain := follow(self.through, self._since, self._parts.get(self.through, ())).records:
            self.through, self._since = self.through + 1, chain[0].attempt


class Guarded(msgspec.Struct, frozen=True):
    """From this step on what this member states lies at the neighbour as well."""


class Unguarded(msgspec.Struct, frozen=True):
    why: str
    is_news: bool = True
    """Else it is only said again."""


class Guard:
    """What one member makes of the neighbour's answers: asked once for each record, in the order of steps."""

    def __init__(self) -> None:
        self._since: int | None = None
        """The step from which on it is not guarded; None: it is."""
        self._again: int | None = None
        """A base was wished, and is wished again at this step."""

    def settle(self, step: int, through: int | None, why: str = "") -> tuple[Guarded | Unguarded | None, bool]:
        """The neighbour has this member's part of this step, and says how far it counts; None: it has not, and why. What
        is to be said of that, and whether a newer base is wished there.

        Every member had its part of the step before acknowledged, or has told: so where all lies there, the count has come
        to this step."""
        if through is not None and through >= step:
            was_guarded, self._since, self._again = self._since is None, None, None
            return None if was_guarded else Guarded(), False
        wishes = through is not None and (self._again is None or step >= self._again)
        if wishes:
            self._again = step + AGAIN_STEPS
        is_news = self._since is None
        self._since = step if self._since is None else self._since
        if not is_news and (step - self._since) % AGAIN_STEPS:
            return None, wishes
        why = why or f"it holds no more than the first {through} steps without a gap, and waits for a newer state"
        return Unguarded(why, is_news), wishes


def is_unguarded(facts: Iterable[Fact]) -> bool:
    """By the newest facts of one member: does what it commits lie on its own host alone?"""
    said = [fact for fact in facts if isinstance(fact, NeighbourLost | NeighbourBack)]
    return bool(said) and isinstance(said[-1], NeighbourLost)


def in_words(news: Guarded | Unguarded, step: int) -> str:
    match news:
        case Guarded():
            return f"from step {step} on what is committed lies at the neighbour as well"
        case Unguarded(why=why):
            return (
                f"from step {step} on what is committed lies on this host alone, and is lost with it, for the neighbour is "
                f"away or behind: {why}. Training goes on"
            )
