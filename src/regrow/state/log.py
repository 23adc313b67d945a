"""A log: one member's parts of committed records, in a file in memory that outlives it. What lies where, and its reader.

    head     | digest | size | who writes here, and what the job began from
    slot ... | frame: digest, size of the slot | header: digest, place and size of the entry | part | tail | entry

The header of a slot is written last, and carries a digest of the entry, which carries those of tail and part. So whenever
the writer died, and whichever bit has flipped since, a reader finds what is whole and nothing else. The part comes first
and may come in pieces, before anybody knows what else there will be to say. Frames are written once, when a slot is made; a
digest is over the place as well, so that no bytes that were copied here are taken for one.

Who writes is `state.log_writer`. No torch here: the vault reads.
"""

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence

import msgspec
import xxhash

from regrow.core.log import Part

PAGE_BYTES = 4096
_ALIGNED_BYTES = 64
_HEADING = struct.Struct("<16sQ")
"""A digest, and a size: of a head or a frame."""
_HEADER = struct.Struct("<16sQQ")
"""A digest; where in the slot the entry begins, and its size."""
_HEADER_AT = 32
"""Of a slot; the frame is before it."""
PART_AT = 64
"""Of a slot as well."""
_BLOCK_BYTES = 1 << 20


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Written before anybody else has the file."""

    member: str
    root: str
    """Of the state as the script built it: what a job begins from that has no saved state yet."""
    nonce: str
    """No other log has it: bytes of another are never taken for this one's."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A run of a part's bytes, as it came."""

    size_bytes: int
    digest: bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One part of one record."""

    said: Part
    total_bytes: int
    """Of the whole record."""
    start: int
    """Of the part, in the record."""
    pieces: tuple[Piece, ...] = ()
    """Of the part, in the order of its bytes."""
    tail_bytes: int = 0
    """Of what is no bytes of a gradient: with one part of each record."""
    tail_digest: bytes = b""

    @property
    def part_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, and the slot in which it lies."""

    entry: Entry
    slot_at: int

    @property
    def part_at(self) -> int:
        return self.slot_at + PART_AT

    @property
    def tail_at(self) -> int:
        return aligned(self.part_at + self.entry.part_bytes)

    @property
    def entry_at(self) -> int:
        return aligned(self.tail_at + self.entry.tail_bytes)

    @property
    def stop(self) -> int:
        return self.entry_at + len(msgspec.msgpack.encode(self.entry))


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a log holds."""

    head: Head | None
    """None: it cannot be read, and so nothing can."""
    held: tuple[Held, ...]
    damages: tuple[str, ...]
    """What was written, and is not what it was."""


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


