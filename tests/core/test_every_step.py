"""Every-step jobs: what a member writes ahead, what a founder replays, and when the coordinator has the logs read."""

import msgspec
from test_attendance import DIGEST, V1, V2, A, B, Story, roster, stated
from test_foundings import AGAIN, KEEPS, ORIGIN, SAVED_WITH, Office, founded, founding, seeks
from test_membership import A as R0
from test_membership import B as R1
from test_membership import C as R2
from test_membership import ends, join, rosters

from regrow.core.ahead import Result
from regrow.core.attendance import Attendance, Task
from regrow.core.effects import Adopt, Bound, Commit, Effect, Exchange, Leave, Load, Log, Recall, Replay, Tell
from regrow.core.events import (
    Broken,
    Exchanged,
    Formed,
    LaneDone,
    ListenTold,
    Recalled,
    Reduced,
    Reread,
    RosterPushed,
    SnapshotsTaken,
    StepEntered,
    StopAsked,
)
from regrow.core.lanes import Node
from regrow.core.listener import Heard, Listener, Record
from regrow.core.membership_effects import MembershipEffect
from regrow.core.messages import Entered
from regrow.core.origin import BEGINNING, Origin
from regrow.core.roster import Member, Version

HOLDINGS = ((Node(0, 2),), (Node(2, 4),))
RECORD = Record(step=0, attempt=V1, digest=DIGEST, holdings=HOLDINGS, last=2)


def logged(*indices: int, stop: bool = False, record: Record = RECORD) -> Log:
    return Log(record=record, stop=stop, indices=indices, count=2)


def logs(effects: list[Effect]) -> list[Log]:
    return [effect for effect in effects if isinstance(effect, Log)]


class Diary(Story):
    """A member of an every-step job."""

    def __init__(self, me: Member = A, steps: int = 2) -> None:
        super().__init__(me, steps)
        self.member = Attendance(me, lanes=4, steps=steps, saves=(), logs=True)


# L1: written ahead


def test_its_part_is_logged_before_its_row() -> None:
    log, bound = Diary().reduced().last
    assert log == logged(0)
    assert isinstance(bound, Bound)


def test_the_part_says_that_its_member_wishes_to_stop() -> None:
    story = Diary().seated()
    story.hears(StopAsked(), LaneDone(lane=0), LaneDone(lane=1), Reduced(version=V1, digest=DIGEST))
    log, bound = story.last
    assert log == logged(0, stop=True)
    assert isinstance(bound, Bound) and bound.row.stop


def test_another_job_logs_nothing() -> None:
    assert logs(Story().reduced().last) == []


def test_a_result_that_came_with_a_newer_roster_is_logged_before_it_is_stated() -> None:
    story = Diary().seated().hears
    story(LaneDone(lane=0), LaneDone(lane=1), RosterPushed(roster=roster(V2, A)))
    assert story(Reduced(version=V1, digest=DIGEST)) == []
    log, exchange = story(Formed(version=V2))
    assert log == logged(0)
    assert isinstance(exchange, Exchange) and exchange.statement.complete


def test_what_is_logged_is_not_logged_again() -> None:
    story = Diary().reduced()
    story.hears(RosterPushed(roster=roster(V2, A)), Broken(version=V1, why="B is gone"))
    assert [type(effect) for effect in story.hears(Formed(version=V2))] == [Exchange]


def test_the_next_attempt_is_logged_anew() -> None:
    story = Diary().reduced()
    story.hears(RosterPushed(roster=roster(V2, A, B)), Broken(version=V1, why="reset"), Formed(version=V2))
    ours = stated(A, attempt=V1, complete=True, digest=DIGEST, held=(Node(0, 2),))
    story.hears(Exchanged(version=V2, table=(ours, stated(B, attempt=V1, held=(Node(2, 4),)))))
    log, _ = story.hears(Reduced(version=V2, digest=DIGEST))
    assert log == logged(0, record=msgspec.structs.replace(RECORD, attempt=V2))


# L2: for the absent


def test_whoever_commits_without_the_others_logs_their_parts_first() -> None:
    story = Diary().reduced()
    story.hears(RosterPushed(roster=roster(V2, A)), Broken(version=V1, why="B is gone"))
    (exchange,) = story.hears(Formed(version=V2))
    assert isinstance(exchange, Exchange)
    adopt, log, commit = story.hears(Exchanged(version=V2, table=(exchange.statement,)))
    assert isinstance(adopt, Adopt) and log == logged(1)
    assert isinstance(commit, Commit) and commit.by == "resolve"


