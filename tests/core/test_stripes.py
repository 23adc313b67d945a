"""Who is asked for which piece: every byte once, whatever comes when, and a wrong one is never kept."""

from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.agreement import Agreed, Agreement, Parted, Undecided
from regrow.core.roster import Member
from regrow.core.stripes import Ask, Cut, Failed, Kept, Stripes, Underway, Whole

A, B, C = (Member(name, 0) for name in "abc")
LAYOUT = "f32[8]"
RIGHT = [b"0", b"1", b"2", b"3", b"4"]
WRONG = [b"0", b"1", b"x", b"3", b"4"]


def asked(asks: list[Ask]) -> list[tuple[str, int]]:
    return [(ask.donor.replica, ask.piece) for ask in asks]


def begun(*donors: Member, ahead: int = 2) -> Stripes:
    stripes = Stripes(donors, ahead=ahead)
    for donor in donors:
        stripes.offered(donor, LAYOUT, len(RIGHT))
    return stripes


# The cut


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 17))
def test_the_pieces_are_every_byte_once_and_in_order(sizes: list[int], piece_bytes: int) -> None:
    cut = Cut(sizes, piece_bytes)
    found = []
    for piece in range(cut.count):
        spans = list(cut.spans(piece))
        start, stop = cut.bounds(piece)
        assert sum(span.stop - span.start for span in spans) == stop - start <= piece_bytes
        assert stop - start == piece_bytes or piece == cut.count - 1
        found += [(span.leaf, byte) for span in spans for byte in range(span.start, span.stop)]
    assert found == [(leaf, byte) for leaf, size in enumerate(sizes) for byte in range(size)]


# Who is asked


def test_each_donor_has_a_few_to_give_and_whoever_gives_is_asked_again() -> None:
    stripes = begun(A, B)
    assert asked(stripes.asks()) == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    assert stripes.asks() == []
    assert stripes.arrived(B, 1, b"1")
    assert asked(stripes.asks()) == [("b", 4)]


def test_what_a_slow_donor_owes_is_asked_of_an_idle_one_too_and_the_first_to_come_counts() -> None:
    stripes = begun(A, B)
    stripes.asks()
    for piece in (1, 3):
        stripes.arrived(B, piece, RIGHT[piece])
    assert asked(stripes.asks()) == [("b", 4)]
    assert stripes.arrived(B, 4, b"4")
    assert asked(stripes.asks()) == [("b", 2)], "the one that the slow donor will come to last"
    assert stripes.arrived(B, 2, b"2")
    assert not stripes.arrived(A, 2, b"2")
    assert not stripes.has(0)


def test_the_pieces_of_a_donor_that_is_gone_are_asked_of_the_others() -> None:
    stripes = begun(A, B)
    stripes.asks()
    stripes.gone(A, "died")
    stripes.arrived(B, 1, b"1")
    assert asked(stripes.asks()) == [("b", 0)]
    assert stripes.lost == {A: "died"}


def test_with_no_donor_left_it_fails_and_says_why_of_each() -> None:
    stripes = begun(A, B)
    stripes.gone(A, "died")
    assert stripes.outcome() == Underway(missing=5, silent=(B,))
    stripes.gone(B, "stalled")
    outcome = stripes.outcome()
    assert isinstance(outcome, Failed) and not outcome.is_parted
    assert "a.0: died; b.0: stalled" in outcome.why


def test_what_came_before_a_failure_is_kept_for_the_next_try_and_held_to_what_is_agreed_then() -> None:
    first = begun(A)
    first.asks()
    first.arrived(A, 0, b"0")
    first.arrived(A, 1, b"bad")
    first.gone(A, "died")
    kept = first.kept()
    assert kept == Kept(layout=LAYOUT, digests={0: b"0", 1: b"bad"})
    second = Stripes([B], kept=kept, ahead=3)
    second.offered(B, LAYOUT, len(RIGHT))
    assert asked(second.asks()) == [("b", 2), ("b", 3), ("b", 4)]
    second.declared(B, "right", RIGHT)
    for piece in (2, 3, 4):
        second.arrived(B, piece, RIGHT[piece])
    assert asked(second.asks()) == [("b", 1)]
    assert second.blamed == {}, "nobody of this try gave it"
    assert second.arrived(B, 1, b"1")
    assert second.outcome() == Whole(root="right", witnesses=(B,))


