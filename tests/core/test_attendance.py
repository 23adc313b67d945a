"""One member's machine: events in, effects equal."""

import msgspec
import pytest

from regrow.core.attendance import Attendance, Task
from regrow.core.boundary import Row
from regrow.core.effects import (
    Abort,
    Adopt,
    Bound,
    Commit,
    Compute,
    Effect,
    Exchange,
    Fetch,
    Form,
    Leave,
    Merge,
    Reduce,
    Serve,
    Tell,
)
from regrow.core.errors import Invariant
from regrow.core.events import (
    Bounded,
    Broken,
    Event,
    Exchanged,
    Fetched,
    FormationFailed,
    Formed,
    LaneDone,
    Reduced,
    RosterPushed,
    Served,
    StepEntered,
    StopAsked,
)
from regrow.core.lanes import Node
from regrow.core.messages import Complain, Ending, Entered, Left
from regrow.core.resolve import Statement
from regrow.core.roster import NO_VERSION, Endpoint, Member, Present, Roster, Version, compose

A, B, J = Member("r0", 0), Member("r1", 0), Member("r2", 1)
V1, V2, V3 = Version(1, 1), Version(1, 2), Version(1, 3)
DIGEST = 77


def roster(version: Version, *members: Member, founders: tuple[Member, ...] = (A, B)) -> Roster:
    return compose(version, {m: Present(endpoint=Endpoint(str(m), 1), founder=m in founders) for m in members}, 4, 0, "test")


def stated(member: Member, step: int = 0, **more: object) -> Statement:
    return Statement(member=member, **({"holds_state": True, "step": step, "last": 2} | more))  # type: ignore[arg-type]


def row(version: Version, step: int, digest: int = DIGEST, stop: bool = False) -> Row:
    return Row(version=version, step=step, digest=digest, stop=stop)


class Story:
    """A member and what it was told to do last."""

    def __init__(self, me: Member = A, steps: int = 2) -> None:
        self.member = Attendance(me, lanes=4, steps=steps)
        self.steps = steps
        self.last: list[Effect] = []

    def hears(self, *events: Event) -> list[Effect]:
        for event in events:
            self.last = self.member.handle(event)
        return self.last

    def seated(self) -> "Story":
        """In the first roster, resolved, asked for its first lane."""
        self.hears(StepEntered(), RosterPushed(roster=roster(V1, A, B)), Formed(version=V1))
        self.hears(Exchanged(version=V1, table=(stated(A, last=self.steps), stated(B, last=self.steps))))
        return self

    def reduced(self) -> "Story":
        """Holds the result of step 0."""
        self.seated().hears(LaneDone(lane=0), LaneDone(lane=1), Reduced(version=V1, digest=DIGEST))
        return self

    def bounded(self, **more: bool) -> list[Effect]:
        version, step = self.member.seen, self.member.step
        return self.hears(Bounded(version=version, rows=(row(version, step), row(version, step, **more))))


def test_a_roster_is_formed_then_resolved_then_computed() -> None:
    story = Story()
    assert story.hears(StepEntered()) == []
    first = roster(V1, A, B)
    assert story.hears(RosterPushed(roster=first)) == [Abort(below=V1), Form(roster=first)]
    assert story.hears(Formed(version=V1)) == [Exchange(version=V1, statement=stated(A))]
    adopt, entered, compute = story.hears(Exchanged(version=V1, table=(stated(A), stated(B))))
    assert isinstance(adopt, Adopt)
    assert entered == Tell(message=Entered(member=A, version=V1, step=0))
    assert compute == Compute(step=0, lane=0)


def test_lanes_merge_then_reduce_then_bound_then_commit() -> None:
    story = Story().seated()
    holdings = ((Node(0, 2),), (Node(2, 4),))
    reduce = Reduce(version=V1, step=0, holdings=holdings)
    assert story.hears(LaneDone(lane=0)) == [Compute(step=0, lane=1, then=reduce)]
    assert story.hears(LaneDone(lane=1)) == [Merge(parent=Node(0, 2)), reduce]
    assert story.hears(Reduced(version=V1, digest=DIGEST)) == [Bound(version=V1, row=row(V1, 0))]
    assert story.bounded() == [
        Commit(step=0, attempt=V1, digest=DIGEST, holdings=holdings, by="boundary", reporter=A, last=2)
    ]
    assert story.hears(StepEntered()) == [Compute(step=1, lane=0)]


