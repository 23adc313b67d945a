"""The saving half of a Checkpointer: arenas, the copy, and the keeper of the writer.

A save goes through three hands: the training thread lays it out and copies what could change at once; the thread of `hold`
copies the rest; the keeper's has it persisted, shard by shard as the copy comes. Each save has an arena to itself until its
fate is known, and there are two: whoever wants a third one waits.
"""

import threading
import time
from collections.abc import Callable, Sequence

from regrow.core.checkpoint import Pointer
from regrow.core.errors import InfraError, RegrowError, StateError
from regrow.shell.faultpoint import faultpoint
from regrow.shell.writing import Setting
from regrow.state.copying import Copying
from regrow.state.keeper import Keeper, Save
from regrow.state.tracked import Tracked
from regrow.worker.account import Account
from regrow.worker.arena import Arenas
from regrow.worker.drafting import Drafting, is_young, optimizers
from regrow.worker.hold import Hold, Outcome, copy_of
from regrow.worker.recollection import Recollection

GENERATIONS = 2
_PATIENCE_S = 2.0
_NAMED = 3
"""So many tensors are named where many are meant."""


class Saving:
    """One for each Checkpointer that writes; all methods on the training thread."""

    def __init__(self, setting: Setting, *, shard_bytes: int, patience_s: float, account: Account) -> None:
        self._account = account
        self._arenas = Arenas(GENERATIONS)
        self._keeper = Keeper(setting, patience_s, account)
        self._hold = Hold(self._before_step)
        self._restless: set[str] = set()
        """Paths of tensors that have changed under a copy: from then on they are copied at once."""
        self._drafting = Drafting(shard_bytes)
        self._awaited: Tracked | None = None
        """Whose optimizers have no state yet, so that nobody knows how large an arena must be."""
        self._prepared: Tracked | None = None
        self._planned_bytes = 0
        """What the largest state took that was saved or prepared for; 0: none was."""
        self._foreseen_bytes = 0
        self._preparation: threading.Thread | None = None
        self._newest: Recollection | None = None
        """The newest save that is durable, as long as its arena holds it."""

    def begin(self, step: int, tracked: Tracked) -> None:
        """Returns as soon as training may go on."""
        begun_s = time.monotonic()
        self._hold.wait()  # two saves without a step in between
        plan, offsets, flat = self._drafting.planned(step, tracked)
        self._awaited, self._planned_bytes = None, max(self._planned_bytes, plan.arena_bytes)
        crowded_s = self._wait_for_room(step)
        arena = self._arenas.take(plan.arena_bytes)
        if self._newest is not None and self._newest.lies_in(arena):
            self._newest = None
        copying = Copying(plan)

        def over(outcome: Pointer | Exception) -> None:
            if isinstance(outcome, Pointer):
                self._newest = Recollection(outcome, plan, arena)
            arena.trim(self._planned_bytes)
            self._arenas.give_back(arena)
            if isinstance(outcome, Pointer):
                self._account.durable(step, time.monotonic() - begun_s)
            else:
                self._account.given_up(outcome)

        def done(outcome: Outcome) -> None:
            why = self._void(step, outcome)
            if why is None:
                faultpoint("save-copied", step=step)
            copying.end(why)

        tensors = list(zip(flat.paths, flat.tensors, offsets, strict=True))
        try:
            copy = copy_of(tensors, optimizers(tracked), arena, plan.arena_bytes, self._restless, copying.reached, done)
        except BaseException:  # no memory for what is copied at once, or Ctrl-C: nobody is to wait for this save
            self._arenas.give_back(arena)
            raise
        self._account.begun()
        self._hold.begin(copy)
        self._keeper.persist(Save(draft=plan, arena=arena, copying=copying, over=over))
        self._account.waited(saving_s=time.monotonic() - begun_s, crowded_s=crowded_s)

    def prepare(self, tracked: Tracked) -> None:
        """Have memory for a save of these, from another thread, and a writer. Optimizers make their state in their first
        step: with new ones, this is put off until then."""
        if tracked is self._prepared:
            return
        if is_young(tracked):
            self._awaited = tracked
            return
        self._awaited, self._prepared = None, tracked
        plan, _, flat = self._drafting.planned(0, tracked)
        if plan.arena_bytes <= self._planned_bytes:
            return
        self._planned_bytes = plan.arena_bytes
        pinned = any(tensor.is_cuda for tensor in flat.tensors)
        self._make_ready(lambda: self._arenas.prepare(plan.arena_bytes, pinned))

    def foresee(self, size_bytes: int) -> None:
        """Have memory for one save, of about so many bytes, and a writer, before anybody has named what is to be saved. What
        turns out to be too much is given back then. Nothing is pinned: that could spoil a CUDA graph which is captured
        meanwhile, and whoever has asked for nothing yet does not expect it."""
        if size_bytes > self._foreseen_bytes:
            self._foreseen_bytes = size_bytes
            self._make_ready(lambda: self._arenas.prepare(size_bytes, pinned=False, count=1))

    def copied(self) -> None:
        """Wait until nothing is being copied."""
        self._account.waited(held_s=self._hold.wait())

    def recollection(self) -> Recollection | None:
        """What is still in memory of the newest save, once no save is open."""
        if self._preparation is not None:
            self._preparation.join()
        return self._newest

    def take_term(self, term: int) -> None:
        self._keeper.take_term(term)

    def close(self) -> None:
        """Once no save is open."""
        self._hold.close()
        begun_s, next_s = time.monotonic(), _PATIENCE_S
        while not self._keeper.close(next_s - (time.monotonic() - begun_s)):
            next_s = self._account.say("the writer has not ended", next_s)
        if self._preparation is not None:
            self._preparation.join()
        self._arenas.close()

    def let_go(self) -> None:
        """In a forked child."""
        self._arenas.let_go()
        self._keeper.let_go()

    def _wait_for_room(self, step: int) -> float:
        """The seconds until one of the saves before was durable, or given up."""
        begun_s, next_s = time.monotonic(), _PATIENCE_S
        while not self._arenas.wait(next_s - (time.monotonic() - begun_s)):
            next_s = self._account.say(f"the save of step {step} waits for those before it", next_s)
        return time.monotonic() - begun_s

    def _make_ready(self, prepare: Callable[[], None]) -> None:
        self._keeper.prepare()
        self._preparation = threading.Thread(
            target=self._prepare, args=(prepare, self._preparation), name="regrow-arena", daemon=True
        )
        self._preparation.start()

    def _prepare(self, prepare: Callable[[], None], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # an arena that it still makes would be passed over
        try:
            prepare()
        except RegrowError:
            pass  # the save that needs the room says so
        if self._planned_bytes:
            self._arenas.trim(self._planned_bytes)

    def _before_step(self) -> None:
        if waited_s := self._hold.wait():
            self._account.waited(held_s=waited_s)
        if self._awaited is not None:
            self.prepare(self._awaited)
        self._account.tell()

    def _void(self, step: int, outcome: Outcome) -> Exception | None:
        if outcome.error is not None:
            if isinstance(outcome.error, RegrowError):
                return outcome.error
            return InfraError(f"step {step} is not saved: its copy failed ({outcome.error!r})")
        if not outcome.changed:
            return None
        self._restless |= set(outcome.changed)
        return StateError(
            f"step {step} is not saved: {_some(outcome.changed)} changed while being copied, and not in an optimizer's "
            "step. From now on they are copied before save returns; to avoid that, change them after copied()"
        )


def _some(paths: Sequence[str]) -> str:
    rest = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
