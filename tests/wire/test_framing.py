"""Frames survive any way of being cut up, and no bytes whatever do worse than a Violation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.errors import Invariant
from regrow.wire.framing import HEADER_BYTES, PEER_LIMIT_BYTES, STRANGER_LIMIT_BYTES, Decoder, frame
from regrow.wire.violation import Violation


def _fed(decoder: Decoder, data: bytes) -> list[bytes]:
    decoder.feed(data)
    return list(iter(decoder.next_payload, None))


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 50), min_size=1))
def test_payloads_come_out_as_they_went_in_however_the_bytes_were_cut(payloads: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(map(frame, payloads))
    decoder, got, place = Decoder(PEER_LIMIT_BYTES), [], 0
    while place < len(wire):
        size = cuts[len(got) % len(cuts)]
        got += _fed(decoder, wire[place : place + size])
        place += size
    assert got == payloads
    assert len(decoder) == 0


@given(st.lists(st.binary(max_size=64)))
def test_random_bytes_give_payloads_or_a_violation_and_nothing_else(pieces: list[bytes]) -> None:
    decoder = Decoder(32)
    try:
        for piece in pieces:
            assert all(len(payload) <= 32 for payload in _fed(decoder, piece))
    except Violation as error:
        assert "the limit is 32" in str(error)


@given(st.binary(max_size=100), st.data())
def test_a_truncated_frame_gives_nothing(payload: bytes, data: st.DataObject) -> None:
    wire = frame(payload)
    assert _fed(Decoder(PEER_LIMIT_BYTES), wire[: data.draw(st.integers(0, len(wire) - 1))]) == []


@pytest.mark.parametrize("limit", [STRANGER_LIMIT_BYTES, PEER_LIMIT_BYTES])
def test_an_oversized_frame_is_refused_by_its_header_alone(limit: int) -> None:
    decoder = Decoder(limit)
    decoder.feed(limit.to_bytes(HEADER_BYTES, "big"))
    assert decoder.next_payload() is None
    assert len(decoder) == HEADER_BYTES  # a promise reserves nothing

    decoder = Decoder(limit)
    decoder.feed((limit + 1).to_bytes(HEADER_BYTES, "big"))
    with pytest.raises(Violation, match=f"oversized: a frame of {limit + 1} bytes, the limit is {limit}"):
        decoder.next_payload()


def test_we_never_send_what_a_peer_would_refuse() -> None:
    assert frame(b"1234", 4)
    with pytest.raises(Invariant, match="5 bytes exceeds the limit of 4"):
        frame(b"12345", 4)


@given(st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 60))
def test_raw_bytes_that_came_with_a_frame_are_kept_for_the_view(payload: bytes, raw: bytes, wanted: int) -> None:
    decoder = Decoder(PEER_LIMIT_BYTES)
    decoder.feed(frame(payload) + raw)
    assert decoder.next_payload() == payload
    view = bytearray(wanted)
    taken = decoder.take_raw(memoryview(view))
    assert taken == min(wanted, len(raw))
    assert view[:taken] == raw[:taken]
    assert len(decoder) == len(raw) - taken
