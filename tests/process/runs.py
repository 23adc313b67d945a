"""Real jobs under attack: start `regrow run`, wait for facts in its journal, and prove what it promised."""

import contextlib
import getpass
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest

from regrow.cli.run_dir import RunDir
from regrow.cli.why import gather
from regrow.core.lanes import lanes_in
from regrow.core.order import Plan
from regrow.core.progress import Phase
from regrow.core.records import Committed, Departed, Fact, LaneComputed, RosterMade, WorkerExited, WorkerStarted
from regrow.shell.journal import read

T = TypeVar("T")
HERE = Path(__file__).parent
TINY = HERE / "tiny.py"
LANES = 6
EVEN = tuple(part for number in range(8) for part in ("--speed", f"r{number}=1"))
"""Lanes stay where they are on a machine that is busy with something else: where rosters are counted, or the steps that are
saved. A boundary at which lanes are dealt anew puts its save off to the next one."""
DEADLINE_S = 120.0
REGROW = [str(Path(sys.executable).parent / "regrow")]


def sparse(cases: Sequence[T], step: int) -> list[object]:
    """Every so many of these cases in `make test`, all of them in `make test-all`."""
    return [case if at % step == 0 else pytest.param(case, marks=pytest.mark.matrix) for at, case in enumerate(cases)]


