"""What the vault answers a founder: the arena that holds the origin, and the logs that hold what was committed since.

The search for the origin has found all of it. A vault that was started again since finds the records again, in a thread.
"""

import os
from collections.abc import Callable

from regrow.agent.generation import Generation
from regrow.agent.logs import Chained, Logs, chained, close
from regrow.agent.patience import begun
from regrow.agent.tier import Post
from regrow.core.origin import Origin
from regrow.core.roster import NO_VERSION
from regrow.shell.vaulting import Recall, Recalled, Shown, ToWorker, Unknown, Whole

Tell = Callable[[str, ToWorker, int | None], None]
"""A member, if it has a line; the descriptor stays the caller's."""
Key = tuple[int, str, int]
"""Step, root and records of an origin."""


class Recalling:
    """On the loop's thread."""

    def __init__(self, generations: list[Generation], logs: Logs, post: Post, tell: Tell) -> None:
        self._generations = generations
        self._logs = logs
        self._post = post
        self._tell = tell
        self._known: tuple[Key, tuple[Whole, ...]] | None = None
        """The newest origin, and what follows it."""

    def note(self, origin: Origin, found: Chained | None) -> None:
        self._known = (origin.step, origin.root, origin.records), () if found is None else found.records

    def recall(self, member: str, asked: Recall) -> None:
        held = self._held(asked)
        if held is None and asked.step != 0:
            self._unknown(
                member, f"step {asked.step} with the root {asked.root} does not lie in this host's memory any more"
            )
            return
        key = asked.step, asked.root, asked.records
        if not asked.records:
            self._answer(member, asked, ())
        elif self._known is not None and self._known[0] == key:
            self._answer(member, asked, self._known[1])
        else:
            since = held.label.version if held is not None and held.label is not None else NO_VERSION
            fds = self._logs.copies()

            def answer(found: Chained) -> None:
                close(fds)
                self._known = key, found.records
                self._answer(member, asked, found.records)

            search = begun(lambda: chained(fds, asked.step, since, asked.records), "regrow-records")
            search.add_done_callback(lambda done: self._post(lambda: answer(done.result())))

    def _answer(self, member: str, asked: Recall, records: tuple[Whole, ...]) -> None:
        held = self._held(asked)
        if len(records) != asked.records or (held is None and asked.step != 0):
            self._unknown(member, f"{len(records)} records follow step {asked.step} in the logs, {asked.records} are wanted")
            return
        for name in dict.fromkeys(piece.member for one in records for piece in (one.tail, *one.pieces)):
            if (log := self._logs.shown(name)) is None:
                self._unknown(member, f"the log of {name} was let go")
                return
            self._tell_with(member, Shown(member=name), log)
        if held is None or held.label is None:
            self._tell(member, Recalled(draft=None, root=asked.root, records=records), None)
        else:
            arena = os.open(f"/proc/self/fd/{held.fd}", os.O_RDONLY | os.O_CLOEXEC)
            self._tell_with(member, Recalled(draft=held.label.draft, root=asked.root, records=records), arena)

    def _held(self, asked: Recall) -> Generation | None:
        for generation in self._generations:
            label = generation.label
            if label is not None and (label.draft.step, label.root) == (asked.step, asked.root):
                return generation
        return None

    def _unknown(self, member: str, why: str) -> None:
        self._tell(member, Unknown(why=why), None)

    def _tell_with(self, member: str, message: ToWorker, fd: int) -> None:
        try:
            self._tell(member, message, fd)
        finally:
            os.close(fd)
