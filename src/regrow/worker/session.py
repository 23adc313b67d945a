"""The worker's session thread: one loop for the connection to the coordinator and for those between members.

It only carries: rosters and wishes in, messages out, addresses and state between peers. What any of it means is decided by
the Attendance, through the callbacks given here.
"""

import asyncio
import concurrent.futures
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol, TypeVar

from regrow.collectives.line import Line
from regrow.core.change import Change, Misfit, apply
from regrow.core.errors import ConfigError, PeerError
from regrow.core.messages import (
    Amend,
    Ask,
    Attend,
    Beat,
    FromMember,
    Join,
    Listen,
    Meet,
    Missed,
    Park,
    Push,
    Refuse,
    SaveState,
    Stop,
    Want,
)
from regrow.core.records import Refused
from regrow.core.roster import Endpoint, Roster, Version
from regrow.shell.backoff import Backoff
from regrow.shell.door import WorkerDoor
from regrow.shell.journal import Journal
from regrow.shell.stamp import Stamp
from regrow.wire.tcp import Connection, connect, listen
from regrow.worker.donor import Donor as SnapshotDonor
from regrow.worker.feeds import Feeds
from regrow.worker.healing import Donor
from regrow.worker.meetings import Meetings

_CONNECT_S = 10.0
_BEAT_S = 1.0
_RETRY_S = 0.1
_PULSE_S = 0.05
BROKEN_CODE = 70

T = TypeVar("T")


def end_process() -> NoReturn:
    """After an error that leaves this worker deaf or alone: better dead, and seen to be. Prints the error under way."""
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(BROKEN_CODE)


