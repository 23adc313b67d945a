"""Was a SIGKILL that nobody here sent the kernel's out-of-memory killer?

Two witnesses. The kernel's log names the pid it killed: that is proof, where this process may read the log. The cgroup's
count of such kills (or, without one, the host's) only says that there was a victim: then the answer is "probably", and
each kill counted is given to one death. Workers that die by SIGKILL within a moment of one another cannot be told apart
by a count, so those beyond it are "perhaps".
"""

import contextlib
import ctypes
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from regrow.agent.exits import is_kill
from regrow.core.memory import Memory
from regrow.shell.memory import Cgroup, cgroup_of, host_kills, measure

_KILLED = re.compile(r"Killed process (\d+) ")
_RECORD_BYTES = 8192
_MOMENT_S = 1.0
_WAITID = {"x86_64": 247, "aarch64": 95}.get(platform.machine())
_P_PID = 1
_INITIAL_PIDS = 0xEFFFFFFC
"""The inode that the kernel gives the initial pid namespace, always."""


class OomKill(msgspec.Struct, frozen=True, kw_only=True):
    how: str
    """The end of a sentence that begins with the worker's name."""
    memory: Memory


class OomWatch:
    """Knows the workers of this host from their start to their end."""

    def __init__(
        self,
        kernel_log: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        find: Callable[[int], Cgroup | None] = cgroup_of,
        count_host: Callable[[], int | None] = host_kills,
    ) -> None:
        self._clock = clock
        self._find = find
        self._count_host = count_host
        self._cgroups: dict[int, Cgroup | None] = {}
        self._accounted: dict[str, int] = {}
        """Of each count, how many kills were there at the start or were given to a death."""
        self._guessed_s: dict[str, float] = {}
        """When a kill of this count was last given to a death without proof."""
        self._named: set[int] = set()
        self._log = -1
        with contextlib.suppress(OSError):
            self._log = os.open(kernel_log or _kernel_log(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
        self._log = -1

    def began(self, pid: int) -> None:
        cgroup = self._cgroups[pid] = self._find(pid)
        name, kills = self._count(cgroup)
        self._accounted.setdefault(name, kills or 0)
        self._named.discard(pid)  # an earlier process of this number

    def ended(self, pid: int, status: int, is_ours: bool) -> OomKill | None:
        """While it is still a zombie. `is_ours`: this agent killed it itself."""
        cgroup = self._cgroups.pop(pid, None)
        if is_ours or not is_kill(status):
            return None
        name, kills = self._count(cgroup)
        self._read_log()
        if pid in self._named:
            self._named.discard(pid)
            self._accounted[name] = self._accounted.get(name, 0) + 1
            how, evidence = "was killed by the kernel's out-of-memory killer", "the kernel's log names its pid"
        else:
            others = sum(other in self._named and self._count(its)[0] == name for other, its in self._cgroups.items())
            rise = (kills or 0) - self._accounted.get(name, 0) - others
            counted = "the host" if name == _HOST else f"cgroup {name}"
            now = self._clock()
            if rise > 0:
                self._accounted[name] += 1
                self._guessed_s[name] = now
                how = "was probably killed by the kernel's out-of-memory killer"
                evidence = (
                    f"{counted} counted {rise} more such kill{'s' * (rise > 1)}; the kernel's log does not name its pid"
                )
            elif now - self._guessed_s.get(name, float("-inf")) < _MOMENT_S:
                how = "killed by SIGKILL, perhaps by the kernel's out-of-memory killer"
                evidence = f"{counted} counted fewer such kills than workers died by SIGKILL at that moment"
            else:
                return None
        memory = measure(evidence, cgroup, peak_bytes(pid))
        return OomKill(how=f"{how} ({memory})", memory=memory)

    def _count(self, cgroup: Cgroup | None) -> tuple[str, int | None]:
        if cgroup is not None and (kills := cgroup.kills) is not None:
            return cgroup.name, kills
        return _HOST, self._count_host()

    def _read_log(self) -> None:
        """What was written since the last time. EPIPE says once that records were overwritten; reading then goes on."""
        while self._log >= 0:
            try:
                record = os.read(self._log, _RECORD_BYTES)
            except BrokenPipeError:
                continue
            except OSError:
                return
            if not record:
                return
            self._named |= {int(pid) for pid in _KILLED.findall(record.decode(errors="replace"))}


_HOST = "host"


def _kernel_log() -> Path:
    """The log numbers processes as the whole machine does; in a container ours are others, and it proves nothing."""
    is_container = os.stat("/proc/self/ns/pid").st_ino != _INITIAL_PIDS
    if is_container:
        raise PermissionError("not in the initial pid namespace")
    return Path("/dev/kmsg")


class _Usage(ctypes.Structure):
    _fields_ = (("times", ctypes.c_long * 4), ("maxrss_kib", ctypes.c_long), ("rest", ctypes.c_long * 13))


def peak_bytes(pid: int) -> int | None:
    """The most memory that a dead child held, asked before it is reaped: Python's waitid leaves this out."""
    if _WAITID is None:
        return None
    usage, libc = _Usage(), ctypes.CDLL(None)
    seen = libc.syscall(_WAITID, _P_PID, pid, None, os.WEXITED | os.WNOHANG | os.WNOWAIT, ctypes.byref(usage))
    return usage.maxrss_kib * 1024 if seen == 0 and usage.maxrss_kib > 0 else None
