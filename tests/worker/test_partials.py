"""Partials of two members whose gradients flow: how much memory they take, and that it does not grow."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from regrow.collectives.group import TcpGroup
from regrow.collectives.line import Line
from regrow.core.effects import Reduce
from regrow.core.lanes import Node, leaf, merges, settled
from regrow.core.roster import Version
from regrow.state.byproducts import Byproducts
from regrow.worker.partials import Partials

WIDTH = 32


def groups() -> list[TcpGroup]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    return [TcpGroup(0, {1: Line(here)}), TcpGroup(1, {0: Line(there)})]


def bits(mask: int) -> list[bool]:
    return [mask >> index & 1 == 1 for index in range(64)]


class Member:
    """Does what a driver does in healthy steps, with a model of its own."""

    def __init__(self, group: TcpGroup, lanes: int, microbatches: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.partials = Partials(list(self.model.named_parameters()), lanes, bucket_bytes=512)
        self.group = group
        self._lanes = lanes
        self._microbatches = microbatches
        half = lanes // 2
        self._mine = range(half) if group.rank == 0 else range(half, lanes)
        self._holdings = tuple(
            tuple(sorted(settled(lanes, map(leaf, share)))) for share in (range(half), range(half, lanes))
        )

    def work(self, step: int) -> Reduce:
        return Reduce(version=Version(1, 1), step=step, holdings=self._holdings)

    def step(self, number: int) -> int:
        """The digest of the result, to which `.grad` points."""
        partials, held, work = self.partials, frozenset[Node](), self.work(number)
        partials.retract()
        for lane in self._mine:
            partials.begin_lane()
            for microbatch in range(self._microbatches):
                if lane == self._mine[-1] and microbatch == self._microbatches - 1:
                    partials.flow(self.group, work, lane)
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
        digest = partials.reduce(self.group, work)
        result = partials.publish()
        for parameter, view, is_there in zip(partials.parameters, result.views, bits(result.present), strict=False):
            assert (parameter.grad.data_ptr() == view.data_ptr()) if is_there else parameter.grad is None
        return digest


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


@pytest.mark.parametrize("when", ["and skips the batch", "after step.backward"])
def test_a_backward_of_the_scripts_own_leaves_no_trace(when: str) -> None:
    """As of an attack on the inputs: the script clears what it made, so that nothing outside sees it."""

    def play(member: Member, own: bool) -> tuple[int, int]:
        partials, group, lane = member.partials, member.group, member.group.rank
        partials.begin_lane()
        partials.flow(group, member.work(0), lane)
        first, rest = member.model[0], member.model[1:]
        x = torch.ones(WIDTH)
        if when.startswith("after") or lane == 1:
            partials.begin_backward(1.0)
            rest(x).square().mean().backward()  # the first layer has no gradient
            partials.absorb(1.0, 1.0)
            partials.clear_grads()
        if own:
            rest(first(x)).square().mean().backward()
            partials.clear_grads()
        partials.end_lane(lane, Byproducts(lanes=1))
        partials.await_flow()
        return partials.reduce(group, member.work(0)), partials.publish().present

    with ThreadPoolExecutor(2) as threads:
        told = []
        for own in (False, True):
            members = [Member(group, 2, 1) for group in groups()]
            told.append(list(threads.map(lambda member, own=own: play(member, own), members)))
    assert told[0] == told[1] and told[0][0] == told[0][1]


def test_a_parameter_frozen_for_the_moment_is_no_reason_to_fail() -> None:
    """As in the loop of a GAN: it has no gradient then, and is heard of again later."""

    def play(member: Member) -> list[int]:
        member.model[0].requires_grad_(False)
        digests = [member.step(0)]
        member.model[0].requires_grad_(True)
        return [*digests, member.step(1)]

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(play, [Member(group, 2, 1) for group in groups()])
    assert one == other


def test_a_ragged_share_takes_no_more_than_its_subtrees() -> None:
    members = [Member(group, 7, 1) for group in groups()]
    with ThreadPoolExecutor(2) as threads:
        for number in range(3):
            one, other = threads.map(lambda member, number=number: member.step(number), members)
            assert one == other
    # Lanes 0 to 2 are two subtrees, lanes 3 to 6 two: nowhere more than two partials, a lane under way and the result.
    assert max(member.partials.buffers for member in members) <= 4
