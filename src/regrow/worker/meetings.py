"""Connections of groups that are about to be formed, as they come in: kept until the formation asks for them.

Lives on the session's loop. A peer may have heard of a roster before this member: its connection waits here. Those of
rosters that are over are closed, and whoever waits for one is told.
"""

import asyncio

from regrow.collectives.line import Line
from regrow.core.errors import PeerError
from regrow.core.roster import Member, Version


class Meetings:
    def __init__(self) -> None:
        self._floor: Version | None = None
        self._come: dict[tuple[Version, Member], Line] = {}
        self._awaited: dict[tuple[Version, Member], asyncio.Future[Line]] = {}

    def come(self, version: Version, member: Member, line: Line) -> None:
        awaited = self._awaited.pop((version, member), None)
        if awaited is not None and not awaited.done():
            awaited.set_result(line)
            return
        former = self._come.pop((version, member), None)
        if former is not None:
            former.close()
        self._come[version, member] = line

    async def take(self, version: Version, member: Member) -> Line:
        if self.is_over(version):
            raise PeerError(f"roster {version} is over, {self._floor} is the newest")
        line = self._come.pop((version, member), None)
        if line is not None:
            return line
        awaited: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._awaited[version, member] = awaited
        try:
            return await awaited
        except asyncio.CancelledError:
            if awaited.done() and not awaited.cancelled() and awaited.exception() is None:
                awaited.result().close()  # it came in the very moment in which nobody wanted it any more
            raise

    def forget(self, below: Version) -> None:
        self._floor = below
        for key in [key for key in self._come if key[0] < below]:
            self._come.pop(key).close()
        for key in [key for key in self._awaited if key[0] < below]:
            awaited = self._awaited.pop(key)
            if not awaited.done():
                awaited.set_exception(PeerError(f"roster {key[0]} is over"))

    def is_over(self, version: Version) -> bool:
        return self._floor is not None and version < self._floor
