"""Which rules a simulation runs. A test that wants to see the checks fail swaps one of them for a broken one."""

import msgspec

from regrow.core.attendance import Attendance
from regrow.core.membership import Membership
from regrow.sim.logs import Logs
from regrow.sim.vault import Vault


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The machines under test."""

    attendance: type[Attendance] = Attendance
    membership: type[Membership] = Membership
    vault: type[Vault] = Vault
    logs: type[Logs] = Logs
    """Models, as the rules of saves and of the log want them: these are no code of production."""


THE_RULES = Rules()
