"""What happened, kept cheaply and told only when asked: the last events of a simulation, and a hash over all of them."""

import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from regrow.core.lanes import Node
from regrow.core.roster import Member, Roster, Version


class Story:
    """Notes are formatted when the story is told, not when they are taken: a passing seed pays almost nothing."""

    def __init__(self, clock: Callable[[], float], keep: int, say: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._say = say
        self._notes: deque[tuple[float, str, Any]] = deque(maxlen=keep)
        self.trace = 0

    def note(self, who: str, what: object) -> None:
        now = self._clock()
        label = what if isinstance(what, str) else type(what).__name__
        self.trace = zlib.crc32(f"{now:.6f}{who}{label}".encode(), self.trace)
        self._notes.append((now, who, what))
        if self._say is not None:
            self._say(_line(now, who, what))

    def tell(self) -> str:
        return "\n".join(_line(*note) for note in self._notes)


def _line(now: float, who: str, what: object) -> str:
    return f"{now:10.4f}  {who:<12} {_words(what)}"


def _words(what: object) -> str:
    match what:
        case str():
            return what
        case Version() | Member() | Node():
            return str(what)
        case Roster():
            seats = " ".join(f"{s.member}{'*' if s.founder else ''}:{list(s.lanes)}" for s in what.seats)
            return f"roster {what.version} floor={what.floor} ({seats}) cause={what.cause}"
        case tuple() | list() | frozenset():
            return f"({', '.join(map(_words, what))})"
        case msgspec.Struct():
            fields = ((name, getattr(what, name)) for name in what.__struct_fields__)
            said = (f"{name}={_words(value)}" for name, value in fields if name not in ("contract", "endpoint", "traceback"))
            return f"{type(what).__name__} {' '.join(said)}".rstrip()
    return str(what)
