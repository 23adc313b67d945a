"""When a newer base is worth its save."""

import msgspec

from regrow.core.renewal import Costs, renewal

COSTS = Costs(load_s=2.0, replay_s=0.1, save_s=0.05, step_s=1.0)
ROOM = 1_000_000_000


def test_a_base_is_renewed_once_a_replay_would_take_longer_than_a_load() -> None:
    assert next(records for records in range(40) if renewal(records, COSTS, 0, ROOM)) == 20
    assert renewal(20, COSTS, 0, ROOM) == "to replay 20 records would take 2.0 s, to load a base 2.0 s"


def test_bases_take_no_more_than_their_share_of_training() -> None:
    slow = msgspec.structs.replace(COSTS, save_s=0.5)
    assert renewal(49, slow, 0, ROOM) is None
    assert renewal(50, slow, 0, ROOM) is not None


def test_a_log_that_is_half_full_asks_whatever_it_costs() -> None:
    costly = msgspec.structs.replace(COSTS, save_s=1000.0)
    assert renewal(3, costly, ROOM // 2 - 1, ROOM) is None
    assert renewal(3, costly, ROOM // 2, ROOM) == "the log is half full: 500 of 1000 MB"
