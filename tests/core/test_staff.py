"""Who is to work: places, and what becomes of each replica."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.staff import Staff, found

COUNT = 1000
THREE = found(("r0", "r1", "r2"), 0)


def test_a_new_job_has_a_place_for_each_replica_and_none_for_its_spares() -> None:
    staff = found(("r0", "r1"), 2)
    assert staff.places == ("r0", "r1") and staff.names == ("r0", "r1", "r2", "r3") and staff.target == 2
    assert staff.cast({"r0", "r1", "r2"}) == staff, "a spare has no place while the others are there"
    assert staff.wanted({"r0", "r1"}) == 0


def test_an_empty_place_is_taken_over_and_who_comes_back_is_the_spare() -> None:
    staff = found(("r0", "r1"), 1).cast({"r0", "r2"})
    assert staff.places == ("r0", "r2")
    assert staff.cast({"r0", "r1", "r2"}).places == ("r0", "r2"), "it does not get its place back"


def test_an_empty_place_waits_for_its_replica_while_nobody_else_is_there() -> None:
    staff = THREE.cast({"r0", "r2"})
    assert staff.places == ("r0", "r1", "r2") and staff.wanted({"r0", "r2"}) == 1
    assert staff.cast({"r0", "r1", "r2"}) == THREE


def test_scaling_up_wants_more_and_new_ones_get_new_names() -> None:
    staff = THREE.scaled(5, {"r0", "r1", "r2"}).hired(2)
    assert staff.names == ("r0", "r1", "r2", "r3", "r4") and staff.wanted({"r0", "r1", "r2"}) == 2
    assert staff.cast({"r0", "r1", "r2", "r4"}).places == ("r0", "r1", "r2", "r4")


def test_scaling_down_drops_whoever_is_not_there_then_the_highest_numbers() -> None:
    staff = THREE.scaled(1, {"r0", "r2"})
    assert staff.leaving == ("r1", "r2") and staff.places == ("r0",)
    assert not staff.wanted({"r0", "r2"}) and staff.goes("r2") and not staff.goes("r0")


def test_who_was_hired_and_is_not_needed_any_more_leaves() -> None:
    staff = THREE.scaled(5, {"r0", "r1", "r2"}).hired(2).scaled(2, {"r0", "r1", "r2"}).trimmed(0, {"r0", "r1", "r2"})
    assert set(staff.leaving) == {"r2", "r3", "r4"} and staff.stays == ("r0", "r1")


def test_who_leaves_has_no_place_unless_nobody_else_is_there() -> None:
    staff = THREE.without("r1")
    assert staff.target == 2 and staff.places == ("r0", "r2")
    assert staff.cast({"r0", "r1", "r2"}).places == ("r0", "r2")
    alone = staff.cast({"r1"})
    assert "r1" in alone.places and alone.goes("r1"), "somebody has to work"
    assert alone.cast({"r1", "r0"}).places.count("r1") == 0


def test_who_moves_keeps_its_place_until_another_takes_it() -> None:
    staff = THREE.moved("r1").hired(1)
    assert staff.wanted({"r0", "r1", "r2"}) == 1 and not staff.goes("r1")
    staff = staff.cast({"r0", "r1", "r2", "r3"})
    assert staff.places == ("r0", "r3", "r2") and staff.goes("r1")
    assert staff.retiring("r1").moving == () and staff.retiring("r1").runs == ("r0", "r2", "r3")


def test_a_spare_takes_the_place_of_one_that_is_given_up() -> None:
    staff = found(("r0", "r1"), 1).losing("r1")
    assert staff.places == ("r0", "r2") and staff.wanted({"r0"}) == 1 and staff.target == 2
    assert THREE.losing("r1").wanted({"r0", "r2"}) == 0, "without a spare the job goes on without it"


def test_what_a_given_up_successor_was_to_do_is_given_up() -> None:
    assert THREE.moved("r1").hired(1).losing("r3").moving == ()
    assert THREE.scaled(4, {"r0", "r1", "r2"}).hired(1).losing("r3").target == 3


def test_the_place_of_one_that_left_before_it_was_relieved_is_given_up_with_its_relief() -> None:
    """tests/sim/seeds.py: AwaitsTheRetired."""
    moved = THREE.moved("r1").hired(1).retiring("r1")
    assert moved.wanted({"r0", "r2"}) == 1 and moved.cast({"r0", "r2", "r3"}).places == ("r0", "r3", "r2")
    for staff in (moved.losing("r2"), moved.losing("r3")):
        assert "r1" not in staff.places and staff.target == 2
    assert moved.losing("r2").wanted({"r0"}) == 1 and moved.losing("r3").wanted({"r0", "r2"}) == 0


def test_whoever_leaves_before_it_took_its_place_or_relieved_another_leaves_nothing_to_wait_for() -> None:
    """tests/sim/test_elastic_jobs.py, seed 56: the next replica that was hired took the place, and was missed elsewhere."""
    staff = THREE.scaled(4, {"r0", "r1", "r2"}).hired(1).without("r3")
    assert staff.target == 3 and staff.wanted({"r0", "r1", "r2"}) == 0
    assert THREE.moved("r1").hired(1).without("r3").moving == ()
    assert found(("r0", "r1"), 1).without("r2").target == 2


def test_scaling_again_replaces_those_that_were_given_up() -> None:
    staff = THREE.losing("r1").scaled(3, {"r0", "r2"})
    assert staff.places == ("r0", "r2") and staff.wanted({"r0", "r2"}) == 1


names = st.sampled_from([f"r{number}" for number in range(7)])
acts = st.one_of(
    st.tuples(st.just("scale"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["leave", "migrate", "lose", "retire"]), names),
    st.tuples(st.just("cast"), st.sets(names)),
)


@given(st.lists(acts, max_size=12), st.sets(names))
def test_whatever_happens_places_are_held_once_and_casting_again_changes_nothing(
    story: list[tuple[str, object]], there: set[str]
) -> None:
    staff = found(("r0", "r1", "r2"), 1)
    for act, what in story:
        match act, what:
            case "scale", int(target):
                staff = staff.scaled(target, there).trimmed(1, there)
                staff = staff.hired(staff.target + 1 + len(staff.moving) - len(staff.stays))
            case "leave", str(name) if name in staff.stays and staff.target > 1:
                staff = staff.without(name)
            case "migrate", str(name) if name in staff.stays and name not in staff.moving:
                staff = staff.moved(name).hired(1)
            case "lose", str(name) if name in staff.runs:
                staff = staff.losing(name)
            case "retire", str(name) if name in staff.leaving:
                staff = staff.retiring(name)
            case "cast", set(seated):
                staff = staff.cast({name for name in seated if name in staff.runs})
        _is_sound(staff)
    here = there & set(staff.runs)
    cast = staff.cast(here)
    assert cast.cast(here) == cast
    if here:
        assert set(cast.places) & here, "somebody who is there works"


def _is_sound(staff: Staff) -> None:
    assert len(set(staff.places)) == len(staff.places) <= max(staff.target, 1)
    assert set(staff.places) <= set(staff.names)
    assert not set(staff.leaving) & set(staff.moving)


class Name(str):
    """Counts how often any name is held against another."""

    looks = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.looks += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "decide",
    [
        lambda staff, there: staff.cast(there),
        lambda staff, there: staff.wanted(there),
        lambda staff, there: staff.scaled(COUNT // 2, there).trimmed(1, there),
        lambda staff, there: staff.losing("r7"),
    ],
    ids=["cast", "wanted", "scaled", "losing"],
)
def test_thousands_are_not_each_held_against_all_the_others(decide: Callable[[Staff, frozenset[str]], object]) -> None:
    names = tuple(Name(f"r{number}") for number in range(COUNT))
    staff, there = found(names[:-2], 0), frozenset(names[2:])
    staff = msgspec.structs.replace(staff, names=names)
    Name.looks = 0
    decide(staff, there)
    assert Name.looks < 20 * COUNT
