"""Every message round-trips, and no bytes whatever do worse than a PeerError."""

import msgspec
import pytest
from any_message import MESSAGE_TYPES, messages, of_type
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.errors import Invariant, PeerError
from regrow.core.messages import Message, Refuse
from regrow.wire.codec import decode, encode, quoted
from regrow.wire.violation import Violation


@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_every_message_round_trips(kind: type[msgspec.Struct]) -> None:
    @given(of_type(kind))
    @settings(max_examples=30)
    def round_trips(message: Message) -> None:
        again = decode(encode(message))
        assert again == message
        assert type(again) is kind

    round_trips()


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(payload: bytes) -> None:
    _decodes_or_is_refused(payload)


@given(messages(), st.data())
def test_flipped_bits_decode_to_a_message_or_are_refused(message: Message, data: st.DataObject) -> None:
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _decodes_or_is_refused(bytes(payload))


@given(messages(), st.data())
def test_a_truncated_message_is_refused(message: Message, data: st.DataObject) -> None:
    payload = encode(message)
    with pytest.raises(Violation):
        decode(payload[: data.draw(st.integers(0, len(payload) - 1))])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x85\xa4type\xa5Offer\xa5sizes\xdd\x7f\xff\xff\xff",  # promises two billion sizes
        b"\x85\xa4type\xa5Offer\xa2zz" + b"\x91" * 5000,  # nested beyond the stack
        b"\x82\xa4type\xa6Refuse\xa3why\xa2\xff\xfe",  # no UTF-8
        b"\x81\xa4type\xa7Unknown",
        encode(Refuse(why="x")) + b"x",  # more than one message
    ],
)
def test_the_known_ways_to_hurt_a_decoder_are_refused(payload: bytes) -> None:
    with pytest.raises(Violation, match="garbled"):
        decode(payload)


def test_text_that_cannot_travel_is_our_bug_and_says_so() -> None:
    with pytest.raises(Invariant, match=r"a Refuse cannot be encoded.*lone surrogates"):
        encode(Refuse(why="\udc80"))


@given(st.text())
def test_a_quoted_reason_is_one_short_printable_line(text: str) -> None:
    assert quoted(text).isprintable()
    assert len(quoted(text * 100)) <= 203


def _decodes_or_is_refused(payload: bytes) -> None:
    try:
        assert type(decode(payload)) in MESSAGE_TYPES
    except PeerError as error:
        assert str(error).startswith("garbled: ")
        assert str(error).isprintable()
