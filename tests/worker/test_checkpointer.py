"""A Checkpointer in one process, with a real writer and real files."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy
import pytest
import torch
import xxhash
from shelf import Moving

import regrow
from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.state.archive import Archive
from regrow.state.pointers import sealed
from regrow.state.stores import open_store
from regrow.state.tracked import Tracked
from regrow.worker.checkpointer import Checkpointer
from regrow.worker.recollection import Recollection
from regrow.worker.restoring import _LISTINGS

DEADLINE_S = 60.0
WRITING = ("save-shard", "save-manifest", "save-pointer", "save-done")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Checkpointer]]:
    """Checkpointers of one folder, none of which outlives its test."""
    made: list[Checkpointer] = []

    def begin(**settings: object) -> Checkpointer:
        made.append(Checkpointer(tmp_path / "run", **settings))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for checkpointer in made:
            with contextlib.suppress(ProcessLookupError):
                os.kill(writer(checkpointer) or 0, signal.SIGCONT) if writer(checkpointer) else None
            checkpointer.close()


def wait_for(condition: Callable[[], object]) -> object:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def writer(checkpointer: Checkpointer) -> int | None:
    """Its process, once there is one."""
    keeper = checkpointer._saving and checkpointer._saving._keeper
    return keeper._writer.process.pid if keeper and keeper._writer else None


@contextlib.contextmanager
def no_copies(checkpointer: Checkpointer) -> Iterator[None]:
    """The copy of a save that is begun here is made afterwards."""
    with contextlib.ExitStack() as locks:
        for arena in checkpointer._saving._arenas._all:  # type: ignore[union-attr]
            locks.enter_context(arena._lock)
        yield


class Setup:
    """A model with buffers, an optimizer with groups, a schedule, and something that is neither."""

    def __init__(self, width: int = 32, kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1))
        bias = [self.model[2].bias]
        rest = [parameter for parameter in self.model.parameters() if parameter is not bias[0]]
        self.optimizer = kind([{"params": rest}, {"params": bias, "lr": 0.5}], lr=0.1)  # type: ignore[call-arg]
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.notes = Notes()

    def objects(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "notes": self.notes}

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.notes.seen[number % 5] += 1

    def digest(self) -> str:
        tracked = Tracked()
        for name, thing in sorted(self.objects().items()):
            tracked.add(name, thing)
        return tracked.digest()


class Notes:
    def __init__(self) -> None:
        self.seen = numpy.zeros(5)
        self.name = "none"

    def state_dict(self) -> dict[str, object]:
        return {"seen": self.seen, "name": self.name}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.seen, self.name = state["seen"], state["name"]  # type: ignore[assignment]


def steps_in(folder: Path) -> list[int]:
    pointers, damages = Archive(open_store(str(folder))).pointers()
    assert damages == []
    return [pointer.step for pointer in pointers]


# Saving and restoring


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_what_is_restored_is_what_was_saved_and_training_goes_on_alike(
    make: Callable[..., Checkpointer], kind: type[torch.optim.Optimizer]
) -> None:
    setup, digests = Setup(kind=kind), {}
    checkpointer = make(every=3)
    assert checkpointer.restore(**setup.objects()) is None
    for step in range(1, 12):
        setup.step(step)
        digests[step] = setup.digest()
        assert checkpointer.save(step, **setup.objects()) == (step % 3 == 0)
    checkpointer.close()
    assert checkpointer.report().durable == checkpointer.report().begun == 3
    other = Setup(kind=kind)
    other.notes.name = "other"
    again = make()
    assert again.restore(**dict(reversed(other.objects().items()))) == 9
    assert again.report().durable_step == 9
    assert other.digest() == digests[9]
    for step in (10, 11):
        other.step(step)
    assert other.digest() == digests[11]


def test_a_forced_save_is_made_at_any_step_and_the_state_may_grow(make: Callable[..., Checkpointer], tmp_path: Path) -> None:
    setup, checkpointer = Setup(), make(every=100)
    digests = {}
    for step in (0, 1, 2):
        if step:
            setup.step(step)
        digests[step] = setup.digest()
        assert checkpointer.save(step, force=True, **setup.objects())
        assert checkpointer.save(step, force=True, **setup.objects())  # the same again: it is there already
    checkpointer.wait()
    assert steps_in(tmp_path / "run") == [2, 1, 0]
    setup.step(3)
    assert make().restore(**setup.objects()) == 2
    assert setup.digest() == digests[2]


def test_a_step_back_is_refused_until_a_restore_went_back(make: Callable[..., Checkpointer], tmp_path: Path) -> None:
    setup, checkpointer = Setup(), make()
    for step in (1, 5):
        checkpointer.save(step, **setup.objects())
        checkpointer.wait()
    with pytest.raises(ConfigError, match=r"save\(4\) after step 5"):
        checkpointer.save(4, **setup.objects())
    flip(next((tmp_path / "run").glob("step-000000000005-*/manifest.json")), -1)
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert checkpointer.restore(**setup.objects()) == 1
    checkpointer.save(4, **setup.objects())
    checkpointer.wait()
    assert steps_in(tmp_path / "run")[0] == 4


def test_who_was_replaced_can_no_longer_save(make: Callable[..., Checkpointer], tmp_path: Path) -> None:
    setup = Setup()
    old, new = make(), make()
    old.save(1, **setup.objects())
    old.wait()
    assert new.restore(**setup.objects()) == 1
    new.save(2, **setup.objects())
    new.wait()
    old.save(3, **setup.objects())
    with pytest.warns(RuntimeWarning, match="fenced"), pytest.raises(StateError, match="fenced"):
        old.wait()
    old.wait()  # raised once
    assert steps_in(tmp_path / "run") == [2, 1]


def test_old_checkpoints_go_as_asked(make: Callable[..., Checkpointer], tmp_path: Path) -> None:
    setup, checkpointer = Setup(), make(keep_last=2, keep_every=4)
    for step in range(1, 8):
        checkpointer.save(step, **setup.objects())
    checkpointer.close()  # removing comes after the save is durable
    assert steps_in(tmp_path / "run") == [7, 6, 4]


@pytest.mark.parametrize("every", [1, 10])
def test_what_cannot_be_saved_is_refused_by_name(make: Callable[..., Checkpointer], every: int) -> None:
    """Also by a call that saves nothing yet, and before an optimizer has stepped."""
    checkpointer = make(every=every)
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
    box = SimpleNamespace(state_dict=lambda: {"deep": [object()]}, load_state_dict=print)
    with pytest.raises(ConfigError, match="name what is to be saved"):
        checkpointer.save(1)
    with pytest.raises(ConfigError, match="thing is a dict without state_dict"):
        checkpointer.save(1, thing={})
    with pytest.raises(ConfigError, match=r"model\.weight is on the meta device"):
        checkpointer.save(1, model=torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(ConfigError, match=r"box\.deep\[0\] is a builtins\.object"):
        checkpointer.save(10, box=box, optimizer=optimizer)
    with pytest.raises(ConfigError, match=r"box\.deep\[0\] is a builtins\.object"):
        checkpointer.save(1, box=box, optimizer=optimizer)
    with pytest.raises(ConfigError, match="every=0"):
        make(every=0)


# Damage and strangers


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_is_taken(
    make: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    setup, checkpointer = Setup(), make()
    digests = {}
    for step in (1, 2, 3):
        setup.step(step)
        digests[step] = setup.digest()
        checkpointer.save(step, **setup.objects())
    checkpointer.wait()
    folders = sorted((tmp_path / "run").glob("step-*"))
    flip(folders[2] / "shard-00000.safetensors", -100)
    checkpointer.close()  # it has the newest in memory
    with pytest.warns(RuntimeWarning, match=r"shard-00000\.safetensors.*; taking the checkpoint before it"):
        assert make().restore(**setup.objects()) == 2
    assert setup.digest() == digests[2]
    flip(folders[1] / "manifest.json", 50)
    (folders[0] / "shard-00000.safetensors").unlink()
    with pytest.warns(RuntimeWarning, match=r"manifest\.json"), pytest.raises(StateError, match="all checkpoints in"):
        make().restore(**setup.objects())


def saved_twice(setup: Setup, checkpointer: Checkpointer) -> dict[int, str]:
    """The digests of the states of steps 1 and 2."""
    digests = {}
    for step in (1, 2):
        setup.step(step)
        digests[step] = setup.digest()
        checkpointer.save(step, **setup.objects())
    checkpointer.wait()
    return digests


def test_a_checkpoint_that_was_saved_wrong_is_told_and_the_one_before_it_is_taken(
    make: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    """Every byte is under a digest that fits, and the manifest speaks of another state."""
    setup, checkpointer = Setup(), make()
    digests = saved_twice(setup, checkpointer)
    checkpointer.close()
    archive = Archive(open_store(str(tmp_path / "run")))
    newest = archive.pointers()[0][0]
    path = f"{newest.folder}/manifest.json"
    data = archive.store.read(path)
    assert data is not None
    wrong = msgspec.json.encode({**msgspec.json.decode(data), "root": "0" * 32})
    archive.store.put(path, [memoryview(wrong)])
    archive._pointers.remove(newest.number)
    archive._pointers.create(sealed(msgspec.structs.replace(newest, manifest=xxhash.xxh3_128_hexdigest(wrong))))
    with pytest.warns(RuntimeWarning, match="it was saved wrong; taking the checkpoint before it"):
        assert make().restore(**setup.objects()) == 1
    assert setup.digest() == digests[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda setup: setup.update(model=torch.nn.Linear(8, 4)),
            r"model\.weight is absent there, and float32\[4, 8\] here",
        ),
        (lambda setup: setup["model"].add_module("more", torch.nn.Linear(1, 1)), r"model\.more\.weight is absent there"),
        (lambda setup: setup["model"].half(), r"model\.0\.weight is float32\[32, 8\] there, and float16\[32, 8\] here"),
        (
            lambda setup: setup.pop("notes"),
            "it holds model, notes, optimizer, schedule, and what is to be restored is model",
        ),
        (lambda setup: setup.update(optimizer=torch.optim.SGD(setup["model"].parameters())), "groups of 5, 1 parameters"),
        (lambda setup: setup.update(optimizer=Setup(kind=torch.optim.SGD).optimizer), "optimizer has no 'dampening' there"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_before_anything_is_overwritten(
    make: Callable[..., Checkpointer], change: Callable[[dict[str, object]], object], words: str
) -> None:
    setup, checkpointer = Setup(), make()
    setup.step(1)
    checkpointer.save(1, **setup.objects())
    checkpointer.wait()
    objects = Setup().objects()
    change(objects)
    tracked = Tracked()
    for name, thing in objects.items():
        tracked.add(name, thing)
    before = tracked.digest()
    with pytest.raises(ConfigError, match=words):
        checkpointer.restore(**objects)
    assert tracked.digest() == before


def test_one_of_something_else_behind_a_damaged_one_is_no_clean_refusal(
    make: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    """Whoever takes a ConfigError for a fresh start would train on what is half overwritten."""
    setup, checkpointer = Setup(width=100_000), make()
    checkpointer.save(1, model=setup.model)
    setup.step(1)
    checkpointer.save(2, model=setup.model, optimizer=setup.optimizer)
    checkpointer.close()
    flip(next((tmp_path / "run").glob("step-000000000002-*/shard-*")), -100)
    other = Setup(width=100_000)
    before = other.digest()
    with (
        pytest.warns(RuntimeWarning, match="taking the checkpoint before it"),
        pytest.raises(StateError, match="the objects may hold parts of step 2: do not train on"),
    ):
        make().restore(model=other.model, optimizer=other.optimizer)
    assert other.digest() != before


@pytest.mark.parametrize("looked_at", ["pointers/", "manifest.json", ".safetensors"])
def test_what_is_removed_while_it_is_restored_is_no_damage_and_the_newer_one_is_taken(
    make: Callable[..., Checkpointer], tmp_path: Path, looked_at: str
) -> None:
    setup, checkpointer = Setup(), make()
    digests = saved_twice(setup, checkpointer)
    checkpointer.close()
    setup.step(3)
    Moving.put_off(tmp_path / "run")
    evaluator = make(writes=False)
    evaluator._store = Moving(tmp_path / "run", looked_at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert evaluator.restore(**setup.objects()) == 2
    assert setup.digest() == digests[2] and steps_in(tmp_path / "run") == [2]


def test_a_saver_that_is_always_faster_does_not_keep_a_restore_busy_forever(
    make: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    setup, checkpointer = Setup(), make()
    for step in range(_LISTINGS + 1):
        checkpointer.save(step, **setup.objects())
    checkpointer.close()
    Moving.put_off(tmp_path / "run")
    evaluator = make(writes=False)
    evaluator._store = Moving(tmp_path / "run", ".safetensors")
    with warnings.catch_warnings(), pytest.raises(StateError, match="were gone before they were read: let whoever saves"):
        warnings.simplefilter("ignore")
        evaluator.restore(**setup.objects())
    assert steps_in(tmp_path / "run") == [_LISTINGS]
    assert "has newer checkpoints by now" in evaluator.report().failures[1]


# The nearest copy


def test_what_was_saved_last_comes_from_memory_and_is_held_to_its_digests(
    make: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    setup, checkpointer = Setup(width=50_000), make(shard_mb=1)
    digests = saved_twice(setup, checkpointer)
    shards = sorted((tmp_path / "run").glob("step-000000000002-*/shard-*"))
    sizes = sum(shard.stat().st_size for shard in shards)
    away = [shard.rename(tmp_path / shard.name) for shard in shards]  # memory asks the store for none of them
    setup.step(3)
    assert checkpointer.restore(**setup.objects()) == 2
    assert setup.digest() == digests[2]
    report = checkpointer.report()
    assert (report.restored_from, report.read_bytes, report.passed_bytes) == ("the memory of this process", sizes, 0)
    assert report.restore_s > 0
    for old, new in zip(away, shards, strict=True):
        old.rename(new)
    arena = next(arena for arena in checkpointer._saving._arenas._all if recollection(checkpointer).lies_in(arena))  # type: ignore[union-attr]
    arena.tensor(100, 1).bitwise_xor_(1)
    for shard in shards[1:]:
        shard.unlink()  # only what is harmed in memory is read there
    with pytest.warns(
        RuntimeWarning, match=r"memory of this process/step-.* is damaged between byte 0 .*; reading that from"
    ):
        assert checkpointer.restore(**setup.objects()) == 2
    assert setup.digest() == digests[2]
    report, harmed = checkpointer.report(), shards[0].stat().st_size
    assert report.restored_from == f"the memory of this process and {tmp_path / 'run'}"
    assert [one.size_bytes for one in report.served] == [sizes - harmed, harmed] and report.read_bytes == sizes
    assert all(0 < one.seconds <= report.restore_s for one in report.served)


def recollection(checkpointer: Checkpointer) -> Recollection:
    found = checkpointer._saving and checkpointer._saving.recollection()
    assert found
    return found


def test_memory_that_was_used_again_serves_nothing(make: Callable[..., Checkpointer], tmp_path: Path) -> None:
    setup, checkpointer = Setup(), make(patience_s=1.0)
    setup.step(1)  # what comes after it is of the same size
    checkpointer.save(1, **setup.objects())
    checkpointer.wait()
    expected = setup.digest()
    pid = writer(checkpointer)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    setup.step(2)
    checkpointer.save(2, **setup.objects())  # into the memory that was used last
    with pytest.warns(RuntimeWarning, match="is given up"):
        assert checkpointer.restore(**setup.objects()) == 1
    assert setup.digest() == expected
    report = checkpointer.report()
    assert report.restored_from == str(tmp_path / "run")
    assert not [failure for failure in report.failures if "memory" in failure], "nobody looked there"


def test_a_newer_checkpoint_of_somebody_else_is_taken_rather_than_memory(
    make: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    setup, old, new = Setup(), make(), make()
    old.save(1, **setup.objects())
    old.wait()
    assert new.restore(**setup.objects()) == 1
    setup.step(2)
    new.save(2, **setup.objects())
    new.wait()
    expected = setup.digest()
    assert old.restore(**setup.objects()) == 2
    assert setup.digest() == expected and old.report().restored_from == str(tmp_path / "run")
    assert old.report().failures == ()


# The writer


def test_the_writer_has_no_torch(make: Callable[..., Checkpointer]) -> None:
    code = "import sys, regrow.agent.writer; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)
    setup, checkpointer = Setup(), make()
    checkpointer.save(1, **setup.objects())
    checkpointer.wait()
    maps = Path(f"/proc/{writer(checkpointer)}/maps").read_text()
    assert "regrow-arena" in maps and "torch" not in maps


@pytest.mark.parametrize("point", WRITING)
def test_a_writer_that_is_killed_is_replaced_and_the_save_completes(
    make: Callable[..., Checkpointer], tmp_path: Path, point: str
) -> None:
    setup = Setup()
    checkpointer = make(_faults=f"writer:{point}:SIGKILL,writer.1:{point}:SIGKILL")
    digests = {}
    with pytest.warns(RuntimeWarning, match="the writer of step 1 died"):  # in the next step, or when it is waited for
        for step in (1, 2):
            setup.step(step)
            digests[step] = setup.digest()
            checkpointer.save(step, **setup.objects())
        checkpointer.wait()
    report = checkpointer.report()
    # A save whose pointer was made is complete: the next writer only finds it so, and passes no point again.
    assert (report.durable, report.given_up, report.attempts_failed) == (2, 0, 2)
    assert steps_in(tmp_path / "run") == [2, 1]
    assert make().restore(**setup.objects()) == 2
    assert setup.digest() == digests[2]
    checkpointer.close()
    assert len(list((tmp_path / "run").glob("step-*"))) == 2, "leftovers are swept"


def test_a_writer_that_always_dies_costs_that_save_and_not_the_training(make: Callable[..., Checkpointer]) -> None:
    setup = Setup()
    checkpointer = make(_faults=",".join(f"writer.{life}:save-shard:SIGKILL" for life in range(10)))
    checkpointer.save(1, **setup.objects())
    with pytest.warns(RuntimeWarning), pytest.raises(InfraError, match="10 writers died over it"):
        checkpointer.wait()
    checkpointer.save(2, **setup.objects())
    checkpointer.wait()
    assert checkpointer.report().durable_step == 2


def stopped(checkpointer: Checkpointer, setup: Setup) -> int:
    """Its writer, after one save, made to stand still."""
    checkpointer.save(1, **setup.objects())
    checkpointer.wait()
    pid = writer(checkpointer)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_the_third_save_waits_until_the_first_is_durable(
    make: Callable[..., Checkpointer], capfd: pytest.CaptureFixture[str]
) -> None:
    setup, checkpointer = Setup(), make()
    pid = stopped(checkpointer, setup)
    for step in (2, 3):
        setup.step(step)
        checkpointer.save(step, **setup.objects())
    setup.step(4)
    begun = threading.Event()

    def third() -> None:
        checkpointer.save(4, **setup.objects())
        begun.set()

    thread = threading.Thread(target=third)
    thread.start()
    said = []
    wait_for(lambda: said.append(capfd.readouterr().err) or "the save of step 4 waits for those before it" in "".join(said))
    assert not begun.is_set()
    os.kill(pid, signal.SIGCONT)
    thread.join()
    checkpointer.wait()
    report = checkpointer.report()
    assert report.durable == 4 and 2.0 < report.crowded_s <= report.blocked_s
    assert "step 2, 0 of 0 MB written" in "".join(said)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no memory"), KeyboardInterrupt()], ids=["out of memory", "Ctrl-C"]
)
def test_a_save_that_an_exception_ends_is_waited_for_by_nobody(
    make: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    checkpointer, setup = make(), Setup()

    def fail(tensor: torch.Tensor) -> torch.Tensor:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", fail)  # of a buffer, before the first arena is there
        for _ in range(2):  # as many as there are arenas
            with pytest.raises(type(error)):
                checkpointer.save(1, **setup.objects())
    report = checkpointer.report()
    assert report.begun == report.durable + report.given_up == 0, "nothing is open that will never end"
    assert checkpointer.save(1, **setup.objects())
    checkpointer.wait()
    assert checkpointer.report().durable == 1


def test_a_save_that_does_not_become_durable_is_given_up_loudly(make: Callable[..., Checkpointer]) -> None:
    setup, checkpointer = Setup(), make(patience_s=1.0)
    pid = stopped(checkpointer, setup)
    setup.step(2)
    checkpointer.save(2, **setup.objects())
    with pytest.warns(RuntimeWarning, match="step 2 is given up"):
        wait_for(lambda: setup.step(3) or checkpointer.report().given_up)
        setup.step(4)  # the warning comes in an optimizer's step
    with pytest.raises(InfraError, match="nothing of it was written for 1 s"):
        checkpointer.wait()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
    checkpointer.save(5, **setup.objects())
    checkpointer.wait()
    assert checkpointer.report().durable_step == 5


def test_a_save_whose_pace_is_bounded_is_not_taken_for_one_that_stands_still(make: Callable[..., Checkpointer]) -> None:
    model = torch.nn.Linear(1000, 8_000)  # one file of four blocks, which take longer than patience lasts
    checkpointer = make(mb_per_s=4, patience_s=6.0)
    checkpointer.save(1, model=model)
    checkpointer.wait()
    assert checkpointer.report().failures == ()
    with pytest.raises(ConfigError, match="mb_per_s=1 with patience_s=5: at 1 MB a second a block"):
        make(mb_per_s=1, patience_s=5.0)


def test_a_save_during_which_something_changed_is_void_and_the_next_is_not(make: Callable[..., Checkpointer]) -> None:
    setup, checkpointer = Setup(), make()
    setup.step(1)

    def change_during_save(step: int) -> None:
        with no_copies(checkpointer):
            checkpointer.save(step, **setup.objects())
            with torch.no_grad():
                setup.model[0].weight.add_(1.0)

    checkpointer.save(1, **setup.objects())
    checkpointer.copied()
    change_during_save(2)
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(StateError, match=r"step 2 is not saved: model\.0\.weight changed while"),
    ):
        checkpointer.wait()
    expected = setup.digest()
    change_during_save(3)
    checkpointer.wait()
    assert checkpointer.restore(**setup.objects()) == 3
    assert setup.digest() == expected


# Removing, at the end


def test_what_cannot_be_removed_after_the_last_save_is_told_at_the_end(make: Callable[..., Checkpointer]) -> None:
    setup, checkpointer = Setup(), make(keep_last=1, _faults="writer:save-prune:step=1:raise")
    saved_twice(setup, checkpointer)
    with pytest.warns(RuntimeWarning, match="an old checkpoint cannot be removed: fault injected at save-prune"):
        checkpointer.close()
    assert len(checkpointer.report().failures) == 1


def test_a_removal_that_takes_long_is_waited_for_at_the_end(
    make: Callable[..., Checkpointer], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of six takes a second more than it would: after a fault that stops it the writer waits so long."""
    setup, keeping = Setup(), make()
    for step in range(1, 7):
        keeping.save(step, **setup.objects())
    keeping.close()
    checkpointer = make(keep_last=1, _faults=",".join(f"writer:save-prune:nth={n}:SIGSTOP" for n in range(1, 7)))
    checkpointer.save(7, **setup.objects())
    checkpointer.wait()
    pid = writer(checkpointer)
    assert pid is not None

    def wake() -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            while True:
                wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZ")
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=wake)
    thread.start()
    checkpointer.close()
    thread.join()
    assert steps_in(tmp_path / "run") == [7] and checkpointer.report().failures == ()
    assert len(list((tmp_path / "run").glob("step-*"))) == 1
    assert "the writer has not ended after 2 s: old checkpoints are removed" in capfd.readouterr().err


