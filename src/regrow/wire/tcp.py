"""TCP connections that have passed the door: connect() for clients, listen() for servers.

Not encrypted: the token keeps strangers out, it does not hide what is said. No retries and no heartbeats either; those are
decisions, and core makes them.
"""

import asyncio
import contextlib
import errno
import os
import secrets
import socket
from collections.abc import Awaitable, Callable

from regrow.core.errors import ConfigError, PeerError
from regrow.core.messages import Message
from regrow.core.roster import Endpoint
from regrow.wire.codec import decode, encode
from regrow.wire.framing import PEER_LIMIT_BYTES, STRANGER_LIMIT_BYTES, Decoder, frame
from regrow.wire.handshake import NONCE_BYTES, Admitted, Guest, Host, Key
from regrow.wire.stream import Stream
from regrow.wire.violation import Violation

HANDSHAKE_S = 5.0
"""A stranger has this long to prove the token."""

STRANGERS_MAX = 64
"""So many may be at the door at once; further ones are turned away and may try again."""

_BACKLOG = 1024
_PORT_MAX = 65535
_ACCEPT_PAUSE_S = 0.5
"""Before the next try when the machine is out of descriptors or memory: accept then fails at once, and would spin."""

_READ_BYTES = 16 * 1024
"""One read usually takes a whole control message, and often several."""

_TURN_BYTES = 4 * 1024 * 1024
"""A bulk transfer that never has to wait lets other tasks run this often."""

_LOCAL_TCP = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


class Connection:
    """One end of a proven connection. See channel.Channel for what each method promises."""

    def __init__(self, stream: Stream, name: str) -> None:
        self.name = name
        """The name the client proved; both ends have the same."""
        self._stream = stream
        self._arrived = Decoder(STRANGER_LIMIT_BYTES)
        self._sending = asyncio.Lock()

    @property
    def peer(self) -> str:
        """Who is at the other end, for people."""
        return self._stream.peer

    async def send(self, message: Message) -> None:
        await self._write(memoryview(frame(encode(message))))

    async def receive(self) -> Message:
        return decode(await self.receive_payload())

    async def receive_payload(self) -> bytes:
        """The next frame, undecoded: the door looks at it before it is trusted to be a message."""
        while True:
            payload = self._arrived.next_payload()
            if payload is not None:
                return payload
            data, waited = await self._stream.read_bytes(_READ_BYTES)
            self._arrived.feed(data)
            if not waited:
                await asyncio.sleep(0)  # a peer that always has more to say must not keep every other task from running

    async def receive_each(self, heard: Callable[[Message], bool]) -> None:
        """Every message as it comes, until `heard` says that it is enough. Raises as receive() and `heard` do."""

        def taken(data: bytes) -> bool:
            self._arrived.feed(data)
            while (payload := self._arrived.next_payload()) is not None:
                if not heard(decode(payload)):
                    return False
            return True

        if taken(b""):
            await self._stream.read_each(taken, _READ_BYTES)

    def send_now(self, data: memoryview) -> memoryview:
        """As much as the socket takes of these frames without waiting; the rest comes back, to be sent before all else."""
        return data if self._sending.locked() else data[self._stream.write_now(data) :]

    async def send_raw(self, data: memoryview) -> None:
        if data.nbytes:
            await self._write(data.cast("B"))

    async def receive_raw_into(self, view: memoryview) -> None:
        if not view.nbytes:
            return
        rest = view.cast("B")
        rest = rest[self._arrived.take_raw(rest) :]
        turn = 0
        try:
            while len(rest):
                count, waited = await self._stream.read_some(rest)
                rest = rest[count:]
                turn = await _take_turns(turn, count, waited)
        except asyncio.CancelledError:
            self.abort()  # nobody could say any more where in the stream the next frame begins
            raise

    async def close(self) -> None:
        self._stream.close()

    def detach(self) -> tuple[socket.socket, bytes]:
        """Give the socket away, and what had already been read from it. Nothing else can be done here afterwards."""
        return self._stream.detach(), self._arrived.take_all()

    def abort(self) -> None:
        self._stream.abort()

    def trust(self) -> None:
        """The peer has proven the token: take frames of full size from now on."""
        self._arrived.limit_bytes = PEER_LIMIT_BYTES

    async def _write(self, data: memoryview) -> None:
        async with self._sending:
            rest = data
            turn = 0
            try:
                while len(rest):
                    count, waited = await self._stream.write_some(rest)
                    rest = rest[count:]
                    turn = await _take_turns(turn, count, waited)
            except asyncio.CancelledError:
                if 0 < len(rest) < len(data):
                    self.abort()  # the peer would take whatever is sent next for the rest of this
                raise


