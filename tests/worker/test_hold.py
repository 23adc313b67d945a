"""Copies in the background, with real threads: what lies in the arena is the state at the save, or the copy is void."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regrow.core.draft import Draft, draft
from regrow.state.memory import bytes_of, plain
from regrow.state.tracked import Tracked
from regrow.worker.arena import Arena
from regrow.worker.depot import portion
from regrow.worker.drafting import Drafting
from regrow.worker.hold import Hold, Outcome, carried_out, copy_of

DEADLINE_S = 60.0
LARGE = [1_000_000] * 4


class Desk:
    """A hold with one arena, and what becomes of one save in it."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.hold = Hold(self._before_step)
        self.arena = Arena()
        self._is_stepping = threading.Event()
        self._marks: list[tuple[int, bytes]] = []
        self._outcome: Outcome | None = None
        self._is_done = threading.Event()

    def begin(self, tracked: Tracked, restless: tuple[str, ...] = ()) -> Draft:
        flat = tracked.flatten()
        tensors = [
            (path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes)
            for path, tensor in zip(flat.paths, flat.tensors, strict=True)
        ]
        plan = draft(step=1, term=1, mathematics={}, skeleton=flat.skeleton, tensors=tensors, shard_bytes=1 << 30)
        named = list(zip(flat.paths, flat.tensors, plan.offsets, strict=True))
        optimizers = [thing for thing in tracked.objects.values() if isinstance(thing, torch.optim.Optimizer)]
        self._is_done.clear()
        copy = copy_of(named, optimizers, self.arena, plan.arena_bytes, restless, self._reached, self._done)
        self._marks.clear()
        self.hold.begin(copy)
        return plan

    @contextlib.contextmanager
    def copying_beside_a_step(self) -> Iterator[None]:
        """The copy that is begun here is not made before an optimizer's step has come; or everything here is done."""

        def let_it() -> None:
            self._is_stepping.wait(DEADLINE_S)
            self.arena._lock.release()

        self._is_stepping.clear()
        self.arena._lock.acquire()
        thread = threading.Thread(target=let_it)
        thread.start()
        try:
            yield
        finally:
            self._is_stepping.set()
            thread.join()

    def outcome(self) -> Outcome:
        assert self._is_done.wait(DEADLINE_S)
        assert self._outcome is not None
        return self._outcome

    def copied(self, plan: Draft) -> list[bytes]:
        return [
            bytes(bytes_of(self.arena.tensor(offset, leaf.size_bytes))) if leaf.size_bytes else b""
            for offset, leaf in zip(plan.offsets, plan.leaves, strict=True)
        ]

    def kept_its_word(self, plan: Draft) -> bool:
        """What was said to be there was there, and stayed."""
        sizes = [size for size, _ in self._marks]
        last = max(offset for offset, leaf in zip(plan.offsets, plan.leaves, strict=True) if leaf.size_bytes)
        is_said_in_order = sizes == sorted(sizes) and sizes[0] == 0 and sizes[-1] <= last
        return is_said_in_order and all(self._there(size) == found for size, found in self._marks)

    def _before_step(self) -> None:
        self._is_stepping.set()
        self.waits.append(self.hold.wait())

    def _reached(self, size_bytes: int) -> None:
        self._marks.append((size_bytes, self._there(size_bytes)))

    def _there(self, size_bytes: int) -> bytes:
        return bytes(bytes_of(self.arena.tensor(0, size_bytes))) if size_bytes else b""

    def close(self) -> None:
        self.hold.close()
        self.arena.close()

    def _done(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._is_done.set()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def content(tracked: Tracked) -> list[bytes]:
    found = []
    for tensor in tracked.flatten().tensors:
        held = plain(tensor)
        found.append(bytes(bytes_of(held)))
    return found


KINDS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw loop": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "adamw foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}


