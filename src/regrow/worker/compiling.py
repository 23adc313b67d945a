"""When torch.compile is at work, the stamp says so (a recompilation inside a microbatch is not a hang), and what it makes
may not depend on history (worker.tuning).

torch._dynamo calls back at the start and end of every compilation (since before 2.6; with an argument since 2.8). Where it
was not imported, nothing can be compiled, and nothing is imported here.
"""

import contextlib
import sys
import threading

from regrow.core.progress import Phase
from regrow.shell.stamp import Stamp
from regrow.worker import tuning


class Compilations:
    def __init__(self, stamp: Stamp) -> None:
        self._stamp = stamp
        self._thread = threading.get_ident()
        self._aside = contextlib.ExitStack()
        self._depth = 0
        """Compilations inside compilations: some versions of torch tell of each."""
        self._refused: tuning.Refusal | None = None

    def watch(self) -> None:
        """Once a step: torch._dynamo.reset() forgets everyone who asked to be called."""
        if self._refused is not None:
            raise self._refused  # once more: torch, or the script, may have swallowed it
        module = sys.modules.get("torch._dynamo.callback")
        handler = getattr(module, "callback_handler", None)
        if handler is None or self._begins in getattr(handler, "start_callbacks", (self._begins,)):
            return
        handler.register_start_callback(self._begins)
        handler.register_end_callback(self._ends)
        self._purify()

    def _begins(self, *about: object) -> None:
        if threading.get_ident() == self._thread:  # the stamp has one writer
            self._depth += 1
            if self._depth == 1:
                self._aside.enter_context(self._stamp.aside(Phase.COMPILE))
        self._purify()  # again: the script may have set things since, and in newer versions each thread has its own settings

    def _ends(self, *about: object) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth -= 1
        if self._depth == 0:
            self._aside.close()

    def _purify(self) -> None:
        tuning.pin()
        try:
            tuning.refuse()
        except tuning.Refusal as error:
            self._refused = error
            raise