async def _take_turns(turn: int, count: int, waited: bool) -> int:
    """Bytes moved since others could last run, after letting them run if it was long ago."""
    if waited:
        return count
    if turn + count < _TURN_BYTES:
        return turn + count
    await asyncio.sleep(0)
    return 0


# The client's side


async def connect(endpoint: Endpoint, token: str, name: str, timeout_s: float) -> Connection:
    """A proven connection. ConfigError when versions or tokens differ, PeerError when nobody is there or it went away."""
    guest = Guest(Key(token), name, secrets.token_bytes(NONCE_BYTES))
    try:
        async with asyncio.timeout(timeout_s):
            connection = Connection(Stream(await _dial(endpoint), str(endpoint)), name)
            try:
                await _enter(connection, guest)
            except BaseException:
                await connection.close()
                raise
            return connection
    except TimeoutError as error:
        raise PeerError(f"{endpoint} did not answer within {timeout_s} s") from error


async def _enter(connection: Connection, guest: Guest) -> None:
    try:
        await connection.send(guest.answer(await connection.receive_payload()))
        if guest.mismatch is not None:
            raise ConfigError(guest.mismatch)
        guest.settle(await connection.receive_payload())
    except ConfigError as error:
        raise ConfigError(f"{connection.peer} and {connection.name} cannot work together: {error}") from error
    except Violation as error:
        raise Violation(f"{connection.peer} does not speak as a Regrow process does: {error}") from error
    connection.trust()


async def _dial(endpoint: Endpoint) -> socket.socket:
    why = "no address"
    for family, address in await _addresses(endpoint.host, endpoint.port):
        sock = socket.socket(family, _LOCAL_TCP)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
            if sock.getsockname() != sock.getpeername():
                return sock
            # On one machine a socket can be given the very port it dials, and then meets itself.
            why = "nobody listens"
        except OSError as error:
            why = _reason(error)
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise PeerError(f"cannot reach {endpoint}: {why}")


