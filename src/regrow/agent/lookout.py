"""The lookout: watches the workers' stamps, reports whoever hangs, and keeps evidence of it.

It judges nothing itself (core.hangs does) and ends nobody. A verdict is reported at once and again every second while it
stands: what the coordinator refused may be possible later. Evidence is kept once for each hang.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from regrow.agent import evidence, kernel
from regrow.agent.reaper import Reaper
from regrow.agent.terminal import Terminal
from regrow.core.hangs import Hang, HangConfig, Hangs, Seen, Stall
from regrow.core.records import WorkerHung
from regrow.core.roster import Member
from regrow.shell.journal import Journal
from regrow.shell.stamp import Page

_AGAIN_S = 1.0


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that runs."""

    member: Member
    pid: int
    page: Page


class _Case(msgspec.Struct, kw_only=True):
    """A worker that was reported."""

    count: int
    """The stamp at which it hangs."""
    reported_s: float
    investigation: asyncio.Task[None]


class Lookout:
    """`accuse` is called from the loop, while somebody hangs."""

    def __init__(
        self,
        config: HangConfig,
        folder: Path,
        journal: Journal,
        terminal: Terminal,
        reaper: Reaper,
        accuse: Callable[[Hang | Stall], None],
    ) -> None:
        self._hangs = Hangs(config)
        self._folder = folder
        self._journal = journal
        self._terminal = terminal
        self._reaper = reaper
        self._accuse = accuse
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._cases: dict[Member, _Case] = {}

    def open(self, watched: Callable[[], list[Watched]], investigated: Callable[[Member], None]) -> None:
        """`investigated` is called once the evidence about a member is kept, or cannot be."""
        self._watched = watched
        self._investigated = investigated
        if self._hangs.config.factor > 0:
            self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def is_investigating(self, member: Member) -> bool:
        case = self._cases.get(member)
        return case is not None and not case.investigation.done()

    def has_accused(self, member: Member, count: int) -> bool:
        """Of hanging at this very stamp."""
        case = self._cases.get(member)
        return case is not None and case.count == count

    def forget(self, member: Member) -> None:
        """It is gone, and its page with it."""
        case = self._cases.pop(member, None)
        if case is not None:
            case.investigation.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._hangs.config.look_s, self._look)
        now = time.monotonic()
        watched: dict[Member, Watched] = {}
        seen: list[Seen] = []
        for one in self._watched():
            stamped = one.page.read()
            asks = self._hangs.should_ask_kernel(now, stamped)
            how = kernel.standstill(one.pid) if asks else None
            seen.append(Seen(member=one.member, stamped=stamped, standstill=how))
            watched[one.member] = one
        for verdict in self._hangs.look(now, seen):
            if isinstance(verdict, Stall):
                self._accuse(verdict)
                continue
            (now_seen,) = (one for one in seen if one.member == verdict.member)
            if self._is_due(now, now_seen):
                self._open_case(now, watched[verdict.member], now_seen, verdict)
                self._accuse(verdict)

    def _is_due(self, now: float, seen: Seen) -> bool:
        case = self._cases.get(seen.member)
        if case is None or case.count != seen.stamped.count:
            return True
        return now - case.reported_s > _AGAIN_S

    def _open_case(self, now: float, watched: Watched, seen: Seen, hang: Hang) -> None:
        case = self._cases.get(watched.member)
        if case is not None and case.count == seen.stamped.count:
            case.reported_s = now
            return
        if case is not None:
            case.investigation.cancel()
        path = self._folder / f"{watched.member}.txt"
        shown = f"{path.parent.name}/{path.name}"
        self._journal.write(
            WorkerHung(
                member=watched.member,
                place=hang.place,
                silent_s=hang.silent_s,
                limit_s=hang.limit_s,
                why=str(hang.reason),
                evidence=shown,
                cause=f"hung-{watched.member}",
            )
        )
        self._terminal.say(f"{watched.member} {hang}; see {shown} of the run directory")
        work = evidence.collect(path, watched.pid, hang, watched.page, seen.standstill, self._reaper)
        task = self._loop.create_task(work)
        self._cases[watched.member] = _Case(count=seen.stamped.count, reported_s=now, investigation=task)
        task.add_done_callback(lambda done: self._close_case(watched.member, done))

    def _close_case(self, member: Member, done: asyncio.Task[None]) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            self._terminal.say(f"no evidence of {member}'s hang could be kept: {error!r}")
        self._investigated(member)
