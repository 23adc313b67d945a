"""What the live view knows: facts and stamps in, a scene out."""

import math

import msgspec
import pytest

from regrow.agent.sight import Sight
from regrow.cli.scene import Asked, Known, Mood, Pace, ReplicaScene, Scene, scene
from regrow.core.budget import BudgetConfig
from regrow.core.progress import Phase, Place, Stamped
from regrow.core.records import (
    Committed,
    Fact,
    Line,
    ReplicaLost,
    RestartPlanned,
    RosterMade,
    SeatTaken,
    WorkerExited,
    WorkerStarted,
)
from regrow.core.roster import Member, Version

NOW_S = 1000.0
ASKED = Asked(job="run", replicas=("r0", "r1"), budget=BudgetConfig(), began_s=NOW_S - 90)
R0, R1 = Member("r0", 0), Member("r1", 0)


def known(*facts: Fact, at_s: float = NOW_S) -> Known:
    found = Known()
    for fact in facts:
        found.take(Line(at=0.0, ns=int(at_s * 1e9), who="x", what=fact))
    return found


def made(n: int, lanes: dict[Member, tuple[int, ...]], floor: int = 0, steps: int | None = None) -> RosterMade:
    seats = tuple(SeatTaken(member=member, founder=True, lanes=own) for member, own in lanes.items())
    return RosterMade(version=Version(1, n), cause="c", why="w", floor=floor, seats=seats, steps=steps)


def committed(step: int, loss: float | None = 1.0) -> Committed:
    return Committed(step=step, attempt=Version(1, 1), digest=1, holdings=(), by="boundary", loss=loss)


def stamped(
    phase: Phase,
    step: int | None = None,
    lane: int | None = None,
    aside: Phase | None = None,
    name: str = "",
    since_s: float = NOW_S,
) -> Stamped:
    return Stamped(
        place=Place(step=step, lane=lane, phase=(aside or phase).value),
        phase=phase,
        count=1,
        since_s=since_s,
        aside=aside,
        aside_since_s=since_s,
        name=name,
        at_most_s=0.0,
        pulse_s=NOW_S,
        longest_pause_s=0.0,
        collecting_since_s=0.0,
        experience={},
    )


def look(found: Known, *sights: Sight, is_away: bool = False) -> Scene:
    return scene(NOW_S, ASKED, found, Pace(), sights, (), is_away)


def first(found: Known, *sights: Sight, is_away: bool = False) -> ReplicaScene:
    return look(found, *sights, is_away=is_away).replicas[0]


def test_before_anything_happened() -> None:
    seen = look(known())
    assert (seen.step, seen.steps, seen.loss, seen.rate) == (None, None, None, None)
    assert (seen.elapsed_s, seen.restarts, seen.max_restarts) == (90.0, 0, 200)
    assert [(replica.name, replica.pid, replica.state) for replica in seen.replicas] == [
        ("r0", None, "starting"),
        ("r1", None, "starting"),
    ]


def test_step_and_loss_are_those_of_the_newest_commit_and_of_whoever_is_further() -> None:
    found = known(made(1, {R0: (0,), R1: (1,)}, steps=9), committed(4, 0.5), committed(3, 0.7))
    assert (look(found).step, look(found).steps, look(found).loss) == (5, 9, 0.5)
    assert look(found, Sight(member=R0, pid=7, stamped=stamped(Phase.MICROBATCH, 6, 0))).step == 6
    assert math.isnan(look(known(committed(0, None))).loss or 0.0)


def test_a_roster_says_who_has_which_lanes_and_an_older_one_nothing() -> None:
    found = known(made(2, {R0: (0, 1)}, floor=7), made(1, {R0: (0,), R1: (1,)}, floor=3))
    sights = [Sight(member=member, pid=7, stamped=stamped(Phase.WAIT)) for member in (R0, R1)]
    assert [replica.lanes for replica in look(found, *sights).replicas] == [(0, 1), None]
    assert look(found).step == 7


def test_restarts_count_within_the_window_and_once() -> None:
    plan = RestartPlanned(
        member=Member("r1", 1), delay_s=0, used=1, limit=20, job_used=1, job_limit=200, window_s=600, why="w"
    )
    start = WorkerStarted(member=Member("r1", 1), pid=7, host="h", why="w")
    assert look(known(plan, start)).restarts == 1
    assert look(known(start)).restarts == 1, "also when the coordinator's journal is elsewhere"
    assert look(known(WorkerStarted(member=R0, pid=7, host="h", why="w"))).restarts == 0
    assert look(known(plan, at_s=NOW_S - 601)).restarts == 0


