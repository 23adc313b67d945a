"""The door: both sides prove that they know the job's token before anything else is said. Pure; tcp carries the bytes.

    server                                      client
    Challenge(protocol, nonce)            ->
                                          <-    Hello(protocol, name, nonce, proof)
    Welcome(proof) or Denied(why)         ->

A proof is HMAC-SHA256(token, role + server nonce + client nonce + name). Both nonces are fresh, so a recorded Hello proves
nothing later; the role keeps one side's proof from being played back as the other's. The protocol is compared before the
proof, and read by itself, so that a peer of another version hears about versions and not about its token.
The token stays in Key: no error, message or repr shows it.
"""

import hashlib
import hmac

import msgspec

from regrow.core.errors import ConfigError
from regrow.core.messages import PROTOCOL, Challenge, Denied, Hello, Welcome
from regrow.wire.codec import decode, quoted
from regrow.wire.violation import Violation

NONCE_BYTES = 32
"""Fixed, so that no two (nonce, nonce, name) run together into the same bytes."""

NAME_CHARS = 128
TOKEN_BYTES_MIN = 16
"""A proof can be attacked by guessing tokens offline; this many random bytes cannot be guessed."""


class Key:
    """The job's token, able to prove and unable to be printed."""

    def __init__(self, token: str) -> None:
        try:
            self._secret = bytes.fromhex(token)
        except ValueError:
            self._secret = b""
        if len(self._secret) < TOKEN_BYTES_MIN:
            raise ConfigError(
                f"the job's token must be at least {2 * TOKEN_BYTES_MIN} hex digits: take it from the run directory of the "
                f"job, or make one with `python -c 'import secrets; print(secrets.token_hex(32))'`"
            )

    def __repr__(self) -> str:
        return "Key(hidden)"

    def proof(self, role: bytes, nonces: bytes, name: str) -> bytes:
        return hmac.digest(self._secret, role + nonces + name.encode(), hashlib.sha256)


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """The client knows the token and goes by this name."""

    name: str
    welcome: Welcome


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """The client stays outside. `denied` is its answer; None where it would not understand one."""

    why: str
    denied: Denied | None


class Host:
    """The server's side of one handshake. The nonce must be fresh and random."""

    def __init__(self, key: Key, nonce: bytes) -> None:
        self._key = key
        self._nonce = nonce
        self.challenge = Challenge(protocol=PROTOCOL, nonce=nonce)

    def judge(self, payload: bytes) -> Admitted | Turned:
        """What to make of the client's first frame."""
        spoken = _protocol_of(payload)
        if spoken is not None and spoken != PROTOCOL:
            return _turned(
                f"speaks protocol {spoken}, this job speaks {PROTOCOL}: install the same regrow version on both sides"
            )
        try:
            hello = decode(payload)
        except Violation as error:
            return Turned(why=str(error), denied=None)
        if not isinstance(hello, Hello):
            return Turned(why=f"garbled: a {type(hello).__name__} where a Hello belongs", denied=None)
        if len(hello.nonce) != NONCE_BYTES:
            return _turned(f"its nonce has {len(hello.nonce)} bytes, not {NONCE_BYTES}")
        if not (0 < len(hello.name) <= NAME_CHARS and hello.name.isprintable()):
            return _turned(f"its name is not 1 to {NAME_CHARS} printable characters")
        if not hmac.compare_digest(hello.proof, self._key.proof(b"client", self._nonce + hello.nonce, hello.name)):
            return _turned(
                "does not know this job's token: start it with `regrow run` or give it the token in this job's run directory"
            )
        proof = self._key.proof(b"server", self._nonce + hello.nonce, hello.name)
        return Admitted(name=hello.name, welcome=Welcome(proof=proof))


class Guest:
    """The client's side of one handshake. The nonce must be fresh and random."""

    def __init__(self, key: Key, name: str, nonce: bytes) -> None:
        if not (0 < len(name) <= NAME_CHARS and name.isprintable()):
            raise ConfigError(
                f"a connection's name must be 1 to {NAME_CHARS} printable characters, this one has {len(name)}"
            )
        self._key = key
        self._name = name
        self._nonce = nonce
        self._server_nonce = b""
        self.mismatch: str | None = None
        """Set by `answer` when the server speaks another protocol. The Hello is sent all the same: the server records it."""

    def answer(self, payload: bytes) -> Hello:
        """Violation when this is no challenge."""
        spoken = _protocol_of(payload)
        if spoken is not None and spoken != PROTOCOL:
            self.mismatch = (
                f"it speaks protocol {spoken}, this process speaks {PROTOCOL}: install the same regrow version on both sides"
            )
            return Hello(protocol=PROTOCOL, name=self._name, nonce=self._nonce, proof=b"")
        challenge = decode(payload)
        if not isinstance(challenge, Challenge) or len(challenge.nonce) != NONCE_BYTES:
            raise Violation(f"garbled: no valid Challenge but a {type(challenge).__name__}")
        self._server_nonce = challenge.nonce
        proof = self._key.proof(b"client", self._server_nonce + self._nonce, self._name)
        return Hello(protocol=PROTOCOL, name=self._name, nonce=self._nonce, proof=proof)

    def settle(self, payload: bytes) -> None:
        """Returns when the server let us in and proved the token itself; ConfigError says why not."""
        verdict = decode(payload)
        if isinstance(verdict, Denied):
            raise ConfigError(quoted(verdict.why))
        if not isinstance(verdict, Welcome):
            raise Violation(f"garbled: a {type(verdict).__name__} where a Welcome belongs")
        expected = self._key.proof(b"server", self._server_nonce + self._nonce, self._name)
        if not hmac.compare_digest(verdict.proof, expected):
            raise ConfigError(
                "it does not know this job's token: another job listens there; check the coordinator's address"
            )


class _Spoken(msgspec.Struct, frozen=True):
    """The one field of Challenge and Hello that every protocol keeps, whatever else it changes."""

    type: str
    protocol: int


_spoken = msgspec.msgpack.Decoder(_Spoken)


def _protocol_of(payload: bytes) -> int | None:
    try:
        return _spoken.decode(payload).protocol
    except (ValueError, RecursionError):
        return None


def _turned(why: str) -> Turned:
    return Turned(why=why, denied=Denied(why=why))
