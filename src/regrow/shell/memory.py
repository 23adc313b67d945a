"""What the kernel says about memory: of a process's cgroup (version 1 or 2) and of the host. Reads files, keeps nothing.

Nothing here raises: where a file is not there or says something else, the answer is None.
"""

import contextlib
import resource
from pathlib import Path

import msgspec

from regrow.core.memory import Memory

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near the largest there is."""


class Cgroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process's memory cgroup."""

    folder: Path
    mount: Path
    """Where the tree of cgroups begins."""
    version: int

    @property
    def name(self) -> str:
        return "/" + str(self.folder.relative_to(self.mount)).removeprefix(".")

    @property
    def limit_bytes(self) -> int | None:
        number = _number(self.folder / ("memory.max" if self.version == 2 else "memory.limit_in_bytes"))
        return None if number is None or number >= _NO_LIMIT_BYTES else number

    @property
    def used_bytes(self) -> int | None:
        return _number(self.folder / ("memory.current" if self.version == 2 else "memory.usage_in_bytes"))

    @property
    def peak_bytes(self) -> int | None:
        return _number(self.folder / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))

    @property
    def kills(self) -> int | None:
        """How many processes the kernel has killed here for lack of memory."""
        return _field(self.folder / ("memory.events" if self.version == 2 else "memory.oom_control"), "oom_kill")

    def tightest(self) -> "Cgroup":
        """The one with the lowest limit among this and those above it; itself when there is none."""
        above = [self.folder, *self.folder.parents]
        inside = above[: above.index(self.mount) + 1] if self.mount in above else [self.folder]
        chain = [Cgroup(folder=folder, mount=self.mount, version=self.version) for folder in inside]
        limited = [(limit, cgroup) for cgroup in chain if (limit := cgroup.limit_bytes) is not None]
        return min(limited, key=lambda pair: pair[0])[1] if limited else self


def cgroup_of(pid: int | str = "self", proc: Path = Path("/proc")) -> Cgroup | None:
    """Ask while it lives: a dead process belongs to none."""
    try:
        rows = [row.split(":", 2) for row in (proc / str(pid) / "cgroup").read_text().splitlines()]
        mounts = [row.split() for row in (proc / "self" / "mountinfo").read_text().splitlines()]
    except OSError:
        return None
    for version, path in [(1, path) for _, names, path in rows if "memory" in names.split(",")] + [
        (2, path) for number, names, path in rows if (number, names) == ("0", "")
    ]:
        for fields in mounts:
            kind, _, options = fields[fields.index("-") + 1 : fields.index("-") + 4]
            if (version, kind) == (2, "cgroup2") or (kind == "cgroup" and version == 1 and "memory" in options.split(",")):
                mount = Path(fields[4])
                # In a container the mount may begin further down than the path is told from.
                below = path.removeprefix(fields[3].rstrip("/")).strip("/")
                folder = mount / below if (mount / below).is_dir() else mount
                if version == 1 or (folder / "memory.events").exists() or (folder / "memory.current").exists():
                    return Cgroup(folder=folder, mount=mount, version=version)
    return None


def host_kills(proc: Path = Path("/proc")) -> int | None:
    """The same count for the whole machine."""
    return _field(proc / "vmstat", "oom_kill")


def measure(evidence: str, cgroup: Cgroup | None, peak_bytes: int | None = None, limit_bytes: int | None = None) -> Memory:
    """The numbers as they are now."""
    tightest = cgroup.tightest() if cgroup is not None else None
    total, available = (_field(Path("/proc/meminfo"), name) for name in ("MemTotal:", "MemAvailable:"))
    return Memory(
        evidence=evidence,
        peak_bytes=peak_bytes,
        limit_bytes=limit_bytes,
        cgroup=tightest.name if tightest is not None else None,
        cgroup_limit_bytes=tightest.limit_bytes if tightest is not None else None,
        cgroup_used_bytes=tightest.used_bytes if tightest is not None else None,
        cgroup_peak_bytes=tightest.peak_bytes if tightest is not None else None,
        host_available_bytes=available * 1024 if available is not None else None,
        host_total_bytes=total * 1024 if total is not None else None,
    )


def measure_self(evidence: str) -> Memory:
    """Of this very process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return measure(evidence, cgroup_of(), peak_bytes, None if soft == resource.RLIM_INFINITY else soft)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # ValueError: "max"
        return None


def _field(path: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for row in path.read_text().splitlines():
            words = row.split()
            if len(words) >= 2 and words[0] == name:
                return int(words[1])
    return None
