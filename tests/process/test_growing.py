"""Kill at every moment of a join: whoever joins, whoever feeds it, and those beside them; the weights stay the same."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from coordinators import Coordinator
from runs import EVEN, Run, is_stopped, prove, sparse, wait_for

from regrow.cli.run_dir import RunDir
from regrow.cli.why import gather
from regrow.core.records import (
    Audited,
    Committed,
    GroupsAborted,
    ListenFailed,
    RosterAdopted,
    RosterMade,
    SnapshotLoaded,
    StateFetched,
)

pytestmark = pytest.mark.process

LOST = "r1:backward:step=2:SIGKILL"


class Attack(NamedTuple):
    name: str
    faults: tuple[str, ...]
    deaths: str
    """The replicas that die besides the one whose return is attacked; "*" is any."""
    replicas: int = 3


LISTENERS = [
    Attack("a listener, in its audit", ("r1.1:audit:SIGKILL",), "r1"),
    Attack("a listener, replaying", ("r1.1:passed:SIGKILL",), "r1"),
    Attack("a joiner, about to form", ("r1.1:form:SIGKILL",), "r1"),
    Attack("a joiner, entering", ("r1.1:switched:SIGKILL",), "r1"),
    Attack("a donor that has declared what it holds", ("*:declared:SIGKILL",), "*", 4),
    # With two left after it nobody has to be waited for.
    Attack("a member that a listener has just come to", ("*:attached:SIGKILL",), "*", 4),
    Attack("a member in the middle of its part of a record", ("*:feeding:SIGKILL",), "*", 4),
    # With one survivor left, and the donor dead in a lane, the joiner may be waited for instead: then it is healed.
    Attack(
        "a donor, half way, and the listener", ("*:serving:SIGKILL", "r1.1:loaded:SIGKILL", "r1.1:fetched:SIGKILL"), "* r1"
    ),
    Attack("a member about to form the next roster", ("r2:form:roster=3:SIGKILL",), "r2"),
    Attack("another member, switching", ("r2:switched:SIGKILL",), "r2"),
    Attack("a member and the joiner, switching", ("r0:switched:SIGKILL", "r1.1:switched:SIGKILL"), "r0 r1"),
    Attack("two who return, one killed again", ("r2:reduce:step=3:SIGKILL", "r1.1:audit:SIGKILL"), "r2 r1", 4),
]
MORE_LISTENERS = [
    Attack("a joiner, in its first lane", ("r1.1:lane:SIGKILL",), "r1"),
    Attack("a joiner, at its first boundary", ("r1.1:boundary:SIGKILL",), "r1"),
    Attack("a member that has copied its state", ("*:snapped:SIGKILL",), "*"),
    Attack("a donor that has offered", ("*:offered:SIGKILL",), "*", 4),
    Attack("a donor, half way", ("*:serving:SIGKILL",), "*"),
    Attack("a member that reduces beside a join", ("r2:reduce:step=7:SIGKILL",), "r2"),
    Attack("the first member, switching", ("r0:switched:SIGKILL",), "r0"),
    Attack("a joiner that cannot stop failing", ("r1.1:load:SIGKILL", "r1.2:audit:SIGKILL"), "r1 r1"),
]
WAITED_FOR = [
    Attack("asking", ("r1.1:fetch:SIGKILL",), "r1"),
    Attack("at its first boundary", ("r1.1:boundary:SIGKILL",), "r1"),
    Attack("its donor, half way", ("*:serving:SIGKILL",), "*"),
    Attack("donor and joiner", ("*:serving:SIGKILL", "r1.1:fetched:SIGKILL"), "r1 *"),
]
MORE_WAITED_FOR = [
    Attack("healed", ("r1.1:fetched:SIGKILL",), "r1"),
    Attack("resolving", ("r1.1:resolve:SIGKILL",), "r1"),
    Attack("its donor, about to serve", ("*:serve:SIGKILL",), "*"),
    Attack("a bystander", ("r2:resolve:roster=3:SIGKILL",), "r2"),
]


def named(attacks: list[Attack], more: list[Attack]) -> pytest.MarkDecorator:
    """Of like attacks one is in `make test`, and all are in `make test-all`."""
    cases = [*attacks, *(pytest.param(attack, marks=pytest.mark.matrix) for attack in more)]
    return pytest.mark.parametrize("attack", cases, ids=lambda attack: attack.name)


def attacked(start: Callable[..., Run], attack: Attack, *flags: str) -> Run:
    faults = [arg for fault in (LOST, *attack.faults) for arg in ("--fault", fault)]
    run = start("--replicas", str(attack.replicas), *EVEN, *flags, *faults, script_args=("--hold", f"5:{attack.replicas}"))
    run.wait()
    return run


@named(LISTENERS, MORE_LISTENERS)
def test_a_join_is_attacked(attack: Attack, start: Callable[..., Run], reference: str) -> None:
    run = attacked(start, attack)
    prove(run, reference, deaths=Counter(["r1", *attack.deaths.split()]))
    assert run.facts(SnapshotLoaded), run.story()


@named(WAITED_FOR, MORE_WAITED_FOR)
def test_a_joiner_without_room_is_waited_for(attack: Attack, start: Callable[..., Run], reference: str) -> None:
    run = attacked(start, attack, "--join-queue-mb", "0")
    prove(run, reference, deaths=Counter(["r1", *attack.deaths.split()]))
    assert run.facts(StateFetched), run.story()
    assert any("cannot keep up" in fact.why or "the others wait" in fact.why for _, fact in run.facts(RosterMade)), (
        run.story()
    )


def test_a_joiner_that_replays_too_slowly_is_waited_for(start: Callable[..., Run], digests: list[str]) -> None:
    """It has loaded a snapshot, and replays nothing while more comes than the three records that it has room for."""
    slow = ("--steps", "400", "--pace", "0.05", "--dawdle")
    run = start("--replicas", "3", *EVEN, "--join-queue-mb", "0.01", "--fault", LOST, script_args=slow)
    wait_for(lambda: run.facts(StateFetched, "r1.1"), "the joiner to be healed")
    assert [digests[run.enough()]] * 3 == run.digests(), run.story()
    check = run.check()
    assert check.returncode == 0, f"{check.stdout}{check.stderr}\n{run.story()}"
    assert run.facts(SnapshotLoaded, "r1.1"), run.story()
    (why,) = (fact.why for _, fact in run.facts(RosterMade) if "cannot keep up" in fact.why)
    assert "bytes of records wait to be replayed" in why, run.story()


def test_a_joiner_that_cannot_keep_up_while_the_coordinator_is_away(
    start: Callable[..., Run], tmp_path: Path, digests: list[str]
) -> None:
    """Nobody counts on it yet, more comes than it has room for, and nobody hears so: it tells the next coordinator."""
    coordinator = Coordinator(tmp_path)
    slow = ("--steps", "400", "--pace", "0.05", "--dawdle")
    try:
        coordinator.start()
        flags = ("--replicas", "3", *EVEN, "--join-queue-mb", "0.01", "--fault", LOST, "--fault", "r1.1:load:SIGSTOP")
        run = start(*flags, *coordinator.arguments, script_args=slow, run_dir=coordinator.run_dir)
        pid = run.wait_stopped("r1.1")
        coordinator.kill()
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: run.facts(ListenFailed, "r1.1"), "it to have no room left")
        assert not run.facts(RosterAdopted, "r1.1"), run.story()
        coordinator.start()
        wait_for(lambda: run.facts(StateFetched, "r1.1"), "the joiner to be healed")
        assert [digests[run.enough()]] * 3 == run.digests(), run.story()
        check = run.check()
        assert check.returncode == 0, f"{check.stdout}{check.stderr}\n{run.story()}"
        (why,) = (fact.why for _, fact in run.facts(RosterMade) if "cannot keep up" in fact.why)
        assert "bytes of records wait to be replayed; the others wait" in why, run.story()
    finally:
        coordinator.end()


@pytest.mark.parametrize("moment", sparse(["persisted:roster=3", "persist:roster=3", "push:roster=3", "made:roster=3"], 2))
def test_the_coordinator_is_lost_during_a_join(
    moment: str, start: Callable[..., Run], tmp_path: Path, reference: str
) -> None:
    coordinator = Coordinator(tmp_path)
    try:
        coordinator.start(f"{moment}:SIGKILL")
        flags = ("--replicas", "3", *EVEN, "--fault", LOST, *coordinator.arguments)
        run = start(*flags, script_args=("--hold", "5:3"), run_dir=coordinator.run_dir)
        coordinator.wait_struck()
        coordinator.start()
        run.wait()
        prove(run, reference, deaths=Counter(["r1"]))
        assert run.facts(Committed, "r1.1"), run.story()
        assert run.pids().keys() == {"r0.0", "r1.0", "r1.1", "r2.0"}, "nobody else was started again"
    finally:
        coordinator.end()


@pytest.mark.parametrize("moment", sparse(["loaded", "load", "audit"], 2))
def test_the_coordinator_is_lost_while_a_listener_grows(
    moment: str, start: Callable[..., Run], tmp_path: Path, reference: str
) -> None:
    """It goes on to its audit without a coordinator, and enters once there is one."""
    coordinator = Coordinator(tmp_path)
    try:
        coordinator.start()
        flags = ("--replicas", "3", *EVEN, "--fault", LOST, "--fault", f"r1.1:{moment}:SIGSTOP", *coordinator.arguments)
        run = start(*flags, script_args=("--hold", "5:3"), run_dir=coordinator.run_dir)
        pid = run.wait_stopped("r1.1")
        coordinator.kill()
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: run.facts(Audited, "r1.1"), "the joiner to have shown its bits")
        assert not run.facts(RosterAdopted, "r1.1"), run.story()
        coordinator.start()
        run.wait()
        prove(run, reference, deaths=Counter(["r1"]))
        assert run.facts(Committed, "r1.1") and not run.facts(ListenFailed), run.story()
        assert run.pids().keys() == {"r0.0", "r1.0", "r1.1", "r2.0"}, "nobody else was started again"
    finally:
        coordinator.end()


def test_two_return_at_once(start: Callable[..., Run], reference: str) -> None:
    """One holds its snapshot and has not replayed it when the other comes, is fed and loads its own."""
    patient = ("--hang-factor", "0", "--lease", "300")
    faults = ("--fault", LOST, "--fault", "r2:reduce:step=3:SIGKILL", "--fault", "r1.1:loaded:SIGSTOP")
    run = start("--replicas", "4", *EVEN, *patient, *faults, script_args=("--hold", "5:4"))
    pid = run.wait_stopped("r1.1")
    wait_for(lambda: run.facts(SnapshotLoaded, "r2.1"), "the other to hold the state")
    assert not run.facts(RosterAdopted, "r1.1"), run.story()
    os.kill(pid, signal.SIGCONT)
    run.wait()
    prove(run, reference, deaths=Counter(["r1", "r2"]))
    assert run.facts(Committed, "r1.1") and run.facts(Committed, "r2.1"), run.story()


def test_a_donor_that_stands_still_is_not_waited_for(start: Callable[..., Run], reference: str) -> None:
    """In the middle of a piece. The two other donors have all that it owes; it is ended only once they have given it."""
    patient = ("--hang-factor", "0", "--lease", "300")
    faults = ("--fault", LOST, "--fault", "*:serving:SIGSTOP")
    run = start("--replicas", "4", *EVEN, *patient, *faults, script_args=("--hold", "5:4"))
    ((_, loaded),) = wait_for(lambda: run.facts(SnapshotLoaded, "r1.1"), "the joiner to hold the state")
    assert isinstance(loaded, SnapshotLoaded) and not loaded.blamed and loaded.listener.attempt == 1
    (stopped,) = (who for who in ("r0.0", "r2.0", "r3.0") if is_stopped(run.pids()[who]))
    os.kill(run.pids()[stopped], signal.SIGKILL)
    run.wait()
    prove(run, reference, deaths=Counter(["r1", stopped.split(".")[0]]))
    assert not run.facts(ListenFailed, "r1.1") and run.facts(Committed, "r1.1"), run.story()


def test_a_donor_whose_copy_is_wrong_is_named_and_outvoted(start: Callable[..., Run], digests: list[str]) -> None:
    """The two others may have outvoted it before it says a word: then another joiner comes."""
    script_args = ("--steps", "400", "--pace", "0.1", "--bad-copies", "r2")
    run = start("--replicas", "4", *EVEN, script_args=script_args)
    wait_for(lambda: run.committed("r1.0") >= 2, "the job to be under way")
    loaded: list[SnapshotLoaded] = []
    while not (loaded and loaded[-1].blamed) and len(loaded) < 12:
        os.kill(run.pids()[f"r1.{len(loaded)}"], signal.SIGKILL)
        joiner = f"r1.{len(loaded) + 1}"
        ((_, fact),) = wait_for(lambda joiner=joiner: run.facts(SnapshotLoaded, joiner), f"{joiner} to hold the state")
        loaded.append(fact)
    assert [str(member) for member in loaded[-1].blamed] == ["r2.0"], run.story()
    assert not any("r2.0" in map(str, fact.donors) for fact in loaded), run.story()
    wait_for(lambda: run.facts(RosterAdopted, f"r1.{len(loaded)}"), "the last of them to take part")
    assert [digests[run.enough()]] * 4 == run.digests(), run.story()
    check = run.check()
    assert check.returncode == 0, f"{check.stdout}{check.stderr}\n{run.story()}"
    (wrong,) = gather(RunDir(run.folder)).tale.wrong_states
    assert (wrong.donor, wrong.joiner) == ("r2.0", f"r1.{len(loaded)}")


def test_two_donors_that_differ_are_named_and_neither_is_believed(start: Callable[..., Run], digests: list[str]) -> None:
    """One copies badly, and nothing tells which: after some tries the others wait, and one gives what it lives on."""
    script_args = ("--steps", "400", "--pace", "0.05", "--bad-copies", "r2")
    run = start("--replicas", "3", *EVEN, "--fault", LOST, script_args=script_args)
    wait_for(lambda: run.facts(StateFetched) or run.facts(SnapshotLoaded), "the joiner to hold a state")
    assert not run.facts(SnapshotLoaded), run.story()
    assert [digests[run.enough()]] * 3 == run.digests(), run.story()
    whys = [fact.why for _, fact in run.facts(ListenFailed, "r1.1")]
    assert any("r0.0" in fact.why and "r2.0" in fact.why for _, fact in run.facts(RosterMade)), "the operator is told"
    assert whys and all("r0.0" in why and "r2.0" in why for why in whys), run.story()


def test_a_donors_death_is_not_the_joiners(start: Callable[..., Run], reference: str) -> None:
    """It is in the middle of a piece, and of a step that the others commit without it: they feed what it would have."""
    faults = ("--fault", LOST, "--fault", "*:serving:SIGKILL")
    run = start("--replicas", "3", *EVEN, *faults, script_args=("--hold", "5:3", "--pace", "0.1"))
    run.wait()
    prove(run, reference, deaths=Counter(["r1", "*"]))
    assert not run.facts(ListenFailed, "r1.1"), run.story()
    ((_, loaded),) = run.facts(SnapshotLoaded, "r1.1")
    assert isinstance(loaded, SnapshotLoaded) and loaded.listener.attempt == 1


def test_a_listener_that_stands_still_changes_nothing(start: Callable[..., Run], reference: str) -> None:
    run = attacked(start, Attack("", ("r1.1:loaded:SIGSTOP",), ""))
    prove(run, reference, deaths=Counter(["r1"]))  # the other was ended, by its agent
    prove_unnoticed(run, "r1.2")


def prove_unnoticed(run: Run, joiner: str) -> None:
    """The members' groups are broken once, by the death, and the one roster after it is that with the joiner."""
    planned = [fact for _, fact in run.facts(RosterMade) if fact.base is not None]
    assert [len(fact.seats) for fact in planned] == [3], run.story()
    assert len(run.facts(RosterMade)) == 3 and joiner in {str(seat.member) for seat in planned[0].seats}, run.story()
    for member in ("r0.0", "r2.0"):
        aborted = [fact.below for _, fact in run.facts(GroupsAborted, member)]
        assert all(below <= planned[0].base for below in aborted), run.story()


@pytest.mark.parametrize("moment", ["load", "loaded"])
def test_nobody_notices_a_listeners_death(moment: str, start: Callable[..., Run], reference: str) -> None:
    run = attacked(start, Attack("", (f"r1.1:{moment}:SIGKILL",), ""))
    prove(run, reference, deaths=Counter(["r1", "r1"]))
    prove_unnoticed(run, "r1.2")


def test_nobody_notices_a_join(start: Callable[..., Run], reference: str) -> None:
    """The joiner has shown its bits before it was let in."""
    run = attacked(start, Attack("none", (), ""))
    prove(run, reference, deaths=Counter(["r1"]))
    assert len(run.facts(Audited, "r1.1")) == 1, run.story()
    prove_unnoticed(run, "r1.1")
