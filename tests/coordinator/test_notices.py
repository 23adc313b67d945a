"""What people are told when a job is founded from a saved state."""

from regrow.coordinator.notices import told
from regrow.core.membership_effects import Founded
from regrow.core.origin import MEMORY, Origin
from regrow.core.roster import Version


def founded(records: int, reached: int) -> str:
    origin = Origin(step=4, root="root", where=MEMORY, records=records)
    return told(Founded(version=Version(2, 1), origin=origin, reached=reached))


def test_without_a_log_the_steps_since_are_computed_again() -> None:
    assert founded(0, 9) == "the job goes on from step 4, from this host's memory: 5 steps are computed again"
    assert founded(0, 4) == "the job goes on from step 4, from this host's memory: no step is lost"


def test_with_a_log_it_goes_on_behind_them() -> None:
    where = "from this host's memory and 5 records after step 4"
    assert founded(5, 9) == f"the job goes on from step 9, {where}: no step is lost"
    assert founded(1, 6) == (
        "the job goes on from step 5, from this host's memory and 1 record after step 4: 1 step is computed again"
    )


def test_of_what_a_resumed_job_had_reached_before_nothing_is_said() -> None:
    origin = Origin(step=4, root="root", where=MEMORY)
    notice = Founded(version=Version(1, 1), origin=origin, reached=4, is_start=True, differences=("seed is 6, it was 5",))
    assert told(notice) == "the job goes on from step 4; from here on it is another job: seed is 6, it was 5"
