"""A worker's session, with a coordinator that speaks by hand."""

import asyncio
from pathlib import Path
from queue import Queue

from regrow.core.change import change
from regrow.core.messages import Amend, Contract, FromMember, Join, Message, Missed, Push
from regrow.core.roster import NO_VERSION, Endpoint, Member, Present, Roster, Version, compose
from regrow.shell.door import WorkerDoor
from regrow.shell.journal import Journal
from regrow.shell.stamp import Stamp
from regrow.wire.tcp import Connection, listen
from regrow.worker.session import Session

TOKEN = "ab" * 32
R0, R1, R2 = (Member(f"r{number}", 0) for number in range(3))
DEADLINE_S = 20.0


def of(n: int, *members: Member) -> Roster:
    there = {member: Present(endpoint=Endpoint("127.0.0.1", 1), founder=True) for member in members}
    return compose(Version(1, n), there, 6, 0, "c")


class Heard:
    """An inbox that only remembers."""

    def __init__(self) -> None:
        self.rosters: Queue[Roster] = Queue()

    def pushed(self, roster: Roster) -> None:
        self.rosters.put(roster)

    def stop_asked(self) -> None: ...

    def refused(self, why: str, is_lost: bool) -> None: ...


def join() -> Join:
    return Join(
        member=R0,
        endpoint=Endpoint("127.0.0.1", 1),
        contract=Contract(terms={}),
        lanes=6,
        seen=NO_VERSION,
        entered=NO_VERSION,
        step=0,
    )


async def said(connection: Connection, kind: type[FromMember]) -> Message:
    """The next message of this kind; what else a worker says meanwhile does not matter here."""
    while not isinstance(message := await connection.receive(), kind):
        pass
    return message


def test_a_change_is_applied_and_one_that_does_not_fit_is_answered_by_wanting_the_whole(tmp_path: Path) -> None:
    first, second, third, fourth = of(1, R0, R1, R2), of(2, R0, R1), of(3, R0), of(4, R0, R1)
    inbox = Heard()

    async def story() -> None:
        done = asyncio.Event()

        async def coordinate(connection: Connection) -> None:
            await said(connection, Join)
            await connection.send(Amend(change=change(second, third)))  # it holds none yet
            want = await said(connection, Missed)
            assert want == Missed(member=R0, why="the change to roster 1.3 is one since 1.2, and none is held")
            await connection.send(Amend(change=change(second, third)))  # nor while it waits, and that is said once
            await connection.send(Push(roster=first))
            await connection.send(Amend(change=change(first, second)))
            await connection.send(Amend(change=change(third, fourth)))  # a change in between is missing
            want = await said(connection, Missed)
            assert want == Missed(member=R0, why="the change to roster 1.4 is one since 1.3, and 1.2 is held")
            await connection.send(Push(roster=fourth))
            done.set()
            await connection.receive()

        listener = await listen("127.0.0.1", 0, TOKEN, coordinate, lambda peer, why: None)
        door = WorkerDoor(
            member=R0, coordinator=listener.endpoint, token=TOKEN, run_dir=tmp_path, host="127.0.0.1", lanes=None
        )
        session = Session(door, Journal(tmp_path, "r0.0"), Stamp())
        await asyncio.to_thread(session.open)
        session.attend(inbox, join)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
            heard = [await asyncio.to_thread(inbox.rosters.get, timeout=DEADLINE_S) for _ in range(3)]
        assert heard == [first, second, fourth]

    asyncio.run(story())
