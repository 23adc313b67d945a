"""Which rules a simulation runs. A test that wants to see the checks fail swaps one of them for a broken one."""

import msgspec

from regrow.core.attendance import Attendance
from regrow.core.membership import Membership


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The machines under test."""

    attendance: type[Attendance] = Attendance
    membership: type[Membership] = Membership


THE_RULES = Rules()
