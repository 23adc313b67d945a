"""A place as the vault sees it: which saves it takes, and the keeper that makes them durable there, one after the other.

What it has not made durable keeps its generation: two tiers that are behind make the next save wait. What gives way, where a
tier fails, is noted save by save (agent.backlog).
"""

import math
import time
from collections.abc import Callable

from regrow.agent.backlog import Backlog, Taken
from regrow.agent.generation import Generation, Label
from regrow.agent.pacing import Pacing
from regrow.core.checkpoint import Pointer
from regrow.core.draft import Draft
from regrow.core.errors import Harmed, InfraError, StateError
from regrow.core.neighbour import is_neighbour
from regrow.core.records import SaveDurable, SaveFailed
from regrow.core.saves import Urgency
from regrow.shell.journal import Journal
from regrow.shell.vaulting import Held, Place, Said
from regrow.shell.writing import Setting
from regrow.state.copying import Copying
from regrow.state.keeper import Keeper, Save, Superseded

Post = Callable[[Callable[[], None]], None]
"""Has the loop call something soon, from any thread."""


class Tier:
    """All methods on the loop's thread, but for `tried`, `bereaved` and `noticed`."""

    def __init__(
        self,
        number: int,
        place: Place,
        patience_s: float,
        faults: str,
        journal: Journal,
        pacing: Pacing,
        post: Post,
        say: Callable[[Said | Held], None],
        freed: Callable[[], None],
        harmed: Callable[[Generation, Draft, str], None],
    ) -> None:
        self.number = number
        self.place = place
        self.last = 0
        """The newest step that it took."""
        self.durable: int | None = None
        """The newest step that is durable there, as far as this vault knows."""
        self._bytes_per_s: float | None = None
        """Of the last save, the wait for those before it included."""
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
        self._harmed = harmed
        self._keeper: Keeper | None = None
        self._open = Backlog(patience_s, gives_way=is_neighbour(place.url))
        self._refused = -1
        """The step of the save that was tried in vain last."""
        self._told = 0
        """The step of whose trouble people have heard."""

    @property
    def is_idle(self) -> bool:
        return not self._open

    @property
    def is_failing(self) -> bool:
        """It gave up or refuses what it was given last, or nothing of that was written for long."""
        idle_s = 0.0 if self._keeper is None else self._keeper.idle_s
        return self._open.is_stuck(idle_s, self._has_refused)

    @property
    def _has_refused(self) -> bool:
        return self._open.first is not None and self._refused == self._open.first.draft.step

    def takes(self, step: int, urgency: Urgency, made_s: float = -math.inf) -> bool:
        """A state whose copy was begun at that time. On auto it takes one after the other: a place that is behind is given
        more by an operator alone, or by a job that ends."""
        if is_neighbour(self.place.url):
            return step > self.last  # and what waits gives way to it
        if not self.place.every and urgency < Urgency.ASKED and self._open:
            return False
        return self._pacing.takes(self.place, step, self.last, urgency, made_s)

    def expected_s(self, size_bytes: int) -> float | None:
        """Until so much would be durable, after what it is busy with; None: nothing was measured yet."""
        return None if self._bytes_per_s is None else (1 + len(self._open)) * size_bytes / self._bytes_per_s

    def persist(self, label: Label, generation: Generation, urgency: Urgency = Urgency.LAST) -> None:
        """What this label says lies there, whole. Until it is durable or given up, the generation is wanted."""
        if self._keeper is None:  # a place that takes nothing needs no process
            setting = Setting(
                url=self.place.url,
                retention=self.place.retention,
                bytes_per_s=self.place.bytes_per_s,
                delta=self.place.delta,
                faults=self._faults,
            )
            self._keeper = Keeper(setting, self._patience_s, self)
            self._keeper.take_term(label.draft.term)
        generation.wanted.add(self.number)
        self._open.take(label, generation, urgency)
        self._skip()
        self._go_on()

    def press(self) -> None:
        """Somebody waits for memory: where this place fails, what waits for it gives way to the newest."""
        if self._keeper is None or not self._open:
            return
        if self._open.press(self._keeper.idle_s, self._has_refused):
            self._say(
                Said(
                    text=f"checkpoint: {self.place.url} gets nothing done, and others wait for the memory: until a state is "
                    "durable there it is given the newest alone, and what it skips is noted"
                )
            )
        self._skip()

    def press_hard(self) -> None:
        """And so does what is tried in vain."""
        if self._keeper is not None and self._open.is_in_vain(self._keeper.idle_s):
            self._keeper.abandon(_skipped(self._open.newest))

    def _skip(self) -> None:
        for taken in self._open.superseded():
            self._let_go(taken)
            self._pacing.note(_failed(taken, self.place.url, _skipped(self._open.newest), self._open.newest.draft.step))

    def _go_on(self) -> None:
        """With the oldest, if nothing is at work."""
        taken = self._open.first
        if taken is None or self._open.is_at_work:
            return
        assert self._keeper is not None
        self._open.is_at_work = True

        def over(outcome: Pointer | InfraError | StateError) -> None:
            seconds = time.monotonic() - taken.begun_s
            self._post(lambda: self._over(taken, outcome, seconds))

        self._keeper.persist(
            Save(
                draft=taken.draft,
                arena=taken.generation,
                copying=Copying.done(taken.draft),
                patience_s=self._open.patience_s(taken),
                root=taken.label.root,
                over=over,
            )
        )

    def close(self) -> None:
        """Once it is idle: blocks until its writer has removed what was to go."""
        if self._keeper is not None:
            self._keeper.close()

    def tried(self, step: int, attempt: int, why: str) -> None:
        """From the keeper's thread."""
        self._refused = step
        self.bereaved(step, attempt, why)
        self._post(self._freed)

    def bereaved(self, step: int, attempt: int, why: str) -> None:
        """From the keeper's thread. The place has not refused anything: nobody is to be skipped for it."""
        self._journal.write(SaveFailed(step=step, url=self.place.url, attempt=attempt, why=why, is_final=False))
        if self._told != step:
            self._told = step
            self._tell(f"checkpoint: {why}")

    def noticed(self, what: str) -> None:
        """From the keeper's thread."""
        self._tell(f"checkpoint: {what}")

    def _over(self, taken: Taken, outcome: Pointer | InfraError | StateError, seconds: float) -> None:
        self._refused = -1
        self._let_go(taken)
        draft = taken.draft
        if isinstance(outcome, Pointer):
            self._open.succeeded()
            self.failures.clear()
            self.durable, self._bytes_per_s = draft.step, draft.size_bytes / max(seconds, 1e-6)
            self._say(Held(place=self.number, step=draft.step))
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
            self._give_up(taken, outcome)
        self._skip()
        self._go_on()
        self._freed()

    def _give_up(self, taken: Taken, error: InfraError | StateError) -> None:
        self._open.failed(is_the_place=not isinstance(error, Harmed))
        if isinstance(error, Superseded):
            self._pacing.note(_failed(taken, self.place.url, str(error), self._open.newest.draft.step))
            return
        self._pacing.note(_failed(taken, self.place.url, str(error), None))
        why = f"{self.place.url}: {error}"
        self.failures.append(why)
        self._say(Said(text=f"checkpoint given up: {why}. Training goes on"))
        if isinstance(error, Harmed):
            self._harmed(taken.generation, taken.draft, str(error))

    def _let_go(self, taken: Taken) -> None:
        taken.generation.mark_done(self.number)
        taken.generation.wanted.discard(self.number)

    def _tell(self, text: str) -> None:
        said = Said(text=text)
        self._post(lambda: self._say(said))


def _skipped(newest: Taken) -> str:
    return f"superseded by step {newest.draft.step}: this place is behind, and the memory is wanted for newer states"


def _failed(taken: Taken, url: str, why: str, newer: int | None) -> SaveFailed:
    return SaveFailed(step=taken.draft.step, url=url, attempt=0, why=why, is_final=True, newer=newer)
