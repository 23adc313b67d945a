"""Ports to listen on."""

import random
import socket

_CHANCE = random.SystemRandom()
"""Not torch's nor Python's own, which tests seed alike in several processes."""


def free_port() -> int:
    """Below the range from which the machine gives ports to connections: nobody else is given it while it is free."""
    while True:
        port = _CHANCE.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """No two the same."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)
