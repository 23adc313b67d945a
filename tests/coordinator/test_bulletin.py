"""Rosters as changes, from a coordinator to members, over real connections."""

import asyncio
from pathlib import Path

from room import R0, R1, Room, exited, pushed, run

from regrow.core.change import Misfit, apply
from regrow.core.messages import Amend, Missed, Push
from regrow.core.roster import Member, Roster, Version
from regrow.wire.tcp import Connection

R2 = Member("r2", 0)


async def amended(connection: Connection) -> Amend:
    message = await connection.receive()
    assert isinstance(message, Amend), message
    return message


def test_a_change_is_told_to_those_who_hold_the_roster_before_and_the_whole_to_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path, replicas=3)
        await room.open()
        first, second, third = [await room.member(member) for member in (R0, R1, R2)]
        founded = (await pushed(first)).roster
        assert await pushed(second) == await pushed(third) == Push(roster=founded)
        await third.close()
        room.server.report(exited(R2, "killed by SIGKILL", clean=False))
        told = await amended(first)
        assert await amended(second) == told
        roster = apply(founded, told.change)
        assert isinstance(roster, Roster) and roster.members == (R0, R1)
        back = await room.member(R1)  # it says that it has seen none
        assert await back.receive() == Push(roster=roster)
        await room.close()

    run(story())


def test_a_member_that_missed_a_change_asks_for_the_whole_roster(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path, replicas=3)
        await room.open()
        first, _, _ = [await room.member(member) for member in (R0, R1, R2)]
        founded = (await pushed(first)).roster
        room.server.report(exited(R2, "killed by SIGKILL", clean=False))
        await amended(first)  # which it loses, as if it had never come
        room.server.report(exited(R1, "killed by SIGKILL", clean=False))
        told = await amended(first)
        misfit = apply(founded, told.change)
        assert isinstance(misfit, Misfit)
        await first.send(Missed(member=R0, why=misfit.why))
        whole = await first.receive()
        assert isinstance(whole, Push) and whole.roster.members == (R0,)
        assert whole.roster.version == told.change.version
        await room.close()

    run(story())


def test_after_a_restart_whoever_holds_the_saved_roster_is_told_that_nothing_changed(tmp_path: Path) -> None:
    async def story() -> None:
        before = Room(tmp_path, replicas=2)
        await before.open()
        first, _ = await before.member(R0), await before.member(R1)
        founded = (await pushed(first)).roster
        await before.close()

        room = Room(tmp_path, replicas=2)
        await room.open()
        first, second = await room.member(R0, seen=founded.version), await room.member(R1, seen=Version(1, 99))
        told = (await amended(first)).change
        assert (told.gone, told.come) == ((), ())
        assert apply(founded, told) == founded
        assert await second.receive() == Push(roster=founded)
        room.server.report(exited(R1, "killed by SIGKILL", clean=False))
        told = (await amended(first)).change
        assert told.since == founded.version and told.version.term > founded.version.term
        roster = apply(founded, told)
        assert isinstance(roster, Roster) and roster.members == (R0,)
        await room.close()

    run(story())


def test_a_restart_between_two_changes_leads_to_the_whole_roster(tmp_path: Path) -> None:
    """The coordinator saved a roster and died before it told anybody: nobody holds the one it knows."""

    async def story() -> None:
        before = Room(tmp_path, replicas=3)
        await before.open()
        first, second, third = [await before.member(member) for member in (R0, R1, R2)]
        founded = (await pushed(first)).roster
        first.abort()
        second.abort()
        before.server.report(exited(R2, "killed by SIGKILL", clean=False))
        await third.close()
        while len(before.notices) < 2:
            await asyncio.sleep(0)
        await before.close()

        room = Room(tmp_path, replicas=3)
        await room.open()
        first = await room.member(R0, seen=founded.version)
        whole = await first.receive()
        assert isinstance(whole, Push) and whole.roster.members == (R0, R1)
        assert whole.roster.version == Version(1, 2)
        await room.close()

    run(story())