def test_a_writer_that_does_nothing_holds_up_no_end(make: Callable[..., Checkpointer]) -> None:
    checkpointer = make()
    pid = stopped(checkpointer, Setup())
    begun_s = time.monotonic()
    checkpointer.close()
    assert time.monotonic() < begun_s + 10.0 and not Path(f"/proc/{pid}").exists()


# What is left behind


def arenas(pid: int | str = "self") -> set[int]:
    """The inodes of those that this process has open or mapped."""
    found = {int(row.split()[4]) for row in Path(f"/proc/{pid}/maps").read_text().splitlines() if "regrow-arena" in row}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            if "regrow-arena" in os.readlink(path):
                found.add(path.stat().st_ino)
    return found


def test_after_close_nothing_runs_on(make: Callable[..., Checkpointer]) -> None:
    setup, checkpointer = Setup(), make()
    shared, before = sorted(os.listdir("/dev/shm")), arenas()
    checkpointer.save(1, **setup.objects())
    checkpointer.wait()
    pid = writer(checkpointer)
    assert arenas() - before and sorted(os.listdir("/dev/shm")) == shared
    checkpointer.close()
    checkpointer.close()
    assert not arenas() - before and not Path(f"/proc/{pid}").exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("regrow-")]
    with pytest.raises(ConfigError, match="is closed"):
        checkpointer.save(2, **setup.objects())


