"""How a founding is told, with the records that were replayed."""

import msgspec

from regrow.cli.save_words import founded, origin
from regrow.core.founding import Founding

FOUNDING = Founding(
    roster="2.1",
    at=0.0,
    step=4,
    where="this host's memory",
    reached=9,
    records=0,
    differences=(),
    size_bytes=None,
    served=(),
    found_s=None,
    loaded_s=None,
)


def test_a_founding_says_where_the_state_lay_and_how_far_back_it_was() -> None:
    told = "nobody was left, and the job was founded again from step 4, 5 steps back, from this host's memory (roster 2.1)"
    assert founded(FOUNDING) == told
    assert origin(FOUNDING) == "step 4, from this host's memory"


def test_records_that_were_replayed_are_no_steps_back() -> None:
    replayed = msgspec.structs.replace(FOUNDING, records=5)
    assert founded(replayed) == (
        "nobody was left, and the job was founded again from step 9, no step back, "
        "from this host's memory and 5 records after step 4 (roster 2.1)"
    )
    assert origin(replayed) == "step 9, from this host's memory and 5 records after step 4"