def paged(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def slot_bytes(part_bytes: int, rest_bytes: int) -> int:
    """That a part needs, with so many bytes of `rest_of`."""
    return paged(aligned(PART_AT + part_bytes) + rest_bytes)


def rest_of(entry: Entry, sizes: Sequence[int], tail_bytes: int) -> int:
    """What lies behind a part of pieces of these sizes: tail and entry. Digests are all of one size."""
    pieces = tuple(Piece(size_bytes, bytes(16)) for size_bytes in sizes)
    sized = msgspec.structs.replace(entry, pieces=pieces, tail_bytes=tail_bytes, tail_digest=bytes(16))
    return aligned(tail_bytes) + len(msgspec.msgpack.encode(sized))


# Writing


def write_head(fd: int, head: Head) -> None:
    body = msgspec.json.encode(head)
    assert _HEADING.size + len(body) <= PAGE_BYTES, "names are short"
    os.ftruncate(fd, max(PAGE_BYTES, os.fstat(fd).st_size))
    write(fd, _HEADING.pack(_digest(b"head", 0, body), len(body)) + body, 0)


def write_frame(fd: int, head: Head, slot_at: int, size_bytes: int) -> None:
    """The pages of the slot are there."""
    write(fd, _frame(head, slot_at, size_bytes), slot_at)


def write_entry(fd: int, head: Head, held: Held) -> None:
    """Part and tail are there. From the last byte of this on the entry counts."""
    encoded = msgspec.msgpack.encode(held.entry)
    write(fd, encoded, held.entry_at)
    header = _HEADER.pack(_entry_digest(head, held.slot_at, encoded), held.entry_at - held.slot_at, len(encoded))
    write(fd, header, held.slot_at + _HEADER_AT)


def erase(fd: int, slot_at: int) -> None:
    """From here on nothing in this slot counts."""
    write(fd, bytes(_HEADER.size), slot_at + _HEADER_AT)


def copy(target: memoryview, data: memoryview) -> None:
    """Of a part, into memory: without the interpreter's lock."""
    one = ctypes.c_ubyte * 1
    ctypes.memmove(one.from_buffer(target), one.from_buffer(data), len(data))


def write(fd: int, data: bytes | memoryview, at: int) -> None:
    """Everything else that is ever written to a log is written here."""
    rest = memoryview(data)
    while len(rest):
        count = os.pwrite(fd, rest, at)
        rest, at = rest[count:], at + count


# Reading


def read(fd: int) -> Reading:
    """Which entries are there; their bytes are looked at by `is_sound`."""
    head = _read_head(fd)
    if head is None:
        return Reading(head=None, held=(), damages=("its head cannot be read",))
    held: list[Held] = []
    damages: list[str] = []
    for slot_at, size_bytes in _slots(fd, head, damages):
        header = os.pread(fd, _HEADER.size, slot_at + _HEADER_AT)
        if header == bytes(_HEADER.size):
            continue  # empty, or not closed: nobody has stated that it is there
        if (found := _read_entry(fd, head, slot_at, size_bytes, *_HEADER.unpack(header))) is None:
            damages.append(f"the entry at byte {slot_at} is not what was written")
        else:
            held.append(found)
    return Reading(head=head, held=tuple(held), damages=tuple(damages))


def is_sound(fd: int, held: Held) -> bool:
    """Are tail and part what was written?"""
    at = held.part_at
    for piece in held.entry.pieces:
        if _digest_of(fd, at, piece.size_bytes) != piece.digest:
            return False
        at += piece.size_bytes
    return _digest_of(fd, held.tail_at, held.entry.tail_bytes) == held.entry.tail_digest


def _read_head(fd: int) -> Head | None:
    page = os.pread(fd, PAGE_BYTES, 0)
    if len(page) < PAGE_BYTES:
        return None
    digest, size_bytes = _HEADING.unpack_from(page)
    body = page[_HEADING.size : _HEADING.size + size_bytes]
    if len(body) != size_bytes or _digest(b"head", 0, body) != digest:
        return None
    return msgspec.json.decode(body, type=Head)


def _slots(fd: int, head: Head, damages: list[str]) -> Iterator[tuple[int, int]]:
    """Where each begins, and its size. A frame that is harmed costs its slot, and not those after it: the next one is
    looked for page by page."""
    end, at, is_lost = os.fstat(fd).st_size, PAGE_BYTES, False
    while at + PART_AT <= end:
        frame = os.pread(fd, _HEADING.size, at)
        _, size_bytes = _HEADING.unpack(frame)
        if frame == _frame(head, at, size_bytes) and at + size_bytes <= end:
            yield at, size_bytes
            at, is_lost = at + size_bytes, False
            continue
        if not is_lost and frame != bytes(_HEADING.size):
            is_lost = True
            damages.append(f"the slot at byte {at} cannot be read")
        at += PAGE_BYTES


def _read_entry(fd: int, head: Head, slot_at: int, size_bytes: int, digest: bytes, at: int, entry_bytes: int) -> Held | None:
    if at + entry_bytes > size_bytes:
        return None
    encoded = os.pread(fd, entry_bytes, slot_at + at)
    if _entry_digest(head, slot_at, encoded) != digest:
        return None
    held = Held(entry=msgspec.msgpack.decode(encoded, type=Entry), slot_at=slot_at)
    return held if held.entry_at == slot_at + at else None


def _digest_of(fd: int, at: int, size_bytes: int) -> bytes:
    hasher, block = xxhash.xxh3_128(), bytearray(min(size_bytes, _BLOCK_BYTES))
    rest = size_bytes
    while rest:
        count = os.preadv(fd, [memoryview(block)[:rest]], at)
        if not count:
            return b""
        hasher.update(memoryview(block)[:count])
        rest, at = rest - count, at + count
    return hasher.digest()


def _frame(head: Head, slot_at: int, size_bytes: int) -> bytes:
    return _HEADING.pack(_digest(head.nonce.encode(), slot_at, size_bytes.to_bytes(8, "little")), size_bytes)


def _entry_digest(head: Head, slot_at: int, encoded: bytes) -> bytes:
    return _digest(b"entry" + head.nonce.encode(), slot_at, encoded)


def _digest(what: bytes, at: int, body: bytes) -> bytes:
    return xxhash.xxh3_128_digest(what + at.to_bytes(8, "little") + body)
