"""The judgement: who hangs, against which limit, and who never does."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.hangs import (
    COLLECTIVES,
    LEARNED,
    WAITS,
    BusyOverdue,
    Deaf,
    FirstOverdue,
    Hang,
    HangConfig,
    Hangs,
    Overdue,
    Seen,
    Stall,
    Standstill,
    StartOverdue,
    Uncollected,
    Unmoved,
)
from regrow.core.progress import Experience, Phase, Place, Stamped
from regrow.core.roster import Member

CONFIG = HangConfig(factor=3.0, floor_s=2.0, first_s=600.0, startup_s=300.0, look_s=0.025)
A, B, C = (Member(f"r{number}", 0) for number in range(3))
T0 = 1000.0
USED_TO_IT = {phase: Experience(completed=10, longest_s=1.0) for phase in Phase}


def stamped(phase: Phase, since_s: float = T0, pulse_s: float = T0, **more: object) -> Stamped:
    usual: dict[str, object] = {
        "place": Place(step=3, lane=1, phase=phase.value),
        "phase": phase,
        "count": 7,
        "since_s": since_s,
        "aside": None,
        "aside_since_s": 0.0,
        "name": "",
        "at_most_s": 0.0,
        "pulse_s": pulse_s,
        "longest_pause_s": 0.06,
        "collecting_since_s": 0.0,
        "experience": USED_TO_IT,
    }
    return Stamped(**(usual | more))  # type: ignore[arg-type]


def watched(until_s: float, *seen: Seen, config: HangConfig = CONFIG, alive: bool = True) -> list[Hang | Stall]:
    """The last verdicts of an agent that looked all the time; pulses go on unless told otherwise."""
    hangs = Hangs(config)
    verdicts: list[Hang | Stall] = []
    steps = int((until_s - T0) / config.look_s) + 1
    for now in [T0 + n * config.look_s for n in range(steps)] + [until_s]:
        verdicts = hangs.look(now, beating(list(seen), now) if alive else seen) or verdicts
    return verdicts


@pytest.mark.parametrize("phase", sorted(LEARNED, key=str))
def test_own_work_is_judged_against_what_was_learned(phase: Phase) -> None:
    one = Seen(member=A, stamped=stamped(phase))
    assert watched(T0 + 2.9, one) == []
    (hang,) = watched(T0 + 3.1, one)
    assert (hang.member, hang.limit_s) == (A, 3.0)
    assert hang.reason == Overdue(longest_s=1.0, factor=3.0, floor_s=2.0)
    assert str(hang) == (
        f"hangs in step 3, lane 1 ({phase.value}): silent for 3.10 s, the limit is 3.00 s "
        "(the longest recent one took 1 s; --hang-factor 3, --hang-floor 2)"
    )


def test_the_longest_of_any_worker_counts_and_never_less_than_the_floor() -> None:
    quick = {Phase.MICROBATCH: Experience(completed=10, longest_s=0.01)}
    slow = {Phase.MICROBATCH: Experience(completed=10, longest_s=5.0)}
    one = Seen(member=A, stamped=stamped(Phase.MICROBATCH, experience=quick))
    other = Seen(member=B, stamped=stamped(Phase.REDUCE, experience=slow))
    assert [hang.limit_s for hang in watched(T0 + 2.1, one)] == [2.0]
    assert watched(T0 + 14.9, one, other) == []
    assert [(hang.member, hang.limit_s) for hang in watched(T0 + 15.1, one, other)] == [(A, 15.0)]


@pytest.mark.parametrize("known", [{}, {Phase.MICROBATCH: Experience(completed=1, longest_s=0.0)}])
def test_the_first_of_its_kind_has_a_generous_limit_whatever_the_others_know(known: dict[Phase, Experience]) -> None:
    one = Seen(member=A, stamped=stamped(Phase.MICROBATCH, experience=known))
    other = Seen(member=B, stamped=stamped(Phase.REDUCE))
    assert watched(T0 + 590, one, other) == []
    (hang,) = watched(T0 + 601, one, other)
    assert (hang.limit_s, hang.reason) == (600.0, FirstOverdue(what="the first of its kind in this process"))


@pytest.mark.parametrize("phase", [Phase.BETWEEN, Phase.HEAL])
def test_work_between_the_loops_has_no_usual_length(phase: Phase) -> None:
    one = Seen(member=A, stamped=stamped(phase))
    assert watched(T0 + 590, one) == []
    assert [hang.limit_s for hang in watched(T0 + 601, one)] == [600.0]


def test_start_up_has_a_limit_of_its_own() -> None:
    one = Seen(member=A, stamped=stamped(Phase.START, experience={}))
    assert watched(T0 + 290, one) == []
    (hang,) = watched(T0 + 301, one)
    assert (hang.limit_s, hang.reason) == (300.0, StartOverdue())


def test_busy_work_and_compilations_are_judged_for_themselves() -> None:
    aside = {"aside_since_s": T0 + 100.0, "since_s": T0 - 500.0}
    busy = Seen(member=A, stamped=stamped(Phase.BETWEEN, aside=Phase.BUSY, name="eval", at_most_s=7.0, **aside))
    assert watched(T0 + 106, busy) == []
    (hang,) = watched(T0 + 108, busy)
    assert (hang.limit_s, hang.reason) == (7.0, BusyOverdue(name="eval"))
    for phase, inside in ((Phase.MICROBATCH, Phase.COMPILE), (Phase.DATA, Phase.SEEK)):
        aware = Seen(member=A, stamped=stamped(phase, aside=inside, **aside))
        assert watched(T0 + 690, aware) == []
        assert [hang.limit_s for hang in watched(T0 + 701, aware)] == [600.0]


@pytest.mark.parametrize("phase", [Phase.MICROBATCH, Phase.REDUCE])
def test_a_garbage_collection_is_nobodys_fault(phase: Phase) -> None:
    collecting = Seen(member=A, stamped=stamped(phase, collecting_since_s=T0))
    assert watched(T0 + 590, collecting, alive=False) == []
    assert [hang.limit_s for hang in watched(T0 + 601, collecting, alive=False)] == [600.0]


@pytest.mark.parametrize("phase", sorted(WAITS, key=str))
def test_a_victim_is_never_judged_for_its_waiting(phase: Phase) -> None:
    culprit = Seen(member=A, stamped=stamped(Phase.MICROBATCH))
    victim = Seen(member=B, stamped=stamped(phase))
    assert [hang.member for hang in watched(T0 + 500, culprit, victim)] == [A]


@pytest.mark.parametrize("phase", sorted(WAITS, key=str))
def test_whoever_waits_and_has_no_pulse_does_not_wait_it_hangs(phase: Phase) -> None:
    one = Seen(member=A, stamped=stamped(phase, longest_pause_s=1.0))
    assert watched(T0 + 2.9, one, alive=False) == []
    (hang,) = watched(T0 + 3.1, one, alive=False)
    assert (hang.limit_s, hang.reason) == (3.0, Deaf(longest_s=1.0))


@pytest.mark.parametrize("phase", list(Phase))
def test_the_kernels_word_needs_no_generous_limit(phase: Phase) -> None:
    one = Seen(member=A, stamped=stamped(phase, since_s=T0 - 50.0, experience={}), standstill="frozen")
    assert watched(T0 + 1.9, one, alive=False) == []
    (hang,) = watched(T0 + 2.1, one, alive=False)
    assert (hang.limit_s, hang.reason) == (2.0, Standstill(how="frozen"))


def test_past_the_last_step_a_script_may_take_its_time() -> None:
    assert watched(T0 + 5000, Seen(member=A, stamped=stamped(Phase.LEAVING)), config=CONFIG) == []


@pytest.mark.parametrize("phase", list(Phase))
def test_a_factor_of_nothing_judges_nobody(phase: Phase) -> None:
    off = msgspec.structs.replace(CONFIG, factor=0.0)
    one = Seen(member=A, stamped=stamped(phase), standstill="stopped")
    assert watched(T0 + 2000, one, config=off, alive=False) == []
    assert not Hangs(off).should_ask_kernel(T0 + 2000, one.stamped)


def test_a_limit_of_nothing_is_none() -> None:
    off = msgspec.structs.replace(CONFIG, first_s=0.0, startup_s=0.0)
    for phase in (Phase.START, Phase.BETWEEN):
        assert watched(T0 + 2000, Seen(member=A, stamped=stamped(phase)), config=off) == []


def test_time_in_which_nobody_looked_is_nobodys_silence() -> None:
    """The whole machine was suspended, or the agent's process was: the workers may have been too."""
    one = Seen(member=A, stamped=stamped(Phase.MICROBATCH))
    hangs = Hangs(CONFIG)
    assert hangs.look(T0 + 1.0, [one]) == []
    assert hangs.look(T0 + 500.0, [one]) == [], "the agent was away"
    now, verdicts = T0 + 500.0, []
    while not verdicts:
        now += CONFIG.look_s
        verdicts = hangs.look(now, [one])
    assert now - T0 - 500.0 == pytest.approx(2.0, abs=0.1), "one second had passed before, three are the limit"
    newer = msgspec.structs.replace(one, stamped=stamped(Phase.MICROBATCH, since_s=now + 1.0, count=8))
    assert hangs.look(now + 100.0, [newer]) == [], "it began while nobody looked"


