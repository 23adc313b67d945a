"""The coordinator as a process of its own: its door, the agent's line, and the one job it serves.

It may be killed at any moment and started again on the same folder. The plan of the job and all that Membership saves are
there; the rest is said again by those who come back: members by their Join, the agent by all its reports.
"""

import asyncio
import contextlib
from collections.abc import Callable

from regrow.coordinator.line import Line
from regrow.coordinator.remote_agent import RemoteAgent
from regrow.coordinator.server import Server
from regrow.coordinator.store import Store
from regrow.core.errors import ConfigError, InfraError, RegrowError
from regrow.core.membership_effects import End
from regrow.core.messages import AGENT, Enlist, Refuse, Report
from regrow.core.records import Refused
from regrow.core.roster import Endpoint
from regrow.shell.faultpoint import faultpoint
from regrow.shell.journal import Journal
from regrow.wire.tcp import Connection, Listener, listen

_HANG_UP_S = 15.0
"""An agent that has heard of the end has this long to end its workers."""


class Office:
    def __init__(self, store: Store, journal: Journal, say: Callable[[str], None]) -> None:
        self._store = store
        self._journal = journal
        self._say = say
        self._agent = RemoteAgent()
        self._plan: Enlist | None = store.load_plan()
        self._opened: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        self._listener: Listener | None = None

    @property
    def has_job(self) -> bool:
        return self._plan is not None

    @property
    def _server(self) -> Server | None:
        return self._opened.result() if self._opened.done() and not self._opened.exception() else None

    async def listen(self, host: str, port: int, token: str) -> Endpoint:
        """Go on with the job that was here before, if any."""
        try:
            self._listener = await listen(host, port, token, self._receive, self._refuse)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError):
                why = error.__cause__.strerror
                raise InfraError(f"cannot listen on {host}:{port} ({why}): choose another address with --listen") from error
            raise
        if self._plan is not None:
            self._open(self._plan)  # before anybody who is at the door by now comes in
        return self._listener.endpoint

    async def run(self) -> End:
        """Until the job is over and the agent knows, or cannot be told."""
        server = await asyncio.shield(self._opened)
        end = await server.ended
        faultpoint("end")
        self._agent.conclude(end, server.raised)
        await self._wait_until_told(server, end)
        return end

    def fail(self, why: str) -> None:
        """A bug: the job ends, as it would in one process."""
        if self._server is not None:
            self._server.end(End(outcome="bug", why=why))
        elif not self._opened.done():
            self._opened.set_exception(InfraError(why))

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        if self._listener is not None:
            await self._listener.close()

    async def _wait_until_told(self, server: Server, end: End) -> None:
        saved = self._store.load()
        is_proven = saved is not None and saved.end == end
        if not self._agent.is_here and not is_proven:
            return  # it ended because the agent is gone, or the agent has ended it
        assert self._plan is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP_S if self._agent.is_here else self._plan.config.lease_s):
                await self._agent.dismissed.wait()

    # Who comes

    async def _receive(self, connection: Connection) -> None:
        if connection.name == AGENT:
            await self._receive_agent(connection)
        elif self._server is not None:
            await self._server.serve(connection)
        else:
            self._refuse(connection.name, "no job runs here yet")

    async def _receive_agent(self, connection: Connection) -> None:
        enlist = await connection.receive()
        if not isinstance(enlist, Enlist):
            self._refuse(connection.peer, f"an agent began with {type(enlist).__name__}")
            return
        if self._plan is None and not self._hire(enlist):
            return
        assert self._plan is not None
        if enlist.agent != self._plan.agent:
            why = f"this coordinator serves the job {self._plan.job} of another `regrow run`: start one coordinator per job"
            self._refuse(connection.peer, why)
            await connection.send(Refuse(why=why, is_lost=True))
            return
        await self._hear_agent(connection, self._opened.result())

    async def _hear_agent(self, connection: Connection, server: Server) -> None:
        line = Line(connection)
        self._agent.attach(line)
        server.agent_came()
        try:
            while True:
                report = await connection.receive()
                if not isinstance(report, Report):
                    self._refuse(connection.peer, f"{type(report).__name__} is no agent's report")
                    return
                self._agent.hear(report)
                server.report(report)
        finally:
            line.close()
            if self._agent.detach(line):
                server.agent_gone()

    # The job

    def _hire(self, enlist: Enlist) -> bool:
        """Durable before anything of it begins; false when the disk refused, and this process ends."""
        try:
            self._store.save_plan(enlist)
            self._plan = enlist
            self._open(enlist)
        except OSError as error:
            self._opened.set_exception(InfraError(f"the run directory cannot be written ({error}): free space there"))
        except RegrowError as error:
            self._opened.set_exception(error)
        return not self._opened.exception()

    def _open(self, plan: Enlist) -> None:
        server = Server(plan, self._store, self._journal, self._agent, self._noticed, self._say)
        server.open()
        server.agent_gone()
        self._opened.set_result(server)

    def _noticed(self, text: str, is_routine: bool) -> None:
        self._say(text)
        self._agent.notice(text, is_routine)

    def _refuse(self, peer: str, why: str) -> None:
        self._journal.write(Refused(peer=peer, why=why))
