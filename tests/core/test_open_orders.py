"""Orders stay open until the worker's exit is reported."""

from regrow.core.membership_effects import Kill, Start
from regrow.core.open_orders import OpenOrders
from regrow.core.roster import Member

A, B = Member("r0", 0), Member("r1", 0)


def start(member: Member) -> Start:
    return Start(member=member, delay_s=0.5, why="the job starts")


def test_an_order_is_open_until_its_worker_has_exited() -> None:
    orders = OpenOrders()
    kill = Kill(member=A, why="silent")
    for order in (start(A), kill, start(B)):
        orders.give(order)
    assert orders.open() == [start(A), start(B), kill], "starts first: the kill of a worker nobody started is lost"
    orders.exited(A)
    orders.exited(A)
    assert orders.open() == [start(B)]
