"""A part of a result that is written into the log while the rest of the result is still being reduced.

The reduce (collectives.reduce) says which bytes of the result have arrived. Those of this member's part go into a slot of
its log and on their way to the neighbour, in the thread that reduces, beside the backward. What the result is as a whole is
known at the end, and with it what closes the part: until then nothing of it counts (rule L1). Where it comes to nothing,
since the attempt broke or there was no slot at hand, the part is written as any other is.
"""

import threading

from regrow.core.listener import part_of
from regrow.core.roster import Version
from regrow.shell.faultpoint import faultpoint
from regrow.state.gradient import Gradient
from regrow.state.log import slot_bytes
from regrow.state.log_filling import Filling, copied
from regrow.state.log_writer import LogWriter
from regrow.state.memory import bytes_of
from regrow.worker.copyist import Copyist


class Early:
    """Of one attempt at one step."""

    def __init__(
        self,
        writer: LogWriter,
        copyist: Copyist | None,
        limit_bytes: int,
        rest_bytes: int,
        step: int,
        attempt: Version,
        index: int,
        count: int,
    ) -> None:
        """`rest_bytes`: what the part is thought to need behind it."""
        self.rest_bytes = rest_bytes
        self.about = (step, attempt, index, count)
        self._writer = writer
        self._copyist = copyist
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        """Guards what follows, which the thread that reduces and the training thread both come to."""
        self._filling: Filling | None = None
        self._is_over = False

    def arrived(self, result: Gradient, start: int, stop: int) -> None:
        """These bytes of it are final; or, where a bucket travels once more, they are others than was said."""
        step, _, index, count = self.about
        begin, end = part_of(result.buffer.numel(), index, count)
        low, high = max(start, begin), min(stop, end)
        with self._lock:
            if low >= high or self._is_over:
                return
            filling = self._filling = self._filling or self._begun(end - begin)
            if filling is None:
                self._is_over = True
                return
            data = result.buffer[low:high]
            if self._copyist is not None:
                self._copyist.put(low - begin, data)
            filling.put(low - begin, high - low, copied(bytes_of(data)))
        faultpoint("prelogging", step=step)

    def finish(self, about: tuple[int, Version, int, int] | None) -> Filling | None:
        """It is over: the part, where it is whole and this is the one that is wanted."""
        with self._lock:
            filling, self._filling, self._is_over = self._filling, None, True
        if filling is None or (about == self.about and filling.is_whole):
            return filling
        self._writer.drop(filling)
        return None

    def _begun(self, part_bytes: int) -> Filling | None:
        size_bytes = slot_bytes(part_bytes, self.rest_bytes)
        if not self._writer.count_free(size_bytes) or not self._writer.has_room(size_bytes, self._limit_bytes):
            return None  # what has to be made or waited for is the training thread's to make, and to tell
        if self._copyist is not None:
            self._copyist.begin(size_bytes, part_bytes)
        return self._writer.begin(size_bytes, part_bytes)
