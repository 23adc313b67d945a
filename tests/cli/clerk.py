"""Plays the coordinator to commands that wish something of a running job."""

import asyncio
import threading

from regrow.cli.run_dir import ListeningFile, RunDir
from regrow.core.messages import OPERATOR, Reply, Request
from regrow.core.wishes import Wish
from regrow.wire.tcp import Connection, listen


class Clerk(threading.Thread):
    """Answers each operator alike, and remembers what was wished. Tell it a run directory whose processes live."""

    def __init__(self, run: RunDir, reply: Reply) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._reply = reply
        self._loop = asyncio.new_event_loop()
        self.heard: list[Wish] = []
        self.listens = threading.Event()

    def run(self) -> None:
        self._loop.run_until_complete(self._open())
        self._loop.run_forever()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()

    async def _open(self) -> None:
        listener = await listen("127.0.0.1", 0, self._run.token(), self._serve, lambda peer, why: None)
        self._run.note_listening(ListeningFile(endpoint=listener.endpoint, host="h", pid=1, born=0))
        self.listens.set()

    async def _serve(self, connection: Connection) -> None:
        assert connection.name == OPERATOR
        want = await connection.receive()
        assert isinstance(want, Request)
        self.heard.append(want.wish)
        await connection.send(self._reply)
