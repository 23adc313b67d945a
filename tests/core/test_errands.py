"""Who is sent for which microbatch: what is needed is always on its way, whatever is dropped, lost or guessed wrong."""

from hypothesis import given
from hypothesis import strategies as st
from test_attendance import V1, V2, A, B, Story, roster, stated

from regrow.core.errands import Ask, Drop, Errand, Errands
from regrow.core.events import Exchanged, Formed, LaneDone, RosterPushed
from regrow.core.lanes import Cell


def errands(*lanes: int) -> list[Errand]:
    return [Errand(0, lane, 0) for lane in lanes]


def asked(orders: list[Drop | Ask]) -> list[tuple[int, int]]:
    return [(order.worker, order.errand.lane) for order in orders if isinstance(order, Ask)]


def test_the_soonest_are_dealt_first_and_nobody_has_more_than_its_share() -> None:
    desk = Errands(workers=2, ahead=2)
    orders, _ = desk.want(errands(0, 1, 2, 3, 4, 5))
    assert asked(orders) == [(0, 0), (1, 1), (0, 2), (1, 3)]
    desk.done(0, Errand(0, 0, 0))
    desk.used(Errand(0, 0, 0))
    assert asked(desk.want(errands(1, 2, 3, 4))[0]) == [(0, 4)]


def test_when_the_roster_changes_wrong_guesses_are_dropped_and_the_right_ones_asked_for() -> None:
    desk = Errands(workers=2, ahead=2)
    desk.want(errands(0, 1, 2, 3))
    desk.done(1, Errand(0, 1, 0))
    orders, forgotten = desk.want(errands(7, 8, 2))
    assert forgotten == {Errand(0, 1, 0)}, "made for nothing"
    assert orders[0] == Ask(worker=1, errand=Errand(0, 7, 0)), "lane 3 is under way at worker 1, and cannot be called back"
    assert asked(orders) == [(1, 7)], "worker 0 is still at lane 0 and has lane 2 to do"
    desk.done(0, Errand(0, 0, 0))
    assert desk.want(errands(7, 8, 2))[1] == {Errand(0, 0, 0)}


def test_what_is_not_begun_is_taken_back() -> None:
    desk = Errands(workers=1, ahead=3)
    desk.want(errands(0, 1, 2))
    assert desk.want(errands(0, 2, 5))[0] == [
        Drop(worker=0, errand=Errand(0, 1, 0)),
        Ask(worker=0, errand=Errand(0, 5, 0)),
    ]


def test_the_lost_are_asked_for_again_and_the_one_under_way_is_blamed() -> None:
    desk = Errands(workers=2, ahead=2)
    desk.want(errands(0, 1, 2, 3))
    assert desk.lost(0) == (Errand(0, 0, 0), 1)
    assert asked(desk.want(errands(0, 1, 2, 3))[0]) == [(0, 0), (0, 2)]
    assert desk.lost(0) == (Errand(0, 0, 0), 2)
    assert desk.lost(0) == (None, 0), "an idle one blames nobody"


def test_what_nobody_can_make_is_asked_for_no_more_until_it_was_used() -> None:
    desk = Errands(workers=1, ahead=2)
    desk.want(errands(0, 1))
    desk.lost(0)
    desk.give_up(Errand(0, 0, 0))
    assert asked(desk.want(errands(0, 1))[0]) == [(0, 1)]


def test_a_lane_stays_with_one_worker_and_lanes_are_shared_evenly() -> None:
    desk = Errands(workers=2, ahead=3, keeps_lanes=True)
    first = [Errand(0, lane, 0, b"") for lane in (0, 2, 4, 6)]
    assert asked(desk.want(first)[0]) == [(0, 0), (1, 2), (0, 4), (1, 6)]
    for worker, errand in ((0, first[0]), (0, first[2]), (1, first[1])):
        desk.done(worker, errand)
        desk.used(errand)
    later = [first[3], *(Errand(1, lane, 0, b"on") for lane in (0, 2, 4))]
    assert asked(desk.want(later)[0]) == [(0, 0), (1, 2), (0, 4)]
    assert desk.lost(0) == (later[1], 1)
    assert asked(desk.want(later)[0]) == [(0, 0), (0, 4)], "the one in its place opens them anew"