def test_the_kernel_is_asked_only_about_a_silent_one() -> None:
    hangs = Hangs(CONFIG)
    assert not hangs.should_ask_kernel(T0 + 0.9, stamped(Phase.BETWEEN, since_s=T0 - 99))
    assert hangs.should_ask_kernel(T0 + 1.1, stamped(Phase.BETWEEN, since_s=T0 - 99))
    assert hangs.should_ask_kernel(T0 + 1.1, stamped(Phase.START, pulse_s=0.0)), "before its first beat"


@pytest.mark.parametrize("phase", sorted(COLLECTIVES, key=str))
def test_when_all_wait_for_one_another_nobody_is_blamed_but_it_is_said(phase: Phase) -> None:
    everyone = [Seen(member=member, stamped=stamped(phase)) for member in (A, B)]
    assert watched(T0 + 2.9, *everyone) == []
    hangs = Hangs(CONFIG)
    assert hangs.look(T0, everyone) == []
    verdicts = [
        verdict for n in range(125) for verdict in hangs.look(T0 + n * CONFIG.look_s, beating(everyone, T0 + n / 40))
    ]
    assert verdicts == [Stall(members=(A, B), silent_s=pytest.approx(3.025), limit_s=3.0)], "once"


@pytest.mark.parametrize("phase", sorted(set(Phase) - COLLECTIVES - {Phase.START, Phase.WAIT}, key=str))
def test_while_somebody_is_at_work_or_heals_it_is_no_stall(phase: Phase) -> None:
    everyone = [Seen(member=member, stamped=stamped(Phase.REDUCE)) for member in (A, B)]
    busy = Seen(member=C, stamped=stamped(phase, since_s=T0 + 398.0))
    assert not [verdict for verdict in watched(T0 + 400, *everyone, busy) if isinstance(verdict, Stall)]


