"""Hosts core.membership: turns what arrives into events, carries out the effects in order. It decides nothing itself.

Order is the contract: an effect is carried out only after those before it, and a Persist that the disk refuses holds
back all that follow but the job's end (a roster that is not durable must not be pushed). It is tried again with every
tick; members train on meanwhile.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol, assert_never

from regrow.coordinator.store import Store
from regrow.core.attendance import names_member
from regrow.core.errors import ConfigError, InfraError, PeerError
from regrow.core.invariants import member_of
from regrow.core.membership import Membership, MembershipConfig
from regrow.core.membership_effects import (
    End,
    Kill,
    Lost,
    Made,
    MembershipEffect,
    Persist,
    Saved,
    Send,
    Spared,
    Start,
)
from regrow.core.membership_events import Died, Heard, Hung, MembershipEvent, Opened, Stalled, StopRequested, Ticked
from regrow.core.messages import FromMember, Join, Raised, Refuse, ToMember
from regrow.core.progress import Place
from regrow.core.records import JobEnded, Refused, ReplicaLost, RosterMade, SeatTaken, WorkerRaised, WorkerSpared
from regrow.core.roster import Endpoint, Member
from regrow.shell.journal import Journal
from regrow.wire.tcp import Connection, Listener, listen

_TICK_S = 0.05
_LAST_WORDS_S = 0.02
"""A dead worker's words are already in this process's buffers; only when another holds its socket does it take this long."""


class Actuator(Protocol):
    """Whoever starts and ends workers."""

    def start(self, member: Member, why: str, delay_s: float) -> None: ...

    def kill(self, member: Member, why: str) -> None: ...


class Server:
    """`ended` gets the End of the job. `notice` is called with every Made, Lost and Spared, for people."""

    def __init__(
        self,
        config: MembershipConfig,
        store: Store,
        journal: Journal,
        actuator: Actuator,
        notice: Callable[[Made | Lost | Spared], None],
        warn: Callable[[str], None],
    ) -> None:
        self._membership = Membership(config, store.load())
        self._store = store
        self._journal = journal
        self._actuator = actuator
        self._notice = notice
        self._warn = warn
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[End] = self._loop.create_future()
        self.raised: list[Raised] = []
        """Every exception of the user's script, in the order heard."""
        self._started: set[Member] = set()
        self._dead: set[Member] = set()
        self._joined: set[Member] = set()
        self._lines: dict[Member, _Line] = {}
        self._events: deque[MembershipEvent] = deque()
        self._is_feeding = False
        self._undone: deque[MembershipEffect] = deque()
        self._is_stuck = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None

    async def listen(self, host: str, port: int, token: str) -> Endpoint:
        try:
            self._listener = await listen(host, port, token, self._serve, self._refuse)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError):
                raise InfraError(str(error)) from error
            raise
        return self._listener.endpoint

    def open(self) -> None:
        """Begin: the first workers are started."""
        self._feed(Opened(now=_now()))
        if self._is_stuck:
            raise InfraError("the run directory cannot be written: free space, or choose another --run-dir")
        self._spawn(self._tick())

    def died(self, member: Member, how: str, clean: bool, place: Place | None = None) -> None:
        """Proven by the agent. What the worker said before counts first: an exception explains its exit."""
        self._dead.add(member)
        line = self._lines.get(member)
        died = Died(now=_now(), member=member, how=how, clean=clean, place=place)
        if line is None:
            self._feed(died)
        else:
            self._spawn(self._bury(line, died))

    def hung(self, member: Member, why: str) -> None:
        """Judged by the agent. Whether it is replaced is decided here; until then it lives."""
        self._feed(Hung(now=_now(), member=member, why=why))

    def stalled(self, why: str) -> None:
        """The same members are to form again."""
        self._feed(Stalled(now=_now(), why=why))

    @property
    def is_founded(self) -> bool:
        """Has there been a first roster?"""
        return self._membership.roster is not None

    def has_joined(self, member: Member) -> bool:
        return member in self._joined

    def request_stop(self) -> None:
        self._feed(StopRequested(now=_now()))

    def end(self, end: End) -> None:
        """The job is over, by the operator's word or by core's."""
        if not self.ended.done():
            self._journal.write(JobEnded(outcome=end.outcome, why=end.why))
            self.ended.set_result(end)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()

    # Events

    async def _serve(self, connection: Connection) -> None:
        member = member_of(connection.name)
        if member is None:
            self._refuse(connection.peer, f"{connection.name!r} is no member's name")
            return
        if member not in self._started or member in self._dead:
            # It knows the token, but no such process lives: what it says (that the script raised, say) must not count.
            self._refuse(connection.peer, f"{member} {'is dead' if member in self._dead else 'was never started'}")
            return
        line = _Line(connection)
        former, self._lines[member] = self._lines.get(member), line
        if former is not None:
            former.connection.abort()  # it came back: what it is told now must not go to the line it gave up
        try:
            await self._listen_to(member, connection)
        finally:
            line.close()
            if self._lines.get(member) is line:
                del self._lines[member]

    async def _listen_to(self, member: Member, connection: Connection) -> None:
        while True:
            message = await connection.receive()
            if not isinstance(message, FromMember):
                self._refuse(str(member), f"{type(message).__name__} is not for a coordinator")
                return
            if names_member(message) != member:
                self._refuse(str(member), f"spoke in the name of {names_member(message)}")
                return
            self._note(message)
            self._feed(Heard(now=_now(), message=message))

    def _note(self, message: FromMember) -> None:
        if isinstance(message, Join):
            self._joined.add(message.member)
        elif isinstance(message, Raised):
            self.raised.append(message)
            self._journal.write(
                WorkerRaised(
                    member=message.member,
                    kind=message.kind,
                    place=message.place,
                    step=message.step,
                    lane=message.lane,
                    scope=message.scope,
                    traceback=message.traceback,
                )
            )

    async def _bury(self, line: "_Line", died: Died) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await line.closed.wait()
        self._feed(died)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._feed(Ticked(now=_now()))

    def _feed(self, event: MembershipEvent) -> None:
        if self.ended.done():
            return
        self._events.append(event)
        if self._is_feeding:
            return  # an effect caused it; it is handled once that effect is done
        self._is_feeding = True
        try:
            while self._events:
                self._undone.extend(self._membership.handle(self._events.popleft()))
                while self._undone and self._carry_out(self._undone[0]):
                    self._undone.popleft()
            # Nothing follows an end, so it need not wait for a disk: a job whose members have left would never be over.
            for effect in self._undone:
                if isinstance(effect, End):
                    self.end(effect)
        finally:
            self._is_feeding = False

    # Effects

    def _carry_out(self, effect: MembershipEffect) -> bool:
        """False when it could not be done and must be tried again before anything later."""
        match effect:
            case Persist(saved=saved):
                return self._persist(saved)
            case Send(member=member, message=message):
                if isinstance(message, Refuse):
                    self._refuse(str(member), message.why)
                if member in self._lines:
                    self._lines[member].say(message)
            case Start(member=member, delay_s=delay_s, why=why):
                self._started.add(member)
                self._actuator.start(member, why, delay_s)
            case Kill(member=member, why=why):
                self._actuator.kill(member, why)
            case Made():
                self._journal.write(_made(effect))
                self._notice(effect)
            case Lost(replica=replica, why=why):
                self._journal.write(ReplicaLost(replica=replica, why=why))
                self._notice(effect)
            case Spared(member=member, why=why):
                self._journal.write(WorkerSpared(member=member, why=why))
                self._notice(effect)
            case End():
                self.end(effect)
            case _:
                assert_never(effect)
        return True

    def _persist(self, saved: Saved) -> bool:
        try:
            self._store.save(saved)
        except OSError as error:
            if not self._is_stuck:
                self._warn(f"cannot save the coordinator's state ({error}): no replica can be replaced until there is space")
            self._is_stuck = True
            return False
        if self._is_stuck:
            self._warn("the coordinator's state is saved again")
        self._is_stuck = False
        return True

    def _refuse(self, peer: str, why: str) -> None:
        self._journal.write(Refused(peer=peer, why=why))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "the coordinator failed", "exception": error})


class _Line:
    """A member's connection. What it is told goes out in order, and never waits for another member's socket."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.closed = asyncio.Event()
        self._queue: asyncio.Queue[ToMember] = asyncio.Queue()
        self._sender = asyncio.create_task(self._send())

    def say(self, message: ToMember) -> None:
        self._queue.put_nowait(message)

    def close(self) -> None:
        self._sender.cancel()
        self.closed.set()

    async def _send(self) -> None:
        with contextlib.suppress(PeerError):  # its receiving side sees the same and ends the line
            while True:
                await self.connection.send(await self._queue.get())


def _made(made: Made) -> RosterMade:
    roster = made.roster
    seats = tuple(SeatTaken(member=seat.member, founder=seat.founder, lanes=seat.lanes) for seat in roster.seats)
    return RosterMade(version=roster.version, cause=roster.cause, why=made.why, floor=roster.floor, seats=seats)


def _now() -> float:
    return time.monotonic()
