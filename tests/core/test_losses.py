"""Who holds a job's state, and what each loss would cost, by the rules that the coordinator goes by."""

import msgspec
import pytest

from regrow.core.budget import BudgetConfig
from regrow.core.errors import ConfigError
from regrow.core.holders import Copy, Holders, is_far, step_s
from regrow.core.losses import Ended, Foretold, Founded, Redealt, Unharmed, foretell, known, named
from regrow.core.roster import Endpoint, Member, Present, Version, at_home, compose
from regrow.core.save_story import MEMORY
from regrow.core.staff import found

DISK, FAR = "/disk/run1", "s3://bucket/run1"
ROSTER = compose(
    Version(1, 1),
    {Member(name, 0): Present(endpoint=Endpoint(name, 1), founder=True) for name in ("r0", "r1", "r2")},
    6,
    0,
    "",
)


def copy(where: str, step: int, through: int | None = None) -> Copy:
    return Copy(where=where, step=step, through=step if through is None else through)


JOB = Holders(
    reached=47,
    step_s=0.5,
    replicas=("r0", "r1", "r2"),
    copies=(copy(MEMORY, 40), copy(DISK, 30), copy(FAR, 20)),
    places=(DISK, FAR),
    keeps=True,
    roster=ROSTER,
    staff=found(("r0", "r1", "r2"), 0),
    lanes=6,
    min_replicas=1,
    budget=BudgetConfig(),
    spent={},
    now_s=100.0,
    has_own_coordinator=False,
)


def job(**changes: object) -> Holders:
    return msgspec.structs.replace(JOB, **changes)


def ask(text: str, holders: Holders = JOB) -> Foretold:
    return foretell(holders, named(holders, text))


UNSAVED = job(keeps=False, copies=(), places=())


def test_one_of_several_costs_lanes_and_no_step() -> None:
    told = ask("r1")
    assert told.outcome == Redealt(holders=("r0", "r2"), lanes={"r0": (0, 1, 2), "r2": (3, 4, 5)}, waits="")
    assert told.redone == 0 and told.why[0] == "r0 and r2 hold the state as well"
    assert "r1 is started again" in told.why


def test_the_lanes_are_those_of_the_roster_that_follows_whoever_takes_a_place() -> None:
    staff = found(("r0", "r1"), 1)
    roster = compose(
        Version(1, 1),
        {s.member: Present(endpoint=s.endpoint, founder=True, spectates=s.member.replica == "r2") for s in ROSTER.seats},
        6,
        0,
        "",
    )
    told = ask("r1", job(staff=staff, roster=roster))
    assert isinstance(told.outcome, Redealt) and told.outcome.lanes == {"r0": (0, 1, 2), "r2": (3, 4, 5)}


def test_where_a_job_shrinks_the_lanes_are_left_out() -> None:
    told = ask("r1", job(roster=at_home(ROSTER, 6, ("r0", "r1", "r2"))))
    assert isinstance(told.outcome, Redealt) and told.outcome.lanes == {"r0": (0, 1), "r2": (4, 5)}
    assert any(why.startswith("lanes 2 3 are left out") for why in told.why)


def test_below_the_minimum_the_job_waits() -> None:
    told = ask("r0,r1", job(min_replicas=2))
    assert isinstance(told.outcome, Redealt)
    assert told.outcome.waits == "1 of the 2 replicas that the job needs are left"


def test_who_is_then_alone_is_said() -> None:
    assert "r2 alone holds the state from then on, and has it saved at once" in ask("r0,r1").why
    assert (
        "r2 alone holds the state from then on, and nothing is saved: its loss would end the job"
        in ask("r0,r1", UNSAVED).why
    )


def test_all_of_them_cost_the_steps_since_the_newest_state() -> None:
    told = ask("r0,r1,r2")
    assert told.outcome == Founded(where=MEMORY, step=40, records=0, redone=7, redone_s=3.5)
    assert told.why[:2] == (
        "nobody else holds the state",
        "the newest state that is left is that of step 40, in this host's memory",
    )


def test_a_vault_that_is_away_is_waited_for() -> None:
    assert "the vault is away, and brings it once it is back" in ask("r0,r1,r2", job(is_vault_away=True)).why


def test_a_log_beside_a_state_leads_further() -> None:
    told = ask("r0,r1,r2", job(copies=(copy(MEMORY, 40, through=47), copy(DISK, 30))))
    assert told.outcome == Founded(where=MEMORY, step=40, records=7, redone=0, redone_s=0.0)
    assert told.why[1].endswith("is that of step 40, in this host's memory; the logs beside it lead to step 47")


