"""A coordinator's server, and members that talk to it over real connections."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from regrow.coordinator.server import Server
from regrow.coordinator.store import Store
from regrow.core.budget import BudgetConfig
from regrow.core.change import apply
from regrow.core.membership_config import MembershipConfig
from regrow.core.messages import Amend, Contract, Enlist, Exited, Join, Push
from regrow.core.records import Fact
from regrow.core.roster import NO_VERSION, Endpoint, Member, Roster, Version
from regrow.shell.journal import Journal, read
from regrow.wire.tcp import Connection, connect

TOKEN = "ab" * 32
R0, R1 = Member("r0", 0), Member("r1", 0)
DEADLINE_S = 20.0


class Recorder:
    """An actuator that only remembers."""

    def __init__(self) -> None:
        self.started: list[tuple[Member, float]] = []
        self.killed: list[Member] = []

    def start(self, member: Member, why: str, delay_s: float) -> None:
        self.started.append((member, delay_s))

    def kill(self, member: Member, why: str) -> None:
        self.killed.append(member)


class Room:
    """A server, and members that talk to it."""

    def __init__(self, folder: Path, replicas: int = 2, max_restarts: int = 20) -> None:
        self.folder = folder
        self.actuator = Recorder()
        self.notices: list[tuple[str, bool]] = []
        """Each with whether it is routine."""
        self.warnings: list[str] = []
        names = tuple(f"r{number}" for number in range(replicas))
        config = MembershipConfig(replicas=names, lanes=4, budget=BudgetConfig(backoff_s=0.0, max_restarts=max_restarts))
        self.store = Store(folder)
        journal = Journal(folder / "journal", "coordinator")
        job = Enlist(agent="a", job="run", command=("train.py",), config=config)
        self.server = Server(job, self.store, journal, self.actuator, self._noticed, self.warnings.append)

    def _noticed(self, text: str, is_routine: bool) -> None:
        self.notices.append((text, is_routine))

    async def open(self) -> None:
        self.endpoint = await self.server.listen("127.0.0.1", 0, TOKEN)
        self.server.open()

    async def member(self, member: Member, seen: Version = NO_VERSION, **terms: str) -> Connection:
        connection = await connect(self.endpoint, TOKEN, str(member), DEADLINE_S)
        await connection.send(join(member, seen, **terms))
        return connection

    async def close(self) -> None:
        await self.server.close()
        self.store.close()

    def facts(self, kind: type[Fact]) -> list[Any]:
        return [
            line.what for account in read(self.folder / "journal") for line in account.lines if isinstance(line.what, kind)
        ]


def join(member: Member, seen: Version = NO_VERSION, **terms: str) -> Join:
    return Join(
        member=member,
        endpoint=Endpoint("127.0.0.1", 1),
        contract=Contract(terms={"lanes": "4", **terms}),
        seen=seen,
        entered=seen,
        lanes=4,
        step=0,
    )


def exited(member: Member, how: str, clean: bool) -> Exited:
    return Exited(member=member, how=how, clean=clean, never_joined=False)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story

    asyncio.run(bounded())


_held: WeakKeyDictionary[Connection, Roster] = WeakKeyDictionary()


async def pushed(connection: Connection) -> Push:
    """The next roster, whole or as a change of the last one that came here."""
    message = await connection.receive()
    if isinstance(message, Amend):
        roster = apply(_held.get(connection), message.change)
        assert isinstance(roster, Roster), roster
        message = Push(roster=roster)
    assert isinstance(message, Push), message
    _held[connection] = message.roster
    return message