class Model(torch.nn.Module):
    """Parameters of these sizes, one of them not contiguous, and a buffer that every forward changes."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(size)) for size in sizes])
        self.turned = torch.nn.Parameter(torch.randn(64, 300).t())
        self.register_buffer("seen", torch.zeros(sizes[0]))

    def forward(self) -> None:
        self.seen.add_(1.0)

    def learn(self) -> None:
        for parameter in self.parameters():
            parameter.grad = torch.ones_like(parameter)


def training(kind: str, sizes: list[int], steps: int) -> tuple[Model, torch.optim.Optimizer, Tracked]:
    model = Model(sizes)
    optimizer = KINDS[kind](list(model.parameters()))
    for _ in range(steps):
        model.learn()
        optimizer.step()
    tracked = Tracked()
    tracked.add("model", model)
    tracked.add("optimizer", optimizer)
    return model, optimizer, tracked


def rebind(model: Model) -> None:
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter)


def meddle(model: Model) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)


ACTIONS = ("forward", "step", "rebind", "meddle", "load", "empty")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(KINDS)),
    sizes=st.lists(st.sampled_from([1, 7, 4096, 100_000, 600_000]), min_size=1, max_size=6),
    steps=st.integers(0, 2),
    is_fitted=st.booleans(),
    actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=5),
)
def test_whatever_training_does_after_a_save_the_copy_is_of_the_save_or_says_that_it_is_void(
    kind: str, sizes: list[int], steps: int, is_fitted: bool, actions: list[str]
) -> None:
    desk = Desk()
    model, optimizer, tracked = training(kind, sizes, steps)
    expected = content(tracked)
    if is_fitted:
        desk.arena.fit(sum(map(len, expected)) + 4096)
    try:
        plan = desk.begin(tracked)
        for action in actions:
            match action:
                case "forward":
                    model.forward()
                    model.learn()
                case "step":
                    model.learn()
                    optimizer.step()
                case "rebind":
                    rebind(model)
                case "meddle":
                    meddle(model)
                case "load":
                    model.load_state_dict({key: value + 1 for key, value in model.state_dict().items()})
                case "empty":
                    optimizer.state.clear()
        outcome = desk.outcome()
        assert outcome.error is None
        assert desk.kept_its_word(plan)
        if not outcome.changed:
            assert desk.copied(plan) == expected
        else:
            assert {"meddle", "load"} & set(actions)
    finally:
        desk.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_optimizers_step_waits_for_the_copy(desk: Desk, kind: str) -> None:
    model, optimizer, tracked = training(kind, LARGE, 1)
    for _ in range(2):  # into new memory, and into memory that is there
        expected = content(tracked)
        with desk.copying_beside_a_step():
            plan = desk.begin(tracked)
            model.learn()
            optimizer.step()
        assert desk.waits[-1] > 0
        assert not desk.outcome().changed
        assert desk.copied(plan) == expected


def test_an_optimizer_that_nobody_has_named_waits_too(desk: Desk) -> None:
    model, _, tracked = training("adamw fused", LARGE, 1)
    other = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    expected = content(tracked)
    with desk.copying_beside_a_step():
        plan = desk.begin(tracked)
        model.learn()
        other.step()
    assert not desk.outcome().changed
    assert desk.copied(plan) == expected


def test_a_compiled_step_waits_too(desk: Desk) -> None:
    model, optimizer, tracked = training("adamw foreach", LARGE, 1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        expected = content(tracked)
        with desk.copying_beside_a_step():
            plan = desk.begin(tracked)
            model.learn()
            step()
        assert not desk.outcome().changed
        assert desk.copied(plan) == expected


def test_a_change_outside_of_a_step_makes_the_copy_void_and_names_it(desk: Desk) -> None:
    model, _, tracked = training("sgd", LARGE, 1)
    with desk.arena._lock:  # the copy cannot begin
        desk.begin(tracked)
        meddle(model)
    assert "model.weights.3" in desk.outcome().changed
    expected = content(tracked)
    plan = desk.begin(tracked, restless=tuple(f"model.{name}" for name, _ in model.named_parameters()))
    meddle(model)
    assert desk.outcome().changed == ()
    assert desk.copied(plan) == expected


def test_what_no_optimizer_owns_is_copied_at_once(desk: Desk) -> None:
    model = Model(LARGE[:3])
    tracked = Tracked()
    tracked.add("model", model)
    for _ in range(2):  # into new memory, and into memory that is there
        expected = content(tracked)
        plan = desk.begin(tracked)
        meddle(model)
        model.forward()
        assert desk.outcome().changed == ()
        assert desk.copied(plan) == expected


def test_after_close_no_hook_is_left() -> None:
    desk = Desk()
    _, optimizer, _ = training("sgd", [10], 1)
    assert len(desk.waits) == 1
    desk.close()
    optimizer.step()
    assert len(desk.waits) == 1


@given(st.integers(1, 9), st.lists(st.integers(0, 3000), min_size=1, max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_portions_of_all_members_make_the_whole_state(members: int, sizes: list[int], are_owned: bool) -> None:
    """However many there are, each byte is copied by exactly one of them."""
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = torch.optim.SGD(parameters)
    tracked = Tracked()
    tracked.add("model", torch.nn.ParameterList(parameters))
    plan, offsets, flat = Drafting(4096).planned(1, tracked)
    named = list(zip(flat.paths, flat.tensors, offsets, strict=True))
    arena, written = Arena(), torch.zeros(max(plan.arena_bytes, 1), dtype=torch.int64)
    arena.fit(plan.arena_bytes)
    try:
        for index in range(members):
            part = portion(plan.arena_bytes, index, members)
            copy = copy_of(
                named, [optimizer] * are_owned, arena, plan.arena_bytes, (), lambda there: None, lambda outcome: None, part
            )
            assert carried_out(copy).error is None
            written[slice(*part)] += 1
        assert written[: plan.arena_bytes].eq(1).all(), "each page is one member's"
        for leaf, offset, tensor in zip(plan.leaves, offsets, flat.tensors, strict=True):
            if leaf.size_bytes:
                assert bytes(bytes_of(arena.tensor(offset, leaf.size_bytes))) == bytes(bytes_of(plain(tensor)))
    finally:
        arena.close()
