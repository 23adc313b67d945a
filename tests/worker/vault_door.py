"""The vault's end of a worker's line, played over a real socket."""

import secrets
import socket

import msgspec

from regrow.shell.vaulting import FromWorker
from regrow.wire.handover import Handover

DEADLINE_S = 30.0


class Door:
    """The vault's end."""

    def __init__(self) -> None:
        self.address = f"regrow-test-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0" + self.address)
        self._socket.listen()
        self._socket.settimeout(DEADLINE_S)

    def accept(self) -> Handover:
        return Handover(self._socket.accept()[0], DEADLINE_S)

    def close(self) -> None:
        self._socket.close()


def heard(line: Handover) -> FromWorker:
    payload = line.receive(DEADLINE_S)
    assert payload is not None, "nothing was said"
    return msgspec.json.decode(payload, type=FromWorker)