@pytest.mark.parametrize(
    ("sight", "state", "mood"),
    [
        (Sight(member=R0), "starting", "coming"),
        (Sight(member=Member("r0", 2), starts_s=NOW_S + 2), "restarting in 2.0 s", "coming"),
        (Sight(member=Member("r0", 2), starts_s=NOW_S - 1), "restarting", "coming"),
        (Sight(member=R0, pid=7, stamped=stamped(Phase.START)), "starting: its script before the first step", "coming"),
        (
            Sight(member=Member("r0", 1), pid=7, stamped=stamped(Phase.START, since_s=NOW_S - 30)),
            "restarting: its script before the first step for 30 s",
            "coming",
        ),
        (Sight(member=R0, pid=7, stamped=stamped(Phase.MICROBATCH, 12, 3)), "computing step 12 lane 3", "well"),
        (
            Sight(member=R0, pid=7, stamped=stamped(Phase.MICROBATCH, 12, 3, since_s=NOW_S - 4)),
            "computing step 12 lane 3 for 4 s",
            "well",
        ),
        (Sight(member=R0, pid=7, stamped=stamped(Phase.DATA, 12, 3)), "fetching data of step 12 lane 3", "well"),
        (Sight(member=R0, pid=7, stamped=stamped(Phase.BOUND, 12)), "waiting for the others in step 12", "well"),
        (Sight(member=R0, pid=7, stamped=stamped(Phase.WAIT, 12)), "waiting for a roster", "well"),
        (Sight(member=R0, pid=7, stamped=stamped(Phase.FETCH)), "waiting for the state from its donor", "coming"),
        (
            Sight(member=R0, pid=7, stamped=stamped(Phase.BETWEEN, 12, aside=Phase.BUSY, name="evaluate")),
            "busy: evaluate",
            "well",
        ),
        (
            Sight(member=R0, pid=7, stamped=stamped(Phase.MICROBATCH, 0, 3, aside=Phase.COMPILE)),
            "compiling in step 0 lane 3",
            "well",
        ),
        (
            Sight(member=R0, pid=7, stamped=stamped(Phase.MICROBATCH, 12, 3, since_s=NOW_S - 9), is_hung=True),
            "hung in step 12, lane 3 (microbatch) for 9 s",
            "ill",
        ),
        (
            Sight(member=R0, pid=7, stamped=stamped(Phase.MICROBATCH, 12, 3), is_hung=True, is_doomed=True),
            "hung in step 12, lane 3 (microbatch), being ended",
            "ill",
        ),
        (Sight(member=R0, pid=7, stamped=stamped(Phase.WAIT), is_doomed=True), "being ended", "ill"),
    ],
)
def test_the_state_of_a_worker_in_words(sight: Sight, state: str, mood: Mood) -> None:
    seen = first(known(), sight)
    assert (seen.name, seen.pid, seen.state, seen.mood) == (str(sight.member), sight.pid, state, mood)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_its_words(phase: Phase) -> None:
    for step in (None, 12):
        words = first(known(), Sight(member=R0, pid=7, stamped=stamped(phase, step))).state
        assert words == " ".join(words.split()) and "  " not in words and not words.endswith((" in", " of", ",")), words


def test_the_state_of_a_replica_without_a_worker() -> None:
    died = WorkerExited(member=R0, pid=7, how="killed by SIGKILL", clean=False, cause="c")
    left = WorkerExited(member=R0, pid=7, how="exited", clean=True, cause="c")
    lost = ReplicaLost(replica="r0", why="w")
    assert first(known(left)).state == "finished"
    assert (first(known(died)).state, first(known(died)).name) == ("killed by SIGKILL", "r0.0")
    assert first(known(died), is_away=True).state == "killed by SIGKILL, not replaced while the coordinator is away"
    assert first(known(died, lost)).state == "given up"


def test_the_newest_member_of_a_replica_is_shown() -> None:
    old = Sight(member=R0, pid=7, stamped=stamped(Phase.WAIT), is_doomed=True)
    new = Sight(member=Member("r0", 1), starts_s=NOW_S + 1)
    assert first(known(), new, old).name == "r0.1"


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace()
    assert pace.rate(0.0) is None
    for tick in range(400):  # ten steps a second for 20 seconds, then two a second
        pace.see(tick * 0.05, tick // 2)
    assert pace.rate(19.95) == pytest.approx(10, rel=0.05)
    for tick in range(400, 800):
        pace.see(tick * 0.05, 200 + (tick - 400) // 10)
    assert pace.rate(39.95) == pytest.approx(2, rel=0.05)


def test_the_pace_of_slow_steps_is_that_of_the_last_few() -> None:
    pace = Pace()
    for step in range(11):  # they take 20 and 40 seconds in turn
        pace.see(step * 30.0 - step % 2 * 10.0, step)
    assert pace.rate(310.0) == pytest.approx(1 / 30)


def test_the_pace_falls_while_the_job_stands_still() -> None:
    pace = Pace()
    for step in range(20):
        pace.see(step * 0.5, step)
    rates = [pace.rate(9.5 + waited) or 0.0 for waited in (0.0, 5.0, 60.0, 600.0)]
    assert rates == sorted(rates, reverse=True) and rates[0] == pytest.approx(2) and rates[-1] < 0.1


def test_who_is_to_work_and_who_lives_has_a_row_and_who_has_left_has_none() -> None:
    roster = msgspec.structs.replace(made(2, {R0: (0,), Member("r3", 0): (1,)}), places=("r0", "r3"))
    spare = Sight(member=Member("r4", 0), starts_s=None, pid=7, stamped=None, is_hung=False, is_doomed=False)
    left = WorkerExited(member=R1, pid=3, how="left as planned", clean=False, cause="died-r1.0")
    assert [replica.name for replica in look(known(roster, left), spare).replicas] == ["r0", "r3", "r4.0"]


def test_a_job_that_waits_says_so() -> None:
    waits = "2 of the 3 replicas that the job needs are here"
    first_made = msgspec.structs.replace(made(2, {R0: (0,)}), waits=waits)
    assert look(known(first_made)).waits == waits
    assert look(known(first_made, made(3, {R0: (0,)}))).waits == ""
