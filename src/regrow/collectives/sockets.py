"""The TCP connections of one gloo group, held as dup()s, so that they can be shut down later.

gloo has no abort that wakes a blocked operation; shutting its connections down does. They are dup()ed right at formation:
later gloo closes them as it likes and their numbers are reused, perhaps by the user's own sockets. A listener is never
touched: gloo ends the process when its listener breaks.

Which connections belong to the group is told by addresses alone: those that gloo published for its listeners.
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

_LENGTH = struct.Struct("=Q")
_STORAGE_BYTES = 128  # sizeof(struct sockaddr_storage)


def connections(own: bytes, theirs: Iterable[bytes]) -> list[socket.socket]:
    """dup()s of this process's connections accepted by our listener or made to a peer's. Blobs as gloo published them."""
    listener, peers = _sockaddr(own), [_sockaddr(blob) for blob in theirs]
    found: dict[int, socket.socket] = {}
    for candidate in _tcp_sockets():
        # By inode: another formation that looks at the same moment holds dup()s of our connections too.
        inode = os.fstat(candidate.fileno()).st_ino
        if inode not in found and _belongs(candidate, listener, peers):
            found[inode] = candidate
        else:
            candidate.close()
    return list(found.values())


def _belongs(candidate: socket.socket, listener: bytes, peers: list[bytes]) -> bool:
    try:
        if candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        local, remote = candidate.getsockname(), candidate.getpeername()
    except OSError:  # not connected
        return False
    if _is_in(candidate.family, local, listener):
        return True
    return any(_is_in(candidate.family, remote, peer) for peer in peers)


def _tcp_sockets() -> Iterator[socket.socket]:
    """A dup() of every TCP socket of this process. The dup is looked at, not the number: that may change hands meanwhile."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            # Only sockets: to close a dup() of a file would drop the process's POSIX locks on it.
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            dup = os.dup(int(name))  # Python sets CLOEXEC
            try:
                candidate = socket.socket(fileno=dup)
            except OSError:
                os.close(dup)
                continue
            if candidate.family in (socket.AF_INET, socket.AF_INET6) and candidate.type == socket.SOCK_STREAM:
                yield candidate
            else:
                candidate.close()


def _sockaddr(blob: bytes) -> bytes:
    """The part of a blob that holds the address: length and host name, length and address, pair numbers.

    What follows the address is uninitialised memory, in which other addresses may have been left. A blob of another shape
    (another version of gloo) is searched as a whole.
    """
    with suppress(struct.error):
        (host_bytes,) = _LENGTH.unpack_from(blob, 0)
        (address_bytes,) = _LENGTH.unpack_from(blob, _LENGTH.size + host_bytes)
        start = 2 * _LENGTH.size + host_bytes
        if _STORAGE_BYTES <= address_bytes <= len(blob) - start:
            return blob[start : start + 28]  # sizeof(struct sockaddr_in6), the longest of ours
    return blob


def _is_in(family: socket.AddressFamily, name: tuple[str | int, ...], sockaddr: bytes) -> bool:
    """Does this address stand in the bytes of a sockaddr_in or sockaddr_in6?"""
    host, port = str(name[0]).partition("%")[0], int(name[1])
    prefix = struct.pack("=H", family) + struct.pack("!H", port)
    address = socket.inet_pton(family, host)
    if family == socket.AF_INET:
        return prefix + address in sockaddr
    at = sockaddr.find(prefix)
    return at >= 0 and sockaddr[at + 8 : at + 24] == address  # four bytes of flow information lie between
