"""A line to a neighbour, for a thread of its own: through the door, and on to one run's shelf."""

import asyncio
import socket
from typing import TypeVar

from regrow.core.errors import ConfigError, Fenced, InfraError, NoRoom, PeerError, RegrowError
from regrow.core.neighbour_messages import Done, FromNeighbour, Unwilling, Visit
from regrow.core.roster import Endpoint
from regrow.wire.blocking import Blocking
from regrow.wire.tcp import connect

T = TypeVar("T", bound=FromNeighbour)
_ERRORS: dict[str, type[RegrowError]] = {"full": NoRoom, "fenced": Fenced, "wrong": ConfigError, "refused": InfraError}
_IDLE_S, _PROBE_S, _PROBES = 10, 5, 3
"""A peer whose machine is gone is found out on a line that says nothing, too."""


def visit(endpoint: Endpoint, token: str, run: str, claim: int, timeout_s: float, name: str = "guest") -> Blocking:
    """PeerError when nobody is there, ConfigError when versions or tokens differ; else as `asked`."""

    async def enter() -> tuple[socket.socket, bytes]:
        return (await connect(endpoint, token, name, timeout_s)).detach()

    sock, early = asyncio.run(enter())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, _IDLE_S), (socket.TCP_KEEPINTVL, _PROBE_S), (socket.TCP_KEEPCNT, _PROBES)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    line = Blocking(sock, early, str(endpoint))
    try:
        line.send(Visit(run=run, claim=claim))
        heard(line, Done, timeout_s)
    except BaseException:
        line.close()
        raise
    return line


def heard(line: Blocking, kind: type[T], timeout_s: float | None = None) -> T:
    """The answer to what was said. NoRoom, Fenced, ConfigError or InfraError when it would not do it."""
    match line.receive(timeout_s):
        case Unwilling(why=why, kind=why_not):
            raise _ERRORS[why_not](f"the neighbour {line.peer}: {why}")
        case answer if isinstance(answer, kind):
            return answer
        case other:
            raise PeerError(f"{line.peer} answers with {type(other).__name__} where {kind.__name__} comes next")
