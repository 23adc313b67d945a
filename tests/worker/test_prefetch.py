"""Data workers of a job of one: the same microbatches as without them, and what becomes of those that die, hang or raise."""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_sources import Drawn, fresh

import regrow
from regrow.core.lanes import Cell
from regrow.core.order import Plan
from regrow.core.progress import Phase
from regrow.shell.stamp import Page, Stamp

pytestmark = pytest.mark.usefixtures("one_job")


def fed(source: object, batch_size: int | None = 2, steps: int = 3, **options: object) -> list[torch.Tensor]:
    job, model = fresh(lanes=2, microbatches_per_lane=2)
    batches = []
    for step in job.steps(steps, job.data(source, batch_size, **options)):
        for batch in step:
            batches.append(batch.clone())
            step.backward(model(batch[:, :3]).mean() + torch.rand(1)[0])
        batches.append(torch.tensor([step.loss]))
    return batches


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def function(step: int, lane: int, microbatch: int) -> torch.Tensor:
    return torch.rand(2, 4) + step + lane + microbatch


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("ahead", [1, 3])
def test_data_workers_change_nothing_but_who_makes_it(workers: int, ahead: int) -> None:
    assert same(fed(Drawn()), fed(Drawn(), num_workers=workers, prefetch=ahead))
    assert same(fed(function, None), fed(function, None, num_workers=workers, prefetch=ahead))


class Marked(Drawn):
    """Does something at one sample, each time until there are `times` files in a folder."""

    def __init__(self, folder: Path, act: Callable[[], object], times: int, bad: int = 3) -> None:
        super().__init__()
        self._folder, self._act, self._times, self._bad = folder, act, times, bad

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._bad and len(list(self._folder.iterdir())) < self._times:
            (self._folder / str(os.getpid())).touch()
            self._act()
        return super().__getitem__(index)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(9)


def hang() -> None:
    signal.pause()


