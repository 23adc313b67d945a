"""The journal: what one process saw, one JSON line per fact, in a file that is only ever appended to.

<who>.jsonl is the newest part, <who>.jsonl.1 the one before, and so on; `<who>.jsonl.dropped` exists once the oldest was
deleted. Writing costs one system call and never an fsync: a journal outlives its process, not its machine.

A journal must never stop training. When a line cannot be written (disk full), it is counted; the first line that can be
written again is preceded by a newline, which ends whatever was torn, and a Gap saying how many are missing.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.core.records import Fact, Gap, Line

_SUFFIX = ".jsonl"
_DROPPED = "dropped"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BEYOND = 3
_REMEDY = "free space on its disk. Missing lines are counted, and it goes on as soon as it can"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


class Journal:
    """Writes one process's journal. Threads may share it; processes may not."""

    def __init__(self, folder: Path, who: str, max_bytes: int = 16 * 1024 * 1024, keep: int = 8) -> None:
        if not _NAME.fullmatch(who):
            raise ConfigError(
                f"a journal cannot be named {who!r}: it becomes a file name; use letters, digits, '.', '-', '_'"
            )
        if max_bytes < 1 or keep < 1:
            raise ConfigError(f"a journal with max_bytes={max_bytes} and keep={keep} keeps nothing: both must be at least 1")
        self._who = who
        self._path = folder / (who + _SUFFIX)
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock = threading.Lock()
        self._reported = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = _open(self._path)
            self._size = os.fstat(self._fd).st_size
            self._lost = 1 if _is_torn(self._path, self._size) else 0
        except OSError as error:
            raise InfraError(
                f"cannot open the journal {self._path}: {error.strerror}; make the folder writable for this user, or choose "
                f"another run directory"
            ) from error

    def write(self, fact: Fact) -> None:
        """Never raises for what the disk does."""
        with self._lock:
            line = self._line(fact)
            if self._size > 0 and self._size + len(line) > self._max_bytes:
                self._rotate()
            if self._lost:
                self._append(b"\n" + self._line(Gap(lost=self._lost)), line)
            else:
                self._append(b"", line)

    def recent(self, size_bytes: int) -> list[Line]:
        """The lines in about its last size_bytes, those of earlier processes of this name included."""
        return tail(self._path.parent, self._who, size_bytes)

    def close(self) -> None:
        """Idempotent. A line written later counts as lost."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _line(self, fact: Fact) -> bytes:
        line = Line(at=time.time(), ns=time.monotonic_ns(), who=self._who, what=fact)
        try:
            return _encoder.encode(line) + b"\n"
        except UnicodeEncodeError:
            # File names and tracebacks may hold bytes that are no UTF-8; the fact is worth more than those bytes.
            return _encoder.encode(_legible(msgspec.to_builtins(line))) + b"\n"

    def _append(self, mend: bytes, line: bytes) -> None:
        data = mend + line
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self._lost += 1
            self._report(f"cannot be written: {error.strerror}; {_REMEDY}")
            return
        self._size += written
        if written == len(data):
            self._lost = 0
        elif mend and written >= len(mend):
            self._lost = 1  # the Gap got through, the line after it did not
        else:
            self._lost += 1
        if self._lost:
            self._report(f"could be written only in part, the disk is full; {_REMEDY}")

    def _rotate(self) -> None:
        """Makes room by renaming. When it cannot, the present file grows on: better too long than lost."""
        try:
            if self._path.exists():  # else an earlier rotation got this far and could not open the next file
                _shift(self._path, self._keep)
            fresh = _open(self._path)
        except OSError as error:
            self._report(f"cannot be rotated: {error.strerror}; it grows on until its folder can be written again")
            return
        os.close(self._fd)
        self._fd, self._size = fresh, 0

    def _report(self, what: str) -> None:
        if self._reported:
            return
        self._reported = True
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr itself may be full, closed or absent
            print(f"regrow: the journal {self._path} {what}. Training goes on", file=sys.stderr, flush=True)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _is_torn(path: Path, size_bytes: int) -> bool:
    """Whether an earlier process of this name died in the middle of its last line."""
    if size_bytes == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _part(path: Path, number: int) -> Path:
    """Part 0 is the newest."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def _shift(path: Path, keep: int) -> None:
    """Renames part n to n + 1, up to the first free number; when there is none, the oldest part goes."""
    free = next((number for number in range(1, keep + 1) if not _part(path, number).exists()), None)
    if free is None:
        path.with_name(f"{path.name}.{_DROPPED}").touch()  # first, so that a reader is never told less than the truth
        free = keep
    for number in range(free, 0, -1):
        _part(path, number - 1).replace(_part(path, number))