def test_a_guess_from_another_position_is_another_errand() -> None:
    desk = Errands(workers=1, ahead=2, keeps_lanes=True)
    guess, right = Errand(1, 0, 0, b"there"), Errand(1, 0, 0, b"here")
    desk.want([guess])
    desk.done(0, guess)
    orders, forgotten = desk.want([right])
    assert orders == [Ask(worker=0, errand=right)] and forgotten == {guess}


def test_what_is_only_wanted_makes_room_for_what_is_needed() -> None:
    desk = Errands(workers=2, ahead=1, keeps_lanes=True)
    desk.want(errands(0))
    desk.lost(0)
    desk.want(errands(2))
    desk.lost(desk.holder(Errand(0, 2, 0)) or 0)
    desk.want(errands(0))
    desk.want(errands(6, 1))
    assert [desk.holder(Errand(0, lane, 0)) for lane in (0, 6)] == [0, 0]
    orders, _ = desk.want(errands(2, 6))
    assert orders == [Drop(worker=0, errand=Errand(0, 6, 0)), Ask(worker=0, errand=Errand(0, 2, 0))]


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_what_is_needed_is_ready_or_under_way_and_held_by_one(
    data: st.DataObject, workers: int, ahead: int, keeps_lanes: bool
) -> None:
    desk = Errands(workers, ahead, keeps_lanes)
    queues: list[list[Errand]] = [[] for _ in range(workers)]
    ready: set[Errand] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        wanted = errands(*data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=9, unique=True)))
        orders, forgotten = desk.want(wanted)
        ready -= forgotten
        for order in orders:
            if isinstance(order, Ask):
                queues[order.worker].append(order.errand)
            else:
                queues[order.worker].remove(order.errand)
        assert wanted[0] in ready or desk.holder(wanted[0]) is not None
        held = [errand for queue in queues for errand in queue]
        assert len(held) == len(set(held)) and not set(held) & ready
        assert max(map(len, queues)) <= ahead + 1 and len(ready) <= desk.reach
        for worker, queue in enumerate(queues):
            if queue and data.draw(st.booleans()):
                ready.add(queue[0])
                desk.done(worker, queue.pop(0))
            elif data.draw(st.integers(0, 5)) == 0:
                blamed, _ = desk.lost(worker)
                assert blamed == (queue[0] if queue else None)
                queue.clear()


# What a member expects to be asked for


def test_a_member_expects_the_rest_of_its_step_and_its_lanes_of_the_next() -> None:
    story = Story(steps=3).seated()
    assert story.member.expected(9) == (Cell(0, 0), Cell(0, 1), Cell(1, 0), Cell(1, 1), Cell(2, 0), Cell(2, 1))
    story.hears(LaneDone(lane=0))
    assert story.member.expected(2) == (Cell(0, 1), Cell(1, 0))


def test_a_new_roster_changes_what_is_expected_first_of_later_steps_then_of_this_one() -> None:
    story = Story(steps=2).seated()
    story.hears(RosterPushed(roster=roster(V2, A)))
    later = tuple(Cell(1, lane) for lane in range(4))
    assert story.member.expected(9) == (Cell(0, 0), Cell(0, 1), *later)
    story.hears(LaneDone(lane=0), Formed(version=V2))
    story.hears(Exchanged(version=V2, table=(stated(A, held=tuple(sorted(story.member.held)), attempt=V1),)))
    assert story.member.expected(9) == (Cell(0, 1), Cell(0, 2), Cell(0, 3), *later)


def test_who_has_no_roster_or_no_seat_expects_nothing() -> None:
    story = Story()
    assert story.member.expected(9) == ()
    story.seated().hears(RosterPushed(roster=roster(V2, B)))
    assert story.member.expected(9) == ()
