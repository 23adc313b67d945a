"""The folder of pointers: which checkpoints count, and which is the latest. See core/checkpoint.py for the rules.

A pointer's digest covers every byte of its file but itself, as they lie there: fields that a later release adds do not make
it look damaged to this one.
"""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import xxhash

from regrow.core.checkpoint import Pointer
from regrow.core.errors import StateError
from regrow.state.store import Store

FOLDER = "pointers"
_NAME = re.compile(r"(\d{12,})\.json")
_LINES = 8
_BEFORE = b'{"digest":"'
_DIGEST = slice(len(_BEFORE), len(_BEFORE) + 32)


class Pointers:
    """Of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def numbers(self) -> list[int]:
        """The highest first, damaged ones included."""
        found = (_NAME.fullmatch(name) for name in self._store.names(FOLDER))
        return sorted((int(match[1]) for match in found if match is not None), reverse=True)

    def newest(self, numbers: Iterable[int]) -> Pointer | None:
        """The one with the highest of these numbers that is whole."""
        for number in numbers:
            try:
                pointer = self.read(number)
            except StateError:
                continue  # `all` tells of it
            if pointer is not None:
                return pointer
        return None

    def all(self) -> tuple[list[Pointer], list[str]]:
        """Those that are whole, newest first, and what is wrong with the others."""
        pointers, damages = [], []
        with ThreadPoolExecutor(_LINES, "regrow-pointers") as pool:
            for found in pool.map(self._read_or_tell, self.numbers()):
                if isinstance(found, Pointer):
                    pointers.append(found)
                elif found is not None:
                    damages.append(found)
        return pointers, damages

    def read(self, number: int) -> Pointer | None:
        """None when there is none; StateError when it is damaged."""
        data = self._store.read(path_of(number))
        if data is None:
            return None
        where = f"{self._store.url}/{path_of(number)}"
        found = _digest(data)
        if data[: len(_BEFORE)] != _BEFORE or data[_DIGEST] != found:
            raise StateError(
                f"{where} is damaged: its {len(data)} bytes have digest {found.decode()}, it says {_shown(data[_DIGEST])}"
            )
        try:
            pointer = msgspec.json.decode(data, type=Pointer)
        except msgspec.DecodeError as error:
            raise StateError(f"{where} cannot be read: {error}") from error
        if pointer.number != number:
            raise StateError(f"{where} says that it is number {pointer.number}: it was copied or renamed")
        return pointer

    def create(self, pointer: Pointer) -> bool:
        """Of a sealed one. False: somebody else's has that number."""
        return self._store.create(path_of(pointer.number), msgspec.json.encode(pointer))

    def settle(self) -> None:
        """Those that are there stay there: whoever made one may have died before its name was durable."""
        self._store.settle(FOLDER)

    def remove(self, number: int) -> None:
        self._store.remove(path_of(number))

    def _read_or_tell(self, number: int) -> Pointer | str | None:
        try:
            return self.read(number)
        except StateError as error:
            return str(error)


def path_of(number: int) -> str:
    return f"{FOLDER}/{number:012d}.json"


def sealed(pointer: Pointer) -> Pointer:
    """With its digest, whatever it had."""
    blank = msgspec.structs.replace(pointer, digest="0" * 32)
    return msgspec.structs.replace(pointer, digest=_digest(msgspec.json.encode(blank)).decode())


def _digest(data: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(data[: _DIGEST.start] + data[_DIGEST.stop :]).encode()


def _shown(digest: bytes) -> str:
    return digest.decode("ascii", "backslashreplace") or "nothing"
