"""How far somebody who comes or goes has got: faults strike by it, and sights are counted by it."""

from enum import Enum

from regrow.core.attendance import Attendance, Task


class Grade(Enum):
    WAITS = "waits for its snapshot"
    LOADS = "loads"
    REPLAYS = "replays"
    AUDITS = "computes its audit"
    COUNTED_ON = "is counted on by a planned roster"
    LEAVES = "is about to leave as planned"

    def __str__(self) -> str:
        return self.value


GRADES = tuple(Grade)


def grade(attendance: Attendance) -> Grade | None:
    """None for whoever neither comes nor goes."""
    listening, roster, coming = attendance.listening, attendance.roster, attendance.next
    if attendance.task is Task.GONE:
        return None
    if coming is not None and coming.seat(attendance.me) is None:
        return Grade.LEAVES
    if listening is None:
        return None
    if listening.snapshot is None:
        return Grade.WAITS
    if not listening.is_loaded:
        return Grade.LOADS
    if attendance.task is Task.LANE:
        return Grade.AUDITS
    if roster is not None and roster.base is not None and listening.is_audited:
        return Grade.COUNTED_ON
    return Grade.REPLAYS
