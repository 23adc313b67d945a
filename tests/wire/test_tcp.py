"""Connections over real sockets on loopback. Every wait has a deadline; none is for a fixed time."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from regrow.core.errors import ConfigError, Invariant, PeerError
from regrow.core.messages import PROTOCOL, Challenge, Hello, Refuse, Thanks
from regrow.core.roster import Endpoint
from regrow.wire import tcp
from regrow.wire.codec import decode, encode
from regrow.wire.framing import PEER_LIMIT_BYTES, Decoder, frame
from regrow.wire.handshake import Guest, Key
from regrow.wire.tcp import Connection, Listener, connect, listen
from regrow.wire.violation import Violation

TOKEN = "5ec7e7" * 8
OTHER_TOKEN = "0bad" * 12
DEADLINE_S = 20


def run(story: Awaitable[None]) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story

    asyncio.run(with_deadline())


class Server:
    """A listener, what it refused, and the connections it let in."""

    def __init__(self) -> None:
        self.refusals: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.guests: asyncio.Queue[Connection] = asyncio.Queue()
        self.listener: Listener
        self.open = contextlib.ExitStack()
        """Closes, at the end of the story, what it left open."""

    @property
    def endpoint(self) -> Endpoint:
        return self.listener.endpoint

    async def client(self, name: str = "r0.1", token: str = TOKEN) -> Connection:
        connection = await connect(self.endpoint, token, name, timeout_s=10)
        self.open.callback(connection.abort)
        return connection

    def stranger(self, receive_buffer_bytes: int | None = None) -> "Stranger":
        stranger = Stranger(self.endpoint, receive_buffer_bytes)
        self.open.callback(stranger.sock.close)
        return stranger

    async def pair(self) -> tuple[Connection, Connection]:
        ours = await self.client()
        return ours, await self.guests.get()

    async def refused_why(self) -> str:
        _, why = await self.refusals.get()
        assert self.refusals.empty()
        return why


@contextlib.asynccontextmanager
async def serving(handler: Callable[[Connection], Awaitable[None]] | None = None, **options: Any) -> AsyncIterator[Server]:
    server = Server()

    async def keep(connection: Connection) -> None:
        server.guests.put_nowait(connection)
        await asyncio.get_running_loop().create_future()

    server.listener = await listen(
        "127.0.0.1", 0, TOKEN, handler or keep, lambda peer, why: server.refusals.put_nowait((peer, why)), **options
    )
    try:
        yield server
    finally:
        server.open.close()
        await server.listener.close()


class Stranger:
    """A bare socket at the door."""

    def __init__(self, endpoint: Endpoint, receive_buffer_bytes: int | None) -> None:
        self.sock = socket.socket()
        if receive_buffer_bytes is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.sock.connect((endpoint.host, endpoint.port))
        self.sock.setblocking(False)
        self._arrived = Decoder(PEER_LIMIT_BYTES)

    async def payload(self) -> bytes:
        while (payload := self._arrived.next_payload()) is None:
            data = await asyncio.get_running_loop().sock_recv(self.sock, 4096)
            assert data, "closed"
            self._arrived.feed(data)
        return payload

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def wait_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await asyncio.get_running_loop().sock_recv(self.sock, 4096):
                pass

    async def prove(self, challenge: bytes | None = None) -> None:
        guest = Guest(Key(TOKEN), "stranger", b"c" * 32)
        await self.say(frame(encode(guest.answer(challenge or await self.payload()))))
        guest.settle(await self.payload())


def test_messages_go_both_ways_under_the_proven_name() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            assert ours.name == theirs.name == "r0.1"
            await ours.send(Thanks())
            await ours.send(Refuse(why="no"))
            assert [await theirs.receive(), await theirs.receive()] == [Thanks(), Refuse(why="no")]
            await theirs.send(Refuse(why="x" * 1_000_000))
            assert await ours.receive() == Refuse(why="x" * 1_000_000)

    run(story())


def test_what_was_sent_before_close_arrives_even_past_unread_bytes() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            await ours.send(Refuse(why="never read"))
            await theirs.send(Refuse(why="bye"))
            await theirs.close()
            await theirs.close()
            assert await ours.receive() == Refuse(why="bye")
            with pytest.raises(PeerError, match="closed by the peer"):
                await ours.receive()
            await ours.close()
            with pytest.raises(PeerError, match="closed here"):
                await ours.send(Thanks())

    run(story())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_pending_receive_ends_when_its_own_side_closes(end: str) -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            receiving = asyncio.create_task(ours.receive())
            await _until_waiting(receiving)
            await ours.close() if end == "close" else ours.abort()
            with pytest.raises(PeerError, match="closed here"):
                await receiving
            with pytest.raises(PeerError):
                await theirs.receive()

    run(story())


def test_a_cancelled_receive_loses_nothing() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            for turn in range(200):
                receiving = asyncio.create_task(ours.receive())
                await _until_waiting(receiving)
                await theirs.send(Refuse(why=str(turn)))
                for _ in range(turn % 4):  # the cancellation meets the message at every stage of its arrival
                    await asyncio.sleep(0)
                receiving.cancel()
                try:
                    got = await receiving
                except asyncio.CancelledError:
                    got = await ours.receive()
                assert got == Refuse(why=str(turn))

    run(story())


def test_every_message_is_handed_over_as_it_comes_until_it_is_enough() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            heard: list[object] = []

            def hear(message: object) -> bool:
                heard.append(message)
                return message != Refuse(why="enough")

            await ours.send(Refuse(why="before"))
            assert await theirs.receive() == Refuse(why="before")
            hearing = asyncio.create_task(theirs.receive_each(hear))
            sent = [Refuse(why=f"{number}" * 9000) for number in range(5)] + [Refuse(why="enough"), Thanks()]
            for message in sent:
                await ours.send(message)
            await hearing
            assert heard == sent[:-1]
            assert await theirs.receive() == Thanks(), "what came after it is not lost"

            hearing = asyncio.create_task(theirs.receive_each(hear))
            await _until_waiting(hearing)
            hearing.cancel()
            await asyncio.wait([hearing])
            await ours.send(Thanks())
            assert await theirs.receive() == Thanks(), "nor what came after it was cancelled"

    run(story())


@pytest.mark.parametrize("end", ["closed by the peer", "closed here", "an error of the hearer's"])
def test_hearing_ends_with_the_connection_or_with_the_hearers_own_error(end: str) -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()

            def fail(message: object) -> bool:
                raise RuntimeError("an error of the hearer's")

            hearing = asyncio.create_task(theirs.receive_each(fail))
            await _until_waiting(hearing)
            if end == "closed by the peer":
                await ours.close()
            elif end == "closed here":
                theirs.abort()
            else:
                await ours.send(Thanks())
            with pytest.raises((PeerError, RuntimeError), match=end):
                await hearing

    run(story())


def test_two_tasks_that_receive_at_once_are_told_so() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            first = asyncio.create_task(ours.receive())
            await _until_waiting(first)
            with pytest.raises(Invariant, match="two tasks receive"):
                await ours.receive()
            await theirs.send(Thanks())
            assert await first == Thanks()

    run(story())


def test_raw_bytes_follow_a_message_and_lead_to_the_next() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            bulk = os.urandom(9 * 1024 * 1024 + 3)
            floats = memoryview(bytearray(os.urandom(800))).cast("d")

            async def donate() -> None:
                await ours.send(Refuse(why="first"))
                await ours.send_raw(memoryview(bulk))
                await ours.send_raw(memoryview(b""))
                await ours.send_raw(floats)
                await ours.send(Refuse(why="last"))

            donating = asyncio.create_task(donate())
            assert await theirs.receive() == Refuse(why="first")
            got, got_floats = bytearray(len(bulk)), memoryview(bytearray(800)).cast("d")
            await theirs.receive_raw_into(memoryview(got))
            await theirs.receive_raw_into(memoryview(bytearray()))
            await theirs.receive_raw_into(got_floats)
            assert await theirs.receive() == Refuse(why="last")
            await donating
            assert got == bulk
            assert bytes(got_floats) == bytes(floats)

    run(story())


def test_a_bulk_transfer_that_never_waits_lets_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_TURN_BYTES", 1)  # else more than a socket holds would have to be there already

    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            assert await _turns_during(ours.send_raw(memoryview(b"x" * 1000))) >= 1
            assert await _turns_during(theirs.receive_raw_into(memoryview(bytearray(1000)))) >= 1

    run(story())


def test_a_flood_of_messages_lets_other_tasks_run() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            for _ in range(4000):
                await ours.send(Refuse(why="x" * 20))

            async def receive_all() -> None:
                for _ in range(4000):
                    await theirs.receive()

            assert await _turns_during(receive_all()) >= 8

    run(story())


def test_the_last_words_of_a_handler_arrive_even_past_unread_bytes() -> None:
    async def story() -> None:
        async def handler(connection: Connection) -> None:
            assert await connection.receive() == Thanks()
            await connection.send(Refuse(why="x" * 1_000_000))

        async with serving(handler) as server:
            stranger = server.stranger(receive_buffer_bytes=4096)
            await stranger.prove()
            await stranger.say(frame(encode(Thanks())) + frame(encode(Refuse(why="never read" * 5000))))
            assert decode(await stranger.payload()) == Refuse(why="x" * 1_000_000)

    run(story())


def test_sends_of_several_tasks_do_not_mix() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            large = [Refuse(why=str(index) * 3_000_000) for index in range(6)]  # beyond any socket buffer
            async with asyncio.TaskGroup() as group:
                for message in large:
                    group.create_task(ours.send(message))
                got = [await theirs.receive() for _ in large]
            assert got == large

    run(story())


def test_a_send_cancelled_halfway_ends_the_connection() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            sending = asyncio.create_task(ours.send(Refuse(why="x" * 15_000_000)))
            await _until_waiting(sending)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            with pytest.raises(PeerError, match="closed here"):
                await ours.send(Thanks())
            with pytest.raises(PeerError):
                await theirs.receive()

    run(story())


def test_a_raw_receive_cancelled_halfway_ends_the_connection() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            await ours.send_raw(memoryview(b"half"))
            receiving = asyncio.create_task(theirs.receive_raw_into(memoryview(bytearray(8))))
            await _until_waiting(receiving)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            with pytest.raises(PeerError, match="closed here"):
                await theirs.receive()

    run(story())


def test_a_peer_that_stops_in_the_middle_of_raw_bytes_is_a_peer_error() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            await ours.send_raw(memoryview(b"half"))
            await ours.close()
            with pytest.raises(PeerError, match="closed by the peer"):
                await theirs.receive_raw_into(memoryview(bytearray(8)))

    run(story())


def test_a_wrong_token_is_a_config_error_and_one_refusal_and_never_shown() -> None:
    async def story() -> None:
        async with serving() as server:
            with pytest.raises(ConfigError, match="does not know this job's token: start it with `regrow run`") as caught:
                await server.client(token=OTHER_TOKEN)
            why = await server.refused_why()
            for text in (why, *_texts(caught.value)):
                assert TOKEN not in text
                assert OTHER_TOKEN not in text
            assert (await server.client()).name == "r0.1"

    run(story())


def test_another_protocol_is_named_to_the_client_and_in_the_refusal() -> None:
    async def story() -> None:
        async with serving() as server:
            stranger = server.stranger()
            await stranger.payload()
            await stranger.say(frame(encode(Hello(protocol=PROTOCOL + 1, name="r0.1", nonce=b"c" * 32, proof=b""))))
            why = (
                f"speaks protocol {PROTOCOL + 1}, this job speaks {PROTOCOL}: install the same regrow version on both sides"
            )
            assert decode(await stranger.payload()).why == why
            assert await server.refused_why() == why
            await stranger.wait_closed()

    run(story())


def test_a_client_meeting_a_server_of_another_protocol_says_so() -> None:
    async def story() -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(frame(encode(Challenge(protocol=PROTOCOL + 1, nonce=b"s" * 32))))
            heard.put_nowait(await reader.read())
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConfigError, match=f"speaks protocol {PROTOCOL + 1}.*install the same regrow version"):
                await connect(Endpoint("127.0.0.1", port), TOKEN, "r0.1", timeout_s=10)
            decoder = Decoder(PEER_LIMIT_BYTES)
            decoder.feed(await heard.get())
            hello = decode(decoder.next_payload() or b"")
            assert isinstance(hello, Hello)
            assert hello.protocol == PROTOCOL

    run(story())


def test_a_replayed_hello_is_refused() -> None:
    async def story() -> None:
        async with serving() as server:
            first, second = server.stranger(), server.stranger()
            guest = Guest(Key(TOKEN), "r0.1", b"c" * 32)
            hello = frame(encode(guest.answer(await first.payload())))
            await first.say(hello)
            guest.settle(await first.payload())
            await second.payload()
            await second.say(hello)
            assert "does not know this job's token" in await server.refused_why()
            await second.wait_closed()

    run(story())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(b"\xc1\xc1"), "garbled"),
        (b"GET / HTTP/1.1\r\n\r\n", "oversized"),
        (frame(b"x" * 5000), "oversized: a frame of 5000 bytes, the limit is 4096"),
        (frame(encode(Thanks())), "garbled: a Thanks where a Hello belongs"),
    ],
)
def test_garbage_at_the_door_is_refused_once_and_the_listener_lives(data: bytes, why: str) -> None:
    async def story() -> None:
        async with serving() as server:
            stranger = server.stranger()
            await stranger.say(data)
            assert why in await server.refused_why()
            await stranger.wait_closed()
            assert (await server.client()).name == "r0.1"

    run(story())


def test_silence_at_the_door_ends_at_the_deadline() -> None:
    async def story() -> None:
        async with serving(handshake_s=0.05) as server:
            stranger = server.stranger()
            assert await server.refused_why() == "did not prove the token within 0.05 s"
            await stranger.wait_closed()

    run(story())


def test_who_leaves_at_the_door_is_refused_once() -> None:
    async def story() -> None:
        async with serving() as server:
            server.stranger().sock.close()
            assert "left before it proved the token" in await server.refused_why()

    run(story())


def test_only_so_many_strangers_at_once() -> None:
    async def story() -> None:
        async with serving() as server:
            crowd = [server.stranger() for _ in range(tcp.STRANGERS_MAX)]
            challenges = [await stranger.payload() for stranger in crowd]
            await _find_the_door_full(server)
            await crowd[0].prove(challenges[0])  # whoever proves the token leaves the crowd
            await server.client()
            crowd.append(server.stranger())
            await crowd[-1].payload()
            await _find_the_door_full(server)
            crowd[1].sock.close()  # and so does whoever gives up
            assert "left before" in await server.refused_why()
            await server.client()

    run(story())


def test_a_flood_at_a_full_door_is_noted_once_and_those_inside_are_heard() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            crowd = [server.stranger() for _ in range(tcp.STRANGERS_MAX)]
            for stranger in crowd:
                await stranger.payload()
            flood = [server.stranger() for _ in range(300)]
            for stranger in flood:
                await stranger.wait_closed()
            await ours.send(Thanks())
            assert await theirs.receive() == Thanks()
            assert "64 others are at the door" in await server.refused_why()
            crowd[0].sock.close()
            assert "left before" in await server.refused_why()

    run(story())


@pytest.mark.parametrize(("data", "why"), [(frame(b"\xc1"), "garbled"), (b"\xff\xff\xff\xff", "oversized")])
def test_a_violation_the_handler_lets_pass_is_refused_by_name(data: bytes, why: str) -> None:
    async def story() -> None:
        async def handler(connection: Connection) -> None:
            await connection.receive()

        async with serving(handler) as server:
            stranger = server.stranger()
            await stranger.prove()
            await stranger.say(data)
            peer, told = await server.refusals.get()
            assert peer.startswith("stranger (127.0.0.1:")
            assert why in told
            await stranger.wait_closed()
            assert (await server.client()).name == "r0.1"

    run(story())


def test_a_proven_peer_that_just_leaves_is_not_refused() -> None:
    async def story() -> None:
        gone: asyncio.Queue[PeerError] = asyncio.Queue()

        async def handler(connection: Connection) -> None:
            try:
                await connection.receive()
            except PeerError as error:
                gone.put_nowait(error)
                raise

        async with serving(handler) as server:
            await (await server.client()).close()
            assert not isinstance(await gone.get(), Violation)
        assert server.refusals.empty()

    run(story())


def test_a_handler_that_fails_is_reported_and_the_listener_lives() -> None:
    async def story() -> None:
        reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.put_nowait(context))

        async def handler(connection: Connection) -> None:
            raise RuntimeError("a bug")

        async with serving(handler) as server:
            for name in ("r0.1", "r1.1"):
                client = await server.client(name)
                report = await reports.get()
                assert f"the handler of {name}" in report["message"]
                assert str(report["exception"]) == "a bug"
                with pytest.raises(PeerError):
                    await client.receive()

    run(story())


def test_nobody_there_is_a_peer_error() -> None:
    async def story() -> None:
        async with serving() as server:
            endpoint = server.endpoint
        with pytest.raises(PeerError, match=f"cannot reach {endpoint}: Connection refused"):
            await connect(endpoint, TOKEN, "r0.1", timeout_s=10)

    run(story())


def test_a_server_that_says_nothing_is_a_peer_error_in_time() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            endpoint = Endpoint("127.0.0.1", mute.getsockname()[1])
            with pytest.raises(PeerError, match=f"{endpoint} did not answer within 0.05 s"):
                await connect(endpoint, TOKEN, "r0.1", timeout_s=0.05)

    run(story())


def test_a_server_of_something_else_is_a_peer_error() -> None:
    async def story() -> None:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail ready\r\n")
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            with pytest.raises(PeerError, match="does not speak as a Regrow process does"):
                await connect(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]), TOKEN, "r0.1", timeout_s=10)

    run(story())


def test_a_taken_port_names_it_and_the_flag() -> None:
    async def story() -> None:
        async with serving() as server:
            with pytest.raises(ConfigError, match=rf"cannot listen on {server.endpoint}: Address already in use; .*--port"):
                await listen("127.0.0.1", server.endpoint.port, TOKEN, lambda _: asyncio.sleep(0), lambda *_: None)

    run(story())


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_of_another_machine_says_what_to_do(host: str) -> None:
    async def story() -> None:
        with pytest.raises(ConfigError, match=f"cannot listen on {host}:0: .*; name an address of this machine"):
            await listen(host, 0, TOKEN, lambda _: asyncio.sleep(0), lambda *_: None)
        with pytest.raises(PeerError):
            await connect(Endpoint("no such host", 80), TOKEN, "r0.1", timeout_s=10)

    run(story())


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_that_does_not_exist_is_not_silently_another(port: int) -> None:
    async def story() -> None:
        with pytest.raises(ConfigError, match=f"there is no port {port}: choose one from 0 to 65535 with --port"):
            await listen("127.0.0.1", port, TOKEN, lambda _: asyncio.sleep(0), lambda *_: None)
        with pytest.raises(ConfigError, match=f"there is no port {port}"):
            await connect(Endpoint("127.0.0.1", port), TOKEN, "r0.1", timeout_s=10)

    run(story())


def test_closing_a_listener_ends_its_handlers_and_frees_the_port() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, _ = await server.pair()
            await server.listener.close()
            with pytest.raises(PeerError):
                await ours.receive()
            again = await listen("127.0.0.1", server.endpoint.port, TOKEN, lambda _: asyncio.sleep(0), lambda *_: None)
            await again.close()

    run(story())


def test_a_forked_child_keeps_no_connection_open() -> None:
    async def story() -> None:
        async with serving() as server:
            ours, theirs = await server.pair()
            ready, hold = os.pipe(), os.pipe()
            child = os.fork()
            if child == 0:
                os.close(hold[1])
                os.write(ready[1], b"x")
                os.read(hold[0], 1)  # until the parent lets go
                os._exit(0)
            os.read(ready[0], 1)
            await ours.close()
            with pytest.raises(PeerError):
                await theirs.receive()
            os.close(hold[1])
            os.waitpid(child, 0)
            for fd in (*ready, hold[0]):
                os.close(fd)

    run(story())


async def _find_the_door_full(server: Server) -> None:
    with pytest.raises(PeerError):
        await server.client()
    assert "64 others are at the door" in await server.refused_why()


async def _turns_during(work: Awaitable[None]) -> int:
    """How often another task ran until the work was done."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    await work
    counting.cancel()
    return turns


async def _until_waiting(task: "asyncio.Task[Any]") -> None:
    """Until the task has run as far as it can without the loop polling its sockets."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()


def _texts(error: BaseException | None) -> list[str]:
    texts = []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return texts
