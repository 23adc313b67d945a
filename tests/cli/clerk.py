"""Plays the coordinator to commands that wish something of a running job."""

import asyncio
import threading

from command import DEADLINE_S

from regrow.cli.run_dir import ListeningFile, RunDir
from regrow.core.messages import OPERATOR, Reply, Request
from regrow.core.wishes import Wish
from regrow.wire.tcp import Connection, Listener, listen


class Clerk(threading.Thread):
    """Answers each operator alike, and remembers what was wished. Tell it a run directory whose processes live."""

    def __init__(self, run: RunDir, reply: Reply) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._reply = reply
        self._loop = asyncio.new_event_loop()
        self._listener: Listener | None = None
        self.heard: list[Wish] = []
        self.listens = threading.Event()

    def run(self) -> None:
        self._loop.run_until_complete(self._open())
        self._loop.run_forever()

    def close(self) -> None:
        if self._listener is not None:
            asyncio.run_coroutine_threadsafe(self._listener.close(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join(DEADLINE_S)

    async def _open(self) -> None:
        self._listener = await listen("127.0.0.1", 0, self._run.token(), self._serve, lambda peer, why: None)
        self._run.note_listening(ListeningFile(endpoint=self._listener.endpoint, host="h", pid=1, born=0))
        self.listens.set()

    async def _serve(self, connection: Connection) -> None:
        assert connection.name == OPERATOR
        want = await connection.receive()
        assert isinstance(want, Request)
        self.heard.append(want.wish)
        await connection.send(self._reply)
