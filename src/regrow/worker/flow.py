"""The flow: a reduce that runs beside the last lane's backward, in a thread of its own."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from regrow.collectives.group import Group
from regrow.collectives.reduce import Reduction
from regrow.core.effects import Reduce
from regrow.state.tail import Tail


class Flow:
    """One reduce on its way, up to the last bucket. What is left is the training thread's: `reduction.close`."""

    def __init__(self, work: Reduce, group: Group, reduction: Reduction, tail: Tail, buckets: int) -> None:
        self.work = work
        self.reduction = reduction
        self.tail = tail
        self._group = group
        self._buckets = buckets
        self._done: Future[None] = Future()

    def wait(self) -> None:
        """Until all buckets are through; PeerError when they never will be."""
        self._done.result()

    def give_up(self) -> None:
        """Nothing of it is in use any more when this returns."""
        self.tail.give_up()
        self._group.abort()
        self._done.exception()

    def run(self) -> None:
        try:
            self.reduction.agree(self._group)
            for number in range(self._buckets):
                self.reduction.bucket(self._group, number)
            self.reduction.flush(self._group)
        except BaseException as error:  # the edge of a thread: whoever waits for it is told
            self._done.set_exception(error)
        else:
            self._done.set_result(None)


class FlowThread:
    """One for the whole job: torch keeps a pool of its own for each thread it has seen."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            # Begun by the training thread, whose switch for denormals it inherits: sums have the same bits in both.
            self._thread = threading.Thread(target=self._work, name="regrow-reduce", daemon=True)
            self._thread.start()
        self._asked.put(work)

    def _work(self) -> None:
        while True:
            self._asked.get()()
