"""What the launcher has to do with the vault: it comes before the workers, and goes when what was saved is durable."""

import asyncio
from collections.abc import Callable

from regrow.agent.agent import Agent
from regrow.agent.custodian import Custodian
from regrow.core.errors import ConfigError
from regrow.core.membership_config import MembershipConfig
from regrow.core.messages import StateSought
from regrow.core.order import DataFrom
from regrow.core.origin import data_from, unused
from regrow.shell.journal import Journal
from regrow.shell.vaulting import Opened, Place, Setting, Sought


class Safekeeping:
    """Of a job whose state is saved. `report` gets what came of a search that the coordinator asked for."""

    def __init__(
        self,
        config: MembershipConfig,
        setting: Setting,
        agent: Agent,
        journal: Journal,
        say: Callable[[str, bool], None],
        report: Callable[[StateSought], None],
    ) -> None:
        self._config = config
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
        self.data_from = DataFrom()

    async def open(self) -> None:
        """Once this returns, workers may start. ConfigError where a place cannot be used, or not for this."""
        opened = await self._custodian.open()
        if not self._config.resumes:
            _refuse_used(self._places, opened)
            return
        sought = await self._custodian.seek(self._config.resume_step)
        if sought.origin is None:
            step = self._config.resume_step
            if step is not None or any(newest is not None for newest in opened.newest):
                what = "the newest saved state" if step is None else f"the saved state of step {step}"
                raise ConfigError(f"cannot resume from {what}: {sought.why}")
            return  # nothing is saved there yet: the job begins at step 0
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
        self._report(StateSought(number=number, origin=sought.origin, mathematics=sought.mathematics, why=sought.why))

    async def finish(self) -> tuple[str, ...]:
        """Nobody saves any more: wait until what was saved is durable. What is not, in words."""
        return await self._custodian.finish()

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
