"""Work on a store, which may never answer: done by a thread that is left behind when nothing comes of it for too long."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.state.shard import Told

T = TypeVar("T")
_FIRST_RETRY_S = 0.25
_LAST_RETRY_S = 15.0
"""A store that was away is found within so long; one that refuses is not worn down."""


class Abandoned(InfraError):
    """Its thread may still be at work, on whatever it was given."""


def begun(work: Callable[[], T], name: str) -> "Future[T]":
    """In a thread that keeps no process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            found = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def within(patience_s: float, what: str, work: Callable[[Told], T]) -> T:
    """What the work returns or raises. It tells of each piece that it has done; Abandoned when none was for so long."""
    since_s = time.monotonic()

    def told(size_bytes: int) -> None:
        nonlocal since_s
        since_s = time.monotonic()

    future = begun(lambda: work(told), "regrow-store")
    while not wait([future], max(0.0, since_s + patience_s - time.monotonic())).done:
        if time.monotonic() >= since_s + patience_s:
            raise Abandoned(f"{what} does not answer for {patience_s:g} s: see to it, or raise --checkpoint-patience")
    return future.result()


def tried(patience_s: float, what: str, work: Callable[[Told], T], refused: Callable[[str], None]) -> T:
    """The same, and what a store refuses is tried again, later and later, until it has done nothing for so long. What is
    damaged or wrong stays so, and one that never answers has had its time. `refused` hears of each try in vain."""
    since_s, delay_s = time.monotonic(), _FIRST_RETRY_S

    def noted(told: Told) -> Told:
        def tell(size_bytes: int) -> None:
            nonlocal since_s
            since_s = time.monotonic()
            told(size_bytes)

        return tell

    while True:
        try:
            return within(patience_s, what, lambda told: work(noted(told)))
        except (ConfigError, StateError, Abandoned):
            raise
        except Exception as error:  # the edge of a store: its library raises what it likes
            if time.monotonic() + delay_s >= since_s + patience_s:
                raise
            refused(str(error))
        time.sleep(delay_s)
        delay_s = min(2 * delay_s, _LAST_RETRY_S)
