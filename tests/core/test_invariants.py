"""The ledger notices: each promise broken once."""

from regrow.core.invariants import Ledger, member_of
from regrow.core.lanes import Node
from regrow.core.records import (
    Committed,
    Departed,
    Fact,
    JobOpened,
    LaneComputed,
    OriginPassedOver,
    OriginTaken,
    RosterAdopted,
    RosterMade,
    RosterReceived,
    SeatTaken,
    StateFetched,
    StateRecalled,
    WorkerRaised,
)
from regrow.core.roster import Member, Version

A, B = Member("r0", 0), Member("r1", 0)
V1, V2 = Version(1, 1), Version(1, 2)
AGAIN = Version(2, 1)
HALVES = ((Node(0, 1),), (Node(1, 2),))


def made(version: Version, *members: Member, floor: int = 0, origin: int | None = None, shrinks: bool = False) -> RosterMade:
    seats = tuple(SeatTaken(member=m, founder=True, lanes=()) for m in members)
    return RosterMade(version=version, cause="", why="", floor=floor, seats=seats, origin=origin, shrinks=shrinks)


def taken(version: Version, step: int = 0, differences: tuple[str, ...] = (), records: int = 0) -> OriginTaken:
    where = "this host's memory"
    return OriginTaken(
        version=version, step=step, root="s", where=where, reached=1, differences=differences, records=records
    )


def recalled(version: Version, step: int = 0, root: str = "s") -> StateRecalled:
    return StateRecalled(version=version, step=step, digest=root, size_bytes=0, seconds=0.0)


def committed(step: int = 0, attempt: Version = V1, digest: int = 1, holdings=HALVES) -> Committed:
    return Committed(step=step, attempt=attempt, digest=digest, holdings=holdings, by="boundary", loss=None)


def computed(step: int, lane: int) -> LaneComputed:
    start = (step * 2 + lane) * 4
    return LaneComputed(step=step, lane=lane, start=start, stop=start + 4)


def adopted(version: Version, step: int = 0) -> RosterAdopted:
    return RosterAdopted(version=version, step=step, keep=(), compute=(), drop=(), why="")


def departed(step: int, digest: str) -> Departed:
    return Departed(step=step, why="", fault=None, digest=digest)


def broken(*facts: tuple[str, Fact]) -> list[str]:
    ledger = Ledger(lanes=2)
    return [v.rule for who, fact in facts for v in ledger.observe(who, fact)] + [v.rule for v in ledger.settle()]


def test_a_healthy_job_breaks_nothing() -> None:
    assert not broken(
        ("coordinator", made(V1, A, B)),
        ("r0.0", RosterReceived(version=V1, cause="")),
        ("r0.0", adopted(V1)),
        ("r0.0", computed(0, 0)),
        ("r1.0", computed(0, 1)),
        ("r0.0", committed()),
        ("r1.0", committed()),
        ("r0.0", departed(1, "d")),
        ("r1.0", departed(1, "d")),
    )


def test_two_results_for_one_step() -> None:
    assert broken(("r0.0", committed()), ("r1.0", committed(digest=2))) == ["one-gradient"]
    assert broken(("r0.0", committed()), ("r1.0", committed(attempt=V2))) == ["one-gradient"]


def test_a_lane_twice_or_never() -> None:
    assert broken(("r0.0", committed(holdings=((Node(0, 1),), (Node(0, 2),))))) == ["each-lane-once"]
    assert broken(("coordinator", made(V1, A, B)), ("r0.0", committed())) == ["each-lane-once", "each-lane-once"]


def test_versions_that_go_back() -> None:
    assert broken(("coordinator", made(V2, A)), ("coordinator", made(V1, A))) == ["versions-grow"]
    assert broken(("r0.0", RosterReceived(version=V1, cause="")), ("r0.0", RosterReceived(version=V1, cause=""))) == [
        "versions-grow"
    ]
    assert broken(("r0.0", adopted(V2)), ("r0.0", adopted(V1))) == ["versions-grow"]


def test_steps_that_do_not_follow() -> None:
    assert broken(("r0.0", committed(step=1))) == ["steps-go-on"]
    fetched = StateFetched(version=V1, step=1, donor=B, size_bytes=0, digest="")
    assert not broken(("r0.0", fetched), ("r0.0", committed(step=1)))
    assert broken(("coordinator", made(V1, A, floor=5)), ("r0.0", adopted(V1, step=4))) == ["steps-go-on"]


def test_a_roster_that_nobody_can_testify_for() -> None:
    assert broken(("coordinator", made(V1, A)), ("coordinator", made(V2, B))) == ["testimony"]


