"""Jobs that are founded from a saved state: at their start, and when everybody was lost."""

import msgspec
import pytest
from test_attendance import Story, roster, stated
from test_membership import CONFIG, REPLICAS, A, B, C, Desk, ends, join, raised, rosters

from regrow.core.attendance import Task
from regrow.core.effects import Abort, Exchange, Form, Leave, Recall, Tell
from regrow.core.events import Exchanged, Formed, Recalled, RosterPushed, StepEntered
from regrow.core.membership import MembershipConfig
from regrow.core.membership_effects import (
    Founded,
    Kill,
    Made,
    MembershipEffect,
    Persist,
    Saved,
    Seek,
    Send,
    Start,
    Unfounded,
)
from regrow.core.membership_events import Died, OriginCame, StopRequested, WishCame
from regrow.core.messages import CaughtUp, Contract, Ending, Entered, Left, Released, StatelessFound, Stop
from regrow.core.origin import STREAMS, Origin
from regrow.core.progress import Place
from regrow.core.roster import NO_VERSION, Member, Roster, Version
from regrow.core.wishes import Wish

ORIGIN = Origin(step=4, root="root", where="memory")
SAVED_WITH = {"dropout": "0.1"}
KEEPS = msgspec.structs.replace(CONFIG, keeps=True)
RESUMES = msgspec.structs.replace(KEEPS, resumes=True)
AGAIN = tuple(Member(replica, 1) for replica in REPLICAS)


class Office(Desk):
    """A coordinator of a job with a vault."""

    def __init__(self, saved: Saved | None = None, config: MembershipConfig = KEEPS, now: float = 0.0) -> None:
        self.config = config
        super().__init__(saved, config, now)

    def answered(
        self, number: int, origin: Origin | None = ORIGIN, since: Version = NO_VERSION, **mathematics: str
    ) -> list[MembershipEffect]:
        came = OriginCame(
            now=self.now,
            number=number,
            origin=origin,
            mathematics=mathematics or SAVED_WITH,
            since=since,
            why="nothing is whole",
        )
        return self._take(came)

    def restarted(self) -> "Office":
        return Office(self.saved, self.config, self.now)

    def lost(self) -> "Office":
        """Every member of the first roster died."""
        for member in (A, B, C):
            self.sees_dead(member)
        return self

    def joined(self) -> list[MembershipEffect]:
        return self.hears(*map(join, AGAIN))


def seeks(effects: list[MembershipEffect]) -> list[Seek]:
    return [effect for effect in effects if isinstance(effect, Seek)]


def founded(effects: list[MembershipEffect]) -> Founded:
    (found,) = [effect for effect in effects if isinstance(effect, Founded)]
    return found


# A job that resumes


def test_what_another_run_logged_is_followed_by_versions_of_its_own() -> None:
    """Else its records would be newer than those that are committed from here on, and hide them."""
    office = Office(config=RESUMES)
    office.hears(*map(join, (A, B, C)))
    effects = office.answered(1, since=Version(5, 3))
    assert seeks(effects) == [Seek(number=6, step=None)] and rosters(effects) == []
    assert office.saved is not None and office.saved.term == 6, "durable before it is asked again"
    (roster,) = rosters(office.answered(6, since=Version(5, 3)))
    assert roster.version == Version(6, 1)


def test_a_job_that_resumes_seeks_before_anybody_founds_it() -> None:
    office = Office(config=RESUMES)
    assert seeks(office.opening) == [Seek(number=1, step=None)]
    assert rosters(office.hears(*map(join, (A, B, C)))) == []
    effects = office.answered(1)
    (made,) = rosters(effects)
    assert (made.origin, made.floor, made.version) == (ORIGIN, 4, Version(1, 1))
    assert founded(effects) == Founded(version=made.version, origin=ORIGIN, reached=4, is_start=True)
    kinds = [type(effect) for effect in effects]
    assert kinds == [Persist, Founded, Persist, Made, Send, Send, Send], "said before it is durable, durable before pushed"


def test_an_answer_may_come_before_the_replicas() -> None:
    office = Office(config=RESUMES)
    assert rosters(office.answered(1)) == []
    (made,) = rosters(office.hears(*map(join, (A, B, C))))
    assert made.origin == ORIGIN


