"""How much memory there was when it ran out, and that in words."""

import msgspec


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers around an end for lack of memory. None: the system does not say, or there is no such limit."""

    evidence: str
    """How it is known that memory was the cause."""
    peak_bytes: int | None = None
    """The most that this process ever held."""
    limit_bytes: int | None = None
    """The process's own limit of address space (ulimit -v)."""
    cgroup: str | None = None
    """The cgroup whose limit is the tightest one above the process."""
    cgroup_limit_bytes: int | None = None
    cgroup_used_bytes: int | None = None
    """When it was asked: what a dead process held is free again by then."""
    cgroup_peak_bytes: int | None = None
    host_available_bytes: int | None = None
    host_total_bytes: int | None = None

    def __str__(self) -> str:
        parts: list[str] = []
        if self.peak_bytes is not None:
            parts.append(f"it held up to {size(self.peak_bytes)}")
        if self.limit_bytes is not None:
            parts.append(f"its own limit (ulimit -v) is {size(self.limit_bytes)}")
        if self.cgroup is not None:
            numbers = (
                ("limit", self.cgroup_limit_bytes),
                ("now in use", self.cgroup_used_bytes),
                ("at most in use", self.cgroup_peak_bytes),
            )
            told = [f"{name} {size(number)}" for name, number in numbers if number is not None]
            if self.cgroup_limit_bytes is None:
                told.insert(0, "no limit")
            parts.append(f"cgroup {self.cgroup}: {', '.join(told)}")
        if self.host_available_bytes is not None and self.host_total_bytes is not None:
            parts.append(f"host: {size(self.host_available_bytes)} available of {size(self.host_total_bytes)}")
        return "; ".join(parts)


def size(count_bytes: int) -> str:
    """For people: 512 MiB, 1.5 GiB."""
    value, unit = float(count_bytes), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:.1f} {unit}" if value < 10 and unit not in ("B", "KiB") else f"{value:.0f} {unit}"