def test_what_another_has_passed_lacks_nothing() -> None:
    story = Diary().reduced()
    story.hears(RosterPushed(roster=roster(V2, A, B)), Broken(version=V1, why="reset"))
    (exchange,) = story.hears(Formed(version=V2))
    assert isinstance(exchange, Exchange)
    effects = story.hears(Exchanged(version=V2, table=(exchange.statement, stated(B, 1))))
    assert [type(effect) for effect in effects] == [Adopt, Commit]


def test_what_the_others_hold_lacks_nothing() -> None:
    story = Diary().reduced()
    story.hears(RosterPushed(roster=roster(V2, A, B)), Broken(version=V1, why="reset"))
    (exchange,) = story.hears(Formed(version=V2))
    assert isinstance(exchange, Exchange)
    other = msgspec.structs.replace(exchange.statement, member=B, held=())
    effects = story.hears(Exchanged(version=V2, table=(exchange.statement, other)))
    assert [type(effect) for effect in effects] == [Adopt, Commit]


def test_a_result_knows_the_members_of_its_attempt() -> None:
    story = Diary().reduced()
    result = story.member.result
    assert isinstance(result, Result) and result.members == (A, B)


# L5: a founder replays

AGAIN_1, AGAIN_2 = Version(2, 1), Version(2, 2)
LOGGED = msgspec.structs.replace(ORIGIN, records=2)


def reread(step: int, last: int = 9) -> Reread:
    record = Record(step=step, attempt=V1, digest=DIGEST, holdings=HOLDINGS, last=last)
    return Reread(heard=Heard(record=record, gradient=f"gradient {step}"))


class Founder(Diary):
    def __init__(self, origin: Origin = LOGGED) -> None:
        super().__init__(steps=9)
        self.origin = origin
        self.hears(StepEntered(), RosterPushed(roster=founding(AGAIN_1, A, B, origin=origin)), Formed(version=AGAIN_1))


def test_a_founder_replays_what_was_committed_and_only_then_holds_the_state() -> None:
    founder = Founder()
    assert founder.last == [Recall(version=AGAIN_1, origin=LOGGED)]
    for step in (4, 5):
        assert founder.hears(Recalled(version=AGAIN_1) if step == 4 else StepEntered()) == [Replay(step=step)]
        assert not founder.member.holds_state and founder.member.is_replaying
        (commit,) = founder.hears(reread(step))
        assert isinstance(commit, Commit) and (commit.step, commit.by, commit.gradient) == (
            step,
            "record",
            f"gradient {step}",
        )
    assert founder.hears(StepEntered()) == [Exchange(version=AGAIN_1, statement=stated(A, 6, last=9))]
    table = (stated(A, 6, last=9), stated(B, 6, last=9))
    _, entered, _ = founder.hears(Exchanged(version=AGAIN_1, table=table))
    assert entered == Tell(message=Entered(member=A, version=AGAIN_1, step=6))


def test_a_newer_roster_does_not_interrupt_a_replay() -> None:
    founder = Founder()
    founder.hears(Recalled(version=AGAIN_1), RosterPushed(roster=founding(AGAIN_2, A, origin=LOGGED)))
    assert founder.hears(Formed(version=AGAIN_2)) == []
    founder.hears(reread(4))
    assert founder.hears(StepEntered()) == [Replay(step=5)]
    founder.hears(reread(5))
    assert founder.hears(StepEntered()) == [Exchange(version=AGAIN_2, statement=stated(A, 6, last=9))]


def test_it_replays_while_no_group_stands() -> None:
    founder = Founder()
    founder.hears(RosterPushed(roster=founding(AGAIN_2, A, origin=LOGGED)))
    assert founder.hears(Recalled(version=AGAIN_1)) == [Replay(step=4)]


def test_one_that_is_left_out_while_it_replays_is_gone() -> None:
    founder = Founder()
    founder.hears(Recalled(version=AGAIN_1))
    assert isinstance(founder.hears(RosterPushed(roster=founding(AGAIN_2, B, origin=LOGGED)))[-1], Leave)
    assert founder.hears(reread(4)) == []
    assert founder.member.task is Task.GONE and not founder.member.holds_state


def test_a_job_that_was_to_end_there_ends_there() -> None:
    founder = Founder()
    founder.hears(Recalled(version=AGAIN_1), reread(4, last=6), StepEntered(), reread(5, last=6))
    founder.hears(StepEntered())
    table = (stated(A, 6, last=6), stated(B, 6, last=6))
    assert founder.last == [Exchange(version=AGAIN_1, statement=table[0])]
    bound = founder.hears(Exchanged(version=AGAIN_1, table=table))[-1]
    assert isinstance(bound, Bound) and bound.farewell


