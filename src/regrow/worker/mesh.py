"""The link of a worker among others: groups that form beside everything else and break by abort, and a session.

A group is one connection to each other member, through the door that every connection passes: to those before it in the
roster a member goes, those behind it come; but whoever is new goes to all the others, so that its coming says that it can
enter. Formations run on the session's loop; a newer roster ends the older ones, but for the one that it is planned from.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine

import torch

from regrow.collectives.group import Group, Solo, TcpGroup
from regrow.collectives.line import Line
from regrow.core.effects import Abort, Fetch, Form, Hear, Hush, Immediate, Load, Serve, Snap, Tell
from regrow.core.errors import ConfigError, PeerError
from regrow.core.events import Event, FormationFailed, Formed
from regrow.core.listener import Listener
from regrow.core.messages import Ask, Begin, Meet, Offer, Part
from regrow.core.records import GroupsAborted, GroupsBroke, GroupsFormed
from regrow.core.roster import Roster, Seat, Version
from regrow.shell.backoff import Backoff
from regrow.shell.door import WorkerDoor
from regrow.shell.faultpoint import faultpoint
from regrow.shell.journal import Journal
from regrow.state.snapshot import Snapshot
from regrow.wire.tcp import connect
from regrow.worker.ear import Ear
from regrow.worker.feeds import Feeds
from regrow.worker.healing import Received, fetch
from regrow.worker.loading import Loading
from regrow.worker.session import Session, or_end
from regrow.worker.stripes import Place

_FORM_S = 30.0
"""For all members to be met. A newer roster does not wait for it."""
_CONNECT_S = 10.0


class Mesh:
    def __init__(self, door: WorkerDoor, session: Session, journal: Journal, notify: Callable[[Event], None]) -> None:
        self._door = door
        self._session = session
        self._journal = journal
        self._notify = notify
        self._lock = threading.Lock()
        self._roster: Roster | None = None
        self._groups: dict[Version, Group] = {}
        self._forming: dict[Version, asyncio.Task[None]] = {}
        """The session's loop alone looks at it."""
        room_bytes = door.join_queue_bytes
        self._ear = Ear(door.token, room_bytes, notify, session.call)
        self._loading = Loading(door.member, door.token)
        session.feeds = self._feeds = Feeds(room_bytes, notify, journal.write, self._loaded)

    def perform(self, effect: Immediate) -> list[Event]:
        match effect:
            case Abort(below=below):
                self._abort(below)
            case Form(roster=roster):
                with self._lock:
                    self._roster = roster
                self._session.call(lambda: self._begin(roster))
            case Tell(message=message):
                self._session.send(message)
            case Hear(listener=listener, roster=roster):
                self._loading.listen(roster)
                self._session.call(lambda: self._ear.hear(listener, roster))
            case Hush(peers=()):
                self._loading.listen(None)
                self._session.call(self._ear.hush)
            case Hush(peers=peers):
                self._session.call(lambda: self._ear.lose(peers))
        return []

    def group(self, version: Version) -> Group:
        with self._lock:
            group = self._groups.get(version)
        if group is None:
            raise PeerError(f"roster {version} is over")
        return group

    def serve(self, effect: Serve, offer: Offer, views: list[memoryview]) -> None:
        self._session.wait_called(self._session.donor.serve(effect.version, effect.joiners, offer, views))

    def fetch(self, effect: Fetch) -> Received:
        with self._lock:
            roster = self._roster
        if roster is None or roster.version != effect.version:
            raise PeerError(f"roster {effect.version} is over")
        self._loading.forget()
        endpoint = roster.seats[roster.index(effect.donor)].endpoint
        ask = Ask(member=self._door.member, version=effect.version, step=effect.step)
        return self._session.wait_while(effect.version, fetch(endpoint, self._door.token, ask))

    def make_room(self, size_bytes: int) -> None:
        self._feeds.make_room(size_bytes)

    def snap(self, effect: Snap, snapshot: Snapshot) -> None:
        listener = effect.feed.listener
        self._session.snapshots.hold(str(listener), snapshot)
        begin = Begin(step=effect.step)
        self._session.call(lambda: self._feeds.send(listener, begin, torch.empty(0, dtype=torch.uint8)))

    def load(self, effect: Load, place: Place) -> Received:
        received = self._loading.load(effect, place)
        self._session.wait(self._ear.thank())
        return received

    def _loaded(self, listener: Listener) -> None:
        """It needs its snapshot no longer."""
        self._session.snapshots.drop(str(listener))

    def feed(self, listener: Listener, part: Part, data: torch.Tensor) -> None:
        copy = self._feeds.copied(data)
        self._session.call(lambda: self._feeds.send(listener, part, copy))

    def _abort(self, below: Version) -> None:
        with self._lock:
            groups = [self._groups.pop(version) for version in list(self._groups) if version < below]
        for group in groups:
            group.close()
        self._session.forget(below)
        self._session.call(lambda: self._give_up(below))
        if groups:
            self._journal.write(GroupsAborted(below=below))

    # On the session's loop

    def _begin(self, roster: Roster) -> None:
        self._forming[roster.version] = asyncio.create_task(or_end(self._form(roster)))

    def _give_up(self, below: Version) -> None:
        for version in [version for version in self._forming if version < below]:
            self._forming.pop(version).cancel()

    async def _form(self, roster: Roster) -> None:
        version = roster.version
        try:
            faultpoint("form", roster=version.n)
            group = await self._connect(roster)
        except PeerError as error:
            self._journal.write(GroupsBroke(version=version, why=str(error)))
            self._notify(FormationFailed(version=version, why=str(error)))
            return
        with self._lock:
            is_over = self._roster is None or version < self._roster.version
            if not is_over:
                self._groups[version] = group
        if is_over:
            group.close()
            return
        self._journal.write(GroupsFormed(version=version))
        self._notify(Formed(version=version))

    async def _connect(self, roster: Roster) -> Group:
        """One line to each other member; PeerError when one of them cannot be met."""
        if len(roster.seats) == 1:
            return Solo()
        lines: dict[int, Line] = {}
        mine = roster.index(self._door.member)

        async def meet(rank: int, line: Coroutine[None, None, Line]) -> None:
            lines[rank] = await line

        try:
            # A planned roster holds nobody up: it forms once its new members have caught up.
            within_s = _FORM_S if roster.base is None else None
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as meetings:
                for rank, seat in enumerate(roster.seats):
                    if rank == mine:
                        continue
                    if _goes(roster.seats[mine], seat, rank < mine):
                        meetings.create_task(meet(rank, self._go(roster.version, seat)))
                    else:
                        meetings.create_task(meet(rank, self._session.meetings.take(roster.version, seat.member)))
        except BaseException as error:
            for line in lines.values():
                line.close()
            if isinstance(error, TimeoutError):
                absent = [str(seat.member) for rank, seat in enumerate(roster.seats) if rank != mine and rank not in lines]
                raise PeerError(f"{', '.join(absent)} did not come to roster {roster.version} within {_FORM_S} s") from error
            if isinstance(error, BaseExceptionGroup) and error.split(PeerError)[1] is None:
                raise PeerError("; ".join(map(str, error.exceptions))) from error
            raise
        return TcpGroup(mine, lines)

    async def _go(self, version: Version, seat: Seat) -> Line:
        """Strangers may crowd the peer's door: try again. If it is dead, a newer roster says so."""
        backoff = Backoff()
        while True:
            try:
                connection = await connect(seat.endpoint, self._door.token, str(self._door.member), _CONNECT_S)
            except (PeerError, ConfigError):
                await asyncio.sleep(backoff.delay_s())
                continue
            try:
                await connection.send(Meet(member=self._door.member, version=version))
                return Line(*connection.detach())
            finally:
                await connection.close()


def _goes(mine: Seat, other: Seat, is_before: bool) -> bool:
    """Does this member go to the other one, or does it come?"""
    return is_before if mine.is_new == other.is_new else mine.is_new
