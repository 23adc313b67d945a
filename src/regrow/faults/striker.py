"""Carries out volleys on a job's processes, and keeps within what the job promises: one holder of the state stays unhurt,
unless all are killed at one moment, with a state of the job whole in the host's memory.

A worker is unhurt when it has a seat in the newest roster, has committed a step as a member, and was not struck; or was only
stopped for a while, and has committed a step since then. Before each volley one of those, drawn anew, is spared; with none
there is no blow at a worker.
"""

import signal
import time
from collections import Counter

from regrow.core.roster import Member
from regrow.faults.schedule import Blow, Volley
from regrow.faults.subject import Subject

_SIGNALS = {
    "kill": signal.SIGKILL,
    "segfault": signal.SIGSEGV,
    "terminate": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "hang": signal.SIGSTOP,
    "spin": signal.SIGUSR1,
}
_DOUBT_NS = 1_000_000_000
"""A worker that goes on may already have been given up, and not know it yet."""


class Striker:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.landed: Counter[str] = Counter()
        """Blows by kind; "burst" counts volleys of several."""
        self.missed = 0
        """Nobody was there to be hit, or nobody might be."""
        self._doomed: set[Member] = set()
        self._stopped: dict[Member, float] = {}
        """Until when they are."""
        self._doubted_ns: dict[Member, int] = {}
        """Who was stopped: only a later commit shows that it still belongs to the job."""
        self._away_until_s: float | None = None
        """When the coordinator is started again; None while it is there."""

    @property
    def is_coordinator_away(self) -> bool:
        return self._away_until_s is not None

    def strike(self, volley: Volley) -> None:
        workers = self._subject.workers()
        unhurt = [member for member in sorted(workers) if self._is_unhurt(member)]
        spared = unhurt[int(volley.blows[0].draw * len(unhurt))] if unhurt else None
        targets = {} if spared is None else {member: pid for member, pid in workers.items() if member != spared}
        landed = 0
        for blow in volley.blows:
            has_landed = self._strike_one(blow, targets)
            landed += has_landed
            self.landed[blow.kind] += has_landed
            self.missed += not has_landed
        self.landed["burst"] += landed > 1

    def tend(self, *, at_once: bool = False) -> None:
        """Let go on what was stopped for a while, and bring the coordinator back, when it is time."""
        now_s = float("inf") if at_once else time.monotonic()
        for member in [member for member, until_s in self._stopped.items() if until_s <= now_s]:
            del self._stopped[member]
            pid = self._subject.workers().get(member)
            if pid is not None:
                self._subject.signal(pid, signal.SIGCONT)
                self._doubted_ns[member] = time.monotonic_ns() + _DOUBT_NS
        if self._away_until_s is not None and self._away_until_s <= now_s:
            self._away_until_s = None
            self._subject.start_coordinator()

    def _strike_one(self, blow: Blow, targets: dict[Member, int]) -> bool:
        """Takes its victim out of the targets."""
        if blow.kind == "coordinator":
            return self._strike_coordinator(blow)
        if blow.kind == "everybody":
            return self._strike_everybody(targets)
        if blow.kind == "vault":
            pid = self._subject.vault()
            return pid is not None and self._subject.signal(pid, signal.SIGKILL)
        if blow.kind == "warm-parent":
            pid = self._subject.warm_parent()
            return pid is not None and self._subject.signal(pid, signal.SIGKILL)
        victims = sorted(member for member in targets if member not in self._stopped and member not in self._doomed)
        if not victims:
            return False
        victim = victims[int(blow.draw * len(victims))]
        has_landed = self._subject.signal(targets.pop(victim), _SIGNALS[blow.kind])
        if blow.kind == "stop":
            self._stopped[victim] = time.monotonic() + blow.lasts_s
        else:
            self._doomed.add(victim)
        return has_landed

    def _strike_everybody(self, targets: dict[Member, int]) -> bool:
        """Also the one that is spared otherwise."""
        if not self._subject.is_kept():
            return False
        workers = self._subject.workers()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another one die
            for pid in workers.values():
                self._subject.signal(pid, number)
        self._doomed |= set(workers)
        targets.clear()
        return bool(workers)

    def _strike_coordinator(self, blow: Blow) -> bool:
        if self._away_until_s is not None:
            return False
        self._subject.kill_coordinator()
        self._away_until_s = time.monotonic() + blow.lasts_s
        return True

    def _is_unhurt(self, member: Member) -> bool:
        if member in self._doomed or member in self._stopped:
            return False
        roster, last = self._subject.roster(), self._subject.last_commit(member)
        if roster is None or last is None or roster.seat(member) is None:
            return False
        return last[1] > self._doubted_ns.get(member, 0)
