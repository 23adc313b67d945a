"""An origin: a saved state that a job begins from, instead of what its founders built."""

import msgspec


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The vault holds it in memory until a newer one is whole."""

    step: int
    """So many steps are committed in it."""
    root: str
    """The digest of the whole state, which everybody who loads it holds it to."""
    where: str
    """For people: the tier that it came from."""
