"""How a founding is told, with the records that were replayed."""

import msgspec

from regrow.cli.save_words import founded, origin
from regrow.core.founding import Founding
from regrow.core.records import Line, OriginMended, Served
from regrow.core.save_story import Saves

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


def test_several_tiers_that_served_are_told_each_with_its_share() -> None:
    served = (
        Served(where="this host's memory", size_bytes=1_195_805_696, seconds=0.2),
        Served(where="s3://bucket/run", size_bytes=4_194_304, seconds=0.05),
    )
    where = "this host's memory and s3://bucket/run"
    mended = msgspec.structs.replace(FOUNDING, where=where, served=served, size_bytes=1_200_000_000, found_s=0.5)
    assert origin(mended) == (
        f"step 4, from {where}: 1.2 GB found in 500 ms (1.2 GB of this host's memory in 200 ms, 4.19 MB of s3://bucket/run "
        "in 50 ms)"
    )


def test_what_was_mended_is_told_with_what_it_lacked() -> None:
    saves = Saves()
    harm = OriginMended(step=8, where="/disk", lacking_bytes=80_000, why="/disk/shard-00000.safetensors is missing")
    saves.hear(Line(at=0.0, ns=0, who="vault", what=harm))
    story = saves.story(None)
    assert story is not None
    (told,) = story.passed_over
    assert (told.step, told.where) == (8, "/disk")
    assert told.why == "80000 bytes of it came from elsewhere: /disk/shard-00000.safetensors is missing"
