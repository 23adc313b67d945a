"""A place as the vault sees it: which saves it takes, and the keeper that makes them durable there, one after the other.

What it has not made durable keeps its generation: two tiers that are behind make the next save wait, and nothing is dropped.
"""

import math
import time
from collections.abc import Callable

from regrow.agent.generation import Generation
from regrow.agent.pacing import Pacing
from regrow.core.checkpoint import Pointer
from regrow.core.draft import Draft
from regrow.core.errors import InfraError, StateError
from regrow.core.records import SaveDurable, SaveFailed
from regrow.core.saves import Urgency
from regrow.shell.journal import Journal
from regrow.shell.vaulting import Place, Said
from regrow.shell.writing import Setting
from regrow.state.copying import Copying
from regrow.state.keeper import Keeper, Save

Post = Callable[[Callable[[], None]], None]
"""Has the loop call something soon, from any thread."""


class Tier:
    """All methods on the loop's thread, but for `tried` and `noticed`."""

    def __init__(
        self,
        number: int,
        place: Place,
        patience_s: float,
        faults: str,
        journal: Journal,
        pacing: Pacing,
        post: Post,
        say: Callable[[Said], None],
        freed: Callable[[], None],
    ) -> None:
        self.number = number
        self.place = place
        self.last = 0
        """The newest step that it took."""
        self.under_way = ""
        self.failures: list[str] = []
        """Of saves that were given up, and that no newer one has taken the place of."""
        self._patience_s = patience_s
        self._faults = faults
        self._journal = journal
        self._pacing = pacing
        self._post = post
        self._say = say
        self._freed = freed
        self._keeper: Keeper | None = None
        self._open: set[int] = set()
        self._told = 0
        """The step of whose trouble people have heard."""

    @property
    def is_idle(self) -> bool:
        return not self._open

    def takes(self, step: int, urgency: Urgency, made_s: float = -math.inf) -> bool:
        """A state whose copy was begun at that time. On auto it takes one after the other: a place that is behind is given
        more by an operator alone, or by a job that ends."""
        if not self.place.every and urgency < Urgency.ASKED and self._open:
            return False
        return self._pacing.takes(self.place, step, self.last, urgency, made_s)

    def persist(self, draft: Draft, generation: Generation) -> None:
        """Until it is durable or given up, the generation is wanted."""
        if self._keeper is None:  # a place that takes nothing needs no process
            setting = Setting(url=self.place.url, retention=self.place.retention, faults=self._faults)
            self._keeper = Keeper(setting, self._patience_s, self)
            self._keeper.take_term(draft.term)
        begun_s = time.monotonic()
        generation.wanted.add(self.number)
        self._open.add(draft.step)

        def over(outcome: Pointer | InfraError | StateError) -> None:
            seconds = time.monotonic() - begun_s
            self._post(lambda: self._over(draft, generation, outcome, seconds))

        self._keeper.persist(Save(draft=draft, arena=generation, copying=Copying.done(draft), over=over))

    def close(self) -> None:
        """Once it is idle: blocks until its writer has removed what was to go."""
        if self._keeper is not None:
            self._keeper.close()

    def tried(self, step: int, attempt: int, why: str) -> None:
        """From the keeper's thread."""
        self._journal.write(SaveFailed(step=step, url=self.place.url, attempt=attempt, why=why, is_final=False))
        if self._told != step:
            self._told = step
            self._tell(f"checkpoint: {why}")

    def noticed(self, what: str) -> None:
        """From the keeper's thread."""
        self._tell(f"checkpoint: {what}")

    def _over(
        self, draft: Draft, generation: Generation, outcome: Pointer | InfraError | StateError, seconds: float
    ) -> None:
        generation.mark_done(self.number)
        generation.wanted.discard(self.number)
        self._open.discard(draft.step)
        if isinstance(outcome, Pointer):
            self.failures.clear()
            self._pacing.note(
                SaveDurable(
                    step=draft.step,
                    url=self.place.url,
                    term=outcome.term,
                    number=outcome.number,
                    size_bytes=outcome.size_bytes,
                    seconds=seconds,
                )
            )
        else:
            why = f"{self.place.url}: {outcome}"
            self.failures.append(why)
            self._pacing.note(SaveFailed(step=draft.step, url=self.place.url, attempt=0, why=str(outcome), is_final=True))
            self._say(Said(text=f"checkpoint given up: {why}. Training goes on"))
        self._freed()

    def _tell(self, text: str) -> None:
        said = Said(text=text)
        self._post(lambda: self._say(said))
