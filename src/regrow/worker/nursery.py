"""The nursery: a process that is forked off the training process early, and from which data workers are forked.

It holds the dataset as it was at job.data(), has one thread, none of the job's connections, and does nothing but start, kill
and reap. A data worker that has died can so be replaced at any time without forking a process in which collectives, autograd
and the session have threads. It dies with the training process, and the data workers die with it.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

import msgspec

from regrow.core.errors import InfraError
from regrow.shell.parentage import die_with_parent, pass_over_sigterm

_PACKET_BYTES = 4096


class _Start(msgspec.Struct, frozen=True, tag=True):
    number: int


class _Kill(msgspec.Struct, frozen=True, tag=True):
    number: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """This data worker is gone."""

    number: int
    pid: int
    how: str


class Nursery:
    """The training process's end."""

    def __init__(self, life: Callable[[socket.socket], NoReturn]) -> None:
        """life: what a data worker does with its line."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended: dict[int, Ended] = {}
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what is buffered would be said twice
        parent = os.getpid()
        with warnings.catch_warnings():
            # Python 3.12 warns of a fork with threads: only the session's is there, and the child needs nothing of it.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _serve(theirs, parent, life)
        theirs.close()

    def start(self, number: int) -> socket.socket:
        """A fresh data worker under this number; returns its line."""
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._say(_Start(number), theirs.fileno())
        return line

    def kill(self, number: int) -> None:
        self._say(_Kill(number))

    def wait_end(self, number: int) -> Ended:
        """Of a data worker whose line has ended, or that was killed."""
        while number not in self._ended:
            packet = self._control.recv(_PACKET_BYTES)
            if not packet:
                raise InfraError(self._fate())
            ended = msgspec.msgpack.decode(packet, type=Ended)
            self._ended[ended.number] = ended  # another one's, perhaps: it will be asked for
        return self._ended.pop(number)

    def close(self) -> None:
        """Nothing of it is left afterwards."""
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _say(self, order: _Start | _Kill, *fds: int) -> None:
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(order)], fds)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise InfraError(self._fate()) from error

    def _fate(self) -> str:
        how = "is gone"
        with contextlib.suppress(ChildProcessError):  # the script has waited for it
            how = _describe(os.waitpid(self.pid, 0)[1])
        return f"the parent of the data workers (pid {self.pid}) {how}: this replica must start again"


def _serve(control: socket.socket, parent: int, life: Callable[[socket.socket], NoReturn]) -> NoReturn:
    """In the nursery. Whatever happens, it never returns into the script."""
    try:
        die_with_parent(signal.SIGKILL)
        if os.getppid() == parent:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            pass_over_sigterm()  # a step that is under way, and those until the boundary, need their microbatches
            _let_go_of_sockets(control.fileno())
            gc.freeze()  # a collection would touch, and so copy, every page that holds an object
            _Children(control, life).tend()
    finally:
        os._exit(0)


class _Children:
    def __init__(self, control: socket.socket, life: Callable[[socket.socket], NoReturn]) -> None:
        self._control = control
        self._life = life
        self._pids: dict[int, tuple[int, int]] = {}
        """By pidfd: number and pid."""

    def tend(self) -> None:
        """Until the training process closes its end."""
        while True:
            poll = select.poll()
            for fd in (self._control.fileno(), *self._pids):
                poll.register(fd, select.POLLIN)
            readable = [fd for fd, _ in poll.poll()]
            for pidfd in readable:
                if pidfd in self._pids:
                    self._reap(pidfd)
            if self._control.fileno() in readable and not self._obey():
                break
        for pidfd, (_, pid) in self._pids.items():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _obey(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self._control, _PACKET_BYTES, 1)
        if not packet:
            return False
        match msgspec.msgpack.decode(packet, type=_Start | _Kill):
            case _Start(number=number):
                self._start(number, socket.socket(fileno=fds[0]))
            case _Kill(number=number):
                for pidfd, (known, _) in self._pids.items():
                    if known == number:
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True

    def _start(self, number: int, line: socket.socket) -> None:
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(Ended(number, 0, f"could not be started: {error.strerror}"))
            line.close()
            return
        if pid == 0:
            self._become(line, me)
        line.close()
        self._pids[os.pidfd_open(pid)] = number, pid

    def _become(self, line: socket.socket, nursery: int) -> NoReturn:
        try:
            die_with_parent(signal.SIGKILL)
            if os.getppid() == nursery:
                self._control.close()
                for pidfd in self._pids:
                    os.close(pidfd)
                self._life(line)
        finally:
            os._exit(1)

    def _reap(self, pidfd: int) -> None:
        number, pid = self._pids.pop(pidfd)
        os.close(pidfd)
        self._tell(Ended(number, pid, _describe(os.waitpid(pid, 0)[1])))

    def _tell(self, ended: Ended) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(msgspec.msgpack.encode(ended))


def _let_go_of_sockets(own: int) -> None:
    """The others must see this worker's connections end when it ends. The numbers stay taken, by nothing at all: objects of
    the script still hold them, and may close them when something else has come there."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            if int(name) != own and os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.dup2(nothing, int(name), inheritable=False)
    os.close(nothing)


def _describe(status: int) -> str:
    """As the end of a sentence."""
    if os.WIFEXITED(status):
        return f"exited with code {os.WEXITSTATUS(status)}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"was killed by signal {os.WTERMSIG(status)}"
