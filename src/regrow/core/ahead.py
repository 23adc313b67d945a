"""What one member writes ahead of a commit: its part of the result before it says that it holds it, and the parts of those
who can say nothing any more before it commits without them (rules L1 and L2). Attendance owns one and asks it."""

from collections.abc import Sequence

import msgspec

from regrow.core.effects import Log
from regrow.core.lanes import Node
from regrow.core.listener import Record
from regrow.core.log import unlogged
from regrow.core.resolve import Statement
from regrow.core.roster import Member, Version


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The complete outcome of one attempt at the current step."""

    attempt: Version
    digest: int
    holdings: tuple[tuple[Node, ...], ...]
    members: tuple[Member, ...]
    """Of the attempt's roster."""


class Ahead:
    """Of an every-step job, or of another, which writes nothing."""

    def __init__(self, me: Member, logs: bool) -> None:
        self._me = me
        self._logs = logs
        self._written: tuple[int, Version] | None = None
        """The step and attempt that this member has written its part of."""
        self._lacking: tuple[int, ...] = ()

    def own(self, step: int, result: Result | None, last: int, stop: bool) -> list[Log]:
        """Before this member states that it holds the result; once for each."""
        if not self._logs or result is None or self._written == (step, result.attempt):
            return []
        self._written = step, result.attempt
        return [_log(step, result, last, stop, (result.members.index(self._me),))]

    def decided(self, step: int, result: Result | None, table: Sequence[Statement]) -> None:
        """This table commits the step."""
        self._lacking = () if result is None else unlogged(table, result.members, step, result.attempt)

    def absent(self, step: int, result: Result | None, last: int) -> list[Log]:
        """Before the commit that was decided. What the absent wished is not known."""
        if not self._logs or result is None or not self._lacking:
            return []
        return [_log(step, result, last, False, self._lacking)]


def _log(step: int, result: Result, last: int, stop: bool, indices: tuple[int, ...]) -> Log:
    record = Record(step=step, attempt=result.attempt, digest=result.digest, holdings=result.holdings, last=last)
    return Log(record=record, stop=stop, indices=indices, count=len(result.members))
