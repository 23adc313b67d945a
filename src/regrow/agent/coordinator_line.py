"""The agent's line to a coordinator that is a process of its own, and may be away for as long as it likes.

Every connection begins with Enlist and all reports so far: a coordinator that was restarted has heard none of them, and
hearing one twice changes nothing. Orders are carried out as they come; the agent starts each incarnation at most once.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from regrow.core.errors import ConfigError, PeerError
from regrow.core.membership_effects import End
from regrow.core.messages import (
    AGENT,
    Abandoned,
    Ended,
    Enlist,
    HangSeen,
    KillWorker,
    Message,
    Notice,
    Raised,
    Refuse,
    Report,
    SeekState,
    StallSeen,
    StartWorker,
    StopWanted,
)
from regrow.core.records import JobEnded
from regrow.core.roster import Endpoint, Member
from regrow.shell.backoff import Backoff
from regrow.shell.journal import Journal
from regrow.wire.tcp import Connection, connect

_CONNECT_S = 10.0
_LAST_WORD_S = 2.0


class Workers(Protocol):
    """Whoever carries out the orders: the agent."""

    def start(self, member: Member, why: str, delay_s: float) -> None: ...

    def kill(self, member: Member, why: str) -> None: ...

    def seek(self, number: int, step: int | None) -> None: ...


class CoordinatorLine:
    """`ended` gets the job's End: the coordinator's word, or this process's own."""

    def __init__(
        self,
        endpoint: Endpoint,
        token: str,
        enlist: Enlist,
        workers: Workers,
        journal: Journal,
        say: Callable[[str, bool], None],
    ) -> None:
        self._endpoint = endpoint
        self._token = token
        self._enlist = enlist
        self._workers = workers
        self._journal = journal
        self._say = say
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.raised: list[Raised] = []
        """The script's exceptions, told with the end; the one to show is the first."""
        self._reports: list[Report] = []
        self._news = asyncio.Event()
        self._all_sent = asyncio.Event()
        """On the present connection."""
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_away = False
        """As far as is known."""
        self._is_hired = False
        """The coordinator has taken this job: its first order came."""

    async def reach(self) -> None:
        """Wait for the coordinator. ConfigError when it is another job's, or another version."""
        backoff = Backoff()
        while self._connection is None:
            try:
                self._connection = await self._connect()
            except PeerError:
                self._note_away()
                await asyncio.sleep(backoff.delay_s())
        self._note_back()

    def open(self) -> None:
        """Enlist. From here on orders come."""
        self._task = asyncio.create_task(self._keep())
        self._task.add_done_callback(self._failed)

    def report(self, report: Report) -> None:
        if self.is_away and isinstance(report, HangSeen | StallSeen):
            return  # it is judged again, and may no longer be so once somebody hears it
        self._reports.append(report)
        self._all_sent.clear()
        self._news.set()
        if self.is_away and isinstance(report, StopWanted):
            self._say(f"the coordinator at {self._endpoint} is away: it hears of the stop once it is back", False)

    def end(self, end: End) -> None:
        """The job is over by this process's word."""
        if self.ended.done():
            return
        if self._task is not None:
            self._journal.write(JobEnded(outcome=end.outcome, why=end.why))
        self.ended.set_result(end)
        self.report(Abandoned(outcome=end.outcome, why=end.why))

    async def close(self) -> None:
        """Hang up, after a last word: that is how the coordinator knows that the workers are gone."""
        if self._task is not None:
            if not self.is_away:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORD_S):
                        await self._all_sent.wait()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    # The connection, and the next one

    async def _connect(self) -> Connection:
        return await connect(self._endpoint, self._token, AGENT, _CONNECT_S)

    async def _keep(self) -> None:
        while True:
            if self._connection is not None:
                with contextlib.suppress(PeerError):
                    await self._converse(self._connection)
                await self._connection.close()
                self._connection = None
            if self.ended.done():
                return
            await self._return()

    async def _return(self) -> None:
        backoff = Backoff()
        while self._connection is None:
            try:
                self._connection = await self._connect()
            except PeerError:
                self._note_away()
            except ConfigError as error:  # somebody else listens there now: no reason to end a healthy job
                self._note_away(f" ({error})")
            if self._connection is None:
                await asyncio.sleep(backoff.delay_s())
        self._note_back()

    async def _converse(self, connection: Connection) -> None:
        self._all_sent.clear()
        self._reports = [report for report in self._reports if not isinstance(report, HangSeen | StallSeen)]
        await connection.send(self._enlist)
        speaking = asyncio.create_task(self._speak(connection))
        try:
            while True:
                self._hear(await connection.receive())
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    async def _speak(self, connection: Connection) -> None:
        sent = 0
        while True:
            while sent < len(self._reports):
                await connection.send(self._reports[sent])
                sent += 1
            self._all_sent.set()
            self._news.clear()
            await self._news.wait()

    def _hear(self, message: Message) -> None:
        match message:
            case StartWorker(member=member, delay_s=delay_s, why=why):
                self._is_hired = True
                self._workers.start(member, why, delay_s)
            case KillWorker(member=member, why=why):
                self._workers.kill(member, why)
            case SeekState(number=number, step=step):
                self._workers.seek(number, step)
            case Notice(text=text, is_routine=is_routine):
                self._say(text, is_routine)
            case Ended(outcome=outcome, why=why, raised=raised):
                self.raised = list(raised)
                if not self.ended.done():
                    self.ended.set_result(End(outcome=outcome, why=why, first=raised[0] if raised else None))
            case Refuse(why=why):
                if not self.ended.done():
                    self.ended.set_exception(ConfigError(f"{self._endpoint} refuses this job: {why}"))
            case _:
                self._say(f"the coordinator sent {type(message).__name__}, which is not for an agent", False)

    def _note_away(self, why: str = "") -> None:
        if not self.is_away:
            then = "training goes on, nobody can be replaced until it is back" if self._is_hired else "waiting for it"
            self._say(f"the coordinator at {self._endpoint} is away{why}: {then}", False)
        self.is_away = True

    def _note_back(self) -> None:
        if self.is_away:
            self._say(f"the coordinator at {self._endpoint} is here", True)
        self.is_away = False

    def _failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "the line to the coordinator failed", "exception": error})
