"""One run of one system: it is started, watched, struck, and ended with everything that it had started."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from compare.experiment import LIMIT_S
from compare.jobs.turns import Turns
from compare.story import Line, Story, Strike
from compare.systems import Command, System, Work

MARK = "COMPARE_RUN"
POLL_S = 0.005
QUIET = 20
"""For each second of looking it sleeps so many: whoever watches takes next to nothing from those who train."""
STARTUP_S = 90.0


class NotStarted(Exception):
    """A system did not train at all: its output says why."""


def marks() -> Iterator[tuple[int, str]]:
    """Of all living processes that were started by a harness: whose they are."""
    begin = f"{MARK}=".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environ = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it is gone, or a zombie, which has no environment
            yield from ((int(folder.name), part.removeprefix(begin).decode()) for part in environ if part.startswith(begin))


def sweep() -> int:
    """Kill what a harness left that was killed itself."""
    orphans = [pid for pid, mark in marks() if not Path("/proc", mark.partition("-")[0]).exists()]
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(orphans)


class Run:
    def __init__(self, system: System, work: Work, folder: Path, *, in_turns: bool = False) -> None:
        self.system = system
        self.work = work
        self.folder = folder
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._lines: list[Line] = []
        self._unread: dict[Path, tuple[int, bytes]] = {}
        self._strikes: list[Strike] = []
        self._gone: dict[int, float] = {}
        self._watched: dict[int, int] = {}
        """Processes and their pidfds."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, Command] = {}
        for name in ("steps", "saved"):
            (folder / name).mkdir(parents=True)
        if in_turns:
            self.allow(0)

    def __enter__(self) -> Self:
        try:
            for command in self.system.commands(self.work, self.folder):
                self._commands[command.name] = command
                self.start(command.name)
                self._wait_ready(command)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def start(self, name: str) -> None:
        """Once more, where it was killed before."""
        command = self._commands[name]
        environ = {**os.environ, **command.environ, MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        with (self.folder / f"{name}.txt").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command.argv,
                env=environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watch(self._processes[name].pid)

    def _wait_ready(self, command: Command) -> None:
        deadline = time.monotonic() + STARTUP_S
        while command.ready and command.ready not in (self.folder / f"{command.name}.txt").read_text(errors="replace"):
            if self._processes[command.name].poll() is not None or time.monotonic() > deadline:
                raise NotStarted(
                    f"{self.system.name}: {command.name} did not print {command.ready!r}: {self.output[-1500:]}"
                )
            time.sleep(POLL_S)

    def allow(self, steps: int) -> None:
        """Steps below this one may begin."""
        Turns.open(self.folder / "turns", steps)

    @property
    def story(self) -> Story:
        self._read()
        self._look()
        return Story(lines=self._lines, until=time.monotonic(), strikes=self._strikes, gone=self._gone)

    def pid_of(self, name: str) -> int:
        return self._processes[name].pid

    @property
    def names(self) -> list[str]:
        return list(self._commands)

    def has_ended(self) -> bool:
        """Is everything gone that the harness has started?"""
        return all(process.poll() is not None for process in self._processes.values())

    def wait_started(self, condition: Callable[[Story], bool]) -> Story:
        """Until it trains."""
        story = self.wait(condition, STARTUP_S, or_ended=True)
        if not condition(story):
            raise NotStarted(f"{self.system.name} ({self.system.settings}) did not train as expected: {self.output[-1500:]}")
        return story

    def wait(self, condition: Callable[[Story], bool], at_most_s: float = LIMIT_S, *, or_ended: bool = False) -> Story:
        """Until the condition holds or the time is up; the caller looks which. `or_ended`: or until all has ended."""
        end = time.monotonic() + at_most_s
        while True:
            begun = time.monotonic()
            has_ended = or_ended and self.has_ended()  # looked at first: what it noted before its end is read below
            story = self.story
            if condition(story) or story.until > end or has_ended:
                return story
            time.sleep(max(POLL_S, QUIET * (time.monotonic() - begun)))

    def strike(self, pid: int, kill: signal.Signals, replica: int = -1) -> Strike:
        strike = Strike(at=time.monotonic(), what=kill.name, pid=pid, replica=replica)
        self._strikes.append(strike)
        os.kill(pid, kill)
        return strike

    def hung(self, line: Line) -> Strike:
        """It struck itself."""
        strike = Strike(at=line.at, what="hang", pid=line.pid, replica=line.replica)
        self._strikes.append(strike)
        return strike

    def training(self) -> dict[int, Line]:
        """The processes that have committed a step and live, each with its last commit."""
        return {line.pid: line for line in self.story.commits if line.pid not in self._gone}

    def kill_command(self, name: str) -> Strike:
        """As `kill -9` does: this one process, whatever it has started."""
        process = self._processes[name]
        strike = self.strike(process.pid, signal.SIGKILL)
        process.wait()
        return strike

    @property
    def output(self) -> str:
        """Of all that was started, one after the other."""
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("*.txt")))

    def end(self) -> None:
        """Nothing is left of it: those who start others are killed first, and it is looked until nobody bears its mark."""
        deadline = time.monotonic() + 30.0
        while pids := self._marked():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._processes.values():
                process.poll()
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {sorted(pids)} of {self.folder} survive SIGKILL: end them by hand")
            time.sleep(POLL_S)
        for process in self._processes.values():
            process.wait()
        for descriptor in self._watched.values():
            os.close(descriptor)
        self._watched.clear()

    def _marked(self) -> list[int]:
        return [pid for pid, mark in marks() if mark == self._mark]

    def _watch(self, pid: int) -> None:
        if pid in self._watched or pid in self._gone:
            return
        try:
            self._watched[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone[pid] = time.monotonic()

    def _look(self) -> None:
        poll = select.poll()
        for descriptor in self._watched.values():
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(0)}
        for pid, descriptor in list(self._watched.items()):
            if descriptor in ready:
                self._gone[pid] = time.monotonic()
                os.close(self._watched.pop(pid))

    def _read(self) -> None:
        fresh = []
        for path in (self.folder / "steps").glob("*.jsonl"):
            at, rest = self._unread.get(path, (0, b""))
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            *whole, rest = (rest + data).split(b"\n")
            self._unread[path] = (at + len(data), rest)
            fresh += [Line(**json.loads(row)) for row in whole]
        for pid in {line.pid for line in fresh}:
            self._watch(pid)
        self._lines = sorted(self._lines + fresh, key=lambda line: line.at) if fresh else self._lines