async def or_end(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:  # the edge of the session: a worker that hears no roster must not live on
        end_process()


class Inbox(Protocol):
    """Who is told what the coordinator says. Called on the session thread; must not block."""

    def pushed(self, roster: Roster) -> None: ...
    def listen_told(self, roster: Roster) -> None: ...
    def park_told(self) -> None: ...
    def stop_asked(self) -> None: ...
    def save_asked(self) -> None: ...
    def refused(self, why: str, is_lost: bool) -> None: ...


class Session:
    """`open` before anything else; `attend` once the member is ready to be seated."""

    def __init__(self, door: WorkerDoor, journal: Journal, stamp: Stamp) -> None:
        self._door = door
        self._journal = journal
        self._stamp = stamp
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="regrow-session", daemon=True)
        self._outbox: asyncio.Queue[FromMember] = asyncio.Queue()
        self._inbox: Inbox | None = None
        self._join: Callable[[], Join] | None = None
        self._connection: Connection | None = None
        self._held: Roster | None = None
        """The newest roster heard: what a change is applied to."""
        self._is_wanting = False
        """The whole roster was asked for on this connection, and has not come yet."""
        self.meetings = Meetings()
        self.donor = Donor()
        self.snapshots = SnapshotDonor()
        self.feeds: Feeds | None = None
        self._waits: dict[Version, concurrent.futures.Future[Any]] = {}

    def open(self) -> Endpoint:
        """Start the thread, listen for peers, connect to the coordinator. Returns where peers find this worker."""
        self._loop.call_soon(self._pulse)
        self._thread.start()
        return self.wait(self._open())

    def attend(self, inbox: Inbox, join: Callable[[], Join]) -> None:
        """Ask to be seated, now and after every reconnection."""

        def begin() -> None:
            self._inbox, self._join = inbox, join
            self._outbox.put_nowait(join())

        self._loop.call_soon_threadsafe(begin)

    def send(self, message: FromMember) -> None:
        """To the coordinator, in order; kept while there is no connection."""
        self._loop.call_soon_threadsafe(self._outbox.put_nowait, message)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything said so far is on its way: before this process ends."""
        try:
            asyncio.run_coroutine_threadsafe(self._outbox.join(), self._loop).result(timeout_s)
        except TimeoutError:
            pass  # the coordinator is away; the agent will report this process's exit in any case

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the session's loop and wait for it, on another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def wait_called(self, work: Coroutine[Any, Any, T]) -> T:
        """As wait, on the training thread: the stamp says when it need not wait any longer."""
        return self._calling(work).result()

    def wait_while(self, version: Version, work: Coroutine[Any, Any, T]) -> T:
        """As wait_called, but PeerError once this version's roster is over."""
        future = self._calling(work)
        self._waits[version] = future
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise PeerError(f"roster {version} is over") from error
        finally:
            self._waits.pop(version, None)

    def _calling(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        count = self._stamp.count
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda _: self._stamp.call(count))
        return future

    def call(self, work: Callable[[], object]) -> None:
        """Run on the session's loop, soon, without waiting."""
        self._loop.call_soon_threadsafe(work)

    def forget(self, below: Version) -> None:
        """Rosters below this are over: whoever waits for something of theirs must wake."""

        def wake() -> None:
            self.meetings.forget(below)
            self.donor.forget(below)
            for version, future in list(self._waits.items()):
                if version < below:
                    future.cancel()

        self._loop.call_soon_threadsafe(wake)

    # On the loop

    async def _open(self) -> Endpoint:
        listener = await listen(self._door.host, 0, self._door.token, self._peer, self._refuse)
        first = await self._arrive()
        self._tasks = [asyncio.create_task(or_end(work)) for work in (self._listen(first), self._speak(), self._beat())]
        return listener.endpoint

    async def _arrive(self) -> Connection:
        """The coordinator may be away, or strangers crowd its door: worth any wait, and no reason to die."""
        backoff = Backoff()
        while True:
            try:
                return await self._connect()
            except PeerError:
                await asyncio.sleep(backoff.delay_s())

    async def _connect(self) -> Connection:
        self._connection = await connect(self._door.coordinator, self._door.token, str(self._door.member), _CONNECT_S)
        self._is_wanting = False
        return self._connection

    async def _listen(self, connection: Connection) -> None:
        """Hear the coordinator; come back to it when the connection is lost."""
        while True:
            try:
                while True:
                    self._hear(await connection.receive())
            except PeerError:
                self._connection = None
            connection = await self._return()
            if self._join is not None:
                self._outbox.put_nowait(self._join())

    async def _return(self) -> Connection:
        """Members train on while the coordinator is away, and come back to it."""
        backoff = Backoff()
        refusal = ""
        while True:
            await asyncio.sleep(backoff.delay_s())
            try:
                return await self._connect()
            except PeerError:
                pass
            except ConfigError as error:
                # Another job's coordinator, or one of another version, listens there now: ours may still come back.
                if str(error) != refusal:
                    refusal = str(error)
                    self._journal.write(Refused(peer="coordinator", why=refusal))

    def _hear(self, message: object) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        match message:
            case Push(roster=roster):
                self._is_wanting = False
                self._hold(inbox, roster)
            case Amend(change=change):
                self._amend(inbox, change)
            case Listen(roster=roster):
                inbox.listen_told(roster)
            case Park():
                inbox.park_told()
            case Stop():
                inbox.stop_asked()
            case SaveState():
                inbox.save_asked()
            case Refuse(why=why, is_lost=is_lost):
                inbox.refused(why, is_lost)
            case _:
                self._journal.write(Refused(peer="coordinator", why=f"sent {type(message).__name__}"))

    def _hold(self, inbox: Inbox, roster: Roster) -> None:
        self._held = roster
        inbox.pushed(roster)

    def _amend(self, inbox: Inbox, change: Change) -> None:
        match apply(self._held, change):
            case Roster() as roster:
                self._hold(inbox, roster)
            case Misfit(why=why) if not self._is_wanting:
                self._is_wanting = True
                self._outbox.put_nowait(Missed(member=self._door.member, why=why))

    async def _speak(self) -> None:
        while True:
            message = await self._outbox.get()
            while True:
                connection = self._connection
                try:
                    if connection is not None:
                        await connection.send(message)
                        break
                except PeerError:
                    pass  # _listen sees it too, and reconnects
                await asyncio.sleep(_RETRY_S)
            self._outbox.task_done()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            if self._connection is not None and self._outbox.empty():
                self._outbox.put_nowait(Beat(member=self._door.member))

    def _pulse(self) -> None:
        self._stamp.pulse()
        self._loop.call_later(_PULSE_S, self._pulse)

    async def _peer(self, connection: Connection) -> None:
        """Another worker: it comes to a formation, asks for state, or wants to be fed."""
        while True:
            message = await connection.receive()
            match message:
                case Meet(version=version) | Ask(version=version) if self.meetings.is_over(version):
                    self._refuse(connection.name, f"sent {type(message).__name__}, but roster {version} is over")
                    return
                case Meet(member=member) | Ask(member=member) if str(member) != connection.name:
                    self._refuse(connection.name, f"spoke in the name of {member}")
                    return
                case Meet(member=member, version=version):
                    self.meetings.come(version, member, Line(*connection.detach()))
                    return
                case Ask():
                    await self.donor.answer(connection, message)
                case Want(member=member) if str(member) == connection.name:
                    self.snapshots.answer(*connection.detach(), message)
                    return
                case Attend(listener=listener) if self.feeds is not None and str(listener.member) == connection.name:
                    await self.feeds.attend(connection, listener)
                case _:
                    self._refuse(connection.name, f"sent {type(message).__name__}")
                    return

    def _refuse(self, peer: str, why: str) -> None:
        self._journal.write(Refused(peer=peer, why=why))
