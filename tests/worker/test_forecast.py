"""Memory that is made before anybody has said what is to be saved: as much as the optimizers own that step."""

import contextlib
import gc
import os
import resource
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.optim import optimizer as hooks
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

from regrow.worker.arena import Arena
from regrow.worker.checkpointer import Checkpointer
from regrow.worker.forecast import Forecast

DEADLINE_S = 60.0
WIDTH = 1024
WEIGHT_BYTES = 4 * WIDTH * WIDTH
MODEL_BYTES = WEIGHT_BYTES + 4 * WIDTH
STATE_BYTES = MODEL_BYTES + 2 * WEIGHT_BYTES + 4  # two moments, and a count of steps
MOST_BYTES = STATE_BYTES * 1.02 + (1 << 20)


class Loop:
    """One weight, a buffer, and AdamW."""

    def __init__(self, width: int = WIDTH) -> None:
        self.model = torch.nn.Linear(width, width, bias=False)
        self.model.register_buffer("mean", torch.zeros(width))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.objects = {"model": self.model, "optimizer": self.optimizer}

    def step(self) -> None:
        self.model.weight.grad = torch.ones_like(self.model.weight)
        self.optimizer.step()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Checkpointer]]:
    """Checkpointers of one folder, none of which outlives its test."""
    with contextlib.ExitStack() as made:
        yield lambda **settings: made.enter_context(Checkpointer(tmp_path / "run", patience_s=20.0, **settings))


@pytest.fixture
def told() -> Iterator[list[int]]:
    """What a forecast says, as it says it."""
    said: list[int] = []
    forecast = Forecast(said.append)
    yield said
    forecast.close()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def arenas(checkpointer: Checkpointer) -> list[Arena]:
    assert checkpointer._saving is not None
    return checkpointer._saving._arenas._all


def prepared(checkpointer: Checkpointer) -> tuple[Arena, Arena]:
    """Once everything is done that was begun beside training."""
    assert checkpointer._saving is not None and checkpointer._saving._preparation is not None
    checkpointer._saving._preparation.join(DEADLINE_S)
    first, second = arenas(checkpointer)
    return first, second


