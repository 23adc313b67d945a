"""What the kernel says of a process: is it stopped or frozen, and where does it stand."""

import contextlib
import functools
from pathlib import Path

_MOST_THREADS = 64


def standstill(pid: int) -> str | None:
    """ "stopped" (SIGSTOP) or "frozen" (its cgroup): it cannot run until somebody else lets it. Else None."""
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":  # not "t": a debugger holds that one, and lets it go on
            return "stopped"
        if _is_frozen(pid):
            return "frozen"
    return None


def _is_frozen(pid: int) -> bool:
    """Asked of the cgroup: a frozen process's own state is D under version 1 and S under version 2."""
    one, two = _freezers()
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        with contextlib.suppress(OSError):
            if number == "0" and two is not None and "frozen 1" in (two / path[1:] / "cgroup.events").read_text():
                return True
            if "freezer" in controllers.split(",") and one is not None:
                return (one / path[1:] / "freezer.state").read_text().strip() == "FROZEN"
    return False


@functools.cache
def _freezers() -> tuple[Path | None, Path | None]:
    """Where the freezers of cgroup versions 1 and 2 are mounted."""
    one = two = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, behind = line.partition(" - ")
        kind, _, options = behind.split(" ", 2)
        if kind == "cgroup2":
            two = Path(before.split()[4])
        elif kind == "cgroup" and "freezer" in options.split(","):
            one = Path(before.split()[4])
    return one, two


def told(pid: int) -> str:
    """Status, and for each thread its state, where it waits in the kernel and in which system call."""
    parts = [f"/proc/{pid}/status\n{_read(Path(f'/proc/{pid}/status'))}"]
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda folder: int(folder.name))
    except OSError as error:
        return "\n".join([*parts, f"/proc/{pid}/task: {error}"])
    for thread in threads[:_MOST_THREADS]:
        state = _read(thread / "stat").rpartition(")")[2].split()[:1]
        lines = [f"thread {thread.name} ({_read(thread / 'comm')}), state {' '.join(state)}"]
        lines += [f"  {name}: {_read(thread / name)}" for name in ("wchan", "syscall")]
        lines += [f"  {line}" for line in _read(thread / "stack").splitlines()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"  # some need privileges; the process may be gone
