"""A finished job: what counts as its marker, and who goes on nevertheless."""

import msgspec

from regrow.core.completion import Completion, has_more, settled

DONE = Completion(job="a", step=10, root="r", command=("/train.py", "--lr", "1"), script="digest", made_unix_s=1.0)


def test_the_same_command_of_the_same_script_has_nothing_to_do() -> None:
    assert DONE.is_of(("/train.py", "--lr", "1"), "digest")
    assert not DONE.is_of(("/train.py", "--lr", "2"), "digest")
    assert not DONE.is_of(("/train.py", "--lr", "1"), "another")


def test_a_job_is_finished_when_all_of_its_places_say_so() -> None:
    other = msgspec.structs.replace(DONE, step=9)
    assert settled([DONE, DONE]) == DONE
    assert [settled(places) for places in ([], [None], [DONE, None], [None, DONE], [DONE, other])] == [None] * 5


def test_only_a_number_of_steps_that_is_done_is_done() -> None:
    assert [has_more(steps, 10) for steps in ("9", "10", "11", "", "all")] == [False, False, True, True, True]
