"""An origin: a saved state that a job begins from, instead of what its founders built (rules S5 to S7 of ADR 0027)."""

from collections.abc import Mapping

import msgspec

_FREE = ("steps", "audit every", "bucket bytes")
"""Terms that all replicas must agree on, and that do not decide what a step computes."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The vault holds it in memory until a newer one is whole."""

    step: int
    """So many steps are committed in it."""
    root: str
    """The digest of the whole state, which everybody who loads it holds it to."""
    where: str
    """For people: the tier that it came from."""


class Founding(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is to be founded from, while that is open: from its start, or since everybody was lost, until all members
    of its first roster hold the state."""

    seeks: bool = False
    """The agent was asked for an origin, and has not answered."""
    reached: int | None = None
    """Everybody was lost, and the job had committed every step below this one; None at its start."""
    origin: Origin | None = None
    mathematics: dict[str, str] = {}
    """What the origin was saved with."""


def mathematics(terms: Mapping[str, str]) -> dict[str, str]:
    """Of a contract's terms, those that must be equal for a resumed job to end with the same bits."""
    return {name: value for name, value in terms.items() if name not in _FREE}


def differences(saved: Mapping[str, str], terms: Mapping[str, str]) -> tuple[str, ...]:
    """In what a job is not the one that its origin was saved by, in words."""
    return tuple(
        f"{name} is {terms.get(name, '(absent)')}, it was saved with {value}"
        for name, value in sorted(saved.items())
        if terms.get(name) != value
    )
