"""The agent's end of a warm parent (regrow.worker.warm): starts the process, sends orders, hears answers."""

import array
import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from regrow.agent.exits import describe
from regrow.agent.reaper import Reaper
from regrow.core.errors import ConfigError, InfraError
from regrow.shell.deafness import IGNORES
from regrow.shell.orders import PACKET_BYTES, Answer, Order


class WarmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the warm parent loads."""

    entry: str = "regrow.worker.entry:run_script"
    """module:function that a worker calls with the script and its arguments."""
    imports: tuple[str, ...] = ("torch", "torch.optim", "torch._dynamo")
    """Imported once, before any worker exists. Without torch._dynamo a worker's first optimizer takes a second longer."""
    ignores: str = ""
    """A signal by its name that is a notice to the agent, and that workers are to ignore; empty: none."""


class WarmParent:
    """One process. A dead one is replaced by a new object; the old one still hears what its last workers say.

    `mark` is in the environment of everything it starts, directly or not: by it, it finds what must not outlive the agent.
    """

    def __init__(
        self,
        config: WarmConfig,
        mark: str,
        loop: asyncio.AbstractEventLoop,
        reaper: Reaper,
        answered: Callable[[Answer], None],
    ) -> None:
        self._loop = loop
        self._answered = answered
        self.ready = loop.create_future()
        """Done once it takes orders; an InfraError when it ended before."""
        self.gone = loop.create_future()
        """Done once its process has ended."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
        command = [sys.executable, "-P", "-m", "regrow.worker.warm", str(theirs.fileno()), str(os.getpid())]
        # Strings hash alike in every replica, and numpy's OpenBLAS starts no threads: a process with threads must not fork.
        environ = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "REGROW_JOB": mark}
        if config.ignores:
            environ[IGNORES] = config.ignores
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*command, config.entry, *config.imports],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=environ,
                    start_new_session=True,  # the terminal's Ctrl-C is for the launcher alone
                )
            except OSError as error:
                self._control.close()
                raise InfraError(f"the warm parent cannot start ({error}): check the limits on processes") from error
        self.pid = self._process.pid
        reaper.watch(self.pid, self._ended)
        loop.add_reader(self._control, self.hear)

    @property
    def is_open(self) -> bool:
        """Somebody, it or one of its workers that has not begun, may still answer."""
        return self._control.fileno() >= 0

    def order(self, order: Order, fds: Sequence[int] = ()) -> None:
        """Raises BrokenPipeError when it did not go out: the process is gone, or far behind."""
        packet = msgspec.json.encode(order)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._control.sendmsg([packet], rights)
        except OSError as error:
            if error.errno == errno.EMSGSIZE or len(packet) > PACKET_BYTES:
                raise ConfigError(f"the script's arguments take {len(packet)} bytes: pass them in a file") from error
            raise BrokenPipeError(str(error)) from error

    def hear(self) -> None:
        """Every answer that has arrived."""
        while self.is_open:
            try:
                packet = self._control.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                packet = b""
            if not packet:
                self._hang_up()
                return
            answer = msgspec.json.decode(packet, type=Answer)
            if answer.what == "ready":
                if not self.ready.done():
                    self.ready.set_result(None)
            else:
                self._answered(answer)

    def close(self) -> None:
        """End of file: it sweeps what it was not told to forget, and exits."""
        self._hang_up()

    def _ended(self, status: int) -> None:
        self.hear()
        self._process.returncode = status  # reaped here: Popen must never wait for this pid, it may be another's by then
        if not self.ready.done():
            self.ready.set_exception(
                InfraError(f"the warm parent {describe(status)} before it was ready: its own words are above")
            )
            self.ready.exception()  # whoever awaits it still gets it; nobody need
        if not self.gone.done():
            self.gone.set_result(None)

    def _hang_up(self) -> None:
        if self.is_open:
            with contextlib.suppress(ValueError):
                self._loop.remove_reader(self._control)
            self._control.close()