def test_with_nothing_to_resume_from_the_job_begins_at_its_beginning() -> None:
    office = Office(config=RESUMES)
    office.hears(*map(join, (A, B, C)))
    (made,) = rosters(office.answered(1, None))
    assert made.origin is None and made.floor == 0


def test_a_step_that_was_asked_for_and_is_not_there_fails_the_job() -> None:
    office = Office(config=msgspec.structs.replace(RESUMES, resume_step=12))
    assert seeks(office.opening) == [Seek(number=1, step=12)]
    effects = office.answered(1, None)
    assert ends(effects) == ["failed"] and "step 12: nothing is whole" in str(effects[-1])


def test_other_mathematics_are_refused_by_name_with_both() -> None:
    office = Office(config=RESUMES)
    office.hears(*map(join, (A, B, C)))
    effects = office.answered(1, dropout="0.3")
    assert ends(effects) == ["failed"] and rosters(effects) == []
    assert "dropout is 0.1, it was saved with 0.3" in str(effects[-1]) and "--new-mathematics" in str(effects[-1])


def test_other_mathematics_are_taken_by_the_operators_word_and_said() -> None:
    office = Office(config=msgspec.structs.replace(RESUMES, new_mathematics=True))
    office.hears(*map(join, (A, B, C)))
    assert founded(office.answered(1, dropout="0.3")).differences == ("dropout is 0.1, it was saved with 0.3",)


def test_streams_of_other_lanes_are_refused_even_so() -> None:
    office = Office(config=msgspec.structs.replace(RESUMES, new_mathematics=True))
    contract = Contract(terms={"data": STREAMS, "lanes": "6"})
    office.hears(*(msgspec.structs.replace(join(member), contract=contract) for member in (A, B, C)))
    effects = office.answered(1, data=STREAMS, lanes="4")
    assert ends(effects) == ["failed"] and rosters(effects) == []
    assert "lanes is 6, it was saved with 4" in str(effects[-1])


def test_late_and_double_answers_change_nothing() -> None:
    office = Office(config=RESUMES)
    office.hears(*map(join, (A, B, C)))
    assert office.answered(0) == [], "of a question that nobody asked"
    office.answered(1)
    assert office.answered(1, msgspec.structs.replace(ORIGIN, step=9)) == []


def test_a_coordinator_that_comes_back_asks_again_under_its_own_term() -> None:
    office = Office(config=RESUMES).restarted()
    assert seeks(office.opening) == [Seek(number=2, step=None)]
    office.hears(*map(join, (A, B, C)))
    assert office.answered(1) == [], "the answer to its predecessor"
    (made,) = rosters(office.answered(2))
    assert made.version == Version(2, 1)


def test_what_was_answered_need_not_be_asked_again() -> None:
    office = Office(config=RESUMES)
    office.answered(1)
    office = office.restarted()
    assert seeks(office.opening) == []
    (made,) = rosters(office.hears(*map(join, (A, B, C))))
    assert made.origin == ORIGIN


def test_a_term_that_jumps_asks_anew() -> None:
    """The answer to the old question would be ignored, and the job wait for ever."""
    office = Office(config=RESUMES)
    assert seeks(office.hears(join(A, seen=Version(6, 2)))) == [Seek(number=7, step=None)]
    office.hears(join(B), join(C))
    (made,) = rosters(office.answered(7))
    assert made.version == Version(7, 1)


def test_the_origin_stays_in_every_roster_until_all_have_entered_one() -> None:
    office = Office(config=RESUMES)
    office.hears(*map(join, (A, B, C)))
    office.answered(1)
    office = office.restarted()
    office.hears(*(join(member, seen=Version(1, 1)) for member in (A, B, C)))
    (second,) = rosters(office.sees_dead(A))
    assert second.origin == ORIGIN
    office.hears(*(Entered(member=member, version=second.version, step=4) for member in (B, C)))
    (third,) = rosters(office.sees_dead(B))
    assert third.origin is None


# When everybody is lost


def test_without_a_vault_the_job_ends_with_its_replicas() -> None:
    desk = Desk().founded()
    assert ends([effect for member in (A, B, C) for effect in desk.sees_dead(member)]) == ["state-lost"]


