"""A coordinator's line over a real connection."""

import asyncio

from room import DEADLINE_S, TOKEN, run

from regrow.coordinator.line import Line
from regrow.core.messages import Notice
from regrow.wire.tcp import Connection, connect, listen


def test_what_a_full_socket_does_not_take_follows_in_order() -> None:
    text, count = "x" * 100_000, 400

    async def story() -> None:
        lines: list[Line] = []

        async def handler(connection: Connection) -> None:
            lines.append(line := Line(connection))
            for number in range(count):  # nobody reads meanwhile
                line.say(Notice(text=f"{number}{text}"))
            said.set()
            await line.closed.wait()

        said = asyncio.Event()
        listener = await listen("127.0.0.1", 0, TOKEN, handler, lambda peer, why: None)
        there = await connect(listener.endpoint, TOKEN, "slow", DEADLINE_S)
        await said.wait()
        for number in range(count):
            assert await there.receive() == Notice(text=f"{number}{text}")
        lines[0].say(Notice(text="at once again"))
        assert await there.receive() == Notice(text="at once again")
        lines[0].close()
        await listener.close()

    run(story())
