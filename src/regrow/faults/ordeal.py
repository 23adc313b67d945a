"""One job of a soak from its start to its end, under volleys: the end is its own, or it is stopped as an operator would.

Says how it ended and what was seen of it. Whether its result is right is for others to judge.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from regrow.faults.schedule import Volley
from regrow.faults.striker import Striker
from regrow.faults.subject import Subject

_LOOK_S = 0.05
_TELL_S = 5.0
_STANDSTILL_S = 90.0
"""Longer than everything that may hold a job up while its coordinator is there: limits on hangs, one after another."""
_END_S = 180.0


class Glimpse(msgspec.Struct, frozen=True, kw_only=True):
    """The job at one moment, for whoever watches."""

    after_s: float
    step: int
    roster: str
    workers: int
    coordinator: str
    landed: dict[str, int]


class Ordeal:
    def __init__(self, subject: Subject, schedule: Iterator[Volley], watch: Callable[[Glimpse], None]) -> None:
        self._subject = subject
        self._schedule = schedule
        self._watch = watch
        self._striker = Striker(subject)
        self._started_s = time.monotonic()
        self._told_s = self._started_s
        self._step, self._moved_s = 0, self._started_s

    @property
    def landed(self) -> Counter[str]:
        return +self._striker.landed

    @property
    def missed(self) -> int:
        return self._striker.missed

    def run(self, until_s: float, is_over: Callable[[], bool]) -> str | None:
        """Until its end, stopped then or when it is over; returns what went wrong, None when the job ended."""
        self._subject.start()
        trouble = self._train(until_s, is_over)
        return trouble if trouble is not None else self._end()

    def _train(self, until_s: float, is_over: Callable[[], bool]) -> str | None:
        volley = next(self._schedule)
        due_s: float | None = None
        # A job that is stopped before its first step has nothing to show.
        while self._step == 0 or (time.monotonic() < until_s and not is_over()):
            if self._subject.steps is not None and self._subject.code is not None:
                return None
            trouble = self._look()
            if trouble is not None:
                return trouble
            if due_s is None and self._step > 0:
                due_s = time.monotonic() + volley.after_s  # the schedule begins with the training
            elif due_s is not None and time.monotonic() >= due_s:
                self._striker.strike(volley)
                volley = next(self._schedule)
                due_s = time.monotonic() + volley.after_s
            time.sleep(_LOOK_S if due_s is None else min(_LOOK_S, max(0.0, due_s - time.monotonic())))
        return None

    def _end(self) -> str | None:
        """Whoever was struck is still struck: the stop finds the job as it is."""
        self._striker.tend(at_once=True)
        if self._subject.code is None:
            self._subject.stop()
        end_s = time.monotonic() + _END_S
        while self._subject.code is None or self._subject.coordinator_code is None:
            if time.monotonic() > end_s:
                missing = "`regrow run`" if self._subject.code is None else "the coordinator"
                return f"{missing} did not end within {_END_S:g} s of the stop"
            time.sleep(_LOOK_S)
        return None

    def _look(self) -> str | None:
        self._striker.tend()
        subject = self._subject
        if subject.code is not None and subject.steps is None:
            return f"`regrow run` ended by itself, with code {subject.code}"
        has_ended = subject.coordinator_code is not None and not self._striker.is_coordinator_away
        if has_ended and not (
            subject.coordinator_code == 0 and subject.steps is not None
        ):  # it ends with its job's last step
            return f"the coordinator ended by itself, with code {subject.coordinator_code}"
        now_s = time.monotonic()
        workers = subject.workers()
        commits = [commit[0] + 1 for member in workers if (commit := subject.last_commit(member)) is not None]
        step = max(commits, default=0)
        if step not in (0, self._step) or self._striker.is_coordinator_away:  # it goes back where everybody was killed
            self._step, self._moved_s = step or self._step, now_s
        if now_s - self._moved_s > _STANDSTILL_S:
            return f"no step was committed for {_STANDSTILL_S:g} s, after step {self._step}"
        if now_s - self._told_s >= _TELL_S:
            self._told_s = now_s
            self._watch(self._glimpse(len(workers)))
        return None

    def _glimpse(self, workers: int) -> Glimpse:
        roster = self._subject.roster()
        return Glimpse(
            after_s=time.monotonic() - self._started_s,
            step=self._step,
            roster="none" if roster is None else str(roster.version),
            workers=workers,
            coordinator="away" if self._striker.is_coordinator_away else "up",
            landed=dict(self.landed),
        )