def test_a_forked_child_holds_nothing_and_is_not_held_up(make: Callable[..., Checkpointer]) -> None:
    setup, checkpointer, before = Setup(), make(), arenas()
    checkpointer.save(1, **setup.objects())
    checkpointer.wait()
    wake, woken = os.pipe()
    with no_copies(checkpointer), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads
        checkpointer.save(2, **setup.objects())  # the child is forked in the middle of a copy
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # one that waits for its parent's copy ends all the same
        try:
            setup.optimizer.zero_grad()
            setup.optimizer.step()
            with contextlib.suppress(ConfigError):
                checkpointer.save(3, **setup.objects())
                os._exit(1)
            checkpointer.close()
            os.read(wake, 1)
        finally:
            os._exit(0)
    try:
        wait_for(lambda: not arenas(child) - before)
        pid = writer(checkpointer)
        checkpointer.close()
        assert not Path(f"/proc/{pid}").exists()
    finally:
        os.write(woken, b"x")
        assert os.waitpid(child, 0)[1] == 0


def test_memory_and_a_writer_are_ready_once_the_optimizer_has_state(make: Callable[..., Checkpointer]) -> None:
    setup, checkpointer = Setup(width=1000), make()
    checkpointer.restore(**setup.objects())
    arenas = checkpointer._saving._arenas._all  # type: ignore[union-attr]
    setup.step(1)
    assert [arena.size_bytes for arena in arenas] == [0, 0]
    setup.step(2)
    wait_for(lambda: all(arena.has_room(100_000) for arena in arenas))
    addresses = {arena.address for arena in arenas}
    pid = wait_for(lambda: writer(checkpointer))
    checkpointer.save(2, **setup.objects())
    checkpointer.wait()
    assert {arena.address for arena in arenas} == addresses and writer(checkpointer) == pid


def test_who_was_replaced_stays_so_though_its_writer_came_before_its_term(make: Callable[..., Checkpointer]) -> None:
    """A writer that comes early must not take a term that is newer than that of its restore."""
    setup, old, new = Setup(), make(every=2), make()
    setup.step(1)
    old.save(1, **setup.objects())
    wait_for(lambda: writer(old))
    old.restore(**setup.objects())
    for step in (1, 2):
        new.restore(**setup.objects())
        new.save(step, **setup.objects())
        new.wait()
    for step in (4, 6):
        old.save(step, **setup.objects())
        with pytest.warns(RuntimeWarning, match="fenced"), pytest.raises(StateError, match="fenced"):
            old.wait()


def test_the_door_is_cheap() -> None:
    code = "import sys, regrow; regrow.checkpoint; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)
    assert regrow.checkpoint.Checkpointer is Checkpointer