def test_a_joiner_on_its_way_does_not_hide_a_stall() -> None:
    everyone = [Seen(member=member, stamped=stamped(Phase.REDUCE)) for member in (A, B)]
    joiner = Seen(member=C, stamped=stamped(Phase.START))
    (stall,) = watched(T0 + 3.01, *everyone, joiner)
    assert isinstance(stall, Stall) and stall.members == (A, B)


def test_whoever_does_not_wake_from_a_stall_is_the_culprit() -> None:
    hangs, now = Hangs(CONFIG), T0
    everyone = [Seen(member=member, stamped=stamped(Phase.REDUCE)) for member in (A, B, C)]
    verdicts: list[Hang | Stall] = []
    while not verdicts:
        now += CONFIG.look_s
        verdicts = hangs.look(now, beating(everyone, now))
    assert isinstance(verdicts[0], Stall)
    woken = stamped(Phase.EXCHANGE, since_s=now + 0.01, count=8)
    moved = [everyone[0], *(Seen(member=member, stamped=woken) for member in (B, C))]
    stalled_s, verdicts = now, []
    while not verdicts:
        now += CONFIG.look_s
        verdicts = hangs.look(now, beating(moved, now))
    (hang,) = verdicts
    assert isinstance(hang, Hang) and (hang.member, hang.reason) == (A, Unmoved())
    assert now - stalled_s == pytest.approx(2.0, abs=0.1)


def test_when_nobody_was_woken_from_a_stall_nobody_is_the_culprit() -> None:
    """The coordinator was away, or the job is over."""
    hangs = Hangs(CONFIG)
    everyone = [Seen(member=member, stamped=stamped(Phase.REDUCE)) for member in (A, B)]
    looks = [hangs.look(now, beating(everyone, now)) for now in [T0 + n * CONFIG.look_s for n in range(8000)]]
    verdicts = [verdict for verdicts in looks for verdict in verdicts]
    assert {type(verdict) for verdict in verdicts} == {Stall}
    assert 60 <= len(verdicts) <= 66, "in 200 s, said again each 3 s: the coordinator may be back"


