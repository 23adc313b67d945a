"""What members send a listener and what it hears, over real sockets: in order, whole, and no more than there is room for."""

import asyncio
from collections.abc import Awaitable

import torch

from regrow.core.events import Event, ListenerCame, ListenerGone, Overran, Recorded, SnapshotsTaken
from regrow.core.listener import Feed, Listener, Record
from regrow.core.messages import Attend, Begin, Part
from regrow.core.roster import Member, Present, Roster, Version, compose
from regrow.state.memory import bytes_of
from regrow.wire.tcp import Connection, connect, listen
from regrow.wire.tcp import Listener as Door
from regrow.worker.ear import Ear
from regrow.worker.feeds import Feeds

DEADLINE_S = 60
TOKEN = "5ec7e7" * 8
MEGABYTE = 1 << 20
MEMBERS = A, B = Member("r0", 0), Member("r1", 0)
FIRST, SECOND = Listener(Member("r2", 1), 1), Listener(Member("r3", 1), 1)
AMPLE = 1 << 30


def run(story: Awaitable[None]) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story

    asyncio.run(with_deadline())


class Feeder:
    """A member with a door, at which it feeds whoever attends."""

    def __init__(self, me: Member, room_bytes: int) -> None:
        self.me = me
        self.told: asyncio.Queue[Event] = asyncio.Queue()
        self.feeds = Feeds(room_bytes, self.told.put_nowait, lambda fact: None, lambda listener: None)
        self.door: Door

    async def open(self) -> "Feeder":
        self.door = await listen("127.0.0.1", 0, TOKEN, self._answer, lambda peer, why: None)
        return self

    async def _answer(self, connection: Connection) -> None:
        attend = await connection.receive()
        assert isinstance(attend, Attend)
        await self.feeds.attend(connection, attend.listener)

    def begin(self, listener: Listener, step: int) -> None:
        self.feeds.send(listener, Begin(step=step), torch.empty(0, dtype=torch.uint8))

    def commit(self, listener: Listener, step: int, gradient: torch.Tensor, feeders: tuple[Member, ...] = MEMBERS) -> None:
        """Its part of this step's record."""
        feed = Feed(listener=listener, feeder=self.me, feeders=feeders)
        start, stop = feed.span(gradient.numel())
        record = Record(step=step, attempt=Version(1, 1), digest=step, holdings=(), last=10**6)
        tail = b"tail" if feed.is_first else b""
        part = Part(record=record, total_bytes=gradient.numel(), start=start, size_bytes=stop - start, tail=tail)
        self.feeds.send(listener, part, self.feeds.copied(gradient[start:stop]))


def gradient_of(step: int) -> torch.Tensor:
    return torch.full((MEGABYTE,), step % 251, dtype=torch.uint8)


def roster_of(feeders: list[Feeder]) -> Roster:
    seats = {each.me: Present(endpoint=each.door.endpoint, founder=True) for each in feeders}
    return compose(Version(1, 1), seats, 6, 0, "test")


async def hearing(room_bytes: int) -> tuple[list[Feeder], Ear, asyncio.Queue[Event]]:
    """Two members that feed one listener, which has this much room."""
    feeders, told = [await Feeder(member, AMPLE).open() for member in MEMBERS], asyncio.Queue[Event]()
    ear = Ear(TOKEN, room_bytes, told.put_nowait, asyncio.get_running_loop().call_soon)
    ear.hear(FIRST, roster_of(feeders))
    for feeder in feeders:
        assert await feeder.told.get() == ListenerCame(listener=FIRST)
        feeder.begin(FIRST, 5)
    assert await told.get() == SnapshotsTaken(listener=FIRST, step=5)
    return feeders, ear, told


def test_a_listener_that_takes_what_comes_never_runs_out_of_room() -> None:
    async def story() -> None:
        feeders, ear, told = await hearing(room_bytes=2 * MEGABYTE)
        for step in range(5, 25):
            for feeder in feeders:
                feeder.commit(FIRST, step, gradient_of(step))
            recorded = await told.get()
            assert isinstance(recorded, Recorded) and recorded.heard.record.step == step
            gradient = recorded.heard.gradient
            assert torch.equal(gradient.data, gradient_of(step)) and gradient.summary == b"tail"
            gradient.release()
        ear.hush()
        for feeder in feeders:
            assert await feeder.told.get() == ListenerGone(listener=FIRST)
            await feeder.door.close()

    run(story())


def test_a_listener_that_takes_nothing_says_when_it_has_no_room_left() -> None:
    async def story() -> None:
        feeders, _, told = await hearing(room_bytes=3 * MEGABYTE)
        for step in range(5, 8):
            for feeder in feeders:
                feeder.commit(FIRST, step, gradient_of(step))
            assert isinstance(await told.get(), Recorded)
        feeders[0].commit(FIRST, 8, gradient_of(8))
        overran = await told.get()
        assert isinstance(overran, Overran) and overran.listener == FIRST
        assert overran.why == f"{4 * MEGABYTE} bytes of records wait to be replayed"
        for feeder in feeders:
            assert await feeder.told.get() == ListenerGone(listener=FIRST), "its lines are closed"
            await feeder.door.close()

    run(story())


def test_a_listener_is_not_let_go_for_a_record_that_only_its_beginning_waits_before() -> None:
    """A member whose loop is slow has sent neither when the step is over."""

    async def story() -> None:
        feeder = await Feeder(A, room_bytes=0).open()
        line = await connect(feeder.door.endpoint, TOKEN, str(FIRST.member), 10.0)
        await line.send(Attend(listener=FIRST))
        assert await feeder.told.get() == ListenerCame(listener=FIRST)
        feeder.begin(FIRST, 0)
        feeder.commit(FIRST, 0, gradient_of(0), (A,))
        assert await line.receive() == Begin(step=0)
        assert isinstance(await line.receive(), Part)
        line.abort()
        await feeder.door.close()

    run(story())


def test_a_listener_that_reads_nothing_is_let_go_and_another_one_is_fed_all_the_same() -> None:
    async def story() -> None:
        feeder = await Feeder(A, room_bytes=4 * MEGABYTE).open()
        lines: list[Connection] = []
        for listener in (FIRST, SECOND):
            lines.append(await connect(feeder.door.endpoint, TOKEN, str(listener.member), 10.0))
            await lines[-1].send(Attend(listener=listener))
            assert await feeder.told.get() == ListenerCame(listener=listener)
            feeder.begin(listener, 0)
        idle, other = lines
        assert await other.receive() == Begin(step=0)
        gone: Event | None = None
        for step in range(1000):
            for listener in (FIRST, SECOND):
                feeder.commit(listener, step, gradient_of(step), (A,))
            part = await other.receive()
            assert isinstance(part, Part) and part.record.step == step
            came = torch.empty(MEGABYTE, dtype=torch.uint8)
            await other.receive_raw_into(bytes_of(came))
            assert torch.equal(came, gradient_of(step))
            if not feeder.told.empty():
                gone = feeder.told.get_nowait()
                break
        assert gone == ListenerGone(listener=FIRST)
        assert step <= 64, "what is in the sockets' buffers, and the room"
        for line in (idle, other):
            line.abort()
        await feeder.door.close()

    run(story())
