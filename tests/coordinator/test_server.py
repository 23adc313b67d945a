"""The coordinator's server over real connections."""

import asyncio
from pathlib import Path

import pytest
from room import DEADLINE_S, R0, R1, TOKEN, Room, exited, pushed, run

from regrow.coordinator.store import load
from regrow.core.errors import InfraError, PeerError
from regrow.core.membership_effects import End
from regrow.core.messages import Beat, Ending, Entered, Left, Raised, Stop, StopWanted
from regrow.core.records import JobEnded, Refused, RosterMade, WorkerRaised
from regrow.core.roster import Member
from regrow.wire.tcp import connect


def raised(member: Member, scope: str = "step") -> Raised:
    return Raised(member=member, kind="ValueError", place="train.py:3", traceback="Tr", step=1, lane=None, scope=scope)


@pytest.mark.parametrize(("term", "steps"), [("12", 12), ("many", None), ("9" * 5000, None)])
def test_a_rosters_fact_says_how_many_steps_the_job_has(tmp_path: Path, term: str, steps: int | None) -> None:
    async def story() -> None:
        room = Room(tmp_path)
        await room.open()
        first, _ = await room.member(R0, steps=term), await room.member(R1, steps=term)
        await pushed(first)
        assert [made.steps for made in room.facts(RosterMade)] == [steps]
        await room.server.close()

    run(story())


def test_the_operator_is_told_which_lines_are_routine(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path, max_restarts=0)
        await room.open()
        first, _ = await room.member(R0), await room.member(R1)
        await pushed(first)
        room.server.report(exited(R1, "killed by SIGKILL", clean=False))
        await pushed(first)
        assert [(text.split()[0], is_routine) for text, is_routine in room.notices] == [
            ("roster", True),
            ("roster", True),
            ("the", False),
        ]
        assert room.notices[-1][0].startswith("the job goes on without r1: ")
        await room.server.close()

    run(story())


def test_members_are_started_seated_and_their_roster_is_durable_before_they_hear_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path)
        await room.open()
        assert room.actuator.started == [(R0, 0.0), (R1, 0.0)]
        first, second = await room.member(R0), await room.member(R1)
        push = await pushed(first)
        saved = load(tmp_path)
        assert saved is not None and saved.roster == push.roster
        assert push.roster.members == (R0, R1)
        assert await pushed(second) == push
        assert [made.version for made in room.facts(RosterMade)] == [push.roster.version]
        await room.server.close()

    run(story())


def test_a_death_is_answered_with_a_roster_and_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path)
        await room.open()
        first, second = await room.member(R0), await room.member(R1)
        await pushed(first)
        await second.close()
        room.server.report(exited(R1, "killed by SIGKILL", False))
        assert (await pushed(first)).roster.members == (R0,)
        assert room.actuator.started[-1] == (Member("r1", 1), 0.0)
        await room.server.close()

    run(story())


def test_what_a_worker_said_before_it_died_is_heard_first(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path, replicas=1)
        await room.open()
        only = await connect(room.endpoint, TOKEN, "r0.0", DEADLINE_S)
        await only.send(raised(R0))
        await only.close()
        room.server.report(exited(R0, "exited with code 1", False))  # before the loop has read a byte of it
        end = await room.server.ended
        assert (end.outcome, end.first) == ("failed", raised(R0))
        assert room.actuator.started == [(R0, 0.0)]
        assert [fact.kind for fact in room.facts(WorkerRaised)] == ["ValueError"]
        await room.server.close()

    run(story())


def test_speaking_in_anothers_name_is_refused_and_recorded(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path)
        await room.open()
        liar = await connect(room.endpoint, TOKEN, "r0.0", DEADLINE_S)
        await liar.send(Beat(member=R1))
        with pytest.raises(PeerError):
            await liar.receive()
        stray = await connect(room.endpoint, TOKEN, "r1.0", DEADLINE_S)
        await stray.send(Stop())
        with pytest.raises(PeerError):
            await stray.receive()
        nobody = await connect(room.endpoint, TOKEN, "somebody", DEADLINE_S)
        with pytest.raises(PeerError):
            await nobody.receive()
        whys = [fact.why for fact in room.facts(Refused)]
        assert whys == [
            "spoke in the name of r1.0",
            "Stop is not for a coordinator",
            "'somebody' is no member's name",
        ]
        await room.server.close()

    run(story())


def test_a_member_that_comes_back_is_told_the_newest_roster_on_its_new_line(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path)
        await room.open()
        first, _ = await room.member(R0), await room.member(R1)
        push = await pushed(first)
        again = await room.member(R0)
        assert await pushed(again) == push
        await again.send(Entered(member=R0, version=push.roster.version, step=0))
        room.server.report(StopWanted())
        assert await again.receive() == Stop()
        await room.server.close()

    run(story())


def test_the_end_is_journalled_once(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path, replicas=1)
        await room.open()
        only = await room.member(R0)
        version = (await pushed(only)).roster.version
        await only.send(Ending(member=R0, step=5))
        await only.send(Left(member=R0, version=version, step=5))
        await only.close()
        room.server.report(exited(R0, "exited with code 0", True))
        assert (await room.server.ended).outcome == "finished"
        room.server.end(End(outcome="stopped", why="too late"))
        assert room.facts(JobEnded) == [JobEnded(outcome="finished", why="every member has left")]
        await room.server.close()

    run(story())


def test_a_roster_that_cannot_be_saved_waits_until_it_can(tmp_path: Path) -> None:
    async def story() -> None:
        folder, aside = tmp_path / "run", tmp_path / "aside"
        folder.mkdir()
        room = Room(folder, replicas=1)
        await room.open()
        folder.rename(aside)  # as good as a full disk: every save fails
        only = await room.member(R0)
        while not room.warnings:
            await asyncio.sleep(0)
        assert not room.notices, "a roster was announced that is not durable"
        aside.rename(folder)
        push = await pushed(only)
        saved = load(folder)
        assert saved is not None and saved.roster == push.roster
        assert len(room.warnings) == 2  # the trouble and its end, not one line per try
        await room.server.close()

    run(story())


def test_a_taken_port_is_the_machines_refusal(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        room, other = Room(tmp_path / "a"), Room(tmp_path / "b")
        await room.open()
        with pytest.raises(InfraError, match="choose another port with --port"):
            await other.server.listen("127.0.0.1", room.endpoint.port, TOKEN)
        await room.server.close()

    run(story())
