"""The logs of an every-step job, as the vault sees them: which there are, which are needed no longer, what they hold.

Each is a file in memory that its one writer made and the agent holds open. Here they are only read. The log of a writer that
is gone stays until a state is whole that is newer than all that lies there.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from regrow.core.log import Chain, follow
from regrow.core.roster import Version
from regrow.shell.vaulting import LogOpened, LogSpent, Piece, ToAgent, Whole
from regrow.state.log import Held, is_sound, read
from regrow.state.log_writer import is_written
from regrow.state.neighbour_store import own_claim

_LINES = 4
"""More than that are not faster: memory is the limit."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    member: str
    step: int
    """-1: nobody can read of which."""
    why: str


class Chained(msgspec.Struct, frozen=True, kw_only=True):
    """What was committed after a state, as far as the logs hold it."""

    chain: Chain
    records: tuple[Whole, ...]
    damages: tuple[Damage, ...]


class Logs:
    """All that the agent holds. One thread's."""

    def __init__(self, fds: Mapping[str, int], tell: Callable[[ToAgent, int | None], None]) -> None:
        """By member; takes the descriptors over."""
        self._fds = dict(fds)
        self._tell = tell

    def open(self, member: str, fd: int) -> None:
        """Its writer brought it, and takes it for held once the agent says so. Takes the descriptor over."""
        older = self._fds.get(member)
        if older is not None:
            os.close(older)
        self._fds[member] = fd
        self._tell(LogOpened(member=member), fd)

    def outgrow(self, step: int) -> None:
        """A state of this step is whole."""
        for member, fd in list(self._fds.items()):
            if not is_written(fd) and all(held.entry.said.record.step < step for held in read(fd).held):
                self._tell(LogSpent(member=member), None)
                os.close(self._fds.pop(member))

    def copies(self) -> dict[str, int]:
        """Descriptors for somebody who reads for a while, and closes them."""
        return {member: os.dup(fd) for member, fd in self._fds.items()}

    def shown(self, member: str) -> int | None:
        """One to be read alone."""
        fd = self._fds.get(member)
        return None if fd is None else os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def is_foreign(name: str) -> bool:
    """Was this log written in another run? One that came from a neighbour names the claim under which it was written."""
    _, _, claim = name.partition("@")
    return claim not in ("", str(own_claim()))


def close(fds: Mapping[str, int]) -> None:
    for fd in fds.values():
        os.close(fd)


def chained(fds: Mapping[str, int], step: int, since: Version, most: int | None = None) -> Chained:
    """What follows the state of this step, which was saved under this version; no more than so many records. Every byte that
    counts is held to its digest: this takes long, and blocks."""
    found: list[tuple[str, Held]] = []
    damages: list[Damage] = []
    for member, fd in fds.items():
        reading = read(fd)
        damages += [Damage(member=member, step=-1, why=why) for why in reading.damages]
        found += [(member, held) for held in reading.held if held.entry.said.record.step >= step]
    if most is not None:
        found = [(member, held) for member, held in found if held.entry.said.record.step < step + most]
    with ThreadPoolExecutor(min(_LINES, len(os.sched_getaffinity(0))), "regrow-sound") as pool:
        sound = list(pool.map(lambda one: is_sound(fds[one[0]], one[1]), found))
    for (member, held), is_whole in zip(found, sound, strict=True):
        if not is_whole:
            why = f"the part at byte {held.slot_at} is not what was written"
            damages.append(Damage(member=member, step=held.entry.said.record.step, why=why))
    right = [one for one, is_whole in zip(found, sound, strict=True) if is_whole]
    chain = follow(step, since, [held.entry.said for _, held in right])
    return Chained(chain=chain, records=tuple(_wholes(chain, right)), damages=tuple(damages))


def beginning(fds: Mapping[str, int]) -> str | None:
    """The root of the state that the job began from: all that have stated the first step say the same, or, where nobody has,
    all that are there. None: they do not, or there is no log."""
    readings = [reading for fd in fds.values() if (reading := read(fd)).head is not None]
    firsts = [one for one in readings if any(held.entry.said.record.step == 0 for held in one.held)]
    roots = {reading.head.root for reading in firsts or readings if reading.head is not None}
    return roots.pop() if len(roots) == 1 else None


def _wholes(chain: Chain, right: Iterable[tuple[str, Held]]) -> Iterable[Whole]:
    where = {
        (
            held.entry.said.record.step,
            held.entry.said.record.attempt,
            held.entry.said.record.digest,
            held.entry.said.index,
        ): (
            member,
            held,
        )
        for member, held in sorted(right, key=lambda one: "@" not in one[0])  # of two copies that which was written here
    }
    for record in chain.records:
        key = (record.step, record.attempt, record.digest)
        first_member, first = where[(*key, 0)]
        if is_foreign(first_member):  # when that run was to end is nothing to this one
            record = msgspec.structs.replace(record, last=0)
        parts = [where[(*key, index)] for index in range(first.entry.said.count)]
        yield Whole(
            record=record,
            tail=Piece(member=first_member, at=first.tail_at, size_bytes=first.entry.tail_bytes),
            pieces=tuple(Piece(member=member, at=held.part_at, size_bytes=held.entry.part_bytes) for member, held in parts),
        )