def test_with_a_vault_the_job_is_founded_again_under_a_new_term() -> None:
    office = Office()
    office.founded()
    office.sees_dead(A)
    office.hears(Entered(member=B, version=office.machine.version, step=9))
    office.sees_dead(B)
    effects = office.sees_dead(C)
    assert ends(effects) == [] and seeks(effects) == [Seek(number=2, step=None)]
    (told,) = [effect for effect in effects if isinstance(effect, Unfounded)]
    assert told.reached == 9
    assert isinstance(effects[0], Persist) and effects[0].saved.term == 2 and effects[0].saved.roster is None
    assert [effect.member for effect in effects if isinstance(effect, Start)] == [AGAIN[2]]
    office.joined()
    effects = office.answered(2)
    (made,) = rosters(effects)
    assert (made.version, made.floor, made.origin) == (Version(2, 1), 4, ORIGIN)
    assert made.members == AGAIN and all(seat.founder for seat in made.seats)
    assert founded(effects).reached == 9


def test_with_no_state_that_is_whole_it_ends() -> None:
    office = Office()
    office.founded()
    office.lost()
    assert ends(office.answered(2, None)) == ["state-lost"]


def test_the_last_one_is_waited_for_until_it_is_proven_dead() -> None:
    """One that is evicted may hold more than the origin, and may yet commit."""
    office = Office()
    office.founded()
    office.sees_dead(A)
    office.hears(*(Entered(member=member, version=office.machine.version, step=2) for member in (B, C)))
    office.sees_hung(B)
    office.sees_dead(C)
    office.hears(join(AGAIN[0]), join(AGAIN[2]))
    assert rosters(office.answered(2)) == []
    office.sees_dead(B)
    (made,) = rosters(office.hears(join(AGAIN[1])))
    assert made.members == AGAIN


@pytest.mark.parametrize("at", range(4))
def test_a_coordinator_may_come_back_at_any_moment_of_it(at: int) -> None:
    """Whatever was reported before is reported again: deaths once more, in another order."""
    office = Office()
    office.founded()

    def again(moment: int) -> None:
        nonlocal office
        if at == moment:
            office = office.restarted()
            for member in (C, A, B)[:moment] if moment < 3 else (C, A, B):
                office.sees_dead(member)

    for number, member in enumerate((A, B, C)):
        again(number)
        office.sees_dead(member)
    again(3)
    office.joined()
    (asked,) = {effect.number for effect in seeks(office.all)} or {2}
    (made,) = rosters(office.answered(asked))
    assert made.members == AGAIN and made.version.term == asked > 1 and made.origin == ORIGIN


def test_between_its_roster_and_its_push_it_is_said_nevertheless() -> None:
    """What is durable is in the journal: a coordinator that died says it before it makes it durable."""
    office = Office()
    office.founded()
    office.lost().joined()
    effects = office.answered(2)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Founded) < max(n for n, kind in enumerate(kinds) if kind is Persist)


def test_founders_that_are_lost_too_lead_to_another_term() -> None:
    office = Office()
    office.founded()
    office.lost().joined()
    office.answered(2)
    effects = [effect for member in AGAIN for effect in office.sees_dead(member)]
    assert seeks(effects) == [Seek(number=3, step=None)]
    office.hears(*(join(Member(replica, 2)) for replica in REPLICAS))
    (made,) = rosters(office.answered(3))
    assert made.version == Version(3, 1)


def test_a_joiner_that_waited_becomes_a_founder() -> None:
    office = Office()
    office.founded()
    office.sees_dead(A)
    version = office.machine.version
    office.hears(join(AGAIN[0]), *(Entered(member=member, version=version, step=2) for member in (B, C)))
    office.hears(CaughtUp(member=AGAIN[0], step=2), CaughtUp(member=AGAIN[0], step=None))
    office.sees_dead(B)
    effects = office.sees_dead(C)
    if not seeks(effects):  # the planned roster had a seat for it: it is asked, and holds nothing
        version = office.machine.version
        effects = office.hears(StatelessFound(member=AGAIN[0], version=version, why="none"))
        assert Kill(member=AGAIN[0], why="it holds no state") in effects
    assert seeks(effects)


