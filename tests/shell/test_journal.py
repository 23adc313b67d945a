"""The journal loses nothing silently: not to rotation, a torn line, a full disk or a damaged file."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.core.records import Departed, Fact, Gap, Line, Refused
from regrow.shell.journal import Account, Journal, read, tail


def _fact(number: int, size_bytes: int = 0) -> Fact:
    return Refused(peer=str(number), why="x" * size_bytes)


def _only(folder: Path) -> Account:
    (account,) = read(folder)
    return account


def _numbers(lines: list[Line]) -> list[int]:
    return [int(line.what.peer) for line in lines if isinstance(line.what, Refused)]


def _lost(lines: list[Line]) -> list[int]:
    return [line.what.lost for line in lines if isinstance(line.what, Gap)]


def test_facts_come_back_in_order_with_who_and_when(tmp_path: Path) -> None:
    journals = {who: Journal(tmp_path / "run", who) for who in ("r0.1", "r0.12", "agent")}
    for number in range(3):
        for journal in journals.values():
            journal.write(_fact(number))
    accounts = list(read(tmp_path / "run"))
    assert {account.who for account in accounts} == journals.keys()
    for account in accounts:
        assert _numbers(account.lines) == [0, 1, 2]
        assert {line.who for line in account.lines} == {account.who}
        assert [line.ns for line in account.lines] == sorted(line.ns for line in account.lines)
        assert not account.incomplete


def test_one_line_is_one_write_and_never_an_fsync(tmp_path: Path) -> None:
    if not _has_strace():
        pytest.skip("strace is not installed: system calls cannot be counted")
    script = (
        "import sys; from pathlib import Path\n"
        "from regrow.core.records import Gap; from regrow.shell.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]), 'r0.1')\n"
        "for lost in range(50): journal.write(Gap(lost=lost))\n"
    )
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=write,writev,pwrite64,fsync,fdatasync"]
    subprocess.run([*command, sys.executable, "-c", script, str(tmp_path / "run")], check=True, timeout=60)
    calls = [line for line in trace.read_text().splitlines() if "r0.1.jsonl" in line]
    assert len(calls) == 50
    assert all(" write(" in call for call in calls)


def test_rotation_keeps_the_newest_parts_and_says_when_the_beginning_is_gone(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1", max_bytes=1000, keep=3)
    rotated = tmp_path / "r0.1.jsonl.3"
    whole = 0
    while not rotated.exists():
        journal.write(_fact(whole, 100))
        whole += 1
    assert _numbers(_only(tmp_path).lines) == list(range(whole))
    assert not _only(tmp_path).incomplete

    for number in range(whole, 3 * whole):
        journal.write(_fact(number, 100))
    account = _only(tmp_path)
    first = _numbers(account.lines)[0]
    assert first > 0
    assert _numbers(account.lines) == list(range(first, 3 * whole))
    assert account.incomplete
    assert not (tmp_path / "r0.1.jsonl.4").exists()
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())


def test_a_line_longer_than_a_part_is_still_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1", max_bytes=100, keep=8)
    for number in range(3):
        journal.write(_fact(number, 500))
    assert _numbers(_only(tmp_path).lines) == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 3  # no part was spent on nothing


def test_a_missing_part_in_the_middle_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1", max_bytes=300, keep=20)
    for number in range(12):
        journal.write(_fact(number, 100))
    assert not _only(tmp_path).incomplete
    (tmp_path / "r0.1.jsonl.2").unlink()
    assert _only(tmp_path).incomplete


def test_a_process_that_died_while_rotating_lost_nothing(tmp_path: Path) -> None:
    Journal(tmp_path, "r0.1").write(_fact(0))
    (tmp_path / "r0.1.jsonl").rename(tmp_path / "r0.1.jsonl.1")
    assert _numbers(_only(tmp_path).lines) == [0]
    assert _numbers(tail(tmp_path, "r0.1", 10_000)) == [0]
    Journal(tmp_path, "r0.1").write(_fact(1))
    assert _numbers(_only(tmp_path).lines) == [0, 1]
    assert not _only(tmp_path).incomplete


def test_a_rotation_that_fails_loses_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path, "r0.1", max_bytes=300, keep=1)
    obstacle = tmp_path / "r0.1.jsonl.1"
    obstacle.mkdir()  # a file cannot be renamed over a folder, not even by root
    for number in range(10):
        journal.write(_fact(number, 100))
    obstacle.rmdir()
    assert _numbers(_only(tmp_path).lines) == list(range(10))
    assert capsys.readouterr().err.count("cannot be rotated") == 1


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_last_line_is_legal_and_the_next_process_confesses_it(tmp_path: Path, kept: int) -> None:
    journal = Journal(tmp_path, "agent")
    journal.write(_fact(0))
    journal.write(_fact(1))
    path = tmp_path / "agent.jsonl"
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first + b"\n" + second[:kept])
    assert _numbers(_only(tmp_path).lines) == [0]

    Journal(tmp_path, "agent").write(_fact(2))
    lines = _only(tmp_path).lines
    assert _numbers(lines) == [0, 2]
    assert _lost(lines) == [1]


def test_a_damaged_line_elsewhere_names_file_and_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1", max_bytes=1000)
    for number in range(30):
        journal.write(_fact(number, 100))
    path = tmp_path / "r0.1.jsonl.1"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0\0 not json\n", *lines[3:]]))
    with pytest.raises(StateError, match=re.escape(f"{path}, line 3 is not a journal line")):
        list(read(tmp_path))


def test_a_damaged_line_before_a_gap_is_legal(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1")
    path = tmp_path / "r0.1.jsonl"
    journal.write(_fact(0))
    with path.open("ab") as file:
        file.write(b'{"at":1\n{"at')
    journal.close()
    again = Journal(tmp_path, "r0.1")
    again.write(_fact(1))
    assert _numbers(_only(tmp_path).lines) == [0, 1]


def test_a_disk_that_fills_up_never_raises_and_is_confessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _tiny_disk(tmp_path / "disk", "64k") as disk:
        ballast = disk / "ballast"
        journal = Journal(disk / "run", "r0.1")
        for number in range(10):
            journal.write(_fact(number))
        for round_ in range(3):
            _fill(ballast)
            for number in range(200):
                journal.write(_fact(1000 * round_ + 100 + number, 50))
            ballast.unlink()
            journal.write(_fact(1000 * round_ + 900))
        lines = _only(disk / "run").lines
        told, lost = _numbers(lines), _lost(lines)
        assert told == sorted(told)
        assert [number for number in told if number % 1000 == 900] == [900, 1900, 2900]
        assert len(lost) == 3
        assert len(told) + sum(lost) == 10 + 3 * 201
        assert any(b'{"at"' in raw[1:] or raw[-1:] != b"}" for raw in _raw_lines(disk / "run")), (
            "no line was torn: weak test"
        )
        journal.close()
    errors = capsys.readouterr().err
    assert errors.count("regrow: the journal") == 1
    assert "free space" in errors


def test_a_gap_that_fits_before_a_line_that_does_not_is_not_counted_twice(tmp_path: Path) -> None:
    with _tiny_disk(tmp_path / "disk", "64k") as disk:
        journal, ballast = Journal(disk / "run", "r0.1"), disk / "ballast"
        journal.write(_fact(0))
        _fill(ballast)
        for number in range(1, 101):
            journal.write(_fact(number, 50))
        os.truncate(ballast, ballast.stat().st_size - 4096)  # one page: room for the Gap and not for the line
        journal.write(_fact(101, 8000))
        ballast.unlink()
        journal.write(_fact(102))
        lines = _only(disk / "run").lines
        assert _lost(lines)[-1] == 1
        assert len(_numbers(lines)) + sum(_lost(lines)) == 103
        journal.close()


def test_a_process_that_dies_on_a_full_disk_leaves_a_readable_journal(tmp_path: Path) -> None:
    with _tiny_disk(tmp_path / "disk", "64k") as disk:
        journal = Journal(disk / "run", "r0.1")
        for number in range(10):
            journal.write(_fact(number))
        _fill(disk / "ballast")
        for number in range(10, 200):
            journal.write(_fact(number, 50))
        journal.close()
        told = _numbers(_only(disk / "run").lines)
        assert told == list(range(len(told)))
        assert 10 <= len(told) < 200


def test_a_closed_journal_swallows_late_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1")
    journal.write(_fact(0))
    journal.close()
    journal.close()
    journal.write(_fact(1))
    assert _numbers(_only(tmp_path).lines) == [0]


def test_a_folder_that_cannot_be_written_says_so_at_once(tmp_path: Path) -> None:
    with _tiny_disk(tmp_path / "disk", "64k") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=10)  # root ignores modes, not this
        with pytest.raises(
            InfraError, match=r"cannot open the journal .*r0\.1\.jsonl: Read-only file system; make the folder"
        ):
            Journal(disk, "r0.1")


def test_a_journal_path_through_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(InfraError, match="cannot open the journal"):
        Journal(tmp_path / "run", "r0.1")


@pytest.mark.parametrize("who", ["", ".hidden", "a/b", "r*", "a b"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, who: str) -> None:
    with pytest.raises(ConfigError, match="a journal cannot be named"):
        Journal(tmp_path, who)


def test_limits_that_keep_nothing_are_refused(tmp_path: Path) -> None:
    for limits in ({"max_bytes": 0}, {"keep": 0}):
        with pytest.raises(ConfigError, match="keeps nothing"):
            Journal(tmp_path, "r0.1", **limits)


def test_text_that_is_no_utf8_is_kept_as_escapes(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1")
    journal.write(Departed(step=3, why="file \udcff.py", fault=None, digest=None))
    (line,) = _only(tmp_path).lines
    assert line.what == Departed(step=3, why="file \\udcff.py", fault=None, digest=None)


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1", max_bytes=2000, keep=1000)
    threads = [threading.Thread(target=lambda: [journal.write(_fact(n, n)) for n in range(200)]) for _ in range(4)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    account = _only(tmp_path)
    assert sorted(_numbers(account.lines)) == sorted([*range(200)] * 4)
    assert not account.incomplete


def test_the_tail_is_the_last_whole_lines_across_rotations(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1", max_bytes=1000, keep=8)
    for number in range(40):
        journal.write(_fact(number, 100))
    every = _numbers(_only(tmp_path).lines)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.jsonl*"))
    line_bytes = len((tmp_path / "r0.1.jsonl.1").read_bytes().splitlines(keepends=True)[0])
    for wanted in range(0, size + 10, 7):
        got = _numbers(tail(tmp_path, "r0.1", wanted))
        assert got == every[len(every) - len(got) :]
        assert len(got) >= min(len(every), wanted // (line_bytes + 2))
        assert len(got) <= wanted // (line_bytes - 2)
    assert tail(tmp_path, "nobody", 1000) == []


def test_the_tail_of_a_long_journal_reads_only_its_end(tmp_path: Path) -> None:
    Journal(tmp_path, "r0.1").write(_fact(7))
    path = tmp_path / "r0.1.jsonl"
    line = path.read_bytes()
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it whole would take hours
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + line)
    assert _numbers(tail(tmp_path, "r0.1", 4096)) == [7]


def test_reading_while_rotating_sees_every_line_so_far_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.1", max_bytes=2000, keep=1000)
    done = threading.Event()

    def write() -> None:
        for number in range(5000):
            journal.write(_fact(number))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    before = 0
    while not done.is_set():
        for account in read(tmp_path):
            numbers = _numbers(account.lines)
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= before
            before = len(numbers)
    writer.join()
    assert _numbers(_only(tmp_path).lines) == list(range(5000))


@contextlib.contextmanager
def _tiny_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True, timeout=10
    )
    if mounted.returncode != 0:
        pytest.skip(f"needs a tmpfs to fill up, and mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=10)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def _raw_lines(folder: Path) -> list[bytes]:
    return [raw for path in folder.iterdir() for raw in path.read_bytes().split(b"\n") if raw]


def _has_strace() -> bool:
    return any(os.access(Path(place) / "strace", os.X_OK) for place in os.get_exec_path())
