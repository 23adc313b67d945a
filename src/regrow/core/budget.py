"""How often a replica may be restarted, and how long to wait before it is."""

from collections.abc import Mapping

import msgspec


class BudgetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on restarts."""

    max_restarts: int = 20
    """Restarts of one replica within the window; one more and the job goes on without it."""
    max_all_restarts: int = 200
    """Restarts of all replicas together within the window."""
    window_s: float = 600.0
    backoff_s: float = 0.5
    """The second restart within the window waits this long, each further one twice as long."""
    backoff_cap_s: float = 15.0


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Start it again, no earlier than after delay_s. The counts are those of the window, this restart included."""

    delay_s: float
    used: int
    limit: int
    job_used: int
    job_limit: int
    window_s: float


class Exhausted(msgspec.Struct, frozen=True, kw_only=True):
    """No more restarts: says which limit, with its numbers."""

    why: str


class Budget:
    """Counts restarts in a sliding window of time.

    `spent` is what a predecessor saved. A time that has not come yet is from a clock that began anew since (a reboot): it
    counts from now on, so that a doubt never gives a replica more restarts than it may have.
    """

    def __init__(self, config: BudgetConfig, spent: Mapping[str, tuple[float, ...]] | None = None) -> None:
        self._config = config
        self._spent: dict[str, list[float]] = {name: list(times) for name, times in (spent or {}).items()}

    @property
    def spent(self) -> dict[str, tuple[float, ...]]:
        """When each replica was restarted, as far as it still counts."""
        return {name: tuple(times) for name, times in self._spent.items() if times}

    def spend(self, replica: str, now: float) -> Restart | Exhausted:
        config = self._config
        for name, times in self._spent.items():
            self._spent[name] = [min(at, now) for at in times if now - at < config.window_s]
        mine = self._spent.setdefault(replica, [])
        everyone = sum(len(times) for times in self._spent.values())
        if len(mine) >= config.max_restarts:
            return Exhausted(
                why=f"{replica} was restarted {_times(len(mine))} within {config.window_s:g} s (--max-restarts)"
            )
        if everyone >= config.max_all_restarts:
            count = f"the job's replicas were restarted {_times(everyone)} within {config.window_s:g} s"
            return Exhausted(why=f"{count} (--max-all-restarts)")
        mine.append(now)
        delay_s = 0.0 if len(mine) == 1 else config.backoff_s * 2.0 ** (len(mine) - 2)
        return Restart(
            delay_s=min(config.backoff_cap_s, delay_s),
            used=len(mine),
            limit=config.max_restarts,
            job_used=everyone + 1,
            job_limit=config.max_all_restarts,
            window_s=config.window_s,
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
