"""A joiner that listens, and the members that feed it and go on with it: events in, effects equal."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_attendance import DIGEST, V1, V2, V3, A, B, J, Story, roster, row, stated

from regrow.core.attendance import Attendance, Task
from regrow.core.boundary import Row
from regrow.core.effects import Abort, Adopt, Bound, Commit, Compute, Form, Hear, Hush, Leave, Load, Snap, Tell
from regrow.core.errors import PeerError
from regrow.core.events import (
    Bounded,
    Broken,
    Event,
    Exchanged,
    Formed,
    Housed,
    LaneDone,
    ListenerCame,
    ListenerGone,
    ListenTold,
    Loaded,
    LoadFailed,
    Overran,
    ParkTold,
    Recorded,
    Reduced,
    RosterPushed,
    SnapshotsTaken,
    StepEntered,
    Unheard,
)
from regrow.core.hearing import Begun, Hearing
from regrow.core.lanes import Node
from regrow.core.listener import Feed, Heard, Lane, Listener, Record
from regrow.core.messages import CaughtUp, Complain, Entered, Overflowed, Released
from regrow.core.roster import Member, Roster, Version
from regrow.core.saves import Urgency

FIRST = Listener(J, 1)
C = Member("r3", 0)
HOLDINGS = ((Node(0, 2),), (Node(2, 4),))


def planned(*members: Member) -> Roster:
    return msgspec.structs.replace(roster(V2, *members), base=V1)


def record(step: int, lane: Lane | None = None, switch: Version | None = None) -> Heard:
    said = Record(step=step, attempt=V1, digest=DIGEST, holdings=HOLDINGS, last=9, switch=switch, lane=lane)
    return Heard(record=said, gradient=f"gradient {step}")


class Joiner(Story):
    def __init__(self) -> None:
        super().__init__(J, steps=9)

    def listening(self) -> "Joiner":
        self.hears(StepEntered(), ListenTold(roster=roster(V1, A, B)))
        return self

    def loaded(self, step: int = 3) -> "Joiner":
        self.listening().hears(SnapshotsTaken(listener=FIRST, step=step), Loaded(listener=FIRST))
        return self

    def audited(self) -> "Joiner":
        """At step 4, and every record so far replayed."""
        lane = Lane(lane=2, digest=5)
        self.loaded().hears(Recorded(listener=FIRST, heard=record(3, lane)), LaneDone(lane=2, digest=5), StepEntered())
        return self


def rows(story: Story, **more: object) -> Event:
    said = tuple(Row(version=V1, step=story.member.step, digest=DIGEST, stop=False, **more) for _ in range(2))
    return Bounded(version=V1, rows=said)


# The joiner


def test_a_listener_loads_then_says_that_it_has_caught_up() -> None:
    joiner = Joiner()
    joiner.hears(StepEntered())
    told = roster(V1, A, B)
    assert joiner.hears(ListenTold(roster=told)) == [Hear(listener=FIRST, roster=told)]
    assert joiner.hears(SnapshotsTaken(listener=FIRST, step=3)) == [Load(listener=FIRST, step=3, donors=(A, B))]
    assert joiner.hears(Loaded(listener=FIRST)) == [Tell(message=CaughtUp(member=J, step=3))]


def test_with_one_record_to_go_it_can_be_counted_on_and_with_more_it_cannot() -> None:
    told = Tell(message=CaughtUp(member=J, step=3))
    audit = Compute(step=3, lane=2, digests=True, is_audit=True)
    first, second = record(3, Lane(lane=2, digest=5)), record(4)
    for records, effects in (((first,), [told, audit]), ((first, second), [audit])):
        joiner = Joiner().listening()
        joiner.hears(SnapshotsTaken(listener=FIRST, step=3), *(Recorded(listener=FIRST, heard=each) for each in records))
        assert joiner.hears(Loaded(listener=FIRST)) == effects


def test_it_computes_a_lane_again_inside_the_step_of_its_record() -> None:
    joiner = Joiner().loaded()
    heard = record(3, Lane(lane=2, digest=5))
    assert joiner.hears(Recorded(listener=FIRST, heard=heard)) == [Compute(step=3, lane=2, digests=True, is_audit=True)]
    (commit,) = joiner.hears(LaneDone(lane=2, digest=5))
    assert isinstance(commit, Commit) and commit.by == "record" and commit.gradient == "gradient 3"
    assert joiner.hears(StepEntered()) == []
    (commit,) = joiner.hears(Recorded(listener=FIRST, heard=record(4, Lane(lane=1, digest=6))))
    assert isinstance(commit, Commit) and commit.step == 4, "one audit is enough"


def test_who_computes_other_bits_is_not_let_in() -> None:
    joiner = Joiner().loaded()
    joiner.hears(Recorded(listener=FIRST, heard=record(3, Lane(lane=2, digest=5))))
    hush, leave = joiner.hears(LaneDone(lane=2, digest=6))
    assert hush == Hush() and isinstance(leave, Leave) and leave.fault == "refused" and "audit" in leave.why
    assert joiner.member.task is Task.GONE


def test_a_planned_roster_is_formed_after_the_audit_and_entered_by_a_record() -> None:
    joiner = Joiner().loaded()
    next_ = planned(A, B, J)
    assert joiner.hears(RosterPushed(roster=next_)) == []
    joiner.hears(Recorded(listener=FIRST, heard=record(3, Lane(lane=2, digest=5))))
    form, _ = joiner.hears(LaneDone(lane=2, digest=5))
    assert form == Form(roster=next_)
    joiner.hears(StepEntered(), Formed(version=V2))
    abort, adopt, hush, commit = joiner.hears(Recorded(listener=FIRST, heard=record(4, switch=V2)))
    assert (abort, hush) == (Abort(below=V1), Hush())
    assert isinstance(adopt, Adopt) and adopt.resolution.step == 5
    assert isinstance(commit, Commit) and commit.step == 4
    entered, compute = joiner.hears(StepEntered())
    assert entered == Tell(message=Entered(member=J, version=V2, step=5))
    assert isinstance(compute, Compute) and not compute.is_audit


def test_a_joiner_that_is_not_needed_listens_no_longer_until_it_is_told_again() -> None:
    joiner = Joiner().loaded()
    assert joiner.member.listens
    assert joiner.hears(ParkTold()) == [Tell(message=CaughtUp(member=J, step=None)), Hush()]
    assert not joiner.member.listens and joiner.hears(Unheard(listener=FIRST, why="")) == []
    (hear,) = joiner.hears(ListenTold(roster=roster(V1, A, B)))
    assert isinstance(hear, Hear) and hear.listener == Listener(J, 2)


def test_a_roster_that_counts_on_a_joiner_is_newer_than_what_parked_it() -> None:
    joiner = Joiner().loaded()
    joiner.hears(RosterPushed(roster=planned(A, B, J)))
    assert joiner.hears(ParkTold()) == [] and joiner.member.listens


def test_who_enters_by_a_record_has_the_wish_that_gave_way_to_its_roster() -> None:
    joiner = Joiner()
    joiner.member = Attendance(J, lanes=4, steps=9, saves=())
    joiner.audited().hears(RosterPushed(roster=planned(A, B, J)), Formed(version=V2))
    heard = record(4, switch=V2)
    wishing = msgspec.structs.replace(heard.record, save=Urgency.ASKED)
    joiner.hears(Recorded(listener=FIRST, heard=Heard(record=wishing, gradient=heard.gradient)), StepEntered())
    (bound,) = joiner.hears(LaneDone(lane=2), LaneDone(lane=3), Reduced(version=V2, digest=DIGEST))
    assert isinstance(bound, Bound) and bound.row.save is Urgency.ASKED


def test_an_audit_of_an_earlier_try_does_not_count() -> None:
    joiner = Joiner().loaded()
    joiner.hears(RosterPushed(roster=planned(A, B, J)), Recorded(listener=FIRST, heard=record(3, Lane(lane=2, digest=5))))
    told, hear = joiner.hears(Unheard(listener=FIRST, why=""))
    assert told == Tell(message=CaughtUp(member=J, step=None)) and isinstance(hear, Hear)
    (commit,) = joiner.hears(LaneDone(lane=2, digest=5))
    assert isinstance(commit, Commit), "the loop is inside that step, and nothing is formed"


def test_a_line_lost_after_the_audit_is_complained_of_when_a_roster_counts_on_the_joiner() -> None:
    joiner = Joiner().audited()
    joiner.hears(RosterPushed(roster=planned(A, B, J)))
    hush, tell = joiner.hears(Unheard(listener=FIRST, why=""))
    assert hush == Hush() and isinstance(tell, Tell) and isinstance(tell.message, Complain) and tell.message.version == V2
    assert joiner.hears(ListenTold(roster=roster(V1, A, B))) == [], "the answer is a newer roster"
    assert joiner.hears(RosterPushed(roster=planned(A, B, J))) == [tell], "and it is said again"


@pytest.mark.parametrize("event", [Unheard(listener=FIRST, why=""), LoadFailed(listener=FIRST, why="")])
def test_a_try_that_fails_is_begun_again(event: Event) -> None:
    joiner = Joiner().listening()
    joiner.hears(SnapshotsTaken(listener=FIRST, step=3))
    effects = joiner.hears(event)
    assert effects[-1:] == [Hear(listener=Listener(J, 2), roster=roster(V1, A, B))]


def test_who_is_cut_off_again_and_again_asks_the_others_to_wait() -> None:
    joiner = Joiner().listening()
    for attempt in (1, 2):
        joiner.hears(
            SnapshotsTaken(listener=Listener(J, attempt), step=3), LoadFailed(listener=Listener(J, attempt), why="")
        )
    joiner.hears(SnapshotsTaken(listener=Listener(J, 3), step=4))
    hush, tell = joiner.hears(LoadFailed(listener=Listener(J, 3), why="the donors differ"))
    assert (hush, tell) == (
        Hush(),
        Tell(message=Overflowed(member=J, why="3 tries in vain, the last because the donors differ")),
    )


def test_who_is_let_go_before_all_have_begun_asks_the_others_to_wait_as_well() -> None:
    joiner = Joiner().listening()
    for attempt in (1, 2):
        (hear,) = joiner.hears(Unheard(listener=Listener(J, attempt), why="", named=True))
        assert isinstance(hear, Hear)
    joiner.hears(Unheard(listener=Listener(J, 3), why="", named=False))
    (_, tell) = joiner.hears(Unheard(listener=Listener(J, 4), why="r1.0 was lost before all had begun", named=True))
    assert isinstance(tell, Tell) and isinstance(tell.message, Overflowed)


def test_who_was_cut_off_because_a_member_is_gone_has_been_none_too_slow() -> None:
    joiner = Joiner().listening()
    for attempt in (1, 2):
        listener = Listener(J, attempt)
        joiner.hears(SnapshotsTaken(listener=listener, step=3), LoadFailed(listener=listener, why=""))
    left = roster(V2, A)
    assert joiner.hears(ListenTold(roster=left)) == [Hear(listener=Listener(J, 4), roster=left)]
    joiner.hears(SnapshotsTaken(listener=Listener(J, 4), step=5))
    assert joiner.hears(LoadFailed(listener=Listener(J, 4), why="")) == [Hear(listener=Listener(J, 5), roster=left)]


def test_too_much_to_replay_is_told_until_a_roster_answers() -> None:
    joiner = Joiner().loaded()
    hush, tell = joiner.hears(Overran(listener=FIRST, why="full"))
    assert (hush, tell) == (Hush(), Tell(message=Overflowed(member=J, why="full")))
    assert joiner.hears(ListenTold(roster=roster(V1, A, B))) == [tell]
    seated = roster(V3, A, B, J)
    assert joiner.hears(RosterPushed(roster=seated)) == [Abort(below=V3), Form(roster=seated)]


def test_a_roster_that_needs_a_resolve_ends_the_listening() -> None:
    joiner = Joiner().audited()
    seated = roster(V3, A, J)
    assert joiner.hears(RosterPushed(roster=seated)) == [Abort(below=V3), Hush(), Form(roster=seated)]
    (exchange,) = joiner.hears(Formed(version=V3))
    assert exchange.statement.holds_state is False, "what it has replayed is nobody's testimony"


# The members


FEED = Feed(listener=FIRST, feeder=A, feeders=(A, B))


def test_a_listener_that_all_have_a_line_to_is_fed_with_the_very_step_that_decides_it() -> None:
    story = Story(steps=9).seated()
    story.hears(ListenerCame(listener=FIRST))
    assert story.hears(LaneDone(lane=0)) == [Compute(step=0, lane=1, digests=True)], "one that begins after it came"
    story.hears(LaneDone(lane=1, digest=5), Housed())
    (bound,) = story.hears(Reduced(version=V1, digest=DIGEST))
    assert isinstance(bound, Bound) and bound.row.listener == FIRST.number
    snap, commit = story.hears(rows(story, listener=FIRST.number))
    assert snap == Snap(step=0, feed=FEED), "before the optimizer's step: parameters are still those of the step"
    assert isinstance(commit, Commit) and commit.feeds == (FEED,) and commit.lane == Lane(lane=1, digest=5)
    (compute,) = story.hears(StepEntered())
    assert compute == Compute(step=1, lane=0), "one lane's digest is enough"
    story.hears(LaneDone(lane=0), LaneDone(lane=1), Reduced(version=V1, digest=DIGEST))
    (commit,) = story.hears(rows(story))
    assert commit.feeds == (FEED,) and commit.lane is None


def test_who_came_too_late_for_a_digest_gets_one_with_the_next_step() -> None:
    story = Story(steps=9).reduced()
    story.hears(ListenerCame(listener=FIRST), Housed())
    snap, commit = story.hears(rows(story, listener=FIRST.number))
    assert snap == Snap(step=0, feed=FEED) and commit.lane is None
    assert story.hears(StepEntered()) == [Compute(step=1, lane=0, digests=True)]


def test_nobody_is_named_before_there_is_memory_for_it_nor_when_it_is_gone_by_then() -> None:
    for events in (
        (ListenerCame(listener=FIRST),),
        (ListenerCame(listener=FIRST), ListenerGone(listener=FIRST), Housed()),
    ):
        story = Story(steps=9).seated()
        story.hears(*events, LaneDone(lane=0), LaneDone(lane=1))
        (bound,) = story.hears(Reduced(version=V1, digest=DIGEST))
        assert isinstance(bound, Bound) and bound.row.listener == 0


def test_of_two_the_second_is_named_once_there_is_memory_again() -> None:
    story = Story(steps=9).seated()
    both = FIRST, Listener(J, 2)
    story.hears(*(ListenerCame(listener=each) for each in both), Housed())
    named = []
    for housed in ((), (), (Housed(),)):
        story.hears(*housed, LaneDone(lane=0), LaneDone(lane=1))
        (bound,) = story.hears(Reduced(version=V1, digest=DIGEST))
        assert isinstance(bound, Bound)
        named.append(bound.row.listener)
        story.hears(rows(story, listener=bound.row.listener), StepEntered())
    assert named[1] == 0 and {named[0], named[2]} == {each.number for each in both}


def test_members_who_see_not_quite_the_same_listeners_mostly_name_the_same() -> None:
    crowd = [Listener(Member(f"r{n}", 0), 1) for n in range(5, 10)]
    named: list[list[int]] = []
    for missing in crowd[:2]:
        story = Story(steps=99).seated()
        story.hears(*(ListenerCame(listener=each) for each in crowd if each != missing), Housed())
        named.append([])
        for _ in range(40):
            (bound,) = story.hears(LaneDone(lane=0), LaneDone(lane=1), Reduced(version=V1, digest=DIGEST))
            assert isinstance(bound, Bound)
            named[-1].append(bound.row.listener)
            story.hears(rows(story), StepEntered())
    same = sum(one == other for one, other in zip(*named, strict=True))
    assert same >= 20, f"at {same} of 40 boundaries"
    assert len(set(named[0])) == len(crowd) - 1, "each has its turn"


def test_a_listener_that_another_member_does_not_name_waits() -> None:
    story = Story(steps=9).reduced()
    story.hears(ListenerCame(listener=FIRST))
    said = (row(V1, 0), msgspec.structs.replace(row(V1, 0), listener=FIRST.number))
    (commit,) = story.hears(Bounded(version=V1, rows=said))
    assert isinstance(commit, Commit) and commit.feeds == ()


def test_a_listener_that_is_gone_is_fed_no_more() -> None:
    story = Story(steps=9).reduced()
    story.hears(ListenerCame(listener=FIRST), rows(story, listener=FIRST.number), ListenerGone(listener=FIRST))
    assert story.hears(StepEntered()) == [Compute(step=1, lane=0)]


def test_those_who_are_left_feed_what_one_that_is_gone_would_have() -> None:
    story = Story(steps=9).reduced()
    story.hears(ListenerCame(listener=FIRST), rows(story, listener=FIRST.number), StepEntered())
    left = roster(V2, A)
    story.hears(RosterPushed(roster=left), LaneDone(lane=0), Formed(version=V2))
    story.hears(Exchanged(version=V2, table=(stated(A, step=1, attempt=V1, held=(Node(0, 1),), last=9),)))
    story.hears(*(LaneDone(lane=lane) for lane in (1, 2, 3)), Reduced(version=V2, digest=DIGEST))
    said = (msgspec.structs.replace(row(V2, 1)),)
    (commit,) = story.hears(Bounded(version=V2, rows=said))
    assert isinstance(commit, Commit) and commit.feeds == (msgspec.structs.replace(FEED, feeders=(A,)),)


def test_a_joiner_goes_on_with_those_who_are_left() -> None:
    joiner = Joiner().loaded()
    assert joiner.hears(ListenTold(roster=roster(V2, A))) == [Hush(peers=(B,)), Tell(message=CaughtUp(member=J, step=3))]
    others = roster(V3, Member("r8", 0))
    *_, hear = joiner.hears(ListenTold(roster=others))
    assert hear == Hear(listener=Listener(J, 2), roster=others), "nobody is left who feeds it"


def test_everybody_ready_goes_on_under_the_planned_roster() -> None:
    story = Story(steps=9).seated()
    next_ = planned(A, B, J)
    assert story.hears(RosterPushed(roster=next_)) == [Form(roster=next_)]
    story.hears(LaneDone(lane=0), LaneDone(lane=1), Formed(version=V2))
    (bound,) = story.hears(Reduced(version=V1, digest=DIGEST))
    assert isinstance(bound, Bound) and (bound.version, bound.row.ready) == (V1, V2)
    abort, adopt, commit = story.hears(rows(story, ready=V2))
    assert abort == Abort(below=V1), "others may still read the last table of the base"
    assert isinstance(adopt, Adopt) and adopt.resolution.version == V2 and adopt.drop == ()
    assert isinstance(commit, Commit) and commit.switch == V2
    entered, compute = story.hears(StepEntered())
    assert entered == Tell(message=Entered(member=A, version=V2, step=1))
    assert isinstance(compute, Compute)


def test_one_who_is_not_ready_keeps_all_under_the_base() -> None:
    story = Story(steps=9).seated()
    story.hears(RosterPushed(roster=planned(A, B, J)), Formed(version=V2), LaneDone(lane=0), LaneDone(lane=1))
    story.hears(Reduced(version=V1, digest=DIGEST))
    said = (msgspec.structs.replace(row(V1, 0), ready=V2), row(V1, 0))
    (commit,) = story.hears(Bounded(version=V1, rows=said))
    assert commit.switch is None
    assert story.hears(StepEntered()) == [Compute(step=1, lane=0)]


def test_who_has_no_seat_in_the_planned_roster_hands_over_and_leaves() -> None:
    story = Story(steps=9).reduced()
    assert story.hears(RosterPushed(roster=planned(B, J))) == []
    (commit,) = story.hears(rows(story, ready=V2))
    assert isinstance(commit, Commit)
    told, leave = story.hears(StepEntered())
    assert told == Tell(message=Released(member=A, version=V1, step=1))
    assert isinstance(leave, Leave) and leave.fault == "left"


def test_a_failure_meanwhile_takes_the_planned_roster_s_place() -> None:
    story = Story(steps=9).seated()
    story.hears(RosterPushed(roster=planned(A, B, J)))
    newer = roster(V3, A, B)
    assert story.hears(RosterPushed(roster=newer)) == [Abort(below=V3), Form(roster=newer)]
    assert story.hears(Formed(version=V2)) == []
    story.hears(LaneDone(lane=0), Formed(version=V3))
    (_, *effects) = story.hears(
        Exchanged(version=V3, table=(stated(A, attempt=V1, held=(Node(0, 1),), last=9), stated(B, attempt=V1, last=9)))
    )
    assert effects[0] == Tell(message=Entered(member=A, version=V3, step=0))


def test_a_complaint_of_the_base_is_repeated_when_a_planned_roster_comes() -> None:
    """It may have been lost with a coordinator, and no boundary of a broken roster passes."""
    story = Story(steps=9).reduced()
    (tell,) = story.hears(Broken(version=V1, why="broke"))
    assert isinstance(tell, Tell) and isinstance(tell.message, Complain)
    assert tell in story.hears(RosterPushed(roster=planned(A, B, J)))


# What was heard


SIZE_BYTES = 3000


def sent(hearing: Hearing, feeder: Member, feeders: tuple[Member, ...], heard: Record) -> list[Record]:
    """The feeder sends its part of this, as one of so many."""
    feed = Feed(listener=FIRST, feeder=feeder, feeders=feeders)
    return hearing.part(feeder, heard, feed.span(SIZE_BYTES), SIZE_BYTES, feed.is_first)


def begun(*peers: Member) -> Hearing:
    hearing = Hearing(peers)
    assert [hearing.begins(peer, 3) for peer in peers][-1] == Begun(step=3)
    return hearing


def test_records_are_whole_once_all_have_sent_their_part() -> None:
    hearing = Hearing((A, B))
    first, second = record(3).record, record(4).record
    assert hearing.begins(A, 3) is None
    assert sent(hearing, A, (A, B), first) == []
    assert hearing.begins(B, 3) == Begun(step=3)
    assert sent(hearing, A, (A, B), second) == []
    assert sent(hearing, B, (A, B), first) == [first]
    assert sent(hearing, B, (A, B), second) == [second]


def test_what_one_that_is_gone_owed_comes_from_the_others() -> None:
    hearing = begun(A, B, C)
    first, second = record(3).record, record(4).record
    for peer in (A, B, C):
        whole = sent(hearing, peer, (A, B, C), first)
    assert whole == [first]
    assert sent(hearing, C, (A, B, C), second) == [], "it passed the boundary, and died"
    assert sent(hearing, A, (A, B), second) == []
    assert hearing.lost(C) == []
    assert sent(hearing, B, (A, B), second) == [second], "by resolve, and without it"


def test_its_loss_may_be_all_that_was_waited_for() -> None:
    hearing = begun(A, B, C)
    for peer in (A, B):
        assert sent(hearing, peer, (A, B), record(3).record) == []
    assert hearing.lost(C) == [record(3).record]


@pytest.mark.parametrize("is_lost_first", [True, False])
def test_what_nobody_will_send_ends_the_try(is_lost_first: bool) -> None:
    """C has not sent its part of a step that the others committed while it fed, too."""
    hearing = begun(A, B, C)
    sent(hearing, A, (A, B, C), record(3).record)
    with pytest.raises(PeerError, match="step 3 was with a peer that is lost"):
        if is_lost_first:
            hearing.lost(C)
        sent(hearing, B, (A, B, C), record(3).record)
        hearing.lost(C)


def test_some_cut_with_it_and_some_without_and_a_hole_is_left() -> None:
    hearing = begun(A, B, C)
    sent(hearing, A, (A, B, C), record(3).record)  # passed its boundary
    hearing.lost(C)
    with pytest.raises(PeerError, match="lost"):
        sent(hearing, B, (A, B), record(3).record)  # committed by resolve: what lies between the two parts is missing


def test_the_loss_of_the_last_or_before_all_have_begun_ends_the_try() -> None:
    hearing = Hearing((A, B))
    hearing.begins(A, 3)
    with pytest.raises(PeerError):
        hearing.lost(B)
    hearing = begun(A, B)
    assert hearing.lost(B) == []
    with pytest.raises(PeerError, match="every peer is lost"):
        hearing.lost(A)


@given(st.data())
def test_whatever_is_given_is_whole(data: st.DataObject) -> None:
    """Against a dumb count of bytes: any cuts, any losses, in any order."""
    peers = (A, B, C, Member("r7", 0))
    hearing, bytes_here, has_first = begun(*peers), set(), False
    left, owing = set(peers), set(peers)
    try:
        while left:
            peer = data.draw(st.sampled_from(sorted(left)))
            if peer in owing and data.draw(st.booleans()):
                feeders = tuple(each for each in peers if each == peer or data.draw(st.booleans()))
                feed = Feed(listener=FIRST, feeder=peer, feeders=feeders)
                bytes_here |= set(range(*feed.span(SIZE_BYTES)))
                has_first |= feed.is_first
                owing.discard(peer)
                whole = sent(hearing, peer, feeders, record(3).record)
            else:
                left.discard(peer)
                whole = hearing.lost(peer)
            is_whole = has_first and bytes_here == set(range(SIZE_BYTES))
            assert whole == ([record(3).record] if is_whole and not owing & left else [])
            if whole:
                return
    except PeerError:
        assert not left or (not owing & left and not (has_first and bytes_here == set(range(SIZE_BYTES))))


@pytest.mark.parametrize(
    "other",
    [record(3, switch=V2).record, msgspec.structs.replace(record(3).record, digest=1)],
    ids=["one has not seen the verdict", "another result"],
)
def test_peers_that_do_not_say_the_same_end_the_try(other: Record) -> None:
    hearing = begun(A, B)
    sent(hearing, A, (A, B), record(3).record)
    with pytest.raises(PeerError, match=r"differ|boundary"):
        sent(hearing, B, (A, B), other)


def test_snapshots_of_different_steps_end_the_try() -> None:
    hearing = Hearing((A, B))
    hearing.begins(A, 3)
    with pytest.raises(PeerError):
        hearing.begins(B, 4)


def test_numbers_of_listeners_differ_and_are_never_none() -> None:
    listeners = [Listener(Member(f"r{i}", life), attempt) for i in range(4) for life in range(4) for attempt in range(4)]
    numbers = {listener.number for listener in listeners}
    assert len(numbers) == len(listeners) and 0 not in numbers
