"""What the launcher has to do with the vault: it comes before the workers, and goes when what was saved is durable."""

import asyncio
import os
from collections.abc import Callable

from regrow.agent.agent import Agent
from regrow.agent.custodian import Custodian
from regrow.cli.keeping import Neighbour
from regrow.core.completion import Completion, settled
from regrow.core.errors import ConfigError
from regrow.core.membership_config import MembershipConfig
from regrow.core.messages import StateSought
from regrow.core.order import DataFrom
from regrow.core.origin import data_from, unused
from regrow.core.safety import Safety, Spot
from regrow.shell.journal import Journal
from regrow.shell.vaulting import MEMORY, Opened, Place, Setting, Sought
from regrow.state.neighbour_store import CLAIM, TOKEN, taken_over


class Safekeeping:
    """Of a job whose state is saved. `command`: its own, and a digest of its script. `report` gets what came of a search
    that the coordinator asked for."""

    def __init__(
        self,
        config: MembershipConfig,
        setting: Setting,
        command: tuple[tuple[str, ...], str],
        agent: Agent,
        journal: Journal,
        say: Callable[[str, bool], None],
        report: Callable[[StateSought], None],
        neighbour: Neighbour | None = None,
    ) -> None:
        self._neighbour = neighbour
        self.claim = 0
        """Under which all of this run write at the neighbour."""
        self._config = config
        self._command = command
        self._say = say
        self._places = setting.places
        self._report = report
        self._custodian = Custodian(
            setting, journal, lambda said: say(said.text, said.is_routine), asyncio.get_running_loop(), agent.reaper
        )
        agent.keep(lambda: [pid for pid in [self._custodian.pid] if pid is not None], self.seek)
        self._searches: set[asyncio.Task[None]] = set()
        self.address = setting.address
        self.shard_bytes = setting.shard_bytes
        intervals = {setting.memory_every, *(place.every for place in self._places)}
        self.saves = tuple(sorted(every for every in intervals if every))
        """Those that are fixed, in steps: of what is on auto the vault tells workers."""
        self.finished: Completion | None = None
        """The job that lies at the places, when all of them say that it is finished, and nobody's word is to go on."""
        self.data_from = DataFrom()

    async def open(self) -> None:
        """Once this returns, workers may start. ConfigError where a place cannot be used, or not for this."""
        if self._neighbour is not None:
            os.environ[TOKEN] = self._neighbour.token
            self.claim = await asyncio.to_thread(taken_over, self._neighbour.address, self._config.resumes)
            os.environ[CLAIM] = str(self.claim)  # of vault and writers, which are started from here on
        opened = await self._custodian.open()
        if not self._config.resumes:
            _refuse_used(self._places, opened)
            return
        if self._config.resume_step is None and not self._config.new_mathematics:
            self.finished = settled(opened.finished)
        if self.is_done:
            return
        sought = await self._custodian.seek(self._config.resume_step)
        if sought.origin is None:
            step = self._config.resume_step
            if step is not None or any(newest is not None for newest in opened.newest):
                what = "the newest saved state" if step is None else f"the saved state of step {step}"
                raise ConfigError(f"cannot resume from {what}: {sought.why}")
            self._say(f"the job begins at step 0: {sought.why}", not self.claim)
            return
        self.data_from = self._continued(sought, sought.origin.step)

    def _continued(self, sought: Sought, step: int) -> DataFrom:
        saved = sought.mathematics
        return unused(saved, step) if self._config.new_mathematics else data_from(saved)

    def seek(self, number: int, step: int | None) -> None:
        """For the coordinator: find a saved state, and say so."""
        task = asyncio.create_task(self._seek(number, step))
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    async def _seek(self, number: int, step: int | None) -> None:
        sought = await self._custodian.seek(step, number)
        origin, done = sought.origin, self.finished
        self._report(
            StateSought(
                number=number,
                origin=origin,
                mathematics=sought.mathematics,
                why=sought.why,
                since=sought.since,
                is_final=origin is not None and done is not None and origin.step == done.step,
            )
        )

    @property
    def is_done(self) -> bool:
        """Would this command do again what was done?"""
        return self.finished is not None and self.finished.is_of(*self._command)

    def hurry(self, by_s: float) -> None:
        """All that is to become durable must be so by then: on the host's monotonic clock."""
        self._custodian.hurry(by_s)

    def safety(self, reached: int) -> Safety:
        """What lies where by now, of a job that has committed every step below `reached`."""
        held = self._custodian.held
        spots = [
            Spot(url=place.url, outlives=place.outlives, step=held.get(number)) for number, place in enumerate(self._places)
        ]
        return Safety(spots=tuple(spots), reached=max(reached, held.get(MEMORY, 0)))

    async def finish(self, completion: Completion | None) -> tuple[str, ...]:
        """Nobody saves any more: wait until what was saved is durable. What is not, in words. `completion`: of a job that is
        finished, but for its step and root."""
        return await self._custodian.finish(completion)

    async def close(self) -> None:
        for task in self._searches:
            task.cancel()
        await asyncio.gather(*self._searches, return_exceptions=True)
        self._custodian.close()


def _refuse_used(places: tuple[Place, ...], opened: Opened) -> None:
    """A job that begins anew would take the place of another one's newest state."""
    for place, newest in zip(places, opened.newest, strict=True):
        if newest is not None:
            raise ConfigError(
                f"--checkpoint {place.url} holds a state of step {newest}: go on from it with --resume latest, or give this "
                "job a place of its own"
            )
