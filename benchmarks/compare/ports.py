"""Ports to listen on."""

import random
import socket


def free_port() -> int:
    """Below the range from which the machine gives ports to connections: nobody else is given it while it is free."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
