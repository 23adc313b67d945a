"""The coordinator's machine: events in, effects equal."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from regrow.core.budget import BudgetConfig, Restart
from regrow.core.membership import Membership, MembershipConfig
from regrow.core.membership_effects import (
    End,
    Granted,
    Kill,
    Lost,
    Made,
    MembershipEffect,
    Persist,
    Saved,
    Send,
    Spared,
    Start,
)
from regrow.core.membership_events import (
    AgentCame,
    AgentGone,
    Died,
    Heard,
    Hung,
    Opened,
    Stalled,
    StopRequested,
    Ticked,
    WishCame,
)
from regrow.core.memory import Memory
from regrow.core.messages import (
    Beat,
    CaughtUp,
    Complain,
    Contract,
    Ending,
    Entered,
    FromMember,
    Join,
    Left,
    Listen,
    Missed,
    Overflowed,
    Push,
    Raised,
    Refuse,
    StatelessFound,
    Stop,
)
from regrow.core.progress import Phase, Place
from regrow.core.roster import NO_VERSION, Endpoint, Member, Roster, Version
from regrow.core.wishes import Wish

REPLICAS = ("r0", "r1", "r2")
CONFIG = MembershipConfig(replicas=REPLICAS, lanes=6, lease_s=10.0, grace_s=1.0, budget=BudgetConfig(max_restarts=2))
A, B, C = (Member(replica, 0) for replica in REPLICAS)
V1 = Version(1, 1)


def join(
    member: Member, seen: Version = NO_VERSION, entered: Version = NO_VERSION, dropout: str = "0.1", listens: bool = False
) -> Join:
    terms = {"dropout": dropout}
    endpoint = Endpoint(str(member), 1)
    contract = Contract(terms=terms)
    return Join(
        member=member, endpoint=endpoint, contract=contract, lanes=6, seen=seen, entered=entered, step=0, listens=listens
    )


def raised(member: Member, scope: str = "step", place: str = "train.py:3") -> Raised:
    return Raised(member=member, kind="ValueError", place=place, traceback="", step=0, lane=None, scope=scope)


class Desk:
    """A coordinator, its clock, and what it has made durable."""

    def __init__(self, saved: Saved | None = None, config: MembershipConfig = CONFIG, now: float = 0.0) -> None:
        self.machine = Membership(config, saved)
        self.now = now
        self.saved = saved
        self.all: list[MembershipEffect] = []
        self.opening = self._take(Opened(now=now))

    def _take(self, event: object) -> list[MembershipEffect]:
        effects = self.machine.handle(event)  # type: ignore[arg-type]
        for effect in effects:
            if isinstance(effect, Persist):
                self.saved = effect.saved
        self.all += effects
        return effects

    def hears(self, *messages: FromMember) -> list[MembershipEffect]:
        return [effect for message in messages for effect in self._take(Heard(now=self.now, message=message))]

    def sees_dead(self, member: Member, clean: bool = False, place: Place | None = None) -> list[MembershipEffect]:
        return self._take(Died(now=self.now, member=member, how="was killed", clean=clean, place=place))

    def sees_hung(self, member: Member) -> list[MembershipEffect]:
        return self._take(Hung(now=self.now, member=member, why="hangs in step 3"))

    def sees_stall(self) -> list[MembershipEffect]:
        return self._take(Stalled(now=self.now, why="everybody waits"))

    def waits(self, span_s: float, *beating: Member) -> list[MembershipEffect]:
        effects: list[MembershipEffect] = []
        for _ in range(int(span_s * 2)):
            self.now += 0.5
            for member in beating:
                self.hears(Beat(member=member))
            effects += self._take(Ticked(now=self.now))
        return effects

    def founded(self) -> "Desk":
        self.hears(*(join(m) for m in (A, B, C)))
        self.hears(*(Entered(member=m, version=V1, step=0) for m in (A, B, C)))
        return self

    def restarted(self) -> "Desk":
        return Desk(self.saved, now=self.now)


def rosters(effects: list[MembershipEffect]) -> list[Roster]:
    return [effect.roster for effect in effects if isinstance(effect, Made)]


def ends(effects: list[MembershipEffect]) -> list[str]:
    return [effect.outcome for effect in effects if isinstance(effect, End)]


def test_the_term_is_durable_before_anything_starts() -> None:
    persist, *starts = Desk().opening
    assert isinstance(persist, Persist)
    assert persist.saved.term == 1
    assert [s.member for s in starts if isinstance(s, Start)] == [A, B, C]


def test_the_first_roster_waits_for_everyone_and_makes_founders() -> None:
    desk = Desk()
    assert rosters(desk.hears(join(A), join(B))) == []
    effects = desk.hears(join(C))
    (made,) = rosters(effects)
    assert made.version == V1
    assert all(seat.founder for seat in made.seats)
    kinds = [type(effect) for effect in effects]
    assert kinds == [Persist, Made, Send, Send, Send], "durable before it is pushed"


def test_a_death_makes_a_roster_of_the_rest_and_a_new_life() -> None:
    effects = Desk().founded().sees_dead(A)
    (made,) = rosters(effects)
    assert made.members == (B, C)
    (start,) = [e for e in effects if isinstance(e, Start)]
    assert start.member == Member("r0", 1)


def test_a_death_is_reported_as_often_as_you_like() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    assert desk.sees_dead(A) == []


def test_a_joiner_waits_until_the_roster_was_entered_by_all() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    v2, joiner = desk.machine.version, Member("r0", 1)
    assert rosters(desk.hears(join(joiner), Entered(member=B, version=v2, step=3))) == []
    (told,) = desk.hears(Entered(member=C, version=v2, step=3))
    assert isinstance(told, Send) and told.member == joiner
    assert isinstance(told.message, Listen) and told.message.roster.version == v2
    (made,) = rosters(desk.hears(CaughtUp(member=joiner, step=4)))
    assert made.members == (joiner, B, C)
    assert made.floor == 3
    assert made.base == v2, "the others go on under that one until all are ready"
    assert [seat.founder for seat in made.seats] == [False, True, True]
    assert [seat.is_new for seat in made.seats] == [True, False, False]


def test_a_joiner_that_cannot_keep_up_is_seated_at_once() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    joiner = Member("r0", 1)
    desk.hears(join(joiner), *(Entered(member=m, version=desk.machine.version, step=3) for m in (B, C)))
    effects = desk.hears(Overflowed(member=joiner, why="too much waits"))
    (made,) = rosters(effects)
    assert made.members == (joiner, B, C) and made.base is None
    (why,) = (effect.why for effect in effects if isinstance(effect, Made))
    assert why == "r0.1 cannot keep up: too much waits; the others wait"


def test_a_loss_while_a_planned_roster_is_entered_keeps_everybody_who_may_have_to_testify() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    joiner, base = Member("r0", 1), desk.machine.version
    desk.hears(join(joiner), *(Entered(member=m, version=base, step=3) for m in (B, C)), CaughtUp(member=joiner, step=4))
    (made,) = rosters(desk.sees_dead(C))
    assert made.members == (joiner, B) and made.base is None
    saved = Desk().founded()
    saved.sees_dead(A)
    saved.hears(join(joiner), *(Entered(member=m, version=base, step=3) for m in (B, C)), CaughtUp(member=joiner, step=4))
    assert saved.saved is not None and saved.saved.base is not None and saved.saved.base.version == base


def test_who_listens_and_dies_makes_no_roster() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    joiner = Member("r0", 1)
    desk.hears(join(joiner), *(Entered(member=m, version=desk.machine.version, step=3) for m in (B, C)))
    assert rosters(desk.sees_dead(joiner)) == []


def test_the_budget_ends_a_replica_then_the_job() -> None:
    desk = Desk().founded()
    for life in range(3):
        effects = desk.sees_dead(Member("r0", life))
    assert [e.replica for e in effects if isinstance(e, Lost)] == ["r0"]
    assert desk.saved is not None
    assert desk.saved.staff is not None and desk.saved.staff.lost == ("r0",)


def test_a_restart_is_granted_with_its_numbers_once_it_is_durable() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    desk.now = 5.0
    persist, granted, start = desk.sees_dead(Member("r0", 1))
    assert isinstance(persist, Persist) and persist.saved.spent == {"r0": (0.0, 5.0)}
    restart = Restart(delay_s=0.5, used=2, limit=2, job_used=2, job_limit=200, window_s=600.0)
    assert granted == Granted(member=Member("r0", 2), restart=restart, why="r0.1 was killed")
    assert start == Start(member=Member("r0", 2), delay_s=0.5, why="r0.1 was killed")


def test_what_was_spent_outlives_the_coordinator() -> None:
    desk = Desk().founded()
    for life in range(2):
        desk.sees_dead(Member("r0", life))
    effects = desk.restarted().sees_dead(Member("r0", 2))
    assert [effect.replica for effect in effects if isinstance(effect, Lost)] == ["r0"]


def spend_all(desk: Desk, replica: str) -> list[MembershipEffect]:
    return [effect for life in range(3) for effect in desk.sees_dead(Member(replica, life))]


def test_the_job_goes_on_while_enough_replicas_may_still_run() -> None:
    desk = Desk(config=msgspec.structs.replace(CONFIG, min_replicas=2)).founded()
    effects = spend_all(desk, "r0")
    why = "r0 was restarted 2 times within 600 s (--max-restarts)"
    assert [e for e in effects if isinstance(e, Lost)] == [Lost(replica="r0", why=why, left=2, needed=2)]
    assert ends(effects) == [] and desk.machine.roster is not None and desk.machine.roster.members == (B, C)
    effects = spend_all(desk, "r1")
    assert [(e.left, e.needed) for e in effects if isinstance(e, Lost)] == [(1, 2)]
    (end,) = [e for e in effects if isinstance(e, End)]
    assert end.outcome == "failed"
    assert end.why == (
        "only 1 of 3 replicas may still run (r0, r1 will not be restarted), and the job needs 2: mend the cause, or lower "
        "--min-replicas"
    )


def test_too_few_replicas_before_the_first_roster_end_the_job_too() -> None:
    desk = Desk(config=msgspec.structs.replace(CONFIG, min_replicas=3))
    assert ends(spend_all(desk, "r0")) == ["failed"]


def test_a_coordinator_that_crashed_before_it_could_end_the_job_ends_it_when_it_is_back() -> None:
    config = msgspec.structs.replace(CONFIG, min_replicas=3)
    desk = Desk(config=config).founded()
    spend_all(desk, "r0")
    back = Desk(msgspec.structs.replace(desk.saved, end=None), config, now=desk.now)
    assert ends(back.sees_dead(Member("r0", 2))) == ["failed"]


def test_silence_evicts_and_tells() -> None:
    desk = Desk().founded()
    effects = desk.waits(12, B, C)
    (made,) = rosters(effects)
    assert made.members == (B, C)
    assert Send(member=A, message=Push(roster=made)) in effects
    assert [e.member for e in effects if isinstance(e, Kill)] == [A]
    (refused,) = desk.hears(join(A, seen=V1))
    assert isinstance(refused, Send)
    assert isinstance(refused.message, Refuse)


def test_those_who_fall_silent_together_are_evicted_by_one_roster() -> None:
    desk = Desk().founded()
    effects = desk.waits(12, A)
    (made,) = rosters(effects)
    assert made.members == (A,)
    assert [e.member for e in effects if isinstance(e, Kill)] == [B, C]
    told = [e.member for e in effects if isinstance(e, Send) and e.message == Push(roster=made)]
    assert told == [A, B, C], "the evicted hear of it too"


def test_a_silence_counts_from_the_last_word_however_many_others_are_looked_at_before() -> None:
    desk = Desk().founded()
    desk.waits(4, A, B, C)
    assert rosters(desk.waits(10, A, B)) == []
    assert [made.members for made in rosters(desk.waits(1, A, B))] == [(A, B)]
    assert rosters(desk.waits(10, A)) == []
    assert [made.members for made in rosters(desk.waits(1, A))] == [(A,)]


def test_a_joiner_that_fell_silent_before_it_was_seated_is_evicted_in_its_time() -> None:
    desk = Desk().founded()
    desk.sees_dead(B)
    joiner = Member("r1", 1)
    desk.waits(5, A, C)
    desk.hears(join(joiner), CaughtUp(member=joiner, step=3))  # its last words
    assert rosters(desk.waits(9, A, C)) == []
    version = desk.machine.version
    seated = rosters(desk.hears(*(Entered(member=member, version=version, step=3) for member in (A, C))))
    assert [made.members for made in seated] == [(A, joiner, C)]
    assert [e.member for e in desk.waits(2, A, C) if isinstance(e, Kill)] == [joiner]


def test_whoever_wants_the_whole_roster_gets_it_even_without_a_seat() -> None:
    desk = Desk()
    assert desk.hears(Missed(member=A, why="none is held")) == []
    desk.founded()
    desk.sees_dead(B)
    newest = desk.machine.roster
    assert newest is not None
    for member in (A, B):
        assert desk.hears(Missed(member=member, why="it does not fit")) == [Send(member=member, message=Push(roster=newest))]


def test_silence_of_all_evicts_nobody() -> None:
    """It may be the coordinator that is cut off (tests/sim/seeds.py: EvictsTheLast)."""
    desk = Desk().founded()
    assert desk.waits(60) == []
    assert rosters(desk.waits(1, A)) != []


def test_the_only_holder_is_not_evicted_for_a_joiner_that_holds_nothing() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    desk.sees_dead(B)
    joiner = Member("r0", 1)
    desk.hears(join(joiner), Entered(member=C, version=desk.machine.version, step=1))
    desk.hears(CaughtUp(member=joiner, step=1))
    assert desk.machine.roster is not None
    assert desk.machine.roster.members == (joiner, C)
    assert desk.waits(60, joiner) == []


def test_nobody_is_evicted_within_a_lease_of_a_start() -> None:
    desk = Desk().founded().restarted()
    desk.hears(join(A, seen=V1, entered=V1))
    assert rosters(desk.waits(9, A)) == []
    assert rosters(desk.waits(3, A)) != []


def test_a_coordinator_that_was_itself_stopped_evicts_nobody_for_a_lease() -> None:
    desk = Desk().founded()
    desk.waits(1, A, B, C)
    desk.now += 60.0  # stopped, and every word of the members is still unread
    assert desk.hears(Beat(member=A)) == []
    assert desk._take(Ticked(now=desk.now)) == []
    assert [str(e.member) for e in desk.waits(12, A, B) if isinstance(e, Kill)] == ["r2.0"], "silence counts again"


def test_a_hung_member_is_left_out_at_once_and_then_killed() -> None:
    desk = Desk().founded()
    effects = desk.sees_hung(A)
    (made,) = rosters(effects)
    assert (made.members, made.cause) == ((B, C), "hung-r0.0")
    assert effects[-1] == Kill(member=A, why="hangs in step 3"), "the others do not wait for the kill"
    assert desk.sees_hung(A) == [], "said again, it changes nothing"
    assert [e.member for e in desk.sees_dead(A) if isinstance(e, Start)] == [Member("r0", 1)]
    assert desk.sees_hung(A) == []


def test_the_only_known_holder_of_the_state_is_spared_once_aloud() -> None:
    desk = Desk().founded()
    desk.sees_hung(A)
    desk.sees_dead(B)
    (spared,) = desk.sees_hung(C)
    assert isinstance(spared, Spared) and spared.member == C and "nobody else is known" in spared.why
    assert desk.sees_hung(C) == []
    joiner = Member("r1", 1)
    desk.hears(join(joiner), Entered(member=C, version=desk.machine.version, step=1))
    assert desk.sees_hung(C) == [], "a listener holds nothing"
    desk.hears(CaughtUp(member=joiner, step=1))
    assert desk.sees_hung(C) == [], "a joiner holds nothing yet"
    desk.hears(Entered(member=joiner, version=desk.machine.version, step=1))
    (made,) = rosters(desk.sees_hung(C))
    assert made.members == (joiner,), "in step meanwhile, it can go on alone"


def test_hung_before_the_first_roster_is_killed_and_started_again_on_the_budget() -> None:
    desk = Desk()
    desk.hears(join(A), join(B))
    assert desk.sees_hung(C)[-1] == Kill(member=C, why="hangs in step 3")
    assert [e.member for e in desk.sees_dead(C) if isinstance(e, Start)] == [Member("r2", 1)]
    (made,) = rosters(desk.hears(join(Member("r2", 1))))
    assert made.members == (A, B, Member("r2", 1))


def test_a_joiner_that_hangs_is_killed_and_nobody_re_forms() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    effects = desk.sees_hung(Member("r0", 1))
    assert effects[-1] == Kill(member=Member("r0", 1), why="hangs in step 3") and not rosters(effects)


def test_whoever_hangs_after_others_have_left_does_not_hold_up_the_end() -> None:
    desk = Desk().founded()
    desk.hears(*(Left(member=m, version=V1, step=9) for m in (A, B)))
    assert desk.sees_hung(C) == [Kill(member=C, why="hangs in step 3")]
    effects = [*desk.sees_dead(A, clean=True), *desk.sees_dead(B, clean=True), *desk.sees_dead(C)]
    assert ends(effects) == ["finished"]


def test_whoever_has_left_and_hangs_still_counts_as_having_left() -> None:
    """Said to hang, and left out of the last roster because it has left: its copy of the state is one (seed 29301)."""
    desk = Desk().founded()
    desk.sees_dead(B)
    desk.hears(Left(member=A, version=V1, step=9))
    assert desk.machine.roster is not None and desk.machine.roster.members == (C,)
    assert desk.sees_hung(A) == [Kill(member=A, why="hangs in step 3")]
    assert ends(desk.sees_dead(C)) == []
    assert ends(desk.sees_dead(A)) == ["failed"]


def test_in_a_stall_the_same_members_form_again() -> None:
    assert Desk().sees_stall() == [], "there is no roster yet"
    (made,) = rosters(Desk().founded().sees_stall())
    assert (made.members, made.cause) == ((A, B, C), "stalled")


def test_a_complaint_waits_for_a_death_that_explains_it() -> None:
    desk = Desk().founded()
    assert desk.hears(Complain(member=A, version=V1, why="x")) == []
    (made,) = rosters(desk.waits(2, A, B, C))
    assert made.members == (A, B, C)
    assert desk.hears(Complain(member=B, version=V1, why="old news")) == []
    assert desk.waits(3, A, B, C) == []


def test_a_restart_raises_the_term_and_keeps_the_roster() -> None:
    desk = Desk().founded().restarted()
    assert desk.saved is not None
    assert desk.saved.term == 2
    assert desk.machine.version == V1
    (push,) = desk.hears(join(A, seen=V1, entered=V1))
    assert isinstance(push, Send)
    assert isinstance(push.message, Push)
    assert rosters(desk.sees_dead(B))[0].version == Version(2, 1)


def test_whoever_was_left_out_before_a_restart_is_refused_after_it() -> None:
    """Evictions are not durable, rosters are (tests/sim/seeds.py: SeatsTheLeftOut)."""
    desk = Desk().founded()
    desk.waits(12, B, C)
    later = desk.restarted()
    (refused,) = later.hears(join(A, seen=V1, entered=V1))
    assert isinstance(refused, Send)
    assert isinstance(refused.message, Refuse)
    assert rosters(later.hears(join(B, seen=V1), join(C, seen=V1))) == []


def test_whom_an_earlier_coordinator_gave_up_is_killed_after_a_restart() -> None:
    desk = Desk().founded()
    evicted = [e for e in desk.waits(12, A, C) if isinstance(e, Kill)]
    assert [kill.member for kill in evicted] == [B]
    again = desk.restarted()
    assert [e.member for e in again.opening if isinstance(e, Kill)] == [B]
    assert isinstance(again.hears(join(B, seen=V1, entered=V1))[0], Send), "refused, though it is still alive"
    (start,) = [e for e in again.sees_dead(B) if isinstance(e, Start)]
    assert start.member == Member("r1", 1)
    assert again.restarted().opening[-1] == Start(member=C, delay_s=0.0, why="the job starts"), "nobody is doomed any more"


def test_a_stop_outlives_the_coordinator_that_heard_it() -> None:
    desk = Desk().founded()
    desk._take(StopRequested(now=0.0))
    assert desk._take(StopRequested(now=0.0)) == [], "told again, it is nothing new"
    again = desk.restarted()
    assert again.hears(join(A, seen=V1, entered=V1))[0] == Send(member=A, message=Stop())


def test_an_end_is_durable_before_it_is_told_and_told_again_after_a_restart() -> None:
    desk = Desk().founded()
    persist, end = desk.hears(StatelessFound(member=A, version=V1, why="x"))
    assert isinstance(persist, Persist) and persist.saved.end == end
    again = desk.restarted()
    assert again.opening[-1] == end
    assert again.hears(join(A, seen=V1, entered=V1)) == []


def test_a_report_told_to_the_next_coordinator_too_starts_nobody_twice() -> None:
    desk = Desk().founded()
    desk.sees_dead(B)
    again = desk.restarted()
    assert [e.member for e in again.opening if isinstance(e, Start)] == [A, Member("r1", 1), C]
    assert again.sees_dead(B) == []


def test_without_an_agent_and_without_a_word_of_anyone_the_job_ends_unsaved() -> None:
    desk = Desk().founded()
    desk._take(AgentGone(now=desk.now))
    assert ends(desk.waits(30, A)) == [], "somebody is heard"
    silence = desk.waits(11)
    assert ends(silence) == ["state-lost"]
    assert not any(isinstance(effect, Persist) for effect in silence), "a guess must not bind a successor"
    back = Desk().founded()
    back._take(AgentGone(now=back.now))
    back._take(AgentCame(now=back.now))
    assert ends(back.waits(30)) == []


def test_a_script_that_takes_no_part_is_the_end_before_the_first_roster_only() -> None:
    desk = Desk()
    never = Died(now=0.0, member=A, how="exited with code 64", clean=False, never_joined=True)
    assert ends(desk._take(never)) == ["failed"]
    assert ends(Desk().sees_dead(A, clean=True)) == ["failed"]
    assert ends(Desk().founded()._take(never)) == []


def test_when_every_member_is_lost_so_is_the_state() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    desk.sees_dead(B)
    assert ends(desk.sees_dead(C)) == ["state-lost"]
    assert desk.hears(join(Member("r0", 1))) == []


def test_a_roster_that_found_nobody_with_state_ends_the_job() -> None:
    desk = Desk().founded()
    assert ends(desk.hears(StatelessFound(member=A, version=V1, why="x"))) == ["state-lost"]


def test_a_joiner_that_finds_nobody_while_the_others_leave_is_no_loss() -> None:
    """tests/sim/seeds.py: MournsTooEarly."""
    desk = Desk().founded()
    desk.hears(Ending(member=A, step=9))
    assert desk.hears(StatelessFound(member=C, version=V1, why="x")) == []


def test_joiners_that_come_too_late_to_be_healed_are_ended() -> None:
    desk = Desk().founded()
    desk.sees_dead(B)
    desk.sees_dead(C)
    alone = desk.machine.version
    desk.hears(Entered(member=A, version=alone, step=7))
    late = Member("r1", 1)
    desk.hears(join(late), CaughtUp(member=late, step=8))
    assert desk.machine.version > alone, "the joiner is seated"
    desk.hears(Ending(member=A, step=9))
    persist, kill = desk.hears(Left(member=A, version=alone, step=9))
    assert isinstance(persist, Persist) and late in persist.saved.doomed, "durable before it is ordered"
    assert kill == Kill(member=late, why="the job is ending")
    desk.sees_dead(late)
    assert ends(desk.sees_dead(A, clean=True)) == ["finished"]


def test_a_founder_whose_words_were_lost_does_not_come_too_late() -> None:
    """It is at the end like those who left, and may be about to save the state."""
    desk = Desk()
    desk.hears(*(join(m) for m in (A, B, C)), *(Entered(member=m, version=V1, step=0) for m in (A, B)))
    desk.hears(*(Left(member=m, version=V1, step=9) for m in (A, B)))
    effects = desk.waits(2, A, B, C)
    assert [made.members for made in rosters(effects)] == [(C,)] and not [e for e in effects if isinstance(e, Kill)]


def test_all_leave_all_exit_the_job_is_finished() -> None:
    desk = Desk().founded()
    desk.hears(*(Ending(member=m, step=9) for m in (A, B, C)))
    desk.hears(*(Left(member=m, version=V1, step=9) for m in (A, B, C)))
    assert desk.sees_dead(A, clean=True) == []
    desk.sees_dead(B, clean=True)
    assert ends(desk.sees_dead(C, clean=True)) == ["finished"]


LEAVING = Place(step=9, lane=None, phase=Phase.LEAVING.value)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_death_past_the_end_is_told_though_the_word_of_it_was_lost(is_restarted: bool) -> None:
    """Its last stamp tells, whatever became of its connection or of the coordinator that heard it."""
    desk = Desk().founded()
    desk.hears(*(Ending(member=m, step=9) for m in (A, B, C)))
    if is_restarted:
        desk.hears(*(Left(member=m, version=V1, step=9) for m in (A, B, C)))
        desk = desk.restarted()
    desk.sees_dead(A, place=LEAVING)
    desk.sees_dead(B, clean=True, place=LEAVING)
    (end,) = [effect for effect in desk.sees_dead(C, clean=True, place=LEAVING) if isinstance(effect, End)]
    assert (end.outcome, end.why) == ("failed", f"{A} was killed after its last step")


def test_one_that_was_left_out_says_nothing_of_the_end_by_its_last_stamp() -> None:
    """It is told again to a coordinator that came back, of a job that was founded anew since."""
    desk = Desk().founded()
    desk.hears(Ending(member=A, step=9))
    desk.sees_dead(A)
    (made,) = rosters(desk.sees_dead(B))
    assert made.members == (C,)
    later = desk.restarted()
    assert ends(later.sees_dead(A, place=LEAVING)) == []
    assert ends(later.sees_dead(C, clean=True)) == ["finished"]


def test_a_job_that_is_founded_again_while_others_are_awaited_goes_on() -> None:
    """All were killed past the end; a lease after its start a coordinator knows that nobody left well (seed 3910)."""
    desk = Desk().founded()
    desk.hears(Ending(member=A, step=9))
    later = Desk(desk.saved, msgspec.structs.replace(CONFIG, keeps=True), desk.now)
    later.waits(9, A, B, C)
    for member in (A, B, C):
        later._take(Died(now=later.now, member=member, how="was killed", clean=False, place=LEAVING, struck=True))
    assert [e.member for e in later.waits(2) if isinstance(e, Start)] == [Member(replica, 1) for replica in REPLICAS]


def test_clean_exits_tell_of_the_end_when_all_words_of_it_were_lost() -> None:
    """tests/sim/seeds.py: DistrustsCleanExits."""
    desk = Desk().founded().restarted()
    for member in (A, B):
        assert not [e for e in desk.sees_dead(member, clean=True) if isinstance(e, Start)]
    assert ends(desk.sees_dead(C, clean=True)) == ["finished"]


def test_those_who_have_not_left_are_given_a_roster_of_their_own() -> None:
    """tests/sim/seeds.py: AwaitsNobody."""
    desk = Desk().founded()
    desk.hears(Ending(member=A, step=9), Left(member=A, version=V1, step=9))
    (made,) = rosters(desk.waits(2, B, C))
    assert made.members == (B, C)
    assert desk.hears(Left(member=A, version=V1, step=9)) == [], "heard twice, it changes nothing"


def test_after_a_restart_the_end_waits_for_the_exits_of_those_who_left() -> None:
    """tests/sim/seeds.py: ConcludesAtOnce."""
    desk = Desk().founded()
    desk.hears(Ending(member=A, step=9))
    desk.sees_dead(A, clean=True)
    desk.waits(2, B, C)
    later = desk.restarted()
    assert later.machine.roster is not None
    assert later.machine.roster.members == (B, C)
    assert ends(later.sees_dead(B)) == ends(later.sees_dead(C)) == []
    assert ends(later.sees_dead(A, clean=True)) == ["finished"]


def test_after_a_restart_the_end_waits_for_those_whom_a_planned_roster_has_no_seat_for() -> None:
    """tests/sim/seeds.py: ForgetsTheBase."""
    desk = Desk().founded()
    desk._take(WishCame(now=0.0, ticket=1, wish=Wish(kind="leave", replica="r2")))
    assert desk.machine.roster is not None and desk.machine.roster.members == (A, B)
    later = desk.restarted()
    later.sees_dead(A, clean=True)
    assert ends(later.sees_dead(B, clean=True)) == [], "C may still be at its last step"
    assert ends(later.sees_dead(C, clean=True)) == ["finished"]


def test_nobody_is_replaced_once_the_end_has_begun() -> None:
    desk = Desk().founded()
    desk.hears(Ending(member=A, step=9))
    assert not [e for e in desk.sees_dead(B) if isinstance(e, Start)]


def test_a_stop_reaches_those_who_come_later_too() -> None:
    desk = Desk().founded()
    effects = desk._take(StopRequested(now=0.0))
    *told, persist = effects
    assert isinstance(persist, Persist) and persist.saved.stopping
    assert told == [Send(member=m, message=Stop()) for m in (A, B, C)]
    assert desk.hears(join(A, seen=V1))[0] == Send(member=A, message=Stop())


def test_the_same_error_on_two_replicas_is_the_scripts() -> None:
    desk = Desk().founded()
    assert ends(desk.hears(raised(A), raised(A), raised(B, place="train.py:9"))) == []
    assert ends(desk.hears(raised(B))) == ["failed"]


def test_lack_of_memory_on_two_replicas_is_not_the_scripts() -> None:
    desk = Desk().founded()
    starved = msgspec.structs.replace(raised(A), kind="MemoryError", memory=Memory(evidence="a test"))
    assert desk.hears(starved, msgspec.structs.replace(starved, member=B)) == []
    assert desk.hears(msgspec.structs.replace(raised(C), kind="MemoryError")) == []


def test_an_error_only_the_user_can_mend_ends_the_job() -> None:
    assert ends(Desk().hears(raised(A, scope="job"))) == ["failed"]


def test_what_a_joiner_cannot_do_does_not_end_a_healthy_job() -> None:
    desk = Desk().founded()
    desk.sees_dead(B)
    effects = desk.hears(raised(Member("r1", 1), scope="job"))
    assert [type(effect) for effect in effects] == [Lost]
    assert desk.hears(raised(Member("r1", 1), scope="job")) == [], "it is lost once"


def test_two_joiners_that_raise_alike_do_not_end_a_healthy_job() -> None:
    desk = Desk().founded()
    desk.sees_dead(B)
    desk.sees_dead(C)
    assert desk.hears(raised(Member("r1", 1)), raised(Member("r2", 1))) == []
    assert isinstance(desk.sees_dead(Member("r1", 1))[-1], Start), "it may try again, within its budget"


def test_the_same_error_long_ago_does_not_count() -> None:
    desk = Desk().founded()
    desk.hears(raised(A))
    desk.waits(CONFIG.budget.window_s + 1, A, B, C)
    assert desk.hears(raised(B)) == []


def test_a_replica_that_differs_is_refused_by_name() -> None:
    desk = Desk().founded()
    desk.sees_dead(A)
    refused, lost = desk.hears(join(Member("r0", 1), dropout="0.5"))
    assert isinstance(refused, Send)
    assert isinstance(lost, Lost)
    assert "dropout is 0.5, the job has 0.1" in lost.why


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens, in whatever order: versions grow, rosters keep a member, nothing is pushed before it is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.checked = 0
        self.made: list[Roster] = []
        self.durable: set[Version] = set()
        self.dead: set[Member] = set()

    members = st.builds(Member, st.sampled_from(REPLICAS), st.integers(0, 2))

    @rule(member=members, knows=st.booleans())
    def somebody_joins(self, member: Member, knows: bool) -> None:
        if member not in self.dead:
            seen = self.desk.machine.version if knows else NO_VERSION
            self.desk.hears(join(member, seen=seen))

    @rule(member=members)
    def somebody_enters(self, member: Member) -> None:
        self.desk.hears(Entered(member=member, version=self.desk.machine.version, step=0))

    @rule(member=members)
    def somebody_complains(self, member: Member) -> None:
        self.desk.hears(Complain(member=member, version=self.desk.machine.version, why="x"))

    @rule(member=members, clean=st.booleans())
    def somebody_dies(self, member: Member, clean: bool) -> None:
        self.dead.add(member)
        self.desk.sees_dead(member, clean)

    @rule(member=members)
    def somebody_is_said_to_hang(self, member: Member) -> None:
        self.desk.sees_hung(member)

    @rule()
    def everybody_is_said_to_wait(self) -> None:
        self.desk.sees_stall()

    @rule(span_s=st.sampled_from([1.0, 5.0, 12.0]), beating=st.lists(members, max_size=3))
    def time_passes(self, span_s: float, beating: list[Member]) -> None:
        self.desk.waits(span_s, *beating)

    @precondition(lambda self: self.desk.saved is not None)
    @rule()
    def the_coordinator_restarts(self) -> None:
        self._check()
        self.desk = self.desk.restarted()
        self.checked = 0

    @invariant()
    def promises_hold(self) -> None:
        self._check()

    def _check(self) -> None:
        for effect in self.desk.all[self.checked :]:
            match effect:
                case Persist(saved=saved) if saved.roster is not None:
                    self.durable.add(saved.roster.version)
                case Made(roster=roster):
                    if self.made:
                        assert roster.version > self.made[-1].version
                        assert set(roster.members) & set(self.made[-1].members)
                    assert not set(roster.members) & self.dead
                    self.made.append(roster)
                case Send(message=Push(roster=roster)):
                    assert roster.version in self.durable
        self.checked = len(self.desk.all)


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
