"""The warm parent: has torch imported, forks workers on request, and sweeps them up when the agent is gone.

    REGROW_JOB=... python -P -m regrow.worker.warm FD AGENT_PID ENTRY [MODULE...]

FD is one end of a SOCK_SEQPACKET pair whose other end only the agent holds; one packet is one Order or one Answer, as
JSON. ENTRY is `module:function`, called as function(script, argv) -> exit code; the MODULEs are imported beforehand.

- It runs no tensor operation and has one thread: a child forked from a process with more of either may hang.
- SIGTERM is the agent's to answer: here it is passed over.
- It forks twice, and the one in between exits at once: the worker is then the agent's own child (the agent is a
  subreaper), so that this process's death hurts no worker and the agent sees every exit itself.
- End of file on FD means that the agent died, however it died: every worker's process group is killed, and then every
  process that was started in this one's environment: what a worker started outside its group still carries REGROW_JOB.
  It reaps none of them, they are not its children.
"""

import atexit
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec

from regrow.shell.deafness import IGNORES, turn_deaf
from regrow.shell.door import STAMP_FD
from regrow.shell.orders import PACKET_BYTES, Answer, Order
from regrow.shell.parentage import die_with_parent, pass_over_sigterm

_BROKEN = 70
"""Exit code of a worker that failed before or after the script (EX_SOFTWARE)."""


def main() -> NoReturn:
    control = socket.socket(fileno=int(sys.argv[1]))
    agent_pid = int(sys.argv[2])
    # Until the first worker exists there is nothing to sweep, and importing may take seconds: die with the agent at once.
    die_with_parent(signal.SIGKILL)
    if os.getppid() != agent_pid:
        os._exit(0)
    if ignores := os.environ.get(IGNORES):
        turn_deaf(ignores)
    pass_over_sigterm()
    for module in sys.argv[4:]:
        importlib.import_module(module)
    module, _, function = sys.argv[3].partition(":")
    entry = getattr(importlib.import_module(module), function)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        print(
            f"regrow: the warm parent has {threads} threads after its imports, and workers forked from it may hang: "
            "look for a sitecustomize or .pth file that starts one",
            file=sys.stderr,
        )
    gc.collect()
    gc.freeze()
    die_with_parent(0)
    parent = _WarmParent(control, agent_pid, os.environ["REGROW_JOB"], entry)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.send(msgspec.json.encode(Answer(what="ready", pid=os.getpid())))
        parent.serve()
    parent.sweep()
    os._exit(0)


class _WarmParent:
    def __init__(self, control: socket.socket, agent_pid: int, job: str, entry: object) -> None:
        self._control = control
        self._job = job
        self._agent_pid = agent_pid
        self._entry = entry
        self._workers: set[int] = set()

    def serve(self) -> None:
        """Carry out orders until the agent is gone."""
        while True:
            packet, fds, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 3)
            if not packet:
                return
            order = msgspec.json.decode(packet, type=Order)
            if order.do == "launch":
                self._launch(order, fds)
            elif order.do == "remember":
                self._workers.add(order.pid)
            else:
                self._workers.discard(order.pid)

    def sweep(self) -> None:
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        killed: set[int] = set()
        while strays := _of_job(self._job) - killed:  # again: one may have started another while we looked
            killed |= strays
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _launch(self, order: Order, fds: list[int]) -> None:
        heard, told = os.pipe()
        try:
            between = os.fork()
            if between == 0:
                os.close(heard)
                self._fork_worker(order, fds, told)
            os.close(told)
            told = -1
            pid = os.read(heard, 64)
            os.waitpid(between, 0)
            if not pid:
                raise OSError("the system would not fork")
            self._workers.add(int(pid))
        except OSError as error:
            self._control.send(msgspec.json.encode(Answer(what="failed", member=order.member, why=str(error))))
        finally:
            for fd in (heard, told, *fds):
                if fd >= 0:
                    os.close(fd)

    def _fork_worker(self, order: Order, fds: list[int], told: int) -> NoReturn:
        """In the process in between. Whatever happens, it never returns into the warm parent's loop."""
        try:
            between = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.close(told)
                self._become_worker(order, fds, between)
            os.write(told, str(pid).encode())
        finally:
            os._exit(0)

    def _become_worker(self, order: Order, fds: list[int], between: int) -> NoReturn:
        code = _BROKEN
        try:
            os.setsid()
            if not self._is_adopted(between):
                os._exit(0)
            *output, stamp = fds
            _take_output(output)
            os.set_inheritable(stamp, False)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.update(order.environ)
            os.environ[STAMP_FD] = str(stamp)
            os.chdir(order.cwd)
            sys.argv = [order.script, *order.argv]
            sys.path.insert(0, str(Path(order.script).resolve().parent))
            self._control.send(msgspec.json.encode(Answer(what="started", member=order.member, pid=os.getpid())))
            self._control.close()  # held by a worker, it would keep the end of either side from the other
            code = self._entry(order.script, list(order.argv))  # type: ignore[operator]
            # What the interpreter does at the end of a plain script, short of tearing itself down: native threads of
            # collectives may still run, and their destructors abort.
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)

    def _is_adopted(self, between: int) -> bool:
        """Wait until the process in between is gone; true when the agent is now the parent, and its death ours."""
        with contextlib.suppress(ProcessLookupError):
            exit_seen = os.pidfd_open(between)
            if os.getppid() == between:
                select.select([exit_seen], [], [])
            os.close(exit_seen)
        die_with_parent(signal.SIGKILL)
        return os.getppid() == self._agent_pid


def _of_job(job: str) -> set[int]:
    """Other living processes that were started with this job's mark."""
    mark = f"REGROW_JOB={job}".encode()
    found: set[int] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                if mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
    return found


def _take_output(fds: list[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in zip((nothing, *fds), (0, 1, 2), strict=True):
        os.dup2(fd, standard)
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