def test_a_stall_that_nobody_heard_of_is_said_again_when_another_joins_the_wait() -> None:
    """A and B do not wake, and the coordinator was away when it was told; then C's roster came, and C waits for them too."""
    hangs, now = Hangs(CONFIG), T0
    asleep = [Seen(member=member, stamped=stamped(Phase.REDUCE)) for member in (A, B)]
    idle = Seen(member=C, stamped=stamped(Phase.WAIT))
    while not hangs.look(now, beating([*asleep, idle], now)):
        now += CONFIG.look_s
    waits = Seen(member=C, stamped=stamped(Phase.EXCHANGE, since_s=now, count=8))
    verdicts: list[Hang | Stall] = []
    while not verdicts:
        now += CONFIG.look_s
        assert now < T0 + 60, "nobody is ever named"
        verdicts = hangs.look(now, beating([*asleep, waits], now))
    assert isinstance(verdicts[0], Stall) and verdicts[0].members == (A, B, C)
    moved = Seen(member=C, stamped=stamped(Phase.EXCHANGE, since_s=now, count=9))
    verdicts = []
    while not verdicts:
        now += CONFIG.look_s
        verdicts = hangs.look(now, beating([*asleep, moved], now))
    assert {(hang.member, hang.reason) for hang in verdicts if isinstance(hang, Hang)} == {(A, Unmoved()), (B, Unmoved())}


@pytest.mark.parametrize("phase", sorted(WAITS, key=str))
def test_whoever_does_not_take_what_it_waited_for_hangs(phase: Phase) -> None:
    """Its main thread does not run, in a signal handler or a finalizer; that of the session does."""
    one = Seen(member=A, stamped=stamped(phase, called_s=T0 + 300.0))
    others = [Seen(member=member, stamped=stamped(Phase.EXCHANGE, since_s=T0 + 300.0)) for member in (B,)]
    assert not [verdict for verdict in watched(T0 + 301.9, one, *others) if isinstance(verdict, Hang)]
    hangs = watched(T0 + 302.1, one, *others)
    assert [(hang.member, hang.limit_s, hang.reason) for hang in hangs if isinstance(hang, Hang)] == [
        (A, 2.0, Uncollected())
    ]
    assert str(hangs[0]).endswith("(what it waited for is there, and it does not take it; --hang-floor)")


def test_a_call_does_not_make_own_work_shorter() -> None:
    one = Seen(member=A, stamped=stamped(Phase.MICROBATCH, since_s=T0 + 300.0, called_s=T0))
    assert watched(T0 + 302.9, one) == []


def beating(seen: list[Seen], now: float) -> list[Seen]:
    return [msgspec.structs.replace(s, stamped=msgspec.structs.replace(s.stamped, pulse_s=now)) for s in seen]


workers = st.builds(
    lambda number, phase, age_s, deaf_s, completed, longest_s, still: Seen(
        member=Member(f"r{number}", 0),
        stamped=stamped(
            phase,
            since_s=T0 - age_s,
            pulse_s=T0 - deaf_s,
            experience={phase: Experience(completed=completed, longest_s=longest_s)},
        ),
        standstill=still,
    ),
    st.integers(0, 9),
    st.sampled_from(list(Phase)),
    st.floats(0, 2000),
    st.floats(0, 2000),
    st.integers(0, 9),
    st.floats(0, 100),
    st.sampled_from([None, None, "stopped", "frozen"]),
)


@given(st.lists(workers, max_size=6, unique_by=lambda one: one.member))
def test_whatever_is_seen_nobody_is_blamed_without_a_reason(seen: list[Seen]) -> None:
    by_member = {one.member: one for one in seen}
    for hang in Hangs(CONFIG).look(T0, seen):
        if isinstance(hang, Stall):
            assert {by_member[member].stamped.phase for member in hang.members} <= COLLECTIVES
            continue
        one = by_member[hang.member]
        assert hang.silent_s > hang.limit_s >= CONFIG.floor_s
        if one.stamped.phase in WAITS | {Phase.LEAVING}:
            assert one.standstill is not None or T0 - one.stamped.pulse_s > CONFIG.floor_s, "a victim was blamed"


@given(st.lists(workers, max_size=6, unique_by=lambda one: one.member), st.floats(0.1, 5000))
def test_a_longer_silence_never_acquits(seen: list[Seen], more_s: float) -> None:
    now, later = Hangs(CONFIG).look(T0, seen), Hangs(CONFIG).look(T0 + more_s, seen)
    accused = {hang.member for hang in now if isinstance(hang, Hang)}
    assert accused <= {hang.member for hang in later if isinstance(hang, Hang)}