@pytest.mark.parametrize("act", [kill, leave])
def test_a_dead_data_worker_is_replaced(act: Callable[[], object], tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    found = fed(Marked(tmp_path, act, times=2), num_workers=2)
    assert same(found, fed(Drawn()))
    assert len(list(tmp_path.iterdir())) == 2
    told = [line for line in capfd.readouterr().err.splitlines() if "it is replaced" in line]
    assert len(told) == 2 and all(f"pid {mark.name}" in "".join(told) for mark in tmp_path.iterdir())


def test_a_hung_data_worker_is_replaced_after_its_time(tmp_path: Path) -> None:
    assert same(fed(Marked(tmp_path, hang, times=1), num_workers=2, timeout_s=3.0), fed(Drawn()))
    (mark,) = tmp_path.iterdir()
    assert not Path(f"/proc/{mark.name}").exists()


@pytest.mark.parametrize(
    ("act", "says"),
    [(kill, r"was killed by SIGKILL .* of 3 "), (leave, "exited with code 9"), (hang, "timeout_s=0.2")],
)
def test_a_microbatch_that_none_can_make_is_an_error(act: Callable[[], object], says: str, tmp_path: Path) -> None:
    with pytest.raises(regrow.DataError, match=says):
        fed(Marked(tmp_path, act, times=99), num_workers=2, timeout_s=0.2 if act is hang else None)


def handed_out(dataset: Drawn, wait_until: Callable[[int], bool] = lambda count: True, **options: int) -> int:
    """How many batches came before the one that fails."""
    job, model = fresh(lanes=4)
    count = 0
    with pytest.raises((regrow.DataError, FileNotFoundError)):
        for step in job.steps(2, job.data(dataset, 1, **options)):
            for batch in step:
                count += 1
                while not wait_until(count):
                    time.sleep(0.001)
                step.backward(model(batch[:, :3]).mean())
    return count


@pytest.mark.parametrize(("act", "times"), [("kill", 3), ("complain", 1)])
def test_what_fails_ahead_is_raised_when_it_is_needed(act: str, times: int, tmp_path: Path) -> None:
    """Else the lane under way would be blamed for it."""
    bad = Plan(seed=3, lanes=4, microbatches_per_lane=1, batch_size=1, dataset_size=8).sample(6)
    dataset = Marked(tmp_path, globals()[act], times=99, bad=bad)

    def has_failed(count: int) -> bool:
        failed = [mark for mark in tmp_path.iterdir() if act == "complain" or not Path(f"/proc/{mark.name}").exists()]
        return len(failed) >= min(count, times)

    assert handed_out(dataset, has_failed, num_workers=1, prefetch=8) == 6


def test_nothing_is_made_twice_or_for_nothing_while_the_roster_stays(tmp_path: Path) -> None:
    def note(step: int, lane: int, microbatch: int) -> torch.Tensor:
        with (tmp_path / "made").open("a") as file:
            file.write(f"{step} {lane} {microbatch}\n")
        return torch.zeros(1, 4)

    fed(note, None, steps=3, num_workers=2, prefetch=3)
    made = (tmp_path / "made").read_text().split("\n")[:-1]
    assert sorted(made) == sorted(f"{step} {lane} {number}" for step in range(3) for lane in range(2) for number in range(2))


class Unreadable(Exception):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")


def complain() -> None:
    raise FileNotFoundError(2, "no such shard")


def complain_in_a_way_that_cannot_travel() -> None:
    raise Unreadable("shard 7", "torn")


def test_an_exception_is_raised_again_as_what_it_was(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such shard") as raised:
        fed(Marked(tmp_path, complain, times=99), num_workers=2)
    notes = "\n".join(raised.value.__notes__)
    assert "in sample 3 of the dataset" in notes and "in complain" in notes and "raised in a data worker" in notes


def test_an_exception_that_cannot_travel_is_told(tmp_path: Path) -> None:
    with pytest.raises(regrow.DataError, match=r"(?s)in complain_in_a.*Unreadable: shard 7: torn.*in sample 3"):
        fed(Marked(tmp_path, complain_in_a_way_that_cannot_travel, times=99), num_workers=2)


def test_a_batch_that_cannot_travel_is_told() -> None:
    with pytest.raises((AttributeError, TypeError), match=r"pickle") as raised:
        fed(lambda step, lane, microbatch: lambda: 0, None, num_workers=1)
    assert "raised in a data worker" in "\n".join(raised.value.__notes__)


def test_data_workers_hold_none_of_the_jobs_connections_and_end_with_the_loop(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ours = os.readlink(f"/proc/self/fd/{listener.fileno()}")

    def look(step: int, lane: int, microbatch: int) -> torch.Tensor:
        held = [
            os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
        ]
        (tmp_path / str(os.getpid())).write_text("\n".join(held))
        return torch.zeros(1, 4)

    fed(look, None, num_workers=2)
    listener.close()
    for mark in tmp_path.iterdir():
        sockets = [line for line in mark.read_text().splitlines() if line.startswith("socket:")]
        assert len(sockets) == 1 and ours not in sockets, "its own line alone"
        assert not Path(f"/proc/{mark.name}").exists()


def test_when_their_parent_dies_data_workers_die_and_the_replica_says_so() -> None:
    def who(step: int, lane: int, microbatch: int) -> torch.Tensor:
        return torch.tensor([[os.getpid(), os.getppid(), 0]])

    job, _ = fresh()
    data = job.data(who, num_workers=1)
    worker, parent, _ = data.microbatch(0, 0, 0)[0].tolist()
    gone = os.pidfd_open(worker)
    os.kill(parent, signal.SIGKILL)
    assert select.select([gone], [], [], 30)[0], "it outlived its parent"
    os.close(gone)
    with pytest.raises(regrow.InfraError, match=rf"pid {parent}\) was killed by SIGKILL"):
        data.microbatch(1, 0, 0)


def test_sigterm_is_the_training_process_to_answer_and_what_a_data_worker_starts_is_told_as_ever() -> None:
    def told(step: int, lane: int, microbatch: int) -> torch.Tensor:
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        return torch.tensor([[os.getpid(), os.getppid(), child.wait(30)]])

    job, _ = fresh()
    data = job.data(told, num_workers=1)
    first = data.microbatch(0, 0, 0)[0].tolist()
    assert first[2] == -signal.SIGTERM
    for pid in first[:2]:
        os.kill(pid, signal.SIGTERM)
    assert data.microbatch(1, 0, 0)[0].tolist()[:2] == first[:2]


def test_without_a_device_pinned_memory_is_plain_memory() -> None:
    assert same(fed(Drawn(), pin_memory=True), fed(Drawn(), num_workers=1, pin_memory=True))


def test_how_long_data_takes_is_learned_from_those_who_make_it() -> None:
    """The training thread's own experience is of not having to wait, and would make a hang of the first real wait."""
    page = Page("test")
    job, _ = fresh()
    data = job.data(Drawn(), 2, num_workers=1)
    data.attend(lambda count: tuple(Cell(step, 0) for step in range(count)), Stamp(page.fd), lambda fact: None)
    for step in range(5):
        data.microbatch(step, 0, 0)
    data.close()
    experience = page.read().experience[Phase.DATA]
    assert experience.completed >= 5 and experience.longest_s > 0
    page.close()
