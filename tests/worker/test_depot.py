"""A worker's side of saves, against a vault that is played over a real socket."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import msgspec
import pytest
import torch
from vault_door import DEADLINE_S, Door, heard

from regrow.core.effects import Save
from regrow.core.roster import Member, Version
from regrow.core.saves import Urgency
from regrow.shell.stamp import Stamp
from regrow.shell.vaulting import Came, Deposit, Deposited, Kept, Lent, ToWorker, Void
from regrow.state.tracked import Tracked
from regrow.wire.handover import Handover
from regrow.worker.depot import Depot
from regrow.worker.drafting import Drafting

ME, V1 = Member("r0", 0), Version(1, 1)


class Scene(NamedTuple):
    depot: Depot
    end: Handover
    """The vault's, of a line that is open."""
    again: SimpleQueue[Urgency]
    """What was wished anew."""

    def tell(self, message: ToWorker, fd: int | None = None) -> None:
        self.end.send(msgspec.json.encode(message), fd)

    def hear_deposit(self, step: int) -> Deposit:
        deposit = heard(self.end)
        assert isinstance(deposit, Deposit) and deposit.step == step
        return deposit


@pytest.fixture
def scene() -> Iterator[Scene]:
    door, tracked = Door(), Tracked()
    again: SimpleQueue[Urgency] = SimpleQueue()
    tracked.add("model", torch.nn.Linear(4, 4))
    depot = Depot(door.address, ME, tracked, Drafting(1 << 20), Stamp(), lambda fact: None, again.put, lambda: None)
    depot.open()
    end = door.accept()
    try:
        assert heard(end) == Came(member="r0.0")
        end.send(msgspec.json.encode(Kept(step=-1)))
        while not depot._line.wait(DEADLINE_S):
            pass
        yield Scene(depot, end, again)
    finally:
        end.close()
        depot.close()
        door.close()


def test_an_arena_that_cannot_be_mapped_costs_its_save_and_no_other(scene: Scene, tmp_path: Path) -> None:
    for step in (1, 2):
        scene.depot.save(Save(step=step, version=V1, members=(ME,), urgency=Urgency.DUE))
        deposit = scene.hear_deposit(step)
        file = tmp_path / "arena"
        file.write_bytes(bytes(deposit.arena_bytes))
        fd = os.open(tmp_path, os.O_RDONLY) if step == 1 else os.open(file, os.O_RDWR)  # a folder cannot be mapped
        scene.tell(Lent(step=step, version=V1, size_bytes=deposit.arena_bytes), fd)
        os.close(fd)
        answer = heard(scene.end)
        assert isinstance(answer, Deposited) and answer.step == step
        if step == 1:
            assert "r0.0 could not copy its portion: the vault's memory of" in answer.why
            scene.tell(Void(step=1, why=answer.why))
            assert scene.again.get(timeout=DEADLINE_S) == Urgency.DUE, "it is wished anew"
        else:
            assert answer.why == "" and any(file.read_bytes())


def test_a_last_save_that_will_never_be_whole_is_not_waited_for(scene: Scene) -> None:
    last = Save(step=7, version=V1, members=(ME,), urgency=Urgency.LAST)
    saving = threading.Thread(target=scene.depot.save, args=(last,), daemon=True)
    saving.start()
    scene.hear_deposit(7)
    scene.tell(Void(step=7, why="the vault was lost before this save was whole"))
    scene.hear_deposit(7)  # another try may do
    scene.tell(Void(step=7, why="there is no memory", is_final=True))
    saving.join(DEADLINE_S)
    assert not saving.is_alive(), heard(scene.end)
    assert scene.again.empty()
