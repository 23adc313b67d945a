"""A peer that breaks the rules of the wire, told apart from one that merely went away."""

from regrow.core.errors import PeerError


class Violation(PeerError):
    """The peer sent what no Regrow process sends: an oversized or garbled frame, or a bad handshake. Worth recording."""
