"""A joiner's second try to load: what the first one had received, and has not changed since, does not come again."""

from pathlib import Path

import pytest
import torch
from donors import JOINER, KEY, STEP, TOKEN, Donors
from test_fetching import R0, joiner, large

from regrow.core.effects import Load
from regrow.core.errors import PeerError
from regrow.core.listener import Listener
from regrow.core.roster import Roster, Seat, Version
from regrow.core.stripes import PIECE_BYTES
from regrow.worker.loading import Loading

LISTENER = Listener(JOINER, 1)
assert str(LISTENER) == KEY


def roster(donors: Donors) -> Roster:
    seats = tuple(Seat(member=member, endpoint=where, founder=True, lanes=()) for member, where in donors.endpoints.items())
    return Roster(version=Version(1, 1), seats=seats, floor=0, cause="")


def load(donors: Donors) -> Load:
    return Load(listener=LISTENER, step=STEP, donors=tuple(donors.endpoints))


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_the_next_try_goes_on_from_what_has_come(is_forgotten: bool, tmp_path: Path) -> None:
    replica, loading = joiner(), Loading(JOINER, TOKEN)
    with Donors(1, large, faults="*:serving:nth=6:SIGKILL", run_dir=str(tmp_path)) as donors:
        loading.listen(roster(donors))
        with pytest.raises(PeerError, match="no donor is left"):
            loading.load(load(donors), replica.place)
    if is_forgotten:
        loading.forget()
    with Donors(1, large) as donors:
        loading.listen(roster(donors))
        received = loading.load(load(donors), replica.place)
        replica.take(received)
    assert replica.tracked.digest() == large(True).digest()
    spared = received.size_bytes - received.stripes[R0].size_bytes
    assert spared == 0 if is_forgotten else spared >= PIECE_BYTES


def test_nobody_to_listen_to_is_a_peer_error() -> None:
    loading = Loading(JOINER, TOKEN)
    with pytest.raises(PeerError, match="the try to listen is over"):
        loading.load(Load(listener=LISTENER, step=STEP, donors=(R0,)), lambda offer: [torch.empty(0)])
