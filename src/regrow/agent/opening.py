"""Before training begins: can every place be read and written, what lies there, under which term is saved from now on."""

import contextlib
import re
import secrets
from collections.abc import Sequence
from functools import partial

import msgspec

from regrow.agent.patience import begun, within
from regrow.core.completion import Completion
from regrow.core.errors import ConfigError, InfraError, RegrowError, StateError
from regrow.shell.vaulting import Opened, Place, Unusable
from regrow.state.archive import Archive
from regrow.state.completions import completion_at
from regrow.state.store import Store
from regrow.state.stores import open_store

_PROBE = re.compile(r"probe-[0-9a-f]{8}")


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    newest: int | None
    term: int
    finished: Completion | None


def opened(places: Sequence[Place], patience_s: float) -> Opened | Unusable:
    """Of all places at once. One term for all of them, so that checkpoints of two places can be compared."""
    looks = [begun(partial(_look, place.url, patience_s), "regrow-open") for place in places]
    seen = []
    for place, look in zip(places, looks, strict=True):
        try:
            seen.append(look.result())
        except (ConfigError, InfraError, StateError) as error:
            return Unusable(why=f"checkpoints cannot be saved to {place.url}: {error}")
        except Exception as error:  # the edge of a store: its library raises what it likes
            return Unusable(
                why=f"checkpoints cannot be saved to {place.url} ({type(error).__name__}: {error}): see that it is "
                "there and may be written by this user, or name another place"
            )
    return Opened(
        newest=tuple(one.newest for one in seen),
        term=1 + max((one.term for one in seen), default=0),
        finished=tuple(one.finished for one in seen),
    )


def _look(url: str, patience_s: float) -> _Seen:
    return within(patience_s, url, lambda _: _seen(url))


def _seen(url: str) -> _Seen:
    store = open_store(url)
    _probe(store)
    archive = Archive(store)
    pointers, _ = archive.pointers()
    newest = pointers[0].step if pointers else None
    return _Seen(newest=newest, term=archive.newest_term(), finished=completion_at(store))


def _probe(store: Store) -> None:
    """May this be written as a pointer is, never over another one? Else training would begin, and every save fail."""
    probe = f"probe-{secrets.token_hex(4)}"
    try:
        store.create(probe, b"may this be written?\n")
    except ConfigError:
        with contextlib.suppress(RegrowError):
            store.remove(probe)
        raise
    for name in filter(_PROBE.fullmatch, store.names()):  # and those of vaults that died here
        store.remove(name)