def test_those_who_hold_no_state_are_ended_and_the_job_founded_again() -> None:
    office = Office()
    office.founded()
    effects = office.hears(StatelessFound(member=A, version=Version(1, 1), why="nobody holds it"))
    assert [effect.member for effect in effects if isinstance(effect, Kill)] == [A, B, C]
    office.answered(2)
    assert rosters(office.all)[-1].version == Version(1, 1), "they live: nobody is founded beside them"
    office.lost()
    (made,) = rosters(office.joined())
    assert made.members == AGAIN and made.version == Version(2, 1)


def test_one_that_has_handed_over_founds_nothing() -> None:
    """It is not proven dead yet, and will do nothing more: a roster with it would never form."""
    office = Office()
    office.founded()
    office._take(WishCame(now=office.now, ticket=1, wish=Wish(kind="leave", replica="r2")))
    office.hears(*(Entered(member=member, version=office.machine.version, step=3) for member in (A, B)))
    office.hears(Released(member=C, version=Version(1, 1), step=3))
    office.sees_dead(A)
    effects = office.sees_dead(B)
    office.hears(*map(join, AGAIN[:2]))
    assert seeks(effects) and rosters(office.answered(seeks(effects)[0].number)) == []
    (made,) = rosters(office.sees_dead(C))
    assert made.members == AGAIN[:2]


def test_one_whose_word_of_having_left_is_on_its_way_is_awaited() -> None:
    office = Office()
    office.founded()
    office._take(WishCame(now=office.now, ticket=1, wish=Wish(kind="leave", replica="r2")))
    planned = office.machine.version
    office.hears(*(Entered(member=member, version=planned, step=3) for member in (A, B)))
    office.sees_dead(A)
    effects = office.sees_dead(B)
    assert Kill(member=C, why="it has handed over") in effects
    office.hears(*map(join, AGAIN[:2]))
    assert rosters(office.answered(2)) == []
    back = office.restarted()
    back.sees_dead(A)
    back.sees_dead(B)
    back.hears(*map(join, AGAIN[:2]))
    assert rosters(back.all) == [], "whether or not it is heard of again"
    back.hears(join(C, seen=planned, entered=Version(1, 1)))
    assert rosters(back.all) == [] and C not in back.machine._present
    (made,) = rosters(back.sees_dead(C))
    assert made.members == AGAIN[:2]


def test_a_place_that_waits_for_its_relief_is_the_reliefs() -> None:
    office = Office()
    office.founded()
    office._take(WishCame(now=office.now, ticket=1, wish=Wish(kind="migrate", replica="r0")))
    office.lost()
    relief = Member("r3", 0)
    assert rosters(office.hears(*map(join, AGAIN[1:]))) == []
    office.hears(join(relief))
    (made,) = rosters(office.answered(2))
    assert made.members == (*AGAIN[1:], relief)


def test_an_end_that_was_reported_before_does_not_end_a_job_that_is_founded_again() -> None:
    office = Office()
    office.founded()
    early = Died(now=0.0, member=A, how="exited with 0", clean=True, never_joined=True)
    office.sees_dead(A)
    office.sees_dead(B)
    office.sees_dead(C)
    office = office.restarted()
    assert ends(office._take(msgspec.structs.replace(early, member=A))) == []


def test_a_stop_that_is_wished_meanwhile_reaches_the_founders() -> None:
    office = Office()
    office.founded()
    office.lost()
    office._take(StopRequested(now=office.now))
    effects = office.joined()
    assert [effect.member for effect in effects if isinstance(effect, Send) and effect.message == Stop()] == list(AGAIN)
    (made,) = rosters(office.answered(2))
    assert made.origin == ORIGIN


def test_a_job_that_stops_anyway_is_not_founded_again() -> None:
    office = Office()
    office.founded()
    office._take(StopRequested(now=office.now))
    office.lost()
    assert ends(office.all) == ["state-lost"]


def test_a_job_that_poison_halts_is_not_founded_again() -> None:
    office = Office(config=msgspec.structs.replace(KEEPS, poison_after=1))
    office.founded()
    for member in (A, B, C):
        place = Place(step=2, lane=1, phase="microbatch")
        office._take(Died(now=0.0, member=member, how="segfaulted", clean=False, place=place))
    assert seeks(office.all) == [] and ends(office.all)