def test_old_news_is_ignored() -> None:
    story = Story().seated()
    assert story.hears(RosterPushed(roster=roster(V1, A, B))) == []
    story.hears(RosterPushed(roster=roster(V3, A, B)))
    assert story.hears(RosterPushed(roster=roster(V2, A))) == []
    assert story.hears(Formed(version=V1)) == []


def test_a_roster_without_this_member_ends_it() -> None:
    story = Story().seated()
    abort, leave = story.hears(RosterPushed(roster=roster(V2, B)))
    assert abort == Abort(below=V2)
    assert isinstance(leave, Leave)
    assert leave.fault == "evicted"
    assert story.hears(LaneDone(lane=0)) == []
    assert story.hears(RosterPushed(roster=roster(V3, A, B))) == []


def test_what_is_held_is_stated_to_the_next_roster() -> None:
    story = Story().seated()
    story.hears(RosterPushed(roster=roster(V2, A)), Formed(version=V2))
    assert story.hears(LaneDone(lane=0)) == [Exchange(version=V2, statement=stated(A, attempt=V1, held=(Node(0, 1),)))]
    _, _, compute = story.hears(Exchanged(version=V2, table=(stated(A, attempt=V1, held=(Node(0, 1),)),)))
    assert compute == Compute(step=0, lane=1)


def test_a_result_all_survivors_hold_is_committed_in_resolve() -> None:
    story = Story().reduced()
    story.hears(RosterPushed(roster=roster(V2, A)), Broken(version=V1, why=""), Formed(version=V2))
    statement = stated(A, attempt=V1, complete=True, digest=DIGEST, held=(Node(0, 2),), reporter=A)
    assert story.last == [Exchange(version=V2, statement=statement)]
    _, commit = story.hears(Exchanged(version=V2, table=(statement,)))
    assert isinstance(commit, Commit)
    assert (commit.step, commit.attempt, commit.by) == (0, V1, "resolve")


def test_a_redo_voids_the_result_but_keeps_the_parts() -> None:
    story = Story().reduced()
    story.hears(RosterPushed(roster=roster(V2, A, B)), Broken(version=V1, why=""), Formed(version=V2))
    mine = stated(A, attempt=V1, complete=True, digest=DIGEST, held=(Node(0, 2),))
    effects = story.hears(Exchanged(version=V2, table=(mine, stated(B, attempt=V1, held=(Node(2, 4),)))))
    assert effects[-1] == Reduce(version=V2, step=0, holdings=((Node(0, 2),), (Node(2, 4),)))
    assert story.member.result is None


def test_a_passed_boundary_counts_though_a_newer_roster_is_known() -> None:
    story = Story().reduced()
    story.hears(RosterPushed(roster=roster(V2, A, B)), Formed(version=V2))
    (commit,) = story.hears(Bounded(version=V1, rows=(row(V1, 0), row(V1, 0))))
    assert isinstance(commit, Commit)
    assert story.hears(StepEntered()) == [Exchange(version=V2, statement=stated(A, 1, attempt=V1))]


def test_a_joiner_fetches_before_anything_else() -> None:
    story = Story(J)
    story.hears(StepEntered(), RosterPushed(roster=roster(V2, A, J)), Formed(version=V2))
    table = (stated(A, 1, attempt=V1), stated(J, holds_state=False))
    _, fetch = story.hears(Exchanged(version=V2, table=table))
    assert fetch == Fetch(version=V2, step=1, donor=A)
    entered, compute = story.hears(Fetched(version=V2))
    assert entered == Tell(message=Entered(member=J, version=V2, step=1))
    assert compute == Compute(step=1, lane=2)


def test_a_fetch_that_was_superseded_does_not_count() -> None:
    story = Story(J)
    story.hears(StepEntered(), RosterPushed(roster=roster(V2, A, J)), Formed(version=V2))
    story.hears(Exchanged(version=V2, table=(stated(A, 1), stated(J, holds_state=False))))
    story.hears(RosterPushed(roster=roster(V3, A, J)), Fetched(version=V2))
    assert story.hears(Formed(version=V3)) == [Exchange(version=V3, statement=stated(J, holds_state=False))]


def test_a_donor_serves_once_per_roster() -> None:
    story = Story().seated()
    story.hears(RosterPushed(roster=roster(V2, A, B, J)), LaneDone(lane=0), Formed(version=V2))
    table = (stated(A, attempt=V1, held=(Node(0, 1),)), stated(B, attempt=V1), stated(J, holds_state=False))
    *_, serve = story.hears(Exchanged(version=V2, table=table))
    assert serve == Serve(version=V2, step=0, joiners=(J,))
    assert story.hears(Served(version=V2)) == [Compute(step=0, lane=1)]


