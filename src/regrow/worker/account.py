"""What became of a Checkpointer's saves: counts, times, and failures in words. Threads write, anybody reads or waits."""

import sys
import threading
import time
import warnings

import msgspec

from regrow.core.records import Served

_FAILURES = 100
"""The newest are kept."""
_PATIENCE_S = 2.0
"""A wait longer than this is told on stderr, and again each time it has doubled."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A Checkpointer's account so far, of this process alone."""

    durable_step: int | None = None
    """The newest step that this process has made durable, or has restored."""
    begun: int = 0
    durable: int = 0
    given_up: int = 0
    attempts_failed: int = 0
    """Tries of a save that a store refused, or in which the writer died; most were tried again."""
    blocked_s: float = 0.0
    """Training waited so long altogether: in `save`, and in optimizer steps for copies."""
    longest_s: float = 0.0
    """The longest of these waits."""
    held_s: float = 0.0
    """The part of it in optimizer steps."""
    crowded_s: float = 0.0
    """The part of it in `save`, because the saves before were not durable yet."""
    persisted_s: float = 0.0
    """From the call of `save` until the newest one was durable."""
    restored_from: str = ""
    """What served the newest restore: the URL, or whose memory; both, where memory was harmed in parts."""
    served: tuple[Served, ...] = ()
    """What this process read of it, place by place, each in how long."""
    read_bytes: int = 0
    """So much altogether."""
    passed_bytes: int = 0
    """So much came from other ranks, which had read it."""
    restore_s: float = 0.0
    """So long it took, to where the objects held it."""
    failures: tuple[str, ...] = ()


class Account:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._report = Report()
        self._untold: list[str] = []
        self._unraised: list[Exception] = []
        self.under_way = ""
        """How the save that is being persisted gets on, in words."""

    def report(self) -> Report:
        with self._changed:
            return self._report

    @property
    def open(self) -> int:
        """Saves begun whose fate is not known."""
        report = self.report()
        return report.begun - report.durable - report.given_up

    def begun(self) -> None:
        self._add(begun=1)

    def durable(self, step: int, seconds: float) -> None:
        with self._changed:
            self._report = msgspec.structs.replace(self._report, durable_step=step, persisted_s=seconds)
            self._add(durable=1)

    def restored(self, step: int, where: str, served: tuple[Served, ...], passed_bytes: int, seconds: float) -> None:
        with self._changed:
            self._report = msgspec.structs.replace(
                self._report,
                durable_step=step,
                restored_from=where,
                served=served,
                read_bytes=sum(one.size_bytes for one in served),
                passed_bytes=passed_bytes,
                restore_s=seconds,
            )

    def given_up(self, why: Exception) -> None:
        with self._changed:
            self._unraised.append(why)
            self.failed(str(why), attempts=0)
            self._add(given_up=1)

    def failed(self, why: str, attempts: int = 1) -> None:
        """Told once however often it repeats itself."""
        with self._changed:
            failures = self._report.failures
            if not failures or failures[-1] != why:
                self._untold.append(why)
                failures = (*failures, why)[-_FAILURES:]
            self._report = msgspec.structs.replace(self._report, failures=failures)
            self._add(attempts_failed=attempts)

    def tried(self, step: int, attempt: int, why: str) -> None:
        """In vain: it will be tried again."""
        self.failed(why)

    def bereaved(self, step: int, attempt: int, why: str) -> None:
        """Its writer died: the next one tries it again."""
        self.failed(why)

    def noticed(self, what: str) -> None:
        """Something is wrong, and it was not a save."""
        self.failed(what, attempts=0)

    def waited(self, *, saving_s: float = 0.0, held_s: float = 0.0, crowded_s: float = 0.0) -> None:
        """`crowded_s` is a part of `saving_s`."""
        with self._changed:
            longest_s = max(self._report.longest_s, saving_s, held_s)
            self._report = msgspec.structs.replace(self._report, longest_s=longest_s)
            self._add(blocked_s=saving_s + held_s, held_s=held_s, crowded_s=crowded_s)

    def tell(self) -> None:
        """Warn of what went wrong since the last time: on the user's thread, where a warning can be caught."""
        if self._untold:
            with self._changed:
                untold, self._untold = self._untold, []
            for why in untold:
                warnings.warn(f"checkpoint: {why}", RuntimeWarning, stacklevel=3)

    def wait(self, what: str) -> None:
        """Until no save is open."""
        begun_s, next_s = time.monotonic(), _PATIENCE_S
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self.open, next_s - (time.monotonic() - begun_s)):
                    return
            next_s = self.say(what, next_s)

    def say(self, what: str, waited_s: float) -> float:
        """Progress, for people; when to say the next."""
        print(f"regrow: {what} after {waited_s:.0f} s: {self.under_way or 'not begun yet'}", file=sys.stderr, flush=True)
        return 2 * waited_s

    def raise_given_up(self) -> None:
        """The first that has not been raised yet; the others are in the report."""
        with self._changed:
            unraised, self._unraised = self._unraised, []
        if unraised:
            raise unraised[0]

    def _add(self, **amounts: float) -> None:
        with self._changed:
            sums = {name: getattr(self._report, name) + amount for name, amount in amounts.items()}
            self._report = msgspec.structs.replace(self._report, **sums)
            self._changed.notify_all()
