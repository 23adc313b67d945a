"""Which rules a simulation runs. A test that wants to see the checks fail swaps one of them for a broken one."""

import msgspec

from regrow.core.attendance import Attendance
from regrow.core.membership import Membership
from regrow.sim.vault import Vault


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The machines under test."""

    attendance: type[Attendance] = Attendance
    membership: type[Membership] = Membership
    vault: type[Vault] = Vault
    """A model of it, as the rules of saves want it: that one is no code of production."""


THE_RULES = Rules()
