"""The door lets in who knows the token, names every other reason, and never shows the token."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.errors import ConfigError, PeerError
from regrow.core.messages import PROTOCOL, Challenge, Denied, Hello, Thanks, Welcome
from regrow.wire.codec import encode
from regrow.wire.handshake import Admitted, Guest, Host, Key, Turned

TOKEN = "5ec7e7" * 8
OTHER_TOKEN = "0bad" * 12
SERVER_NONCE, CLIENT_NONCE = b"s" * 32, b"c" * 32


def _host(token: str = TOKEN, nonce: bytes = SERVER_NONCE) -> Host:
    return Host(Key(token), nonce)


def _guest(token: str = TOKEN, name: str = "r0.1") -> Guest:
    return Guest(Key(token), name, CLIENT_NONCE)


def _turned(verdict: Admitted | Turned) -> Turned:
    assert isinstance(verdict, Turned)
    return verdict


def test_both_sides_prove_the_token() -> None:
    host, guest = _host(), _guest()
    verdict = host.judge(encode(guest.answer(encode(host.challenge))))
    assert isinstance(verdict, Admitted)
    assert verdict.name == "r0.1"
    guest.settle(encode(verdict.welcome))


def test_a_wrong_token_is_refused_with_what_to_do() -> None:
    host, guest = _host(), _guest(OTHER_TOKEN)
    turned = _turned(host.judge(encode(guest.answer(encode(host.challenge)))))
    assert "does not know this job's token: start it with `regrow run`" in turned.why
    assert turned.denied is not None
    with pytest.raises(ConfigError, match="does not know this job's token"):
        guest.settle(encode(turned.denied))


def test_a_server_without_the_token_is_found_out() -> None:
    host, guest = _host(), _guest()
    guest.answer(encode(host.challenge))
    with pytest.raises(ConfigError, match="another job listens there"):
        guest.settle(encode(Welcome(proof=b"\0" * 32)))


def test_a_server_cannot_echo_the_clients_own_proof() -> None:
    host, guest = _host(), _guest()
    hello = guest.answer(encode(host.challenge))
    with pytest.raises(ConfigError, match="another job listens there"):
        guest.settle(encode(Welcome(proof=hello.proof)))


def test_another_protocol_is_named_before_the_token_is_looked_at() -> None:
    hello = Hello(protocol=PROTOCOL + 1, name="r0.1", nonce=CLIENT_NONCE, proof=b"")
    why = f"speaks protocol {PROTOCOL + 1}, this job speaks {PROTOCOL}: install the same regrow version on both sides"
    assert _host().judge(encode(hello)) == Turned(why=why, denied=Denied(why=why))


def test_another_protocol_is_named_even_when_its_hello_has_another_shape() -> None:
    payload = msgspec.msgpack.encode({"type": "Hello", "protocol": 7, "certificate": [1, 2]})
    assert "speaks protocol 7, this job speaks" in _turned(_host().judge(payload)).why


def test_the_client_names_another_protocol_and_still_answers() -> None:
    guest = _guest()
    hello = guest.answer(msgspec.msgpack.encode({"type": "Challenge", "protocol": 7, "salt": 1}))
    assert hello.protocol == PROTOCOL
    assert guest.mismatch is not None
    assert f"speaks protocol 7, this process speaks {PROTOCOL}: install the same regrow version" in guest.mismatch


def test_a_recorded_hello_proves_nothing_to_the_next_challenge() -> None:
    hello = encode(_guest().answer(encode(_host().challenge)))
    assert isinstance(_host().judge(hello), Admitted)
    assert "does not know this job's token" in _turned(_host(nonce=b"n" * 32).judge(hello)).why


def test_a_proof_holds_for_one_name_only() -> None:
    hello = _guest(name="r0.1").answer(encode(_host().challenge))
    renamed = msgspec.structs.replace(hello, name="coordinator")
    assert "does not know this job's token" in _turned(_host().judge(encode(renamed))).why


def test_bytes_cannot_move_between_nonce_and_name() -> None:
    hello = _guest(name="r0.1").answer(encode(_host().challenge))
    shifted = msgspec.structs.replace(hello, nonce=hello.nonce + b"r", name="0.1")
    assert "its nonce has 33 bytes" in _turned(_host().judge(encode(shifted))).why


@pytest.mark.parametrize("name", ["", "x" * 129, "line\nbreak"])
def test_names_are_short_and_printable_on_both_sides(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 128 printable characters"):
        _guest(name=name)
    hello = Hello(protocol=PROTOCOL, name=name, nonce=CLIENT_NONCE, proof=b"")
    assert "1 to 128 printable characters" in _turned(_host().judge(encode(hello))).why


@given(st.binary(max_size=200))
def test_garbage_is_turned_away_without_an_answer(payload: bytes) -> None:
    assert _turned(_host().judge(payload)).denied is None
    for step in (_guest().answer, _guest().settle):
        with pytest.raises(PeerError, match="garbled"):
            step(payload)


def test_a_message_out_of_place_is_turned_away() -> None:
    assert _turned(_host().judge(encode(Thanks()))).why == "garbled: a Thanks where a Hello belongs"
    with pytest.raises(PeerError, match="no valid Challenge"):
        _guest().answer(encode(Thanks()))
    with pytest.raises(PeerError, match="no valid Challenge"):
        _guest().answer(encode(Challenge(protocol=PROTOCOL, nonce=b"short")))
    with pytest.raises(PeerError, match="where a Welcome belongs"):
        _guest().settle(encode(Thanks()))


@pytest.mark.parametrize("token", ["", "ab" * 15, "not hex, but long enough to be a secret", "5ec7e7" * 8 + "zz"])
def test_a_bad_token_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="at least 32 hex digits") as caught:
        Key(token)
    assert not token or token not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_key_does_not_print_its_token() -> None:
    key = Key(TOKEN)
    for shown in (repr(key), str(key), repr(_host().challenge)):
        assert TOKEN not in shown
        assert repr(bytes.fromhex(TOKEN))[2:-1] not in shown