async def _addresses(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    if not 0 <= port <= _PORT_MAX:  # getaddrinfo would silently take another one
        raise ConfigError(f"there is no port {port}: choose one from 0 to {_PORT_MAX} with --port")
    try:
        # An address in figures needs no resolver, and so no thread.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise PeerError(f"cannot resolve the host name {host!r}: {_reason(error)}") from error
    return [(family, address) for family, _, _, _, address in found]


# The server's side


class Listener:
    """Accepts, checks and hands over connections until closed. Made by listen()."""

    def __init__(
        self,
        sock: socket.socket,
        endpoint: Endpoint,
        key: Key,
        handler: Callable[[Connection], Awaitable[None]],
        refused: Callable[[str, str], None],
        handshake_s: float,
    ) -> None:
        self.endpoint = endpoint
        self._sock = sock
        self._key = key
        self._handler = handler
        self._refused = refused
        self._handshake_s = handshake_s
        self._strangers = 0
        self._is_crowded = False
        """Somebody was turned away since the last one that found room."""
        self._guests: dict[asyncio.Task[None], Connection] = {}
        self._accepting = asyncio.create_task(self._accept(), name=f"accept {endpoint}")

    async def close(self) -> None:
        """Stops listening, ends every handler and connection it has started, and waits for them. Idempotent."""
        self._accepting.cancel()
        others = [task for task in self._guests if task is not asyncio.current_task()]
        for task in others:
            self._guests[task].abort()
            task.cancel()
        await asyncio.gather(self._accepting, *others, return_exceptions=True)
        # Shut down, not only closed: a forked child may hold a copy, and connections would pile up unanswered.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        starved = False
        while True:
            try:
                sock, address = await loop.sock_accept(self._sock)
            except ConnectionError:
                continue  # it left while in the queue
            except OSError as error:
                if not starved:
                    self._refused(
                        "everyone", f"cannot accept connections: {error.strerror}; raise `ulimit -n` or free memory"
                    )
                starved = True
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            starved = False
            self._begin(sock, f"{address[0]}:{address[1]}")
            await asyncio.sleep(0)  # a flood of connections must not keep every other task from running

    def _begin(self, sock: socket.socket, peer: str) -> None:
        if self._strangers >= STRANGERS_MAX:
            sock.close()
            if not self._is_crowded:  # said once: a flood must not wash everything else out of the journal
                self._refused(peer, f"{STRANGERS_MAX} others are at the door and have not proven the token: try again later")
            self._is_crowded = True
            return
        self._is_crowded = False
        try:
            connection = Connection(Stream(sock, peer), peer)
        except OSError:
            sock.close()
            self._refused(peer, "left before it was greeted")
            return
        self._strangers += 1
        task = asyncio.create_task(self._serve(connection), name=f"serve {peer}")
        self._guests[task] = connection
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        connection = self._guests.pop(task)
        connection.abort()  # a task cancelled before it ran has closed nothing
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {
                "message": f"the handler of {connection.name} ({connection.peer}) failed",
                "exception": error,
                "task": task,
            }
            task.get_loop().call_exception_handler(context)

    async def _serve(self, connection: Connection) -> None:
        try:
            try:
                why = await self._greet(connection)
            finally:
                self._strangers -= 1
            if why is not None:
                self._refused(connection.peer, why)
                return
            await self._handler(connection)
        except Violation as error:
            self._refused(f"{connection.name} ({connection.peer})", str(error))
        except PeerError:
            pass  # it went away: what that means is for the handler to say, and it let it pass
        finally:
            await connection.close()

    async def _greet(self, connection: Connection) -> str | None:
        """Why the stranger must stay outside; None once it has proven the token."""
        host = Host(self._key, secrets.token_bytes(NONCE_BYTES))
        try:
            async with asyncio.timeout(self._handshake_s):
                await connection.send(host.challenge)
                verdict = host.judge(await connection.receive_payload())
                if isinstance(verdict, Admitted):
                    await connection.send(verdict.welcome)
                    connection.name = verdict.name
                    connection.trust()
                    return None
                if verdict.denied is not None:
                    await connection.send(verdict.denied)
                return verdict.why
        except TimeoutError:
            return f"did not prove the token within {self._handshake_s} s"
        except Violation as error:
            return str(error)
        except PeerError as error:
            return f"left before it proved the token: {error}"


async def listen(
    host: str,
    port: int,
    token: str,
    handler: Callable[[Connection], Awaitable[None]],
    refused: Callable[[str, str], None],
    handshake_s: float = HANDSHAKE_S,
) -> Listener:
    """Hands every proven connection to the handler, in a task of its own; when the handler returns, it is closed.

    Port 0 takes any free one. `refused(peer, why)` hears once of each connection turned away at the door (of a crowd, of the
    first alone), and of each whose handler let a Violation pass. Other errors of a handler go to the loop's exception
    handler; none ends the listener.
    """
    key = Key(token)
    try:
        family, address = (await _addresses(host, port))[0]
    except PeerError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; name an address of this machine") from error
    sock = socket.socket(family, _LOCAL_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {_reason(error)}; {_remedy(error)}") from error
    return Listener(sock, Endpoint(host, sock.getsockname()[1]), key, handler, refused, handshake_s)


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return "name an address of this machine"
    return "choose another port with --port (0 takes any free one)"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno)  # asyncio puts its own words, with the address once more, into strerror
    return getattr(error, "strerror", None) or str(error)
