"""Random reduces: lanes, members, presence, dtypes, odd values; and a dumb second opinion on their sum."""

import math
import random
from dataclasses import dataclass

import torch

from regrow.collectives.reduce import Terms
from regrow.core.lanes import Node, children, cover, root
from regrow.state.byproducts import Byproducts, Changed, Outcomes, packed
from regrow.state.byproducts import Mean as Sum
from regrow.state.gradient import Gradient, add_
from regrow.state.layout import DTYPES, Layout

ODD_VALUES = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e-30, 65504.0)


@dataclass
class Case:
    """One reduce: every lane's gradient and who holds which lanes."""

    layout: Layout
    lanes: list[Gradient]
    holdings: tuple[tuple[Node, ...], ...]

    @property
    def terms(self) -> Terms:
        return Terms(self.layout, len(self.lanes), 0, self.holdings)

    @property
    def members(self) -> int:
        return len(self.holdings)

    def held(self, member: int) -> dict[Node, Gradient]:
        return {node: self.subtree(node) for node in self.holdings[member]}

    def subtree(self, node: Node) -> Gradient:
        if node.size == 1:
            return _copy(self.lanes[node.start])
        left, right = (self.subtree(child) for child in children(node))
        add_(left, right)
        return left


def random_case(seed: int, members: int) -> Case:
    """A pure function of the seed, so that every process builds the same."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    sizes = [rng.choice((0, 1, 5, 128, 129, 700)) for _ in range(rng.randint(1, 6))]
    parameters = [(f"p{i}", torch.empty(size, dtype=rng.choice(DTYPES))) for i, size in enumerate(sizes)]
    layout = Layout(parameters, bucket_bytes=rng.choice((1, 1024, 1 << 20)))
    count = rng.randint(1, 9)
    presence = rng.choice(("all", "random"))
    lanes = []
    for _ in range(count):
        lane = Gradient(layout, layout.new_buffer())
        lane.present = layout.everything if presence == "all" else rng.getrandbits(len(sizes))
        lane.weight, lane.loss = rng.choice((0.0, 1.0, 2.0, 0.1)), rng.uniform(-1, 1)
        for view in lane.views:
            view.copy_(torch.randn(view.shape, generator=generator))
            for _ in range(rng.randint(0, 3) if view.numel() else 0):
                view[rng.randrange(view.numel())] = torch.tensor(
                    rng.choice(ODD_VALUES), dtype=torch.float64
                )  # a bare 1e30 is refused by fp16
        lane.byproducts = _byproducts(rng)
        lanes.append(lane)
    owners = [rng.randrange(members) for _ in range(count)]
    holdings = [list(cover(count, [lane for lane in range(count) if owners[lane] == m])) for m in range(members)]
    for nodes in holdings:  # a member need not have merged all it could
        if nodes and nodes[0].size > 1 and rng.random() < 0.3:
            nodes[:1] = children(nodes[0])
    return Case(layout, lanes, tuple(tuple(nodes) for nodes in holdings))


@dataclass
class Mean:
    values: list[torch.Tensor | None]
    weight: float
    loss: float
    byproducts: Byproducts


def dumb_mean(case: Case) -> Mean:
    """Parameter by parameter, with None for absent: nothing shared with the flat code but the shape of the tree."""

    def total(node: Node) -> Mean:
        if node.size == 1:
            lane = case.lanes[node.start]
            values = [v if lane.present >> i & 1 else None for i, v in enumerate(lane.views)]
            return Mean(values, lane.weight, lane.loss, lane.byproducts)
        left, right = (total(child) for child in children(node))
        pairs = zip(left.values, right.values, strict=True)
        values = [b if a is None else a if b is None else a + b for a, b in pairs]
        return Mean(values, left.weight + right.weight, left.loss + right.loss, left.byproducts + right.byproducts)

    everything = total(root(len(case.lanes)))
    if everything.weight == 0:
        return Mean([None] * len(everything.values), 0.0, math.nan, everything.byproducts)
    values = [None if value is None else value / everything.weight for value in everything.values]
    return Mean(values, everything.weight, everything.loss / everything.weight, everything.byproducts)


def assert_is_mean(result: Gradient, expected: Mean) -> None:
    assert result.present == sum(1 << i for i, value in enumerate(expected.values) if value is not None)
    assert result.weight == expected.weight
    assert result.byproducts == expected.byproducts
    assert result.loss == expected.loss or (math.isnan(result.loss) and math.isnan(expected.loss))
    for view, value in zip(result.views, expected.values, strict=True):
        if value is not None:
            assert bits(view) == bits(value)


def bits(tensor: torch.Tensor) -> list[int]:
    """Bit patterns, all NaNs alike: torch's scalar and vector loops write different NaNs. Between the members and the
    slicings of a reduce NaNs are compared too, by digest."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    found: list[int] = torch.where(tensor.isnan(), 0, tensor).view(integers).flatten().tolist()
    nans: list[int] = tensor.isnan().flatten().tolist()
    return [-(1 << 63) - 1 if nan else value for value, nan in zip(found, nans, strict=True)]


def _byproducts(rng: random.Random) -> Byproducts:
    some = [index for index in range(3) if rng.random() < 0.7]
    return Byproducts(
        lanes=1,
        floats={index: Changed(1, packed(torch.tensor([rng.uniform(-1, 1), 1e-9]))) for index in some},
        others={index: Outcomes(1, (bytes([rng.randrange(3)]),)) for index in some},
        metrics={f"m{index}": Sum(rng.uniform(-1, 1), rng.random()) for index in some},
    )


def _copy(gradient: Gradient) -> Gradient:
    made = Gradient(gradient.layout, gradient.layout.new_buffer())
    made.buffer.copy_(gradient.buffer)
    made.present, made.weight, made.loss = gradient.present, gradient.weight, gradient.loss
    made.byproducts = gradient.byproducts
    return made