def _legible(value: object) -> object:
    """The same, with text that UTF-8 cannot carry written as escapes."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_legible(key): _legible(item) for key, item in value.items()}
        case list() | tuple():
            return [_legible(item) for item in value]
    return value


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has told, in its own order."""

    who: str
    lines: list[Line]
    incomplete: bool
    """The beginning was rotated away, a part in the middle is missing, or the end is torn."""


def read(folder: Path, *, lenient: bool = False) -> Iterator[Account]:
    """The journals of a run, also while they are being written. StateError names the line of a damaged one; `lenient` goes
    on without that line, and calls the account incomplete."""
    for path in sorted(folder.glob("*" + _SUFFIX + "*")):
        if path.name.endswith(_SUFFIX):
            yield _read_one(path, lenient)
        elif path.name.endswith(f"{_SUFFIX}.1") and not (newest := path.with_suffix("")).exists():
            yield _read_one(newest, lenient)  # its process died between the two halves of a rotation


def tail(folder: Path, who: str, size_bytes: int) -> list[Line]:
    """The lines in about the last size_bytes of a process's journal, whatever its length. What does not parse,
    such as the line that size_bytes cuts in two, is left out."""
    pieces: list[bytes] = []
    with contextlib.ExitStack() as stack:
        parts, _ = _open_parts(folder / (who + _SUFFIX), stack)
        for part in parts:
            end = part.seek(0, os.SEEK_END)
            start = max(0, end - size_bytes)
            part.seek(start)
            pieces.append(part.read(end - start))
            size_bytes -= end - start
            if size_bytes <= 0:
                break
    raw = [line for piece in reversed(pieces) for line in piece.split(b"\n")]
    return [line for line in map(_parse, raw) if line is not None]


def _read_one(path: Path, lenient: bool) -> Account:
    lines: list[Line] = []
    damaged: str | None = None
    spoiled = False
    with contextlib.ExitStack() as stack:
        parts, incomplete = _open_parts(path, stack)
        for part in reversed(parts):
            for number, raw in enumerate(part, start=1):
                line = _parse(raw)  # None also for the empty line that ends a torn one
                if line is None:
                    damaged = damaged or f"{part.name}, line {number}"
                    continue
                if damaged is not None and not isinstance(line.what, Gap):
                    spoiled = True
                    if not lenient:
                        raise StateError(
                            f"{damaged} is not a journal line, and no Gap after it says that lines were lost: the file was "
                            "damaged or edited; restore it from a copy, or move this process's journal out of the run "
                            "directory"
                        )
                damaged = None
                lines.append(line)
    # A torn last line: a kill in the middle of a write, or a disk that stayed full and swallowed more than this one.
    incomplete = incomplete or spoiled or damaged is not None
    return Account(who=path.name.removesuffix(_SUFFIX), lines=lines, incomplete=incomplete)


def _open_parts(path: Path, stack: contextlib.ExitStack) -> tuple[list[BinaryIO], bool]:
    """All parts of a journal, newest first, and whether some are missing.

    Rotations may happen meanwhile. Numbers only grow, so going up overtakes no part; it may meet one again, and newer ones
    before that, hence the place where each was met last counts. A few numbers beyond the highest are tried too, because a
    listing may miss a file that is being renamed. Seen in the middle of a rotation, a journal may look incomplete.
    """
    parts: dict[int, BinaryIO] = {}
    incomplete = path.with_name(f"{path.name}.{_DROPPED}").exists()
    number, highest, hole = -1, _highest(path), False
    while number < highest + _BEYOND:
        number += 1
        try:
            part = stack.enter_context(_part(path, number).open("rb"))
        except FileNotFoundError:
            hole = hole or number > 0
            continue
        highest = max(highest, number)
        inode = os.fstat(part.fileno()).st_ino
        incomplete = incomplete or (hole and inode not in parts)
        parts[inode] = parts.pop(inode, part)
    return list(parts.values()), incomplete


def _highest(path: Path) -> int:
    ends = (other.name[len(path.name) + 1 :] for other in path.parent.glob(f"{path.name}.*"))
    return max((int(end) for end in ends if end.isdigit()), default=0)


def _parse(raw: bytes) -> Line | None:
    try:
        return _decoder.decode(raw)
    except (ValueError, RecursionError):
        return None
