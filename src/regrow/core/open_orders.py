"""Orders that an agent may not have heard: each is open until its worker's exit is reported.

An agent that comes to the line is sent all of them again. It starts each incarnation at most once and a dead worker
cannot be killed, so hearing one twice changes nothing.
"""

from regrow.core.membership_effects import Kill, Start
from regrow.core.roster import Member


class OpenOrders:
    def __init__(self) -> None:
        self._starts: dict[Member, Start] = {}
        self._kills: dict[Member, Kill] = {}

    def give(self, order: Start | Kill) -> None:
        if isinstance(order, Start):
            self._starts[order.member] = order
        else:
            self._kills[order.member] = order

    def exited(self, member: Member) -> None:
        self._starts.pop(member, None)
        self._kills.pop(member, None)

    def open(self) -> list[Start | Kill]:
        """Starts first: a worker that was never started cannot be killed."""
        return [*self._starts.values(), *self._kills.values()]
