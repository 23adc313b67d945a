"""The in-memory twin keeps the same promises as a connection."""

import asyncio

import pytest
from any_message import messages
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.errors import Invariant, PeerError
from regrow.core.messages import Message, Refuse, Thanks
from regrow.wire.channel import Channel
from regrow.wire.framing import PEER_LIMIT_BYTES
from regrow.wire.memory import pair


@given(st.lists(messages(), max_size=5))
def test_messages_arrive_whole_and_in_order(sent: list[Message]) -> None:
    async def story() -> None:
        a, b = pair("a", "b")
        for message in sent:
            await a.send(message)
        assert [await b.receive() for _ in sent] == sent

    asyncio.run(story())


def test_both_ends_are_channels_with_their_names() -> None:
    ends: tuple[Channel, Channel] = pair("r0.1", "coordinator")
    assert [end.name for end in ends] == ["r0.1", "coordinator"]


def test_a_waiting_receiver_is_woken() -> None:
    async def story() -> None:
        a, b = pair("a", "b")
        receiving = asyncio.create_task(b.receive())
        await asyncio.sleep(0)
        await a.send(Thanks())
        assert await receiving == Thanks()

    asyncio.run(story())


def test_raw_bytes_go_between_messages() -> None:
    async def story() -> None:
        a, b = pair("a", "b")
        await a.send(Thanks())
        await a.send_raw(memoryview(b"12345"))
        await a.send(Refuse(why="end"))
        view = bytearray(5)
        assert await b.receive() == Thanks()
        await b.receive_raw_into(memoryview(view))
        assert view == b"12345"
        assert await b.receive() == Refuse(why="end")

    asyncio.run(story())


@pytest.mark.parametrize("abort", [True, False])
def test_closing_ends_both_sides_and_what_was_sent_still_arrives(abort: bool) -> None:
    async def story() -> None:
        a, b = pair("a", "b")
        waiting = asyncio.create_task(a.receive())
        await asyncio.sleep(0)
        await a.send(Thanks())
        a.abort() if abort else await a.close()
        await a.close()
        assert await b.receive() == Thanks()
        for gone in (b.receive(), b.send(Thanks()), b.receive_raw_into(memoryview(bytearray(1)))):
            with pytest.raises(PeerError, match="closed by the peer"):
                await gone
        await b.close()
        for gone in (waiting, a.receive(), a.send(Thanks())):
            with pytest.raises(PeerError, match="closed here"):
                await gone

    asyncio.run(story())


def test_the_frame_limit_holds_here_too() -> None:
    async def story() -> None:
        a, _ = pair("a", "b")
        with pytest.raises(Invariant, match="exceeds the limit"):
            await a.send(Refuse(why="x" * PEER_LIMIT_BYTES))

    asyncio.run(story())
