"""Opens the store that a URL names: a folder, a neighbour's memory, or a service that fsspec reaches."""

import re
from pathlib import Path

from regrow.core.errors import ConfigError
from regrow.core.neighbour import SCHEME
from regrow.shell.pacing import Pacer
from regrow.state.local_store import LocalStore
from regrow.state.store import Store

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)://(.*)$", re.IGNORECASE | re.DOTALL)


def open_store(url: str, pacer: Pacer | None = None) -> Store:
    """Nothing is made there yet. ConfigError when there is no way to such a place. Files are put there at this pace."""
    if not url:
        raise ConfigError("a store has no URL: name a folder, or an address such as s3://bucket/run1")
    found = _SCHEME.match(url)
    if found is None:
        return LocalStore(Path(url).expanduser(), pacer)
    scheme, place = found[1].lower(), found[2]
    if scheme in ("file", "local"):
        return LocalStore(Path(place).expanduser(), pacer)
    if scheme == SCHEME:
        from regrow.state.neighbour_store import NeighbourStore  # nobody else needs asyncio for a folder

        return NeighbourStore(place, pacer)
    from regrow.state.fsspec_store import reach  # its imports take a moment, which a folder need not wait for

    return reach(url, pacer=pacer)
