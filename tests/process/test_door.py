"""Strangers, liars and noise at the doors of a running job: turned away, written down, and of no effect."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest
from runs import Run, wait_for
from test_ends import ENDLESS, prove_stopped, under_way

from regrow.coordinator.store import load
from regrow.core.errors import ConfigError, PeerError
from regrow.core.messages import Ask, Beat, Contract, Hello, Join, Left, Meet, Message, Push, Raised
from regrow.core.records import JobEnded, Refused, WorkerExited
from regrow.core.roster import NO_VERSION, Endpoint, Member, Version
from regrow.wire.codec import encode
from regrow.wire.framing import frame
from regrow.wire.tcp import connect

pytestmark = pytest.mark.process

R0, R1 = Member("r0", 0), Member("r1", 0)
STRANGER = Member("r9", 0)


def coordinator_of(run: Run) -> Endpoint:
    (pid,) = {pid for pid, command in run.processes().items() if "regrow run" in command}
    (port,) = run.listening([pid]).values()
    return Endpoint("127.0.0.1", port)


def worker_of(run: Run, name: str) -> Endpoint:
    saved = load(run.folder)
    assert saved is not None and saved.roster is not None
    return next(seat.endpoint for seat in saved.roster.seats if str(seat.member) == name)


def refusals(run: Run, who: str) -> list[str]:
    return [fact.why for _, fact in run.facts(Refused, who)]


def raw(endpoint: Endpoint, data: bytes) -> None:
    """Speak without the handshake, and listen until turned away."""
    with socket.create_connection((endpoint.host, endpoint.port), timeout=10) as stranger:
        stranger.sendall(data)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):
                pass


def say(endpoint: Endpoint, token: str, name: str, *messages: Message, then: bytes = b"") -> None:
    """Pass the door under this name, say this, and listen until turned away."""

    async def speak() -> None:
        connection = await connect(endpoint, token, name, 10.0)
        with contextlib.suppress(PeerError):
            for message in messages:
                await connection.send(message)
            if then:
                await connection.send_raw(memoryview(then))
            async with asyncio.timeout(10):
                while True:
                    await connection.receive()

    asyncio.run(speak())


def raised(member: Member) -> Raised:
    """The word that ends a job, from those who may say it."""
    return Raised(member=member, kind="Lie", place="", traceback="", step=0, lane=None, scope="job")


def joins(member: Member) -> Join:
    return Join(
        member=member,
        endpoint=Endpoint("127.0.0.1", 1),
        contract=Contract(terms={}),
        lanes=6,
        seen=NO_VERSION,
        entered=NO_VERSION,
        step=0,
    )


def knock(run: Run, endpoint: Endpoint, who: str, token: str) -> None:
    """Whatever a process without the token may try at a door."""
    hello = Hello(protocol=99, name="r0.0", nonce=bytes(32), proof=bytes(32))
    tries: list[tuple[str, Callable[[], Any]]] = [
        ("left before it proved the token", lambda: socket.create_connection((endpoint.host, endpoint.port)).close()),
        ("garbled", lambda: raw(endpoint, frame(b"\xff" * 100))),
        ("oversized: a frame of 1195725856 bytes", lambda: raw(endpoint, b"GET / HTTP/1.1\r\n\r\n")),
        ("garbled: a Beat where a Hello belongs", lambda: raw(endpoint, frame(encode(Beat(member=R0))))),
        ("speaks protocol 99, this job speaks", lambda: raw(endpoint, frame(encode(hello)))),
        ("does not know this job's token", lambda: say(endpoint, secrets.token_hex(32), "r0.0")),
        ("oversized: a frame of 17825792 bytes", lambda: say(endpoint, token, "r1.0", then=(17 << 20).to_bytes(4, "big"))),
    ]
    for words, attempt in tries:
        with contextlib.suppress(ConfigError):
            attempt()
        wait_for(lambda words=words: any(words in why for why in refusals(run, who)), f"{who} to note: {words}", 20.0)


def test_strangers_and_liars_are_refused_noted_and_of_no_effect(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "2", script_args=ENDLESS)
    under_way(run)
    token = (run.folder / "token").read_text()
    coordinator, worker = coordinator_of(run), worker_of(run, "r0.0")
    knock(run, coordinator, "coordinator", token)
    knock(run, worker, "r0.0", token)

    lies: list[tuple[str, str, Endpoint, str, tuple[Message, ...]]] = [
        ("coordinator", "'nobody' is no member's name", coordinator, "nobody", ()),
        ("coordinator", "r9.0 was never started", coordinator, "r9.0", (raised(STRANGER),)),
        ("coordinator", "r0.1 was never started", coordinator, "r0.1", (joins(Member("r0", 1)),)),
        ("coordinator", "spoke in the name of r0.0", coordinator, "r1.0", (raised(R0),)),
        ("coordinator", "Push is not for a coordinator", coordinator, "r1.0", (Push(roster=load(run.folder).roster),)),
        ("r0.0", "sent Left", worker, "r1.0", (Left(member=R0, version=Version(1, 1), step=3),)),
        ("r0.0", "spoke in the name of r0.0", worker, "r1.0", (Ask(member=R0, version=Version(1, 1), step=3),)),
        ("r0.0", "spoke in the name of r0.0", worker, "r1.0", (Meet(member=R0, version=Version(1, 1)),)),
        ("r0.0", "roster 0.1 is over", worker, "r1.0", (Meet(member=R1, version=Version(0, 1)),)),
    ]
    for who, words, endpoint, name, messages in lies:

        def is_noted(who: str = who, words: str = words) -> bool:
            return any(words in why for why in refusals(run, who))

        def lie(end: Endpoint = endpoint, name: str = name, messages: tuple[Message, ...] = messages) -> None:
            """The member whose name is used comes back to its place, perhaps before a word of this was heard."""
            say(end, token, name, *messages)

        wait_for(lambda is_noted=is_noted, lie=lie: lie() or is_noted(), f"{who} to note: {words}", 60.0)
    assert not run.facts(JobEnded) and not run.facts(WorkerExited), run.story()

    # Half-open: as many as the door takes and more, at both doors, while a replica dies and its joiner must come through.
    crowd = [socket.create_connection((end.host, end.port)) for end in (coordinator, worker) for _ in range(100)]
    os.kill(run.pids()["r1.0"], signal.SIGKILL)
    wait_for(lambda: run.committed("r1.1") >= 2, "the joiner to come through the crowd")
    for stranger in crowd:
        stranger.close()
    say(coordinator, token, "r1.0", raised(Member("r1", 0)))
    wait_for(
        lambda: any("r1.0 is dead" in why for why in refusals(run, "coordinator")), "a dead member's name to be refused"
    )
    for who in ("coordinator", "r0.0"):
        assert sum("did not prove the token within" in why for why in refusals(run, who)) >= 30, refusals(run, who)
        assert any("others are at the door" in why for why in refusals(run, who))

    assert not [command for command in run.processes().values() if token in command], "ps shows the token"
    run.process.terminate()
    assert run.wait() == 143, run.story()
    prove_stopped(run, digests, {"r0.0", "r1.1"})
    died = [str(fact.member) for _, fact in run.facts(WorkerExited) if not fact.clean]
    assert died == ["r1.0"], run.story()
    kept = [path for path in run.folder.rglob("*") if path.is_file() and path.name != "token"]
    assert not [path for path in kept if token in path.read_text()]
    assert token not in run.output
