"""Messages to bytes and back: msgpack over the tagged union of core.messages. Nothing received is ever executed."""

import msgspec

from regrow.core.errors import Invariant
from regrow.core.messages import Message
from regrow.wire.violation import Violation

_REASON_CHARS = 200
"""A reason may quote the peer's own words; this much of them is enough."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        raise Invariant(
            f"a {type(message).__name__} cannot be encoded ({error}): text must be UTF-8 without lone surrogates and "
            f"integers must fit 64 bits before they become a message"
        ) from error


def decode(payload: bytes) -> Message:
    """Violation for anything that is not exactly one message."""
    try:
        return _decoder.decode(payload)
    except (ValueError, RecursionError) as error:
        # msgspec's errors and broken UTF-8 are ValueErrors; nesting beyond the stack is a RecursionError.
        raise Violation(f"garbled: {quoted(str(error))}") from error


def quoted(text: str) -> str:
    """A peer's words made safe to print: one line, no control characters, not long."""
    short = text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in short)
