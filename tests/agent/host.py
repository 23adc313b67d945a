"""A process with an agent in it, steered by lines on stdin: start MEMBER [DELAY_S], kill MEMBER, freeze, thaw, close.

    python host.py FOLDER SCRIPT EVENTS_FD ENTRY

Reports go to EVENTS_FD, one JSON line each. A process of its own: the agent reaps every child it has, and may be killed.
Between freeze and thaw the loop's clock stands still, so that nothing happens there because time has passed.
"""

import asyncio
import itertools
import json
import os
import sys
from pathlib import Path

from regrow.agent.agent import Agent, AgentConfig
from regrow.agent.exits import Exit
from regrow.agent.terminal import Terminal
from regrow.agent.warm_parent import WarmConfig
from regrow.core.invariants import member_of
from regrow.core.roster import Endpoint, Member
from regrow.shell.door import WorkerDoor
from regrow.shell.journal import Journal

folder, script, events_fd = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])


def door(member: Member) -> WorkerDoor:
    return WorkerDoor(
        member=member, coordinator=Endpoint("127.0.0.1", 1), token="00", run_dir=folder, host="127.0.0.1", lanes=None
    )


def tell(**event: object) -> None:
    os.write(events_fd, json.dumps(event).encode() + b"\n")


def report(exit: Exit) -> None:
    tell(gone=str(exit.member), how=exit.how, clean=exit.clean, code=exit.code)


async def main() -> None:
    terminal = Terminal()
    (folder / "output").mkdir()
    config = AgentConfig(
        script=script,
        argv=(),
        cwd=folder,
        output=folder / "output",
        evidence=folder / "evidence",
        warm=WarmConfig(entry=sys.argv[4], imports=()),
    )
    agent = Agent(
        config,
        door,
        Journal(folder / "journal", "agent"),
        terminal,
        report,
        lambda verdict: tell(verdict=str(verdict)),
    )
    await agent.open()
    tell(ready=True, warm=agent.warm_pid)
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    clock = loop.time
    while (words := (await orders.readline()).decode().split()) and words[0] != "close":
        if words[0] in ("freeze", "thaw"):
            loop.time = clock if words[0] == "thaw" else itertools.repeat(clock()).__next__
            tell(clock=words[0])
            continue
        member = member_of(words[1])
        assert member is not None
        if words[0] == "start":
            agent.start(member, "a test", float(words[2]) if len(words) > 2 else 0.0)
        else:
            agent.kill(member, "it was asked for")
    await agent.close()
    terminal.close()
    tell(closed=True)


asyncio.run(main())
