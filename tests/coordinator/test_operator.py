"""An operator's wish over a real connection: answered once it is durable, noted, and told to people."""

from pathlib import Path

import pytest
from test_server import DEADLINE_S, R0, R1, TOKEN, Room, pushed, run

from regrow.coordinator.store import load
from regrow.core.errors import PeerError
from regrow.core.messages import OPERATOR, Beat, Entered, Reply, Request
from regrow.core.records import Refused, WishNoted
from regrow.core.roster import Member
from regrow.core.wishes import Wish
from regrow.wire.tcp import connect


async def ask(room: Room, wish: Wish) -> Reply:
    connection = await connect(room.endpoint, TOKEN, OPERATOR, DEADLINE_S)
    await connection.send(Request(wish=wish))
    reply = await connection.receive()
    assert isinstance(reply, Reply)
    await connection.close()
    return reply


def test_a_wish_is_granted_once_it_is_durable_and_refused_with_a_reason(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path)
        await room.open()
        refused = await ask(room, Wish(kind="scale", replicas=3))
        assert not refused.is_granted and "has not begun" in refused.why
        lines = [await room.member(member) for member in (R0, R1)]
        for line, member in zip(lines, (R0, R1), strict=True):
            push = await pushed(line)
            await line.send(Entered(member=member, version=push.roster.version, step=0))
        granted = await ask(room, Wish(kind="scale", replicas=3))
        saved = load(tmp_path)
        assert granted.is_granted and granted.number == 1
        assert saved is not None and [wish.number for wish in saved.wishes] == [1]
        assert room.actuator.started[-1][0] == Member("r2", 0)
        refused = await ask(room, Wish(kind="leave", replica="r7"))
        assert refused.why == "there is no replica r7: the job has r0, r1, r2"
        await room.server.close()
        noted = [(fact.number, fact.state) for fact in room.facts(WishNoted)]
        assert noted == [(0, "refused"), (1, "granted"), (0, "refused")]
        assert ("scale to 3 replicas: granted", False) in room.notices

    run(story())


def test_an_operator_that_asks_for_nothing_is_turned_away(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path)
        await room.open()
        connection = await connect(room.endpoint, TOKEN, OPERATOR, DEADLINE_S)
        await connection.send(Beat(member=R0))
        with pytest.raises(PeerError):
            await connection.receive()
        await room.server.close()
        assert [fact.why for fact in room.facts(Refused)] == ["an operator began with Beat"]

    run(story())
