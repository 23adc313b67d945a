"""A model of the logs of an every-step job: one a member, in memory that outlives it and the vault.

With symbols for tensors a part holds the whole gradient; a record of parts that do not agree is nobody's gradient. Whoever
is killed while it writes several parts has written some of them.
"""

from typing import TYPE_CHECKING

import msgspec

from regrow.core.effects import Log, Replay
from regrow.core.events import Reread, SaveWished
from regrow.core.listener import Heard, Record
from regrow.core.log import Chain, Part, follow
from regrow.core.order import mix
from regrow.core.renewal import Costs, renewal
from regrow.core.roster import Member, Version
from regrow.core.saves import Urgency
from regrow.sim.chance import Chance

if TYPE_CHECKING:
    from regrow.sim.process import Process
    from regrow.sim.world import World

_ODD = 11
_COSTS = Costs(load_s=6.0, replay_s=1.0, save_s=0.0, step_s=1.0)


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A part in a log, closed by its header."""

    part: Part
    gradient: int
    writer: Member


class Logs:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._chance = Chance(mix(world.seed, 17))
        self._room = self._chance.one_of((2, 4, 8, 1000))
        """So many records a log holds before its member wishes a base."""
        self._written: list[Written] = []
        self._replayed: dict[int, Heard] = {}
        """What the newest founding replays, by step."""
        self.root = ""
        """Of what the first members began from, as they said."""
        self.kept = 0
        """Everything before this step was given up: the state of it is whole in memory."""

    # From members

    def open(self, process: "Process") -> None:
        if self._world.plan.logs and not self.root:
            self.root = str(process.state)

    def write(self, process: "Process", effect: Log) -> None:
        step, attempt = effect.record.step, effect.record.attempt
        if process.result is None or process.result[:2] != (step, attempt):
            self._world.referee.fail("log", f"{process.name} logs {step} of {attempt}, it holds {process.result}")
        if effect.indices != (self._world.referee.roster(attempt).index(process.member),):
            self._world.sights.see("parts were written for the absent")
        for index in effect.indices:
            part = Part(record=effect.record, stop=effect.stop, index=index, count=effect.count)
            self._written.append(Written(part=part, gradient=process.result[2], writer=process.member))
            self._world.faults.passed("Written", process)
            if not process.alive:
                return
        mine = len({w.part.record.step for w in self._written if w.writer == process.member})
        if renewal(mine, _COSTS, mine, 2 * self._room) is not None and not self._world.vault.is_gathering:
            self._world.timeline.after(self._chance.soon_s(), process, process.feed, SaveWished(urgency=Urgency.DUE))

    def replay(self, process: "Process", effect: Replay) -> None:
        heard = self._replayed.get(effect.step)
        if heard is None:
            self._world.referee.fail("log", f"{process.name} asks for step {effect.step}, which is in no log")
        self._world.timeline.after(process.work_s(), process, process.answer, Reread(heard=heard))

    # From the vault

    def free(self, step: int) -> None:
        """The state of this step is whole in memory."""
        self.kept = max(self.kept, step)
        self._written = [w for w in self._written if w.part.record.step >= step]

    def chain(self, step: int, since: Version) -> Chain:
        return follow(step, since, (w.part for w in self._written))

    def found(self, chain: Chain) -> None:
        """These are replayed by whoever founds the job now."""
        self._replayed = {record.step: Heard(record=record, gradient=self._gradient(record)) for record in chain.records}

    def tear(self) -> None:
        """One part is harmed: of an old record, mostly, which others have followed."""
        if self._written:
            oldest = min(w.part.record.step for w in self._written)
            old = [w for w in self._written if w.part.record.step == oldest]
            self._written.remove(self._chance.one_of(old if self._chance.happens(0.7) else self._written))

    # For the checks

    def holds(self, step: int, attempt: Version, digest: int) -> bool:
        """Is this record whole, or given up because the state after it is whole?"""
        parts = [each.part for each in self._of(step, attempt, digest)]
        return step < self.kept or (bool(parts) and {part.index for part in parts} == set(range(parts[0].count)))

    @property
    def replayed(self) -> tuple[Record, ...]:
        """By the newest founding."""
        return tuple(self._replayed[step].record for step in sorted(self._replayed))

    def is_by_one(self, step: int, attempt: Version, digest: int) -> bool:
        """Was all of it written by one member? Then no other has held its result to the same digest."""
        return len({each.writer for each in self._of(step, attempt, digest)}) == 1

    def _of(self, step: int, attempt: Version, digest: int) -> list[Written]:
        record = step, attempt, digest
        return [w for w in self._written if (w.part.record.step, w.part.record.attempt, w.part.record.digest) == record]

    def _gradient(self, record: Record) -> int:
        gradients = {each.gradient for each in self._of(record.step, record.attempt, record.digest)}
        return gradients.pop() if len(gradients) == 1 else mix(_ODD, *sorted(gradients))