def pages_bytes(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


def writer(checkpointer: Checkpointer) -> int | None:
    """Its process, once there is one."""
    writer = checkpointer._saving and checkpointer._saving._keeper._writer
    return writer.process.pid if writer else None


def same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(tensor.detach(), other.detach())


def test_after_a_step_a_save_finds_its_memory_and_a_writer_though_nobody_has_named_the_state(
    make: Callable[..., Checkpointer],
) -> None:
    loop, checkpointer = Loop(), make()
    assert checkpointer._saving is None
    loop.step()
    first, second = prepared(checkpointer)
    wait_for(lambda: writer(checkpointer))
    made, address, at_work = pages_bytes(first), first.address, writer(checkpointer)
    assert STATE_BYTES < made <= MOST_BYTES
    checkpointer.save(1, **loop.objects)
    checkpointer.wait()
    assert (first.address, second.size_bytes) == (address, 0)
    assert pages_bytes(first) <= made and writer(checkpointer) == at_work
    assert checkpointer.report().durable == 1


def test_what_a_save_has_no_use_for_is_given_back(make: Callable[..., Checkpointer]) -> None:
    loop, checkpointer = Loop(), make()
    loop.step()
    first, second = prepared(checkpointer)
    assert first.has_room(STATE_BYTES)
    checkpointer.save(1, model=loop.model)
    wait_for(lambda: pages_bytes(first) == MODEL_BYTES)
    assert not first.has_room(MODEL_BYTES + 1) and second.size_bytes == 0
    checkpointer.wait()
    kept, expected = loop.model.weight.detach().clone(), Loop()
    loop.step()
    checkpointer.save(2, **loop.objects)  # into the memory that it gave back
    checkpointer.wait()
    assert not same(loop.model.weight, kept)
    assert checkpointer.restore(**expected.objects) == 2
    assert same(expected.model.weight, loop.model.weight)


def test_what_nobody_will_have_use_for_is_given_back_before_any_save(make: Callable[..., Checkpointer]) -> None:
    loop, checkpointer = Loop(), make(every=100)
    loop.step()
    first, _ = prepared(checkpointer)
    assert first.has_room(STATE_BYTES)
    assert not checkpointer.save(1, model=loop.model)
    assert [pages_bytes(arena) for arena in prepared(checkpointer)] == [MODEL_BYTES, MODEL_BYTES]


def test_what_is_missing_is_made_when_it_is_wanted(make: Callable[..., Checkpointer]) -> None:
    """The memory grows in place: what was made of it stays."""
    loop, average, checkpointer = Loop(), torch.nn.Linear(WIDTH, WIDTH), make()
    loop.step()
    first, second = prepared(checkpointer)
    inode = os.fstat(first.fd).st_ino
    for step in (1, 2):  # the second is larger than what the writer has mapped
        loop.objects[f"average{step}"] = average
        checkpointer.save(step, **loop.objects)
        checkpointer.wait()
        assert first.has_room(STATE_BYTES + step * WEIGHT_BYTES)
    assert (os.fstat(first.fd).st_ino, second.size_bytes) == (inode, 0)
    expected = average.weight.detach().clone()
    torch.nn.init.zeros_(average.weight)
    assert checkpointer.restore(**loop.objects) == 2
    assert same(average.weight, expected)
    assert checkpointer.report().restored_from == "the memory of this process"


def test_optimizers_of_one_loop_count_together_and_each_tensor_once(told: list[int]) -> None:
    one, other = Loop(), Loop()
    one.step()
    one.step()
    other.step()
    shared = torch.optim.SGD(one.model.parameters())
    shared.step()
    assert len(told) == 3, "each is told once"
    assert STATE_BYTES < told[0] <= MOST_BYTES
    assert 2 * STATE_BYTES < told[1] == told[2] <= 2 * MOST_BYTES


def test_memory_grows_with_the_optimizers(make: Callable[..., Checkpointer]) -> None:
    loops, checkpointer = [Loop(), Loop(), Loop()], make()
    loops[0].step()
    with prepared(checkpointer)[0]._lock:  # what the second needs is still being made when the third comes
        loops[1].step()
        loops[2].step()
    first, second = prepared(checkpointer)
    assert first.has_room(3 * STATE_BYTES) and second.size_bytes == 0
    checkpointer.save(
        1, **{f"{name}{number}": thing for number, loop in enumerate(loops) for name, thing in loop.objects.items()}
    )
    checkpointer.wait()
    assert second.size_bytes == 0 and checkpointer.report().durable == 1


def test_optimizers_that_are_gone_do_not_count(told: list[int]) -> None:
    loop = Loop()
    loop.step()
    gone = weakref.ref(loop.optimizer), weakref.ref(loop.model.weight)
    del loop
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    other = Loop()
    other.step()
    assert told[0] == told[1]


def test_what_no_save_would_take_does_not_count(told: list[int]) -> None:
    parts = torch.nn.Parameter(TwoTensor(torch.ones(WIDTH, WIDTH), torch.ones(WIDTH, WIDTH)))
    nowhere = torch.nn.Parameter(torch.ones(WIDTH, WIDTH, device="meta"))
    sparse = torch.nn.Parameter(torch.eye(WIDTH).to_sparse())
    optimizer = torch.optim.SGD([parts, nowhere, sparse])
    optimizer.state["calls"] = 1  # type: ignore[index]
    optimizer.step()
    assert told == [1 << 20]


def test_optimizers_of_other_threads_do_not_count(make: Callable[..., Checkpointer]) -> None:
    loop, checkpointer = Loop(), make()
    thread = threading.Thread(target=loop.step)
    thread.start()
    thread.join()
    assert checkpointer._saving is None


@pytest.mark.parametrize("end", ["a save", "one that is not due", "a restore"])
def test_nothing_is_foreseen_once_it_is_known_what_is_saved(make: Callable[..., Checkpointer], end: str) -> None:
    loop, checkpointer = Loop(4), make(every=2)
    match end:
        case "a save":
            checkpointer.save(0, **loop.objects)
        case "one that is not due":
            checkpointer.save(1, **loop.objects)
        case "a restore":
            checkpointer.restore(**loop.objects)
    Loop().step()
    assert checkpointer._saving is not None and checkpointer._saving._foreseen_bytes == 0


def test_no_hook_is_left_by_one_that_is_closed(make: Callable[..., Checkpointer]) -> None:
    before = dict(hooks._global_optimizer_post_hooks)
    checkpointer = make()
    assert len(hooks._global_optimizer_post_hooks) == len(before) + 1
    checkpointer.close()
    assert hooks._global_optimizer_post_hooks == before


def test_a_save_may_be_begun_in_a_hook_of_all_optimizers(make: Callable[..., Checkpointer]) -> None:
    """While torch goes through the list of them, which must not change meanwhile."""
    loop, checkpointer, called = Loop(4), make(), []
    mine = [
        hooks.register_optimizer_step_post_hook(lambda *_: called.append(checkpointer.save(1, **loop.objects))),
        hooks.register_optimizer_step_post_hook(lambda *_: called.append(True)),
    ]
    try:
        loop.step()
    finally:
        for hook in mine:
            hook.remove()
    checkpointer.wait()
    assert called == [True, True] and checkpointer.report().durable == 1


def test_two_checkpointers_of_a_loop_foresee_it_each(tmp_path: Path) -> None:
    loop = Loop()
    with Checkpointer(tmp_path / "one") as one, Checkpointer(tmp_path / "other") as other:
        loop.step()
        other.save(1, model=loop.model)
        for checkpointer, size_bytes in ((one, STATE_BYTES), (other, MODEL_BYTES)):
            assert prepared(checkpointer)[0].has_room(size_bytes)
        one.save(1, **loop.objects)
    assert one.report().durable == other.report().durable == 1


def test_who_does_not_save_makes_nothing(tmp_path: Path) -> None:
    loop = Loop()
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        with Checkpointer(tmp_path / "run") as by_rank, Checkpointer(tmp_path / "run", writes=False) as by_word:
            loop.step()
            assert by_rank._saving is by_word._saving is None
    finally:
        distributed.destroy_process_group()


def test_a_forked_child_makes_nothing(make: Callable[..., Checkpointer]) -> None:
    before = dict(hooks._global_optimizer_post_hooks)
    loop, small, checkpointer = Loop(), Loop(4), make()  # torch's threads do not come along
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        status = 1
        try:
            small.step()
            status = 0 if checkpointer._saving is None and hooks._global_optimizer_post_hooks == before else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.step()
    assert prepared(checkpointer)[0].has_room(STATE_BYTES)


def test_training_goes_on_where_there_is_no_memory_for_it(make: Callable[..., Checkpointer]) -> None:
    loop, checkpointer = Loop(), make()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        loop.step()
        first, _ = prepared(checkpointer)
        wait_for(lambda: writer(checkpointer))
        pid = writer(checkpointer)
        assert pid is not None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert first.fd == -1 and checkpointer.report().failures == ()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    checkpointer.save(1, **loop.objects)
    checkpointer.wait()
    assert checkpointer.report().durable == 1