def test_a_job_that_is_founded_again_says_so() -> None:
    rosters = ("coordinator", made(V1, A)), ("coordinator", made(AGAIN, B, origin=4))
    assert broken(*rosters) == ["testimony"]
    assert not broken(rosters[0], ("coordinator", taken(AGAIN, 4)), rosters[1])
    assert broken(("coordinator", taken(V1, 4)), *rosters) == ["testimony"], "that was said of another roster"


def test_a_saved_state_that_the_job_did_not_take() -> None:
    assert broken(("r0.0", recalled(AGAIN, 4))) == ["testimony"]
    assert broken(("coordinator", taken(AGAIN, 4)), ("r0.0", recalled(AGAIN, 4, root="another"))) == ["testimony"]
    assert not broken(("coordinator", taken(AGAIN, 4)), ("r0.0", recalled(AGAIN, 4)), ("r0.0", committed(4)))


def both(*between: tuple[str, Fact], digest: int = 1, later: int = 1) -> list[str]:
    """Two steps, committed in two terms; the second time step 0 with this digest, step 1 with another one."""
    first = [("r0.0", committed(0)), ("r0.0", committed(1))]
    again = [("r1.0", committed(0, AGAIN, digest)), ("r1.0", committed(1, AGAIN, later))]
    return broken(*first, *between, *again)


def test_a_step_that_is_computed_again_comes_out_the_same() -> None:
    again = ("coordinator", taken(AGAIN))
    assert both() == ["one-gradient", "one-gradient"], "nothing was taken in between"
    assert not both(again)
    assert both(("coordinator", taken(AGAIN, 1))) == ["one-gradient"], "step 0 was not to be computed again"
    assert both(again, later=2) == ["same-again"]
    assert not both(("coordinator", taken(AGAIN, differences=("lr",))), digest=2, later=2)


def test_a_committed_step_that_a_founding_gives_up() -> None:
    every = ("coordinator", JobOpened(job="j", replicas=("r0",), lanes=2, command=(), every_step=True))
    harmed = ("vault", OriginPassedOver(step=0, where="the logs", why="torn"))
    elsewhere = ("vault", OriginPassedOver(step=0, where="file:///disk", why="torn"))
    work = [("r0.0", computed(step, lane)) for step in (0, 1) for lane in (0, 1)]
    commits = [("r0.0", committed(0)), ("r0.0", committed(1))]
    behind, before = (("coordinator", taken(AGAIN, 0, records=records)) for records in (2, 1))
    assert not broken(every, *work, *commits, behind)
    assert broken(every, *work, *commits, before) == ["no-step-lost"]
    assert broken(every, *work, *commits, elsewhere, before) == ["no-step-lost"]
    assert not broken(*work, *commits, before), "another job loses what was committed since its state was saved"
    assert not broken(every, *work, *commits, harmed, before), "the vault has said so"


def test_where_other_lanes_were_left_out_what_follows_is_another_state() -> None:
    half = (((Node(0, 1),),), ((Node(0, 1),), (Node(1, 2),)))
    rosters = [("coordinator", made(version, A, B, shrinks=True)) for version in (V1, AGAIN)]
    work = [(f"r{lane}.0", computed(step, lane)) for step in (0, 1) for lane in (0, 1)]
    commits = [
        ("r0.0", committed(0, V1, 5, half[0])),
        ("r0.0", committed(1)),
        ("r1.0", committed(0, AGAIN)),
        ("r1.0", committed(1, AGAIN, 2)),
    ]
    assert not broken(rosters[0], ("coordinator", taken(AGAIN)), rosters[1], *work, *commits)


def test_an_end_that_differs() -> None:
    assert broken(("r0.0", departed(1, "d")), ("r1.0", departed(1, "e"))) == ["one-end"]


def test_an_end_of_a_job_that_was_founded_again_after_it() -> None:
    """Somebody saw the end, and everybody was lost before the coordinator knew."""
    before = [("coordinator", taken(AGAIN)), ("r0.0", adopted(V1)), ("r0.0", departed(1, "d"))]
    after = [("r0.1", adopted(AGAIN)), ("r1.1", adopted(AGAIN)), ("r0.1", departed(1, "e"))]
    assert not broken(*before, *after)
    assert broken(*before, *after, ("r1.1", departed(1, "d"))) == ["one-end"]


def test_other_samples_than_the_lanes_own() -> None:
    assert broken(("r0.0", LaneComputed(step=0, lane=1, start=0, stop=4))) == ["samples-once"]


def test_an_end_by_anothers_fault() -> None:
    fact = WorkerRaised(member=A, kind="regrow.PeerError", place="", step=0, lane=None, scope="step", traceback="")
    assert broken(("agent", fact)) == ["own-fault"]


def test_names() -> None:
    assert member_of("r0.12") == Member("r0", 12)
    assert member_of("coordinator") is None