def test_what_the_script_raises_is_its_failure() -> None:
    office = Office()
    office.founded()
    office.sees_dead(A)
    office.sees_dead(B)
    office.hears(raised(C))
    assert ends(office.sees_dead(C)) == ["failed"]


def test_all_lost_after_the_last_step_and_before_the_end_begin_again_too() -> None:
    office = Office()
    office.founded()
    office.hears(Ending(member=A, step=9))
    office.lost()
    assert ends(office.all) == [] and seeks(office.all) == [Seek(number=2, step=None)]
    assert [effect.member for effect in office.all if isinstance(effect, Start)] == [A, B, C, *AGAIN]
    office.joined()
    (made,) = rosters(office.answered(2))
    assert made.members == AGAIN


def test_whoever_has_no_seat_is_not_asked_to_save() -> None:
    """It would wish that at its first boundary, long after."""
    office = Office()
    office.founded()
    office.sees_dead(A)
    office.hears(join(AGAIN[0]))
    effects = office._take(WishCame(now=office.now, ticket=1, wish=Wish(kind="save")))
    assert [effect.member for effect in effects if isinstance(effect, Send)] == [B, C]


# A founder


def founding(version: Version, *members: Member, origin: Origin | None = ORIGIN) -> Roster:
    return msgspec.structs.replace(roster(version, *members, founders=members), origin=origin, floor=4)


V1, V2 = Version(2, 1), Version(2, 2)


class Founder(Story):
    def __init__(self) -> None:
        super().__init__(steps=9)
        self.hears(StepEntered(), RosterPushed(roster=founding(V1, A, B)))


def test_a_founder_recalls_before_it_states_anything() -> None:
    founder = Founder()
    assert not founder.member.holds_state
    assert founder.hears(Formed(version=V1)) == [Recall(version=V1, origin=ORIGIN)]
    assert not founder.member.holds_state
    assert founder.hears(Recalled(version=V1)) == [Exchange(version=V1, statement=stated(A, 4, last=9))]
    _, entered, _ = founder.hears(Exchanged(version=V1, table=(stated(A, 4, last=9), stated(B, 4, last=9))))
    assert entered == Tell(message=Entered(member=A, version=V1, step=4))


def test_a_newer_roster_does_not_interrupt_it() -> None:
    founder = Founder()
    founder.hears(Formed(version=V1))
    second = founding(V2, A)
    assert founder.hears(RosterPushed(roster=second)) == [Abort(below=V2), Form(roster=second)]
    assert founder.hears(Formed(version=V2)) == []
    assert founder.hears(Recalled(version=V1)) == [Exchange(version=V2, statement=stated(A, 4, last=9))], (
        "and once is enough"
    )


def test_one_that_is_left_out_while_it_recalls_is_gone() -> None:
    founder = Founder()
    founder.hears(Formed(version=V1))
    assert isinstance(founder.hears(RosterPushed(roster=founding(V2, B)))[-1], Leave)
    assert founder.hears(Recalled(version=V1)) == []
    assert founder.member.task is Task.GONE and not founder.member.holds_state


def test_a_roster_without_an_origin_does_not_make_its_own_weights_the_jobs() -> None:
    """There is none before all have entered one with it; a founder trusts nobody with that."""
    founder = Founder()
    founder.hears(RosterPushed(roster=founding(V2, A, origin=None)))
    assert not founder.member.holds_state


def test_whoever_comes_later_is_healed_and_recalls_nothing() -> None:
    joiner = Story(Member("r2", 1), steps=9)
    seats = msgspec.structs.replace(roster(V2, A, joiner.member.me, founders=(A,)), origin=ORIGIN)
    joiner.hears(StepEntered(), RosterPushed(roster=seats))
    (exchange,) = joiner.hears(Formed(version=V2))
    assert isinstance(exchange, Exchange) and not exchange.statement.holds_state


# Jobs that are brought back again and again


def test_without_progress_a_job_is_given_up_after_so_many_foundings() -> None:
    office = Office(config=msgspec.structs.replace(KEEPS, max_job_restarts=1))
    office.founded()
    assert seeks(office.lost().all) == [Seek(number=2, step=None)]
    office.joined()
    office.answered(2)
    assert ends([effect for member in AGAIN for effect in office.sees_dead(member)]) == ["failed"]
    assert "brought back once (--max-job-restarts 1)" in str(office.all[-1])