def test_of_equals_the_nearest_serves_and_a_newer_one_before_it() -> None:
    assert isinstance(found := ask("r0,r1,r2", job(copies=(copy(MEMORY, 30), copy(DISK, 30)))).outcome, Founded)
    assert found.where == MEMORY
    assert isinstance(found := ask("r0,r1,r2", job(copies=(copy(MEMORY, 30), copy(FAR, 40)))).outcome, Founded)
    assert found.where == FAR


@pytest.mark.parametrize(
    ("holders", "why"),
    [
        (UNSAVED, "nothing is saved (--checkpoint, --memory-every)"),
        (job(copies=()), "nothing is saved yet"),
        (job(is_stopping=True), "the job is about to end"),
    ],
)
def test_where_nothing_is_saved_the_job_is_lost(holders: Holders, why: str) -> None:
    told = ask("r0,r1,r2", holders)
    assert isinstance(told.outcome, Ended) and told.outcome.exit == 3 and why in told.why


def test_the_only_holder_is_the_job_though_others_have_seats() -> None:
    told = ask("r0", job(replicas=("r0",)))
    assert isinstance(told.outcome, Founded) and told.redone == 7
    assert job(replicas=("r0",)).sole == "r0" and JOB.sole is None
    assert job(replicas=("r0",), is_ending=True).sole is None, "the others have left with it"


def test_one_without_a_seat_is_missed_by_nobody() -> None:
    told = ask("r3", job(staff=found(("r0", "r1", "r2"), 1)))
    assert told.outcome == Unharmed() and "nobody else notices" in told.why[0]


def test_before_there_is_a_roster_no_replica_holds_anything() -> None:
    assert ask("r0,r1,r2", job(roster=None, replicas=())).outcome == Unharmed()


def test_a_budget_that_is_spent_ends_the_job_that_needs_everybody() -> None:
    spent = job(budget=BudgetConfig(max_restarts=1), spent={"r1": (99.0,)})
    told = ask("r1", spent)
    assert isinstance(told.outcome, Redealt)
    assert "r1 is not started again: r1 was restarted once within 600 s (--max-restarts)" in told.why
    told = ask("r1", msgspec.structs.replace(spent, min_replicas=3))
    assert isinstance(told.outcome, Ended) and told.outcome.exit == 1
    assert told.why[0] == "only 2 replicas may still run, and the job needs 3"
    everybody = job(budget=BudgetConfig(max_all_restarts=2), min_replicas=3)
    assert isinstance(lost := ask("r0,r1,r2", everybody).outcome, Ended) and lost.exit == 1


def test_whoever_stays_in_a_job_that_cannot_go_on_saves_what_it_holds() -> None:
    job_of_all = job(budget=BudgetConfig(max_restarts=0), min_replicas=3)
    told = ask("r1", job_of_all)
    assert told.outcome == Ended(exit=1, where=DISK, step=47, redone=0, redone_s=0.0)
    assert "the state of step 47 is made durable first, at /disk/run1" in told.why
    elsewhere = ask(f"r1,place {DISK}", job_of_all).outcome
    assert isinstance(elsewhere, Ended) and (elsewhere.where, elsewhere.step) == (FAR, 47)
    nowhere = ask("r1", msgspec.structs.replace(job_of_all, places=(), copies=JOB.copies[:1])).outcome
    assert isinstance(nowhere, Ended) and (nowhere.where, nowhere.redone) == (None, 47), "memory ends with the job"


@pytest.mark.parametrize(
    ("changes", "code"), [({"budget": BudgetConfig(max_all_restarts=2), "min_replicas": 3}, 1), ({"is_stopping": True}, 3)]
)
def test_what_lies_in_memory_is_made_durable_when_all_are_lost_for_good(changes: dict[str, object], code: int) -> None:
    told = ask("r0,r1,r2", job(**changes))
    assert told.outcome == Ended(exit=code, where=DISK, step=40, redone=7, redone_s=3.5)
    logged = ask("r0,r1,r2", job(copies=(copy(MEMORY, 40, 47), *JOB.copies[1:]), **changes))
    assert logged.outcome == told.outcome, "its records go with memory"
    older = ask("r0,r1,r2", job(copies=(copy(MEMORY, 20), *JOB.copies[1:]), **changes))
    assert older.outcome == Ended(exit=code, where=DISK, step=30, redone=17, redone_s=8.5)
    assert not [why for why in older.why if "durable" in why]


