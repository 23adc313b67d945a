"""The job that a soak attacks: a coordinator of its own, which may be killed and started again, and a `regrow run`.

All that is known of them is what anybody can read: the journals, the coordinator's file, /proc. Both die with this process.
"""

import ctypes
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from regrow.coordinator.store import load
from regrow.core.errors import InfraError
from regrow.core.records import Committed, StateKept, VaultStarted, WorkerExited, WorkerStarted
from regrow.core.roster import Member, Roster
from regrow.shell.journal import tail

SCRIPT = Path(__file__).with_name("soak_job.py")
PACE_S = 0.01
"""What a microbatch takes besides: without it, hardly a blow would fall into one."""
_LIMITS = (
    *("--max-restarts", "1000000", "--max-all-restarts", "1000000", "--restart-backoff", "0"),
    *("--poison-after", "1000"),  # blows at random may well hit different replicas in one lane
    *("--hang-first", "5", "--startup-timeout", "60"),
)
_TAIL_BYTES = 1 << 18
_START_S = 60.0
_ALONE_S = 1800.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Subject:
    def __init__(self, folder: Path, replicas: int, steps: int | None, flows: bool, saves: bool, logs: bool) -> None:
        """Without `steps` it goes on until it is stopped. If it `flows`, its gradients travel one by one. One that saves and
        `logs` replays what it committed since its newest state."""
        self.folder = folder
        self.run_dir = folder / "run"
        self._journal = self.run_dir / "journal"
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True)
        self._port = _free_port()
        self._replicas = replicas
        self._flows = flows
        self._saves = saves
        self._logs = logs
        self.steps = steps
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._launcher: subprocess.Popen[bytes] | None = None

    # Its processes

    def start(self) -> None:
        self.start_coordinator()
        self._wait_listening()
        where = ("--coordinator", f"127.0.0.1:{self._port}", "--run-dir", str(self.run_dir))
        size = ("--replicas", str(self._replicas), *(("--bucket-mb", "0.0004") if self._flows else ()))
        memory = ("--every-step",) if self._logs else ("--memory-every", "5")
        saves = (*memory, "--checkpoint", str(self.folder / "checkpoints"), "--checkpoint-every", "20")
        script = (str(SCRIPT), "--pace", str(PACE_S), *(() if self.steps is None else ("--steps", str(self.steps))))
        self._launcher = self._spawn("run", *where, *size, *(saves if self._saves else ()), *_LIMITS, *script)

    def start_coordinator(self) -> None:
        listen = ("--listen", f"127.0.0.1:{self._port}", "--run-dir", str(self.run_dir))
        self._coordinator = self._spawn("coordinator", *listen)

    def kill_coordinator(self) -> None:
        if self._coordinator is not None:
            self._coordinator.kill()
            self._coordinator.wait()

    def stop(self) -> None:
        """Ask for the end of the current step to be the last."""
        if self._launcher is not None:
            self._launcher.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Whatever still runs ends now; the workers die with their launcher."""
        for process in (self._launcher, self._coordinator):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    @property
    def code(self) -> int | None:
        """The exit code of `regrow run`; None while it runs."""
        return None if self._launcher is None else self._launcher.poll()

    @property
    def coordinator_code(self) -> int | None:
        return None if self._coordinator is None else self._coordinator.poll()

    def said(self, who: str) -> str:
        """What `run` or `coordinator` wrote."""
        try:
            return (self.folder / f"{who}.txt").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _spawn(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command}.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "regrow.cli.main", command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**_environ(), "TMPDIR": str(self._temporary)},
                start_new_session=True,  # the terminal's Ctrl-C is for the soak alone
                preexec_fn=_die_with_parent,
            )

    def _wait_listening(self) -> None:
        end_s = time.monotonic() + _START_S
        while not (self.run_dir / "listening.json").exists():
            if self.coordinator_code is not None or time.monotonic() > end_s:
                raise InfraError(f"the soak's coordinator does not listen:\n{self.said('coordinator')}")
            time.sleep(0.01)

    # What can be read of it

    def workers(self) -> dict[Member, int]:
        """Those that live, with their pids."""
        started: dict[Member, int] = {}
        for line in tail(self._journal, "agent", _TAIL_BYTES):
            match line.what:
                case WorkerStarted(member=member, pid=pid):
                    started[member] = pid
                case WorkerExited(member=member):
                    started.pop(member, None)
        return {member: pid for member, pid in started.items() if self.is_child(pid)}

    def warm_parent(self) -> int | None:
        """The launcher's oldest child that is no worker."""
        if self._launcher is None:
            return None
        lines = tail(self._journal, "agent", _TAIL_BYTES)
        workers = {line.what.pid for line in lines if isinstance(line.what, WorkerStarted)}
        children = Path(f"/proc/{self._launcher.pid}/task/{self._launcher.pid}/children")
        try:
            pids = [int(pid) for pid in children.read_text().split()]
        except OSError:
            return None
        return next((pid for pid in pids if pid not in workers), None)

    def vault(self) -> int | None:
        """The newest one, where there is any."""
        started = [line.what for line in tail(self._journal, "agent", _TAIL_BYTES) if isinstance(line.what, VaultStarted)]
        return started[-1].pid if started and self.is_child(started[-1].pid) else None

    def is_kept(self) -> bool:
        """Is a state of it whole in memory?"""
        return any(isinstance(line.what, StateKept) for line in tail(self._journal, "vault", _TAIL_BYTES))

    def roster(self) -> Roster | None:
        saved = load(self.run_dir)
        return None if saved is None else saved.roster

    def last_commit(self, member: Member) -> tuple[int, int] | None:
        """Its newest step as a member, and when that was (the monotonic clock's nanoseconds). Who has only listened holds no
        state in anybody's eyes."""
        for line in reversed(tail(self._journal, str(member), 1 << 14)):
            if isinstance(line.what, Committed) and line.what.by != "record":
                return line.what.step, line.ns
        return None

    def is_child(self, pid: int) -> bool:
        """Pids are used again: a process is the job's only while it is a child of its launcher."""
        try:
            return (
                self._launcher is not None and f"\nPPid:\t{self._launcher.pid}\n" in Path(f"/proc/{pid}/status").read_text()
            )
        except OSError:
            return False

    def signal(self, pid: int, number: signal.Signals) -> bool:
        """False when there was nobody to hit any more."""
        try:
            handle = os.pidfd_open(pid)  # from here on the pid cannot come to mean another process
        except OSError:
            return False
        try:
            if not self.is_child(pid):
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


def digest_alone(steps: int, *arguments: str) -> str:
    """Of the same script as a job of one, undisturbed."""
    command = [sys.executable, "-P", str(SCRIPT), "--steps", str(steps), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=_environ(), timeout=_ALONE_S, preexec_fn=_die_with_parent
    )
    found = re.search(r"^digest (\w{64})$", done.stdout, re.MULTILINE)
    if found is None:
        raise InfraError(f"the undisturbed job ended with code {done.returncode}:\n{done.stderr}")
    return found[1]


def _environ() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("REGROW_")}


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _free_port() -> int:
    """Below the range from which connections are given theirs: while the coordinator is away nobody takes it by chance."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
