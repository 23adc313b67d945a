"""Does a process still live? Answered from /proc, by pid and something that its next owner would not share."""

from pathlib import Path


class _Stat:
    """The fields of /proc/PID/stat behind the command's name, which may itself hold spaces and brackets."""

    def __init__(self, text: str) -> None:
        fields = text.rpartition(")")[2].split()
        self.state = fields[0]
        self.parent = int(fields[1])
        self.born = int(fields[19])


def _stat(pid: int) -> _Stat | None:
    try:
        stat = _Stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if stat.state in "ZX" else stat


def born(pid: int) -> int:
    """When it started, in clock ticks since the machine did; 0 when it is gone."""
    stat = _stat(pid)
    return stat.born if stat else 0


def is_process(pid: int, born_at: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat.born == born_at


def is_child(pid: int, parent: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat.parent == parent