@pytest.mark.parametrize(
    ("lost", "where", "step"),
    [("launcher", DISK, 30), ("coordinator", DISK, 30), ("host", FAR, 20), (f"launcher,place {DISK}", FAR, 20)],
)
def test_with_the_launcher_the_job_ends_and_a_place_serves_the_next_one(lost: str, where: str, step: int) -> None:
    told = ask(lost)
    assert told.outcome == Ended(exit=None, where=where, step=step, redone=47 - step, redone_s=(47 - step) / 2)
    assert told.why[-1] == f"the newest state that is left is that of step {step}, at {where}", "memory is gone with it"


def test_a_host_with_the_only_copies_takes_all() -> None:
    told = ask("host", job(copies=JOB.copies[:2], places=(DISK,)))
    assert told.outcome == Ended(exit=None, where=None, step=0, redone=47, redone_s=23.5)
    assert f"no place beyond the host has a copy; should its disk come back, {DISK} holds step 30" in told.why
    assert isinstance(lost := ask("launcher", UNSAVED).outcome, Ended) and lost.where is None


def test_what_training_does_not_need_costs_nothing() -> None:
    own = job(has_own_coordinator=True)
    for name in ("vault", "coordinator", f"place {FAR}", FAR):
        told = ask(name, own)
        assert told.outcome == Unharmed() and told.redone == 0 and told.why, name
    assert (
        f"training needs nothing of {FAR}; the newest copy that is left is that of step 40, in this host's memory"
        in ask(FAR).why
    )
    told = ask("r1,coordinator", own)
    assert isinstance(told.outcome, Redealt) and told.why[-1].endswith("nobody that is lost is replaced")


def test_a_lost_place_serves_no_founding() -> None:
    holders = job(copies=(copy(DISK, 30), copy(FAR, 20)))
    assert isinstance(found := ask(f"r0,r1,r2,{DISK}", holders).outcome, Founded) and found.where == FAR
    gone = ask(f"r0,r1,r2,{DISK},{FAR}", holders)
    assert isinstance(gone.outcome, Ended) and "nothing that was saved is left" in gone.why


def test_what_can_be_lost_is_known_by_name() -> None:
    assert known(JOB) == ("r0", "r1", "r2", "host", "launcher", "coordinator", "vault", f"place {DISK}", f"place {FAR}")
    assert "vault" not in known(UNSAVED)
    assert named(JOB, " r1, r0 ,r1") == ("r1", "r0")
    odd = job(places=("/a,b",))
    assert named(odd, "/a,b") == named(odd, "place /a,b") == ("place /a,b",)
    for text in ("r9", "r0,", "", "place /elsewhere"):
        with pytest.raises(ConfigError, match="to lose; there is r0, r1, r2, host, launcher"):
            named(JOB, text)


def test_a_folder_counts_as_being_on_this_host() -> None:
    assert [is_far(url) for url in (FAR, "gs://b", DISK, "file:///d", "LOCAL://d")] == [True, True, False, False, False]
    assert [each.is_far for each in JOB.copies] == [False, False, True]


def test_the_pace_is_that_of_the_last_steps_and_no_stall_counts() -> None:
    assert step_s([]) is step_s([(3, 10)]) is None
    second = 10**9
    commits = [(step, step * second) for step in range(20)] + [(step, (step + 60) * second) for step in range(20, 30)]
    assert step_s(commits) == 1.0
    assert step_s([(7, 0), (5, second), (6, 2 * second)]) == 1.0, "a job that went back to step 5"


NEAR = "neighbour://10.0.0.2:29500/run1"
GUARDED = job(copies=(copy(MEMORY, 40, 47), copy(NEAR, 36, 47), copy(FAR, 38)), places=(NEAR, FAR))


def test_with_a_neighbour_the_host_is_lost_and_no_step() -> None:
    told = ask("host", GUARDED)
    assert (told.outcome.where, told.outcome.step, told.redone) == (FAR, 38, 0), "its records lead on from any newer base"
    assert ask("host", job(copies=GUARDED.copies[:2], places=(NEAR,))).outcome.where == NEAR


def test_a_neighbour_alone_is_nothing_to_training_and_with_the_host_the_places_last() -> None:
    assert ask(NEAR, GUARDED).outcome == Unharmed()
    told = foretell(GUARDED, ("host", f"place {NEAR}"))
    assert (told.outcome.where, told.redone) == (FAR, 47 - 38)
