"""A worker's side of saves, against a vault that is played over a real socket."""

import os
from pathlib import Path
from queue import SimpleQueue

import msgspec
import torch
from vault_door import DEADLINE_S, Door, heard

from regrow.core.effects import Save
from regrow.core.roster import Member, Version
from regrow.core.saves import Urgency
from regrow.shell.stamp import Stamp
from regrow.shell.vaulting import Came, Deposit, Deposited, Kept, Lent, Void
from regrow.state.tracked import Tracked
from regrow.worker.depot import Depot
from regrow.worker.drafting import Drafting

ME, V1 = Member("r0", 0), Version(1, 1)


def test_an_arena_that_cannot_be_mapped_costs_its_save_and_no_other(tmp_path: Path) -> None:
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
        for step in (1, 2):
            depot.save(Save(step=step, version=V1, members=(ME,), urgency=Urgency.DUE))
            deposit = heard(end)
            assert isinstance(deposit, Deposit) and deposit.step == step
            file = tmp_path / "arena"
            file.write_bytes(bytes(deposit.arena_bytes))
            fd = os.open(tmp_path, os.O_RDONLY) if step == 1 else os.open(file, os.O_RDWR)  # a folder cannot be mapped
            end.send(msgspec.json.encode(Lent(step=step, version=V1, size_bytes=deposit.arena_bytes)), fd)
            os.close(fd)
            answer = heard(end)
            assert isinstance(answer, Deposited) and answer.step == step
            if step == 1:
                assert "r0.0 could not copy its portion: the vault's memory of" in answer.why
                end.send(msgspec.json.encode(Void(step=1, why=answer.why)))
                assert again.get(timeout=DEADLINE_S) == Urgency.DUE, "it is wished anew"
            else:
                assert answer.why == "" and any(file.read_bytes())
    finally:
        end.close()
        depot.close()
        door.close()