def test_what_was_kept_is_asked_for_again_while_nobody_knows_whether_it_still_holds() -> None:
    """Else a state of which everything has changed would not begin to come before all of it is digested."""
    stripes = Stripes([B], kept=Kept(layout=LAYOUT, digests=dict(enumerate(WRONG))), ahead=3)
    stripes.offered(B, LAYOUT, len(RIGHT))
    assert asked(stripes.asks()) == [("b", 0), ("b", 1), ("b", 2)]
    assert not stripes.arrived(B, 0, b"0"), "it is there"
    assert stripes.arrived(B, 2, b"2"), "it was another, and the new one takes its place"
    stripes.declared(B, "right", RIGHT)
    assert stripes.outcome() == Whole(root="right", witnesses=(B,))


def test_what_a_broken_line_owed_is_asked_of_others_until_it_is_back() -> None:
    stripes = begun(A, B)
    stripes.asks()
    stripes.arrived(A, 0, b"0")
    stripes.interrupted(A)
    stripes.arrived(B, 1, b"1")
    assert asked(stripes.asks()) == [("b", 2)]
    stripes.offered(A, LAYOUT, len(RIGHT))
    assert asked(stripes.asks()) == [("a", 4)], "the rest is B's to give"
    assert stripes.lost == {} and stripes.takes_part(A)


def test_the_only_donor_is_waited_for_when_its_line_breaks_and_may_not_change_its_word() -> None:
    stripes = begun(A)
    stripes.declared(A, "right", RIGHT)
    stripes.asks()
    stripes.interrupted(A)
    assert stripes.asks() == [] and isinstance(stripes.outcome(), Underway)
    stripes.offered(A, LAYOUT, len(RIGHT))
    stripes.declared(A, "wrong", WRONG)
    assert asked(stripes.asks()) == [("a", 0), ("a", 1)]
    for piece in range(len(RIGHT)):
        stripes.arrived(A, piece, RIGHT[piece])
        stripes.asks()
    assert stripes.outcome() == Whole(root="right", witnesses=(A,))


def test_what_was_kept_of_other_tensors_is_worth_nothing() -> None:
    stripes = Stripes([B], kept=Kept(layout="another", digests={0: b"0"}), ahead=9)
    stripes.offered(B, LAYOUT, 1)
    assert asked(stripes.asks()) == [("b", 0)]


# Whose state is right


def test_a_donor_that_differs_from_the_majority_is_blamed_and_only_its_wrong_piece_is_fetched_again() -> None:
    stripes = begun(A, B, C)
    for ask in stripes.asks():
        stripes.arrived(ask.donor, ask.piece, (WRONG if ask.donor == C else RIGHT)[ask.piece])
    assert stripes.outcome() == Underway(missing=0, silent=(A, B, C))
    stripes.declared(C, "wrong", WRONG)
    stripes.declared(A, "right", RIGHT)
    assert stripes.outcome() == Underway(missing=0, silent=(B,)), "two of three, and they differ"
    stripes.declared(B, "right", RIGHT)
    assert list(stripes.blamed) == [C] and "wrong" in stripes.blamed[C]
    again = stripes.asks()
    assert {(ask.donor, ask.piece) for ask in again} == {(A, 2), (B, 2)}
    stripes.arrived(A, 2, b"2")
    assert stripes.outcome() == Whole(root="right", witnesses=(A, B))


def test_a_donor_that_declares_another_state_later_is_blamed_then() -> None:
    stripes = begun(A, B, C)
    for donor in (A, B):
        stripes.declared(donor, "right", RIGHT)
    assert asked(stripes.asks())[2] == ("c", 2)
    stripes.declared(C, "wrong", WRONG)
    assert list(stripes.blamed) == [C] and not stripes.takes_part(C)
    stripes.arrived(A, 0, b"0")
    assert asked(stripes.asks()) == [("a", 2)]


def test_a_donor_that_gives_other_bytes_than_it_declared_loses_its_voice() -> None:
    stripes = begun(A, B)
    stripes.declared(A, "one", RIGHT)
    assert asked(stripes.asks()) == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    assert not stripes.arrived(A, 0, b"other")
    assert list(stripes.blamed) == [A]
    stripes.declared(B, "two", WRONG)
    for piece in (1, 3):
        stripes.arrived(B, piece, WRONG[piece])
    while asks := stripes.asks():
        for ask in asks:
            stripes.arrived(ask.donor, ask.piece, WRONG[ask.piece])
    assert stripes.outcome() == Whole(root="two", witnesses=(B,))