# L7: from the job's own beginning

FIRST = Origin(step=0, root="root", where=BEGINNING, records=1)


def test_a_founder_that_was_never_told_to_load_anything_begins_with_what_it_built() -> None:
    founder = Founder(FIRST)
    assert founder.last == [Recall(version=AGAIN_1, origin=FIRST)]
    assert founder.hears(Recalled(version=AGAIN_1)) == [Replay(step=0)]


def test_one_that_is_alone_with_the_beginning_has_no_copy_of_it() -> None:
    story = Diary(steps=9)
    first = msgspec.structs.replace(FIRST, records=0)
    alone = msgspec.structs.replace(founding(AGAIN_1, A, origin=first), floor=0)
    story.hears(StepEntered(), RosterPushed(roster=alone), Formed(version=AGAIN_1), Recalled(version=AGAIN_1))
    adopt, *_ = story.hears(Exchanged(version=AGAIN_1, table=(stated(A, 0, last=9),)))
    assert isinstance(adopt, Adopt) and adopt.is_guarded


def test_one_that_has_loaded_another_state_leaves_and_is_started_anew() -> None:
    story = Diary(Member("r2", 1), steps=9)
    told = roster(V1, A, B)
    story.hears(StepEntered(), ListenTold(roster=told))
    listener = Listener(story.member.me, 1)
    assert isinstance(story.hears(SnapshotsTaken(listener=listener, step=3))[0], Load)
    seats = founding(AGAIN_1, story.member.me, origin=FIRST)
    story.hears(RosterPushed(roster=seats), Formed(version=AGAIN_1))
    (leave,) = story.hears(Broken(version=V1, why="the donors are gone"))[-1:]
    assert isinstance(leave, Leave) and leave.fault == "spent"


# The coordinator

LOGS = msgspec.structs.replace(KEEPS, logs=True)


def lost(office: Office) -> list[MembershipEffect]:
    return [effect for member in (R0, R1, R2) for effect in office.sees_dead(member)]


def test_it_goes_on_behind_the_records() -> None:
    office = Office(config=LOGS)
    office.founded()
    assert seeks(lost(office)) == [*seeks(office.all)] != []
    office.joined()
    effects = office.answered(2, LOGGED, **SAVED_WITH)
    (made,) = rosters(effects)
    assert (made.floor, made.origin) == (6, LOGGED)
    assert (founded(effects).reached, founded(effects).origin) == (6, LOGGED)


def test_the_logs_are_read_once_all_who_were_given_up_are_dead() -> None:
    """One that was evicted and lives on may commit another step, into logs that were read before."""
    office = Office(config=LOGS)
    office.founded()
    office.sees_hung(R0)
    office.sees_dead(R1)
    office.sees_dead(R2)
    assert office.machine.roster is None and seeks(office.all) == []
    assert seeks(office.sees_dead(R0)) != []


def test_a_successor_waits_for_the_same() -> None:
    office = Office(config=LOGS)
    office.founded()
    office.sees_hung(R0)
    office.sees_dead(R1)
    office.sees_dead(R2)
    office = office.restarted()
    assert seeks(office.opening) == []
    assert [seek.number for seek in seeks(office.sees_dead(R0))] == [3]
    assert seeks(office.joined()) == [], "asked once is enough"


def test_without_logs_nobody_waits_to_seek() -> None:
    office = Office()
    office.founded()
    office.sees_hung(R0)
    office.sees_dead(R1)
    assert seeks(office.sees_dead(R2)) != []


def test_it_does_not_begin_again_and_forget_what_it_committed() -> None:
    office = Office(config=LOGS)
    office.founded()
    office.hears(Entered(member=R0, version=office.machine.version, step=2))
    lost(office)
    effects = office.answered(2, FIRST)
    assert ends(effects) == ["state-lost"] and "the first 1 steps, the job had committed 2" in str(effects[-1])


def test_it_begins_again_with_all_that_it_committed() -> None:
    office = Office(config=LOGS)
    office.founded()
    office.hears(Entered(member=R0, version=office.machine.version, step=1))
    lost(office)
    office.hears(*map(join, AGAIN))
    (made,) = rosters(office.answered(2, FIRST))
    assert (made.floor, made.origin) == (1, FIRST)
