"""The link of a worker among others: groups that form in disposable threads and break by abort, and a session.

A dead peer can hold a formation for many seconds, so each has its own thread and its own connection to the meeting, and a
newer roster never waits for an older one.
"""

import threading
from collections.abc import Callable

from regrow.collectives.group import Group, Solo, form
from regrow.collectives.proof import prove
from regrow.core.effects import Abort, Fetch, Form, Immediate, Serve, Tell
from regrow.core.errors import PeerError
from regrow.core.events import Event, FormationFailed, Formed
from regrow.core.messages import Ask, Get, Offer, Put, Value
from regrow.core.records import GroupsAborted, GroupsBroke, GroupsFormed
from regrow.core.roster import Roster, Version
from regrow.shell.door import WorkerDoor
from regrow.shell.faultpoint import faultpoint
from regrow.shell.journal import Journal
from regrow.wire.handshake import Key
from regrow.wire.tcp import Connection, connect
from regrow.worker.healing import Received, fetch
from regrow.worker.session import Session, end_process

_FORM_S = 30.0
"""For gloo to connect, once all were met. A newer roster does not wait for it."""
_CONNECT_S = 10.0


class Mesh:
    def __init__(self, door: WorkerDoor, session: Session, journal: Journal, notify: Callable[[Event], None]) -> None:
        self._door = door
        self._key = Key(door.token)
        self._session = session
        self._journal = journal
        self._notify = notify
        self._lock = threading.Lock()
        self._roster: Roster | None = None
        self._groups: dict[Version, Group] = {}
        self._meetings: dict[Version, _Meeting] = {}

    def perform(self, effect: Immediate) -> list[Event]:
        match effect:
            case Abort(below=below):
                self._abort(below)
            case Form(roster=roster):
                meeting = _Meeting(self._door, self._session, roster)
                with self._lock:
                    self._roster = roster
                    self._meetings[roster.version] = meeting
                name = f"regrow-form-{roster.version}"
                threading.Thread(target=self._form, args=(roster, meeting), name=name, daemon=True).start()
            case Tell(message=message):
                self._session.send(message)
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
        endpoint = roster.seats[roster.index(effect.donor)].endpoint
        ask = Ask(member=self._door.member, version=effect.version, step=effect.step)
        return self._session.wait_while(effect.version, fetch(endpoint, self._door.token, ask))

    def _abort(self, below: Version) -> None:
        with self._lock:
            groups = [self._groups.pop(version) for version in list(self._groups) if version < below]
            meetings = [self._meetings.pop(version) for version in list(self._meetings) if version < below]
        for group in groups:
            group.abort()
        for meeting in meetings:
            meeting.abandon()
        self._session.forget(below)
        if groups or meetings:
            self._journal.write(GroupsAborted(below=below))
        # gloo takes its time to end its threads, and nobody who is on the way to the next roster should wait for that.
        threading.Thread(target=_let_go, args=(groups,), name=f"regrow-close-{below}", daemon=True).start()

    def _form(self, roster: Roster, meeting: "_Meeting") -> None:
        version, me = roster.version, self._door.member
        try:
            faultpoint("form", roster=version.n)
            group: Group = Solo()
            if len(roster.seats) > 1:
                group = form(meeting, roster.index(me), len(roster.seats), self._door.host, _FORM_S)
            with self._lock:
                superseded = version not in self._meetings
                if not superseded:
                    self._groups[version] = group  # so that a newer roster can break it while its members prove themselves
            if superseded:
                group.abort()
                group.close()
                return
            prove(group, self._key, str(version))
        except PeerError as error:
            self._journal.write(GroupsBroke(version=version, why=str(error)))
            self._notify(FormationFailed(version=version, why=str(error)))
            return
        except BaseException:  # the edge of a thread: without its group this process could only wait for ever
            end_process()
        finally:
            meeting.abandon()
        self._journal.write(GroupsFormed(version=version))
        self._notify(Formed(version=version))


def _let_go(groups: list[Group]) -> None:
    while groups:
        groups.pop().close()


class _Meeting:
    """One formation's way to leave and read addresses: at the roster's first member, over a connection of its own."""

    def __init__(self, door: WorkerDoor, session: Session, roster: Roster) -> None:
        self._door = door
        self._session = session
        self._version = roster.version
        self._host = roster.seats[0]
        self._connection: Connection | None = None
        self._over = False

    def put(self, key: str, value: bytes) -> None:
        self._session.wait(self._put(key, value))

    def get(self, key: str) -> bytes:
        return self._session.wait(self._get(key))

    def abandon(self) -> None:
        self._over = True
        connection = self._connection
        if connection is not None:
            self._session.call(connection.abort)

    @property
    def _is_host(self) -> bool:
        return self._host.member == self._door.member

    async def _put(self, key: str, value: bytes) -> None:
        if self._is_host:
            self._session.meetings.put(self._version, key, value)
        else:
            await (await self._reach()).send(Put(version=self._version, key=key, value=value))

    async def _get(self, key: str) -> bytes:
        if self._is_host:
            return await self._session.meetings.get(self._version, key)
        connection = await self._reach()
        await connection.send(Get(version=self._version, key=key))
        answer = await connection.receive()
        if not isinstance(answer, Value) or answer.key != key:
            raise PeerError(f"the meeting of roster {self._version} answered {type(answer).__name__} for {key}")
        return answer.value

    async def _reach(self) -> Connection:
        if self._over:
            raise PeerError(f"roster {self._version} is over")
        if self._connection is None:
            self._connection = await connect(self._host.endpoint, self._door.token, str(self._door.member), _CONNECT_S)
        return self._connection