def each(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    return list(product(first, second))


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> object:
    """Until the condition gives something true. Between two looks it sleeps for longer than a look takes: those who are
    looked at have the cores."""
    end = time.monotonic() + deadline_s
    begun = time.monotonic()
    while not (found := condition()):
        looked = time.monotonic()
        if looked > end:
            raise AssertionError(f"waited {deadline_s:g} s in vain for {what}")
        time.sleep(max(0.005, 2 * (looked - begun)))
        begun = time.monotonic()
    return found


def phase(pid: int) -> Phase:
    """Where a worker's training thread is, by its stamp."""
    page = next(fd for fd in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(fd).startswith("/memfd:regrow-"))
    with page.open("rb") as file:
        return list(Phase)[struct.unpack("=4q", file.read(32))[3]]


def is_stopped(pid: int) -> bool:
    """By the kernel's word."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_together(pids: Iterable[int]) -> None:
    """Those of them that live. They are stopped first, so that none sees another one die."""
    pids = list(pids)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Run:
    """One `regrow run`, from its start to what is left of it."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        script: Path = TINY,
        script_args: tuple[str, ...] = (),
        run_dir: Path | None = None,
        before: tuple[str, ...] = (),
    ) -> None:
        """`before`: a command in front of the command."""
        self.folder = run_dir or folder / "run"
        self.log = folder / "terminal.txt"
        command = [*before, *REGROW, "run", "--run-dir", str(self.folder), *arguments, str(script), *script_args]
        self._out = self.log.open("wb")
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._shared = set(os.listdir("/dev/shm"))
        self._mark = f"REGROW_TEST_MARK={folder}".encode()
        self.process = subprocess.Popen(
            command,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "REGROW_TEST_MARK": str(folder), "TMPDIR": str(self.temporary)},
        )

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the job did not end within {DEADLINE_S:g} s\n{self.story()}") from None
        finally:
            self._out.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def facts(self, kind: type[Fact] | None = None, who: str | None = None) -> list[tuple[str, Fact]]:
        """What the journals hold so far, process by process."""
        folder = self.folder / "journal"
        if not folder.is_dir():
            return []
        return [
            (process.who, line.what)
            for process in read(folder)
            for line in process.lines
            if (kind is None or isinstance(line.what, kind)) and (who is None or process.who == who)
        ]

    def processes(self) -> dict[int, str]:
        """Every living process that this job started, directly or not, with its command line."""
        return marked(self._mark)

    def warm_pids(self) -> set[int]:
        """Warm parents: workers are forked from them and share their command line, but lead sessions of their own."""
        workers = set(self.pids().values())
        warm = {pid for pid, command in self.processes().items() if "regrow.worker.warm" in command and pid not in workers}
        return {pid for pid in warm if os.getsid(pid) == pid}

    def listening(self, pids: Iterable[int] | None = None) -> dict[int, int]:
        """Inodes of the sockets on which the job's processes, or these, listen, with their ports."""
        inodes: set[int] = set()
        for pid in self.processes() if pids is None else pids:
            for fd in _descriptors(pid):
                if fd.startswith("socket:["):
                    inodes.add(int(fd[len("socket:[") : -1]))
        return {inode: port for inode, port in _listeners().items() if inode in inodes}

    def wait_nothing_left(self, sockets: dict[int, int]) -> None:
        """No process, none of these listening sockets, no shared memory, no temporary file."""
        wait_for(lambda: not self.processes(), "every process to be gone", 20.0)
        # A dying process gives up its memory, and with it its name here, before its descriptors.
        wait_for(lambda: not _listeners().keys() & sockets.keys(), "every listening socket to be gone", 5.0)
        # Other jobs of this machine come and go there too: theirs go.
        wait_for(lambda: set(os.listdir("/dev/shm")) <= self._shared, "shared memory to be gone", 60.0)
        # torch makes its compiler's cache folder whenever torch._dynamo is imported, by whomever, and keeps it.
        assert {path.name for path in self.temporary.iterdir()} <= {f"torchinductor_{getpass.getuser()}"}
        assert not [path for path in self.temporary.rglob("*") if not path.is_dir()]

    def pids(self) -> dict[str, int]:
        """Every member ever started, with its pid."""
        return {str(fact.member): fact.pid for _, fact in self.facts(WorkerStarted)}

    def live_pids(self) -> list[int]:
        return [pid for pid in self.pids().values() if Path(f"/proc/{pid}").exists()]

    def wait_stopped(self, who: str) -> int:
        """Until this member has been stopped by its fault point; its pid."""

        def stopped() -> int | None:
            pid = self.pids().get(who)
            return pid if pid and is_stopped(pid) else None

        pid = wait_for(stopped, f"{who} to be stopped")
        assert isinstance(pid, int)
        return pid

    def committed(self, who: str) -> int:
        """How many steps this member has committed."""
        return len(self.facts(Committed, who))

    def enough(self) -> int:
        """It stops, with code 0, after the step that this gives, of as many as its script is to do at most."""
        (self.folder / "enough").touch()
        assert self.wait() == 0, self.story()
        return 1 + max(fact.step for _, fact in self.facts(Committed))

    def digests(self) -> list[str]:
        """Printed by the script at its end, one per replica that got there."""
        return re.findall(r"^(?:\[\w+\] )?digest (\w{64})", self.output, re.MULTILINE)

    def status(self) -> dict[str, object]:
        done = subprocess.run([*REGROW, "status", str(self.folder), "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def check(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*REGROW, "check", str(self.folder)], capture_output=True, text=True, check=False)

    def story(self) -> str:
        """The last that it said and did, all processes by the one clock of this machine."""
        facts = [(line.ns, process.who, line.what) for process in read(self.folder / "journal") for line in process.lines]
        told = sorted((fact for fact in facts if not isinstance(fact[2], LaneComputed)), key=lambda fact: fact[0])
        rows = [f"{ns / 1e9:.3f} {who}: {what}" for ns, who, what in told]
        return "\n".join([self.output[-6000:], *rows[-120:]])


def marked(mark: bytes) -> dict[int, str]:
    """Every living process with this in its environment, with its command line."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def _descriptors(pid: int) -> list[str]:
    try:
        return [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except (FileNotFoundError, ProcessLookupError):
        return []  # it ended, or closed one, meanwhile


def _listeners() -> dict[int, int]:
    """Every listening TCP socket of this machine: inode and port."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[9]): int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def trail(steps: int) -> list[str]:
    """The digest of a job of one after 0, 1, 2, ... steps."""
    return re.findall(r"^at \d+ (\w{64})", _alone("--steps", str(steps), "--trail"), re.MULTILINE)


def alone(*script_args: str, script: Path = TINY) -> str:
    """The digest of the same script as a job of one."""
    return _alone(*script_args, script=script).split("digest ")[1].strip()


def _alone(*script_args: str, script: Path = TINY) -> str:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("REGROW_")}
    done = subprocess.run(
        [sys.executable, str(script), *script_args],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def prove(
    run: Run, reference: str, *, deaths: Counter[str], first: int = 0, steps: int = 24, microbatches: int = 1, code: int = 0
) -> None:
    """The last lines of every attack: equal digests, a clean check, nobody else touched, the right ones named, every
    sample once. `first`: the step that it began from."""
    story = run.story()
    assert run.process.returncode == code, story
    digests = run.digests()
    assert digests and set(digests) == {reference}, f"{digests} instead of {reference}\n{story}"
    departed = {fact.digest for _, fact in run.facts(Departed)}
    assert departed == {reference}, story
    check = run.check()
    assert check.returncode == 0, f"{check.stdout}{check.stderr}\n{story}"
    exits = [fact for _, fact in run.facts(WorkerExited) if not fact.clean and not fact.how.startswith("was ended")]
    died = Counter(fact.member.replica for fact in exits)
    named = Counter({replica: count for replica, count in deaths.items() if replica != "*"})
    assert died >= named and died.total() == deaths.total(), f"died: {died}, attacked: {deaths}\n{story}"
    tale = gather(RunDir(run.folder)).tale
    blamed = Counter(culprit.member for episode in tale.episodes for culprit in episode.culprits)
    assert blamed >= Counter(str(fact.member) for fact in exits), f"regrow why names {blamed}\n{story}"
    assert max(blamed.values(), default=1) == 1, f"regrow why names {blamed}\n{story}"
    _prove_samples(run, first, steps, microbatches)


def _prove_samples(run: Run, first: int, steps: int, microbatches: int) -> None:
    """Every place of the stream contributes once, and its holder was really handed that sample."""
    plan = Plan(seed=5, lanes=LANES, microbatches_per_lane=microbatches, batch_size=3, dataset_size=97)
    rosters = {fact.version: fact for _, fact in run.facts(RosterMade)}
    computed = {(who, fact.step, fact.lane): fact for who, fact in run.facts(LaneComputed)}
    commits = {fact.step: fact for _, fact in run.facts(Committed)}
    assert sorted(commits) == list(range(first, steps))
    used: list[int] = []
    for step, commit in commits.items():
        for seat, nodes in zip(rosters[commit.attempt].seats, commit.holdings, strict=True):
            for lane in lanes_in(nodes):
                fact = computed[(str(seat.member), step, lane)]
                used += range(fact.start, fact.stop)
                handed = _handed(run, str(seat.member), step)
                assert {plan.sample(position) for position in range(fact.start, fact.stop)} <= handed
    samples = range(first * LANES * microbatches * 3, steps * LANES * microbatches * 3)
    assert sorted(used) == list(samples), "a sample was used twice or never"


def _handed(run: Run, who: str, step: int) -> set[int]:
    rows = (run.folder / f"used-{who}.txt").read_text().splitlines()
    return {int(index) for row in rows if int(row.split()[0]) == step for index in row.split()[1:]}
