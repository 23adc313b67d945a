"""A process with a custodian, told what to do on stdin: `vault_host.py SETTING`. What it hears it writes to stdout."""

import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec

from regrow.agent.custodian import Custodian
from regrow.agent.reaper import Reaper
from regrow.core.errors import ConfigError, InfraError
from regrow.shell.journal import Journal
from regrow.shell.vaulting import Setting


def tell(**event: object) -> None:
    print(msgspec.json.encode(event).decode(), flush=True)


async def main() -> None:
    setting = msgspec.json.decode(sys.argv[1], type=Setting)
    loop = asyncio.get_running_loop()
    reaper = Reaper(loop)
    reaper.open()
    journal = Journal(Path(setting.run_dir) / "journal", "agent")
    custodian = Custodian(setting, journal, lambda said: tell(said=said.text), loop, reaper)
    orders: asyncio.Queue[list[str]] = asyncio.Queue()

    def heard() -> None:
        for line in os.read(sys.stdin.fileno(), 1 << 16).decode().splitlines() or [""]:
            orders.put_nowait(line.split())

    loop.add_reader(sys.stdin, heard)
    while True:
        match await orders.get():
            case ["open"]:
                try:
                    tell(opened=await custodian.open())
                except (ConfigError, InfraError) as error:
                    tell(unusable=str(error))
            case ["seek", *asked]:
                tell(sought=await custodian.seek(*map(int, asked)))
            case ["search"]:  # and nobody waits for what it finds
                search = asyncio.create_task(custodian.seek())
                await asyncio.sleep(0)
                search.cancel()
            case ["hurry", seconds]:
                custodian.hurry(time.monotonic() + float(seconds))
            case ["finish"]:
                tell(finished=await custodian.finish(None), pid=custodian.pid)
            case _:
                custodian.close()
                return


if __name__ == "__main__":
    asyncio.run(main())
