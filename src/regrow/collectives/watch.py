"""Waits for gloo's operations in a thread of its own, so that whoever issued them can always walk away.

gloo forgets to wake the waiter of an operation that was half done when its connection broke: a send that is partly
written, a receive that is partly read. Shut its sockets down and that wait never returns. So nobody waits for gloo but a
thread that may be left behind: with it stay only the operation's own buffers, which gloo might still write to.
"""

import queue
import threading
from datetime import timedelta

import torch.distributed as dist

_FOREVER = timedelta(days=365)


class Watch:
    """One waiter for one group. `wait` is called by the issuing thread, `give_up` by any."""

    def __init__(self, name: str) -> None:
        self._orders: queue.SimpleQueue[list[dist.Work] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # The thread must not hold the group: one left behind would keep all of it alive.
        threading.Thread(target=_watch, args=(self._orders, self._outcomes), name=name, daemon=True).start()

    def wait(self, works: list[dist.Work]) -> str | None:
        """None once all are done; otherwise why they never will be."""
        if not works:
            return None
        self._orders.put(works)
        return self._outcomes.get()

    def give_up(self, why: str) -> None:
        """Wake the issuing thread, now or when it next waits. For good: the group is broken."""
        self._outcomes.put(why)
        self._orders.put(None)

    def end(self) -> None:
        self._orders.put(None)


def _watch(orders: "queue.SimpleQueue[list[dist.Work] | None]", outcomes: "queue.SimpleQueue[str | None]") -> None:
    while (works := orders.get()) is not None:
        why = None
        works.reverse()  # in the order issued, receives first: of a broken connection they are the likelier to hear
        try:
            while works:
                works.pop().wait(_FOREVER)
        except RuntimeError as error:
            why = str(error)
        works.clear()
        outcomes.put(why)