def test_a_job_that_gets_further_goes_on_and_a_coordinator_that_came_back_counts_on() -> None:
    office = Office(config=msgspec.structs.replace(KEEPS, max_job_restarts=1))
    office.founded()
    office.lost().joined()
    office.answered(2)
    office = office.restarted()
    for member in AGAIN:
        place = Place(step=6, lane=None, phase="boundary")
        office._take(Died(now=0.0, member=member, how="was killed", clean=False, place=place))
    assert ends(office.all) == [] and len(seeks(office.all)) == 1, "they died in a step beyond those committed before"
    again = office.restarted()
    assert again.saved is not None and again.saved.comebacks.in_vain == 1, "asked again, and counted once"


# Jobs that cannot go on


def broken(office: Office) -> Office:
    """The script raises the same on two of three."""
    office.founded()
    office.hears(raised(A))
    office.sees_dead(A)
    office.hears(raised(B))
    return office


def test_a_broken_script_halts_those_who_hold_the_state_so_that_they_save_it() -> None:
    office = broken(Office())
    assert ends(office.all) == []
    (made,) = rosters(office.sees_dead(B))
    assert made.members == (C,) and made.halt is not None and not made.halt.is_poison
    assert "an error in the script" in made.halt.why
    assert not made.waits and Member("r1", 1) not in [e.member for e in office.all if isinstance(e, Start)]
    office.hears(Entered(member=C, version=made.version, step=4), Ending(member=C, step=4))
    office.hears(Left(member=C, version=made.version, step=4))
    assert ends(office.sees_dead(C, clean=True)) == ["failed"] and "an error in the script" in str(office.all[-1])


def test_a_coordinator_that_came_back_halts_it_nevertheless() -> None:
    office = broken(Office()).restarted()
    office.hears(join(C, seen=Version(1, 2), entered=Version(1, 2)))
    (made,) = rosters(office.sees_dead(B))
    assert made.halt is not None and made.members == (C,)


def test_with_nobody_left_who_holds_the_state_a_broken_script_ends_the_job_at_once() -> None:
    office = Office()
    office.founded()
    office.sees_dead(C)
    office.hears(raised(A))
    office.hears(raised(B))
    assert ends(office.all) == ["failed"]


def test_without_a_vault_a_broken_script_ends_the_job_at_once() -> None:
    assert ends(broken(Office(config=CONFIG)).all) == ["failed"]


def test_too_few_replicas_save_what_they_hold_and_end() -> None:
    config = msgspec.structs.replace(KEEPS, min_replicas=3, budget=msgspec.structs.replace(CONFIG.budget, max_restarts=0))
    office = Office(config=config)
    office.founded()
    effects = office.sees_dead(A)
    made = rosters(effects)[-1]
    assert ends(effects) == [] and made.members == (B, C)
    assert made.halt is not None and "lower --min-replicas" in made.halt.why and not made.waits


# A job that was finished before


def begun(steps: str, config: MembershipConfig = RESUMES, is_final: bool = True) -> list[MembershipEffect]:
    """Founders that ask for so many steps, and an origin of step 4."""
    office = Office(config=config)
    for member in (A, B, C):
        wants = join(member)
        office.hears(msgspec.structs.replace(wants, contract=Contract(terms={"dropout": "0.1", "steps": steps})))
    came = OriginCame(now=0.0, number=1, origin=ORIGIN, mathematics=SAVED_WITH, why="", is_final=is_final)
    return office._take(came)


def test_a_finished_job_is_founded_again_only_for_more_steps() -> None:
    for steps in ("3", "4"):
        effects = begun(steps)
        assert ends(effects) == ["finished"] and rosters(effects) == [], steps
        assert "finished before, at step 4" in str(effects[-1])
    assert len(rosters(begun("5"))) == 1


def test_the_operators_word_is_to_go_on() -> None:
    for word in ({"resume_step": 4}, {"new_mathematics": True}):
        assert len(rosters(begun("4", msgspec.structs.replace(RESUMES, **word)))) == 1
    assert len(rosters(begun("4", is_final=False))) == 1, "a job that was interrupted there"
