"""The live view of `regrow run`: a few times a second, looks at the job and shows what it sees.

It reads the pages that the agent maps anyway, and the ends of three journals: the agent's, the coordinator's where it lies
in this run directory, and that of one member, for the loss. Nothing waits for it; whatever becomes of it, the job goes on.
"""

import asyncio
import functools
import time
from collections.abc import Callable

from regrow.agent.agent import Agent
from regrow.agent.sight import Sight
from regrow.agent.terminal import Terminal
from regrow.cli.picture import picture
from regrow.cli.run_dir import RunDir
from regrow.cli.scene import Asked, Happening, Known, Pace, scene
from regrow.core.roster import Member
from regrow.shell.follower import Follower

_LOOK_S = 0.25


class LiveView:
    """Make it inside the loop."""

    def __init__(
        self,
        asked: Asked,
        run_dir: RunDir,
        agent: Agent,
        terminal: Terminal,
        is_coordinator_away: Callable[[], bool],
        is_coloured: bool,
    ) -> None:
        self._asked = asked
        self._folder = run_dir.journal
        self._agent = agent
        self._terminal = terminal
        self._is_coordinator_away = is_coordinator_away
        self._is_coloured = is_coloured
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._known = Known()
        self._pace = Pace()
        self._followers = [Follower(self._folder / f"{who}.jsonl") for who in ("agent", "coordinator")]
        self._witness: Member | None = None
        """The member whose journal tells the loss."""
        self._testimony: Follower | None = None

    def open(self) -> None:
        self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._terminal.show(None)
        for follower in (*self._followers, self._testimony):
            if follower is not None:
                follower.close()

    def _look(self) -> None:
        try:
            self._show()
        except Exception as error:  # a view that fails must not end the job
            self._terminal.say(f"a bug in Regrow, please report it: the live view ended: {error!r}")
            self.close()
            return
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _show(self) -> None:
        sights = self._agent.look()
        for follower in self._followers:
            for line in follower.read():
                self._known.take(line)
        self._hear_witness(sights)
        happenings = [
            Happening(clock=time.strftime("%H:%M:%S", time.localtime(said.at)), text=said.text, is_routine=said.is_routine)
            for said in self._terminal.said
        ]
        now = scene(time.monotonic(), self._asked, self._known, self._pace, sights, happenings, self._is_coordinator_away())
        self._terminal.show(functools.partial(picture, now, is_coloured=self._is_coloured))

    def _hear_witness(self, sights: list[Sight]) -> None:
        """All commit the same: any one of those that are furthest will do, and it is kept while it lives."""
        if self._testimony is not None:
            for line in self._testimony.read():
                self._known.take(line)
        steps = {sight.member: sight.stamped.place.step for sight in sights if sight.stamped and sight.pid is not None}
        there = {member: step for member, step in steps.items() if step is not None}
        if self._witness in there or not there:
            return
        if self._testimony is not None:
            self._testimony.close()
        self._witness = max(there, key=lambda member: there[member])
        self._testimony = Follower(self._folder / f"{self._witness}.jsonl", wanted=b'"Committed"')
