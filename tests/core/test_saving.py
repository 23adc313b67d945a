"""A member's part in saves: what it wishes, what a verdict decides, what it copies."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from test_attendance import DIGEST, V1, V2, V3, A, B, Story, roster, row, stated

from regrow.core.attendance import Task
from regrow.core.boundary import Pass, Row, verdict
from regrow.core.effects import Adopt, Bound, Commit, Leave, Save, Tell
from regrow.core.events import (
    Bounded,
    Broken,
    Event,
    Exchanged,
    Formed,
    LaneDone,
    Recalled,
    Reduced,
    RosterPushed,
    SaveDue,
    SaveWished,
    StepEntered,
)
from regrow.core.lanes import Node
from regrow.core.messages import Left
from regrow.core.origin import Origin
from regrow.core.roster import NO_VERSION, Version
from regrow.core.saves import Urgency, is_due, takes
from regrow.core.saving import Saving

ROSTER = roster(V1, A, B)


def saved(step: int, urgency: Urgency = Urgency.DUE, version: Version = V1) -> Save:
    return Save(step=step, version=version, members=(A, B), urgency=urgency)


def passing(save: Urgency, switch: Version | None = None) -> Pass:
    return Pass(stop=False, switch=switch, save=save)


@given(st.sampled_from(Urgency), st.booleans())
def test_a_wish_survives_the_wire(save: Urgency, stop: bool) -> None:
    said = Row(version=V1, step=3, digest=7, stop=stop, save=save)
    assert Row.unpack(said.pack()) == said


@given(st.lists(st.sampled_from(Urgency), min_size=2, max_size=2))
def test_the_highest_wish_of_all_counts(wishes: list[Urgency]) -> None:
    rows = [msgspec.structs.replace(row(V1, 0), save=wish) for wish in wishes]
    assert verdict(ROSTER, rows) == Pass(stop=False, save=max(wishes))


def test_intervals_say_when_a_save_is_due() -> None:
    assert [step for step in range(13) if is_due(step, (4, 6))] == [4, 6, 8, 12]
    assert not any(is_due(step, ()) for step in range(13))
    assert takes(9, 4, 4, Urgency.DUE), "one that came late is taken in place of the one that was due"
    assert not takes(9, 4, 8, Urgency.DUE) and takes(9, 4, 8, Urgency.ASKED) and not takes(8, 4, 8, Urgency.LAST)


def test_a_member_wishes_what_is_due_after_the_step() -> None:
    saving = Saving((3,))
    assert [step for step in range(9) if saving.stated(step, last=20)] == [2, 5, 8]
    assert saving.stated(2, last=3) is Urgency.NONE, "the last one is saved at the farewell"
    assert saving.stated_last is Urgency.LAST


def test_without_a_vault_nobody_wishes_anything() -> None:
    saving = Saving(None)
    saving.wish(Urgency.ASKED)
    saving.missed()
    assert saving.stated(2, last=20) is saving.stated_last is Urgency.NONE


def test_a_wish_is_kept_until_a_verdict_decides_a_save() -> None:
    saving = Saving(())
    saving.wish(Urgency.ASKED)
    saving.wish(Urgency.DUE)
    saving.decide(ROSTER, passing(Urgency.NONE))
    assert saving.stated(0, 20) is Urgency.ASKED and saving.enter(1, 20) == []
    saving.decide(ROSTER, passing(Urgency.ASKED))
    assert saving.stated(1, 20) is Urgency.NONE
    assert saving.enter(2, 20) == [saved(2, Urgency.ASKED)] and saving.enter(3, 20) == []


def test_what_is_due_is_wished_once_however_often_it_is_said() -> None:
    """A save that is decided may not be on its way for long: the script evaluates between two steps."""
    saving = Saving(())
    saving.due()
    saving.due()
    assert saving.stated(0, 20) is Urgency.DUE
    saving.decide(ROSTER, passing(Urgency.DUE))
    saving.due()
    assert saving.enter(1, 20) == [saved(1)] and saving.stated(1, 20) is Urgency.NONE
    saving.due()
    assert saving.stated(1, 20) is Urgency.DUE


def test_where_members_part_nothing_is_saved_and_the_wish_is_everybodys() -> None:
    saving = Saving(())
    saving.decide(ROSTER, passing(Urgency.ASKED, switch=V2))
    assert saving.enter(1, 20) == [] and saving.stated(1, 20) is Urgency.ASKED and saving.is_owed
    saving.decide(ROSTER, passing(Urgency.ASKED))
    assert not saving.is_owed and saving.enter(2, 20) == [saved(2, Urgency.ASKED)]


def stepped(story: Story, version: Version) -> Row:
    """It computes the step under this roster: the row that it states."""
    lanes = [LaneDone(lane=lane) for lane in range(2)]
    (bound,) = (
        e for e in story.hears(StepEntered(), *lanes, Reduced(version=version, digest=DIGEST)) if isinstance(e, Bound)
    )
    return bound.row


def planned(version: Version, base: Version) -> tuple[Event, Event]:
    next_ = msgspec.structs.replace(roster(version, A, B), base=base)
    return RosterPushed(roster=next_), Formed(version=version)


def test_a_wish_gives_way_to_one_planned_roster_and_not_to_the_next() -> None:
    story = keeping(steps=9, every=())
    story.seated().hears(SaveWished(urgency=Urgency.ASKED), *planned(V2, V1))
    said = stepped(story, V1)
    assert (said.ready, said.save) == (V2, Urgency.ASKED)
    (commit,) = (e for e in story.hears(Bounded(version=V1, rows=(said, said))) if isinstance(e, Commit))
    assert (commit.switch, commit.save) == (V2, Urgency.ASKED), "those who listen hear of it"
    story.hears(*planned(V3, V2))
    said = stepped(story, V2)
    assert (said.ready, said.save) == (NO_VERSION, Urgency.ASKED)
    story.hears(Bounded(version=V2, rows=(said, said)))
    said = stepped(story, V2)
    assert (said.ready, said.save) == (V3, Urgency.NONE)


def test_past_the_last_step_nothing_is_copied_twice() -> None:
    saving = Saving((1,))
    saving.decide(ROSTER, passing(Urgency.DUE))
    assert saving.enter(5, last=5) == [], "the farewell saves that one"


def keeping(steps: int = 4, every: tuple[int, ...] = (1,)) -> Story:
    story = Story(steps=steps)
    story.member = type(story.member)(A, lanes=4, steps=steps, saves=every)
    return story


def wished(step: int, save: Urgency, version: Version = V1, **more: bool) -> Row:
    return msgspec.structs.replace(row(version, step, **more), save=save)


def decided(story: Story, save: Urgency = Urgency.DUE, **more: bool) -> None:
    """The boundary of step 0 is passed."""
    story.hears(Bounded(version=V1, rows=(wished(0, save), wished(0, Urgency.NONE, **more))))


def test_a_portion_is_copied_when_the_next_step_is_entered() -> None:
    story = keeping().reduced()
    (bound,) = story.last
    assert isinstance(bound, Bound) and bound.row.save is Urgency.DUE
    decided(story)
    assert all(isinstance(effect, Commit) for effect in story.last), "before the optimizer's step there is nothing to copy"
    assert story.hears(StepEntered())[0] == saved(1)


def test_a_portion_is_that_of_the_roster_that_decided_it_whatever_comes_meanwhile() -> None:
    story = keeping().reduced()
    decided(story)
    story.hears(RosterPushed(roster=roster(V2, A)))
    assert story.hears(StepEntered()) == [saved(1)]


def test_whoever_is_no_member_any_more_copies_nothing() -> None:
    story = keeping().reduced()
    decided(story)
    story.hears(RosterPushed(roster=roster(V2, B)))
    assert story.hears(StepEntered()) == []


def test_a_stop_is_saved_once_at_the_farewell() -> None:
    story = keeping().reduced()
    decided(story, stop=True)
    story.hears(StepEntered())
    assert not any(isinstance(effect, Save) for effect in story.last)
    bound = story.last[-1]
    assert isinstance(bound, Bound) and bound.farewell and bound.row.save is Urgency.LAST
    left, save, leave = story.hears(Bounded(version=V1, rows=(bound.row, bound.row)))
    assert isinstance(left, Tell) and isinstance(left.message, Left) and isinstance(leave, Leave)
    assert save == saved(1, Urgency.LAST)


def test_whoever_missed_a_verdict_wishes_a_save() -> None:
    """It may have decided one, though no interval says so: the others wait for a portion that never comes."""
    story = keeping(every=()).reduced()
    story.hears(RosterPushed(roster=roster(V2, A, B)), Broken(version=V1, why=""), Formed(version=V2))
    table = (stated(A, attempt=V1, complete=True, digest=DIGEST, last=4), stated(B, step=1, last=4))
    *_, commit = story.hears(Exchanged(version=V2, table=table))
    assert isinstance(commit, Commit) and commit.by == "resolve"
    story.hears(StepEntered(), LaneDone(lane=0), LaneDone(lane=1), Reduced(version=V2, digest=DIGEST))
    (bound,) = story.last
    assert isinstance(bound, Bound) and bound.row.save is Urgency.DUE
    assert story.member.task is Task.BUSY


def test_whoever_is_left_alone_with_the_state_wishes_a_save_once() -> None:
    story = keeping(every=()).seated()
    story.hears(LaneDone(lane=0), LaneDone(lane=1))
    story.hears(RosterPushed(roster=roster(V2, A)), Broken(version=V1, why=""), Formed(version=V2))
    adopt, *_ = story.hears(Exchanged(version=V2, table=(stated(A, attempt=V1, held=(Node(0, 2),), last=4),)))
    assert isinstance(adopt, Adopt) and adopt.is_guarded
    for step, wish in ((0, Urgency.DUE), (1, Urgency.NONE)):
        story.hears(*(LaneDone(lane=lane) for lane in range(2 if step == 0 else 0, 4)))
        (bound,) = story.hears(Reduced(version=V2, digest=DIGEST))
        assert isinstance(bound, Bound) and bound.row.save is wish, "not again before the roster changes"
        story.hears(Bounded(version=V2, rows=(bound.row,)))
        saves = [effect for effect in story.hears(StepEntered()) if isinstance(effect, Save)]
        assert saves == [Save(step=1, version=V2, members=(A,), urgency=Urgency.DUE)] * (step == 0)


def test_one_that_is_not_alone_or_has_no_vault_guards_nothing() -> None:
    story = keeping(every=())
    story.hears(StepEntered(), RosterPushed(roster=ROSTER), Formed(version=V1))
    adopt, *_ = story.hears(Exchanged(version=V1, table=(stated(A, last=4), stated(B, last=4))))
    assert isinstance(adopt, Adopt) and not adopt.is_guarded
    assert not Saving(None).guard()


def test_whoever_has_just_recalled_the_state_has_a_copy_already() -> None:
    story = keeping(every=())
    alone = msgspec.structs.replace(roster(V1, A), origin=Origin(step=2, root="ab", where="memory"))
    story.hears(StepEntered(), RosterPushed(roster=alone), Formed(version=V1), Recalled(version=V1))
    adopt, *_ = story.hears(Exchanged(version=V1, table=(stated(A, 2, last=4),)))
    assert isinstance(adopt, Adopt) and not adopt.is_guarded


def test_a_void_save_is_wished_again_at_the_next_boundary() -> None:
    story = keeping(every=()).seated()
    story.hears(SaveWished(urgency=Urgency.DUE), LaneDone(lane=0), LaneDone(lane=1))
    (bound,) = story.hears(Reduced(version=V1, digest=DIGEST))
    assert isinstance(bound, Bound) and bound.row.save is Urgency.DUE


def test_a_tier_that_is_due_is_wished_a_save_at_the_next_boundary() -> None:
    story = keeping(every=()).seated()
    story.hears(SaveDue(), LaneDone(lane=0), LaneDone(lane=1))
    (bound,) = story.hears(Reduced(version=V1, digest=DIGEST))
    assert isinstance(bound, Bound) and bound.row.save is Urgency.DUE


def test_whoever_takes_no_part_yet_wishes_nothing_that_is_due() -> None:
    """A spare would keep the wish for as long as it waits, and have a state saved that nobody wants when it takes over."""
    story = keeping(every=())
    story.hears(SaveDue())
    story.seated().hears(LaneDone(lane=0), LaneDone(lane=1))
    (bound,) = story.hears(Reduced(version=V1, digest=DIGEST))
    assert isinstance(bound, Bound) and bound.row.save is Urgency.NONE