def test_the_first_offers_layout_may_turn_out_to_be_the_wrong_one() -> None:
    stripes = Stripes([A, B, C])
    stripes.offered(A, "another", 7)
    for donor in (B, C):
        stripes.offered(donor, LAYOUT, len(RIGHT))
        stripes.declared(donor, "right", RIGHT)
    outcome = stripes.outcome()
    assert isinstance(outcome, Failed) and not outcome.is_parted
    assert {ask.donor for ask in stripes.asks()} == {A}


def test_a_state_without_bytes_needs_only_to_be_agreed() -> None:
    stripes = Stripes([A])
    assert stripes.outcome() == Underway(missing=None, silent=(A,))
    stripes.offered(A, "nothing", 0)
    assert stripes.outcome() == Underway(missing=0, silent=(A,))
    stripes.declared(A, "root", [])
    assert stripes.outcome() == Whole(root="root", witnesses=(A,))


def test_two_that_differ_decide_nothing() -> None:
    agreement = Agreement([A, B])
    agreement.declare(A, "one")
    assert agreement.verdict() == Undecided(awaited=(B,))
    agreement.declare(B, "two")
    verdict = agreement.verdict()
    assert isinstance(verdict, Parted) and "a.0 one, b.0 two" in verdict.why


def test_whoever_is_silent_is_not_waited_for_once_most_agree() -> None:
    agreement = Agreement([A, B, C])
    agreement.declare(A, "right")
    assert agreement.verdict() == Undecided(awaited=(B, C))
    agreement.declare(B, "right")
    assert agreement.verdict() == Agreed(root="right", witnesses=(A, B))


# Anything at any time


@settings(max_examples=400)
@given(st.data())
def test_whatever_happens_in_whatever_order_it_ends_and_what_is_whole_is_right(data: st.DataObject) -> None:
    donors = [Member(f"r{number}", 0) for number in range(data.draw(st.integers(1, 4)))]
    pieces = data.draw(st.integers(0, 7))
    right = [bytes([piece]) for piece in range(pieces)]
    held = {donor: list(right) for donor in donors}
    for donor in donors:
        if pieces and data.draw(st.integers(0, 3)) == 0:
            held[donor][data.draw(st.integers(0, pieces - 1))] = b"bad " + str(donor).encode()
    stripes = Stripes(donors, ahead=data.draw(st.integers(1, 3)))
    owed: dict[Member, list[int]] = {donor: [] for donor in donors}
    to_offer, to_declare, alive = list(donors), list(donors), set(donors)
    memory: dict[int, bytes] = {}
    liars: set[Member] = set()
    for _ in range(1000):
        for ask in stripes.asks():
            assert stripes.takes_part(ask.donor) and not stripes.has(ask.piece)
            owed[ask.donor].append(ask.piece)
            assert len(owed[ask.donor]) <= 3
        outcome = stripes.outcome()
        if not isinstance(outcome, Underway):
            break
        may = [("offer", d) for d in to_offer if d in alive]
        may += [("declare", d) for d in to_declare if d in alive and d not in to_offer]
        may += [("give", d) for d in donors if d in alive and owed[d] and stripes.takes_part(d)]
        may += [("die", d) for d in sorted(alive) if data.draw(st.integers(0, 15)) == 0]
        may += [("break", d) for d in sorted(alive) if d not in to_offer and data.draw(st.integers(0, 15)) == 0]
        assert may, "it waits, and nobody has anything to say"
        what, donor = data.draw(st.sampled_from(may))
        if what == "break":
            stripes.interrupted(donor)
            owed[donor].clear()
            to_offer.append(donor)
        elif what == "offer":
            to_offer.remove(donor)
            stripes.offered(donor, LAYOUT, pieces)
        elif what == "declare":
            to_declare.remove(donor)
            stripes.declared(donor, str(held[donor]), held[donor])
        elif what == "give":
            piece = owed[donor].pop(0)
            given = held[donor][piece]
            if data.draw(st.integers(0, 30)) == 0:
                given = b"flipped on the way"
                liars.add(donor)
            if stripes.arrived(donor, piece, given):
                memory[piece] = given
        else:
            alive.remove(donor)
            stripes.gone(donor, "died")
    else:
        raise AssertionError("no end")
    if isinstance(outcome, Whole):
        true = held[outcome.witnesses[0]]
        assert memory == dict(enumerate(true))
        assert all(held[donor] != true or donor in liars for donor in stripes.blamed)
    healthy = [donor for donor in donors if held[donor] == right and donor in alive - liars]
    if 2 * len(healthy) > len(donors):
        assert isinstance(outcome, Whole) and outcome.root == str(right)