def test_nobody_leaves_before_all_have_acknowledged_the_end() -> None:
    story = Story(steps=1).reduced()
    story.bounded()
    ending, bound = story.hears(StepEntered())
    assert ending == Tell(message=Ending(member=A, step=1))
    assert isinstance(bound, Bound)
    left, leave = story.hears(Bounded(version=V1, rows=(row(V1, 1, 0, True), row(V1, 1, 0, True))))
    assert left == Tell(message=Left(member=A, version=V1, step=1))
    assert isinstance(leave, Leave)
    assert leave.fault is None


def test_a_wish_to_stop_ends_the_job_after_this_step() -> None:
    story = Story(steps=100).seated()
    story.hears(StopAsked(), LaneDone(lane=0), LaneDone(lane=1))
    (bound,) = story.hears(Reduced(version=V1, digest=DIGEST))
    assert bound == Bound(version=V1, row=row(V1, 0, stop=True))
    story.bounded(stop=True)
    assert story.hears(StepEntered())[0] == Tell(message=Ending(member=A, step=1))


def test_a_member_whose_result_differs_leaves_and_the_others_complain() -> None:
    wrong = Story().reduced()
    others = (row(V1, 0, 1), row(V1, 0, 2))
    (leave,) = wrong.hears(Bounded(version=V1, rows=others))
    assert isinstance(leave, Leave)
    assert leave.fault == "corrupt"


def test_when_the_states_differ_everyone_leaves_and_says_what_differs() -> None:
    story = Story().reduced()
    rows = tuple(msgspec.structs.replace(row(V1, 0), state=state) for state in (1, 2))
    (leave,) = story.hears(Bounded(version=V1, rows=rows, parted="model.weight on r1.0"))
    assert isinstance(leave, Leave) and leave.fault == "divided"
    assert "model.weight on r1.0" in leave.why and "A local value steered the update" in leave.why
    assert story.member.task is Task.GONE


@pytest.mark.parametrize("event", [Broken(version=V1, why="x"), FormationFailed(version=V1, why="x")])
def test_a_break_is_told_once_and_waited_out(event: Event) -> None:
    story = Story().reduced() if isinstance(event, Broken) else Story()
    if isinstance(event, FormationFailed):
        story.hears(StepEntered(), RosterPushed(roster=roster(V1, A, B)))
    assert story.hears(event) == [Tell(message=Complain(member=A, version=V1, why="x"))]
    assert story.member.task is Task.WAITING


def test_a_break_of_an_older_roster_is_no_complaint() -> None:
    story = Story().reduced()
    story.hears(RosterPushed(roster=roster(V2, A, B)))
    assert story.hears(Broken(version=V1, why="x")) == []


def test_an_answer_to_no_question_is_a_bug() -> None:
    story = Story()
    story.hears(StepEntered())
    with pytest.raises(Invariant):
        story.hears(LaneDone(lane=0))


# Lost connections (tests/sim/seeds.py: NeverRepeats)


def test_a_complaint_is_repeated_when_the_roster_is_heard_again() -> None:
    story = Story().reduced()
    (told,) = story.hears(Broken(version=V1, why="x"))
    assert story.hears(RosterPushed(roster=roster(V1, A, B))) == [told]
    story.hears(RosterPushed(roster=roster(V2, A, B)))
    assert story.hears(RosterPushed(roster=roster(V2, A, B))) == []


def test_the_end_is_repeated_when_the_roster_is_heard_again() -> None:
    story = Story(steps=1).reduced()
    story.bounded()
    ending, _ = story.hears(StepEntered())
    assert story.hears(RosterPushed(roster=roster(V1, A, B))) == [ending]
    left, _ = story.hears(Bounded(version=V1, rows=(row(V1, 1, 0, True), row(V1, 1, 0, True))))
    assert story.hears(RosterPushed(roster=roster(V1, A, B))) == [left]
    assert story.hears(RosterPushed(roster=roster(V2, A, B))) == [left]


def test_before_any_roster_nothing_was_seen_or_entered() -> None:
    member = Attendance(A, lanes=4, steps=2)
    assert (member.seen, member.entered) == (NO_VERSION, NO_VERSION)
