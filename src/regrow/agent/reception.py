"""Where a vault hears workers: a socket in the abstract namespace, and a line for each that came.

Only processes of the same user are heard. A line whose member came again on another one is let go.
"""

import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable

import msgspec

from regrow.agent.tier import Post
from regrow.agent.vault_line import VaultLine
from regrow.core.errors import PeerError
from regrow.shell.vaulting import Came, FromWorker, LogOpens, ToWorker

_BACKLOG = 4096
_HELD_S = 5.0
_RETRY_S = 0.01
_CREDENTIALS = struct.Struct("3i")
"""Of the process that connected: pid, user, group."""


class Reception:
    """On the loop's thread."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        post: Post,
        heard: Callable[[str, FromWorker, int | None], None],
        gone: Callable[[str], None],
    ) -> None:
        """`heard`: of a member, who owns the descriptor from there on where one came along. `gone`: its line is closed."""
        self._selector = selector
        self._post = post
        self._heard = heard
        self._gone = gone
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._members: dict[VaultLine, str] = {}
        """"" until it has said which one it is."""
        self._lines: dict[str, VaultLine] = {}

    def open(self, address: str) -> None:
        self._bind("\0" + address)
        self._door.listen(_BACKLOG)
        self._door.setblocking(False)
        self._selector.register(self._door, selectors.EVENT_READ, self._admit)

    def has_line(self, member: str) -> bool:
        return member in self._lines

    def _bind(self, address: str) -> None:
        """The vault before this one may have died while it started a writer, which holds its door until it has begun."""
        end_s = time.monotonic() + _HELD_S
        while True:
            try:
                self._door.bind(address)
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= end_s:
                    raise
            time.sleep(_RETRY_S)

    def tell(self, member: str, message: ToWorker, fd: int | None = None) -> None:
        """Nothing where it has no line: what it must know it asks for when it comes again."""
        if (line := self._lines.get(member)) is not None:
            self._send(line, message, fd)

    def tell_all(self, message: ToWorker) -> None:
        for line in self._lines.values():
            self._send(line, message, None)

    def _send(self, line: VaultLine, message: ToWorker, fd: int | None) -> None:
        try:
            line.send(message, fd)
        except PeerError:
            self._post(lambda: self._let_go(line))  # not now: somebody is in the middle of telling others
            return
        if line.is_behind:
            self._watch(line)

    def _watch(self, line: VaultLine) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.is_behind else 0)
        self._selector.modify(line, events, lambda ready: self._serve(line, ready))

    def _admit(self, ready: int) -> None:
        try:
            sock, _ = self._door.accept()
        except OSError:
            return  # it went away again, or there are too many open files: it tries again
        _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.getuid():
            sock.close()
            return
        line = VaultLine(sock)
        self._members[line] = ""
        self._selector.register(line, selectors.EVENT_READ, lambda ready: self._serve(line, ready))

    def _serve(self, line: VaultLine, ready: int) -> None:
        if line not in self._members:
            return  # let go since it was found ready
        try:
            if ready & selectors.EVENT_WRITE:
                line.flush()
                self._watch(line)
            if ready & selectors.EVENT_READ:
                for payload in line.received():
                    self._hear(line, msgspec.json.decode(payload, type=FromWorker))
        except (PeerError, msgspec.DecodeError):
            self._let_go(line)

    def _hear(self, line: VaultLine, message: FromWorker) -> None:
        if isinstance(message, Came):
            self._name(line, message.member)
        if member := self._members.get(line):
            self._heard(member, message, line.take_fd() if isinstance(message, LogOpens) else None)

    def _name(self, line: VaultLine, member: str) -> None:
        older = self._lines.get(member)
        if older is not None and older is not line:
            self._let_go(older)
        self._members[line] = member
        self._lines[member] = line

    def _let_go(self, line: VaultLine) -> None:
        if line not in self._members:
            return
        member = self._members.pop(line)
        self._selector.unregister(line)
        line.close()
        if self._lines.get(member) is line:
            del self._lines[member]
            self._gone(member)
