"""The two servers that benchmarks/control.py measures, each in its own process and told through a pipe what to do: a real
coordinator, and a bare loop that only writes bytes."""

import asyncio
import gc
import resource
import select
import socket
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from regrow.coordinator.server import Server
from regrow.coordinator.store import Store
from regrow.core.budget import BudgetConfig
from regrow.core.membership_config import MembershipConfig
from regrow.core.messages import Enlist, Exited
from regrow.core.roster import Member
from regrow.shell.journal import Journal

LEASE_S = 600.0
"""The members beat only when they are told to, and a founding of thousands takes long on two cores."""


class Nobody:
    """Starts and ends no workers: the members are only sockets."""

    def start(self, member: Member, why: str, delay_s: float) -> None: ...

    def kill(self, member: Member, why: str) -> None: ...


def coordinate(pipe: Pipe, folder: Path, replicas: tuple[str, ...], lanes: int, token: str) -> None:
    asyncio.run(_coordinate(pipe, folder, replicas, lanes, token))


async def _coordinate(pipe: Pipe, folder: Path, replicas: tuple[str, ...], lanes: int, token: str) -> None:
    budget = BudgetConfig(backoff_s=0.0, max_all_restarts=1 << 30)
    config = MembershipConfig(replicas=replicas, lanes=lanes, budget=budget, lease_s=LEASE_S)
    job = Enlist(agent="a", job="control", command=("train.py",), config=config)
    journal = Journal(folder / "journal", "coordinator")
    server = Server(job, Store(folder), journal, Nobody(), lambda text, is_routine: None, print)
    endpoint = await server.listen("127.0.0.1", 0, token)
    server.open()
    over = asyncio.Event()

    def told() -> None:
        match pipe.recv():
            case "over":
                over.set()
            case "usage":
                gc.collect()
                pipe.send(_usage())
            case "ping":
                pipe.send("pong")
            case Exited() as exited:
                server.report(exited)

    asyncio.get_running_loop().add_reader(pipe.fileno(), told)
    pipe.send(endpoint.port)
    await over.wait()
    await server.close()


def shout(pipe: Pipe, count: int) -> None:
    """Accept so many, then write what the pipe says to each of them."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        pipe.send(listener.getsockname()[1])
        lines = [listener.accept()[0] for _ in range(count)]
    poll = select.epoll()
    for line in lines:
        line.setblocking(False)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(line, select.EPOLLIN)
    while data := pipe.recv():
        for line in lines:
            line.send(data)


def _usage() -> tuple[float, int]:
    """CPU seconds so far, and bytes of memory now."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return spent.ru_utime + spent.ru_stime, pages * resource.getpagesize()
