"""Simulated members for benchmarks/control.py: real sockets through the real door, all in one process and one loop."""

import secrets
import select
import socket
import struct
import time

from regrow.core.messages import Contract, Join, Message
from regrow.core.roster import NO_VERSION, Endpoint, Member
from regrow.wire.codec import encode
from regrow.wire.framing import PEER_LIMIT_BYTES, Decoder, frame
from regrow.wire.handshake import NONCE_BYTES, Guest, Key

DEADLINE_S = 300.0
_READ_BYTES = 1 << 20
_RESET = struct.pack("ii", 1, 0)


class Crowd:
    """Sockets to one server. What comes is counted by frames; the last small one of each is kept."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._poll = select.epoll()
        self.socks: dict[int, socket.socket] = {}
        self._arrived: dict[int, Decoder] = {}
        self._scrap = memoryview(bytearray(_READ_BYTES))
        self.last: dict[int, bytes] = {}

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port))

    def add(self, sock: socket.socket) -> int:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fd = sock.fileno()
        self.socks[fd], self._arrived[fd] = sock, Decoder(PEER_LIMIT_BYTES)
        self._poll.register(fd, select.EPOLLIN)
        return fd

    def drop(self, fd: int) -> None:
        """As a process that is killed: the kernel closes its sockets."""
        self._poll.unregister(fd)
        self._arrived.pop(fd)
        self.last.pop(fd, None)
        self.socks.pop(fd).close()

    def close(self) -> None:
        for sock in self.socks.values():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # thousands of ports must not stay in TIME_WAIT
            sock.close()
        self._poll.close()

    def wait_one_each(self) -> float:
        """When the last of them had got a frame."""
        missing, end = set(self.socks), time.monotonic() + DEADLINE_S
        while missing:
            ready = self._poll.poll(max(0.0, end - time.monotonic()))
            if not ready:
                raise SystemExit(
                    f"waited {DEADLINE_S:g} s in vain for a frame at {len(missing)} of {len(self.socks)} members"
                )
            for fd, _ in ready:
                if self._take(fd):
                    missing.discard(fd)
        return time.monotonic()

    def _take(self, fd: int) -> bool:
        """Whether a frame is whole."""
        count = self.socks[fd].recv_into(self._scrap)
        if count == 0:
            raise SystemExit("the server closed a member's connection")
        arrived = self._arrived[fd]
        arrived.feed(self._scrap[:count])
        payload = arrived.next_payload()
        if payload is None:
            return False
        self.last[fd] = payload
        return True


class Members(Crowd):
    """Members that have joined."""

    def __init__(self, port: int, token: str, names: tuple[str, ...], lanes: int) -> None:
        super().__init__(port)
        self.of: dict[Member, int] = {}
        key, contract = Key(token), Contract(terms={"lanes": str(lanes)})
        for number, name in enumerate(names):
            member = Member(name, 0)
            endpoint = Endpoint(f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 29500)
            join = Join(
                member=member, endpoint=endpoint, contract=contract, lanes=lanes, seen=NO_VERSION, entered=NO_VERSION, step=0
            )
            self.of[member] = self.add(self._enter(key, str(member), join))

    def send(self, member: Member, message: Message) -> None:
        self.socks[self.of[member]].send(frame(encode(message)))

    def die(self, member: Member) -> None:
        self.drop(self.of.pop(member))

    def _enter(self, key: Key, name: str, join: Join) -> socket.socket:
        guest, sock, arrived = Guest(key, name, secrets.token_bytes(NONCE_BYTES)), self.connect(), Decoder(PEER_LIMIT_BYTES)
        sock.sendall(frame(encode(guest.answer(_payload(sock, arrived)))))
        guest.settle(_payload(sock, arrived))
        sock.sendall(frame(encode(join)))
        return sock


def _payload(sock: socket.socket, arrived: Decoder) -> bytes:
    while (payload := arrived.next_payload()) is None:
        arrived.feed(sock.recv(4096))
    return payload
