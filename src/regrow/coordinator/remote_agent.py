"""The agent, seen from a coordinator that is a process of its own."""

import asyncio

from regrow.coordinator.line import Line
from regrow.core.membership_effects import End, Kill, Start
from regrow.core.messages import (
    Ended,
    Exited,
    KillWorker,
    Notice,
    Raised,
    Report,
    SeekState,
    StartWorker,
    StateSought,
    ToAgent,
)
from regrow.core.open_orders import OpenOrders
from regrow.core.roster import Member

_RAISED_MOST = 20
"""Exceptions that are passed on with the end: a message has a limit, and nobody reads more."""


class RemoteAgent:
    """An Actuator over a line that may be lost. Whatever the agent must know is said again on the next one."""

    def __init__(self) -> None:
        self._orders = OpenOrders()
        self._line: Line | None = None
        self._ended: Ended | None = None
        self._sought: SeekState | None = None
        """Not answered yet."""
        self.dismissed = asyncio.Event()
        """It was told of the end, and has hung up."""

    @property
    def is_here(self) -> bool:
        return self._line is not None

    def attach(self, line: Line) -> None:
        if self._line is not None:
            self._line.connection.abort()  # it came back: the line it gave up may not have noticed yet
        self._line = line
        for order in self._orders.open():
            line.say(_message(order))
        if self._sought is not None:
            line.say(self._sought)
        if self._ended is not None:
            line.say(self._ended)

    def detach(self, line: Line) -> bool:
        """True when that was its line, and it has no other by now."""
        if self._line is not line:
            return False
        self._line = None
        if self._ended is not None:
            self.dismissed.set()
        return True

    def hear(self, report: Report) -> None:
        if isinstance(report, Exited):
            self._orders.exited(report.member)
        if isinstance(report, StateSought) and self._sought is not None and report.number == self._sought.number:
            self._sought = None

    def start(self, member: Member, why: str, delay_s: float) -> None:
        self._give(Start(member=member, delay_s=delay_s, why=why))

    def kill(self, member: Member, why: str) -> None:
        self._give(Kill(member=member, why=why))

    def seek(self, number: int, step: int | None) -> None:
        self._sought = SeekState(number=number, step=step)
        self._say(self._sought)

    def notice(self, text: str, is_routine: bool) -> None:
        self._say(Notice(text=text, is_routine=is_routine))

    def conclude(self, end: End, raised: list[Raised]) -> None:
        first = [end.first] if end.first is not None else []
        told = first + [other for other in raised if other != end.first]
        self._ended = Ended(outcome=end.outcome, why=end.why, raised=tuple(told[:_RAISED_MOST]))
        self._say(self._ended)

    def _give(self, order: Start | Kill) -> None:
        self._orders.give(order)
        self._say(_message(order))

    def _say(self, message: ToAgent) -> None:
        if self._line is not None:
            self._line.say(message)


def _message(order: Start | Kill) -> StartWorker | KillWorker:
    if isinstance(order, Start):
        return StartWorker(member=order.member, delay_s=order.delay_s, why=order.why)
    return KillWorker(member=order.member, why=order.why)
