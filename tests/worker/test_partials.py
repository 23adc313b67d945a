"""Partials of two members whose gradients flow: how much memory they take, and that it does not grow."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from regrow.collectives.group import TcpGroup
from regrow.collectives.line import Line
from regrow.core.effects import Reduce
from regrow.core.lanes import leaf, merges, settled
from regrow.core.roster import Version
from regrow.state.byproducts import Byproducts
from regrow.worker.partials import Partials

WIDTH = 32


def groups() -> list[TcpGroup]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    return [TcpGroup(0, {1: Line(here)}), TcpGroup(1, {0: Line(there)})]


class Member:
    """Does what a driver does in healthy steps, with a model of its own."""

    def __init__(self, group: TcpGroup, lanes: int, microbatches: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.partials = Partials(list(self.model.named_parameters()), lanes, bucket_bytes=512)
        self._group = group
        self._lanes = lanes
        self._microbatches = microbatches
        half = lanes // 2
        self._mine = range(half) if group.rank == 0 else range(half, lanes)
        self._holdings = tuple(
            tuple(sorted(settled(lanes, map(leaf, share)))) for share in (range(half), range(half, lanes))
        )

    def step(self, number: int) -> list[int]:
        """The digests of the result and of what `.grad` is afterwards."""
        partials, held = self.partials, frozenset()
        work = Reduce(version=Version(1, 1), step=number, holdings=self._holdings)
        partials.retract()
        for lane in self._mine:
            partials.begin_lane()
            for microbatch in range(self._microbatches):
                if lane == self._mine[-1] and microbatch == self._microbatches - 1:
                    partials.flow(self._group, work, lane)
                partials.begin_backward(1.0)
                x = torch.linspace(-1, 1, WIDTH) * (1 + lane + number + microbatch)
                loss = self.model(x).square().mean()
                loss.backward()
                partials.absorb(1.0, float(loss.detach()))
                partials.clear_grads()
            partials.end_lane(lane, Byproducts(lanes=1))
            for parent in merges(self._lanes, {*held, leaf(lane)}):
                partials.merge(parent)
            held = settled(self._lanes, {*held, leaf(lane)})
        partials.await_flow()
        digest = partials.reduce(self._group, work)
        result = partials.publish()
        assert all(
            p.grad is not None and p.grad.data_ptr() == v.data_ptr()
            for p, v in zip(partials.parameters, result.views, strict=True)
        )
        return [digest]


@pytest.mark.parametrize(
    ("lanes", "microbatches", "buffers"),
    [(2, 1, 1), (2, 3, 2), (8, 1, 3), (16, 1, 4), (16, 2, 5)],
    ids=["one lane each", "of three microbatches", "four lanes each", "eight lanes each", "of two microbatches"],
)
def test_memory_is_one_result_and_what_waits_in_the_tree(lanes: int, microbatches: int, buffers: int) -> None:
    members = [Member(group, lanes, microbatches) for group in groups()]
    with ThreadPoolExecutor(2) as threads:
        digests = [list(threads.map(lambda member, number=number: member.step(number), members)) for number in range(4)]
    assert all(one == other for one, other in digests)
    assert [member.partials.buffers for member in members] == [buffers, buffers]


def test_a_ragged_share_takes_no_more_than_its_subtrees() -> None:
    members = [Member(group, 7, 1) for group in groups()]
    with ThreadPoolExecutor(2) as threads:
        for number in range(3):
            one, other = threads.map(lambda member, number=number: member.step(number), members)
            assert one == other
    # Lanes 0 to 2 are two subtrees, lanes 3 to 6 two: nowhere more than two partials, a lane under way and the result.
    assert max(member.partials.buffers for member in members) <= 4
