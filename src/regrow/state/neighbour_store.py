"""A store in the memory of a neighbour, and the logs that lie there: neighbour://HOST:PORT/RUN.

What the environment of this process says is proven at its door, and is the claim under which it writes: `regrow run` sets
both for all that it starts. Without a claim it may only look, once any run has made one.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import msgspec

from regrow.core.errors import ConfigError, InfraError, PeerError, StateError
from regrow.core.neighbour import SCHEME
from regrow.core.neighbour_messages import (
    Done,
    Drop,
    File,
    Get,
    GetLogs,
    LogFile,
    Look,
    Put,
    Seen,
    TakenOver,
    TakeOver,
)
from regrow.core.roster import Endpoint
from regrow.shell.pacing import Pacer
from regrow.state import log
from regrow.state.shard import Told
from regrow.state.store import names_in
from regrow.wire.blocking import Blocking
from regrow.wire.visit import heard, visit

TOKEN, CLAIM = "REGROW_NEIGHBOUR_TOKEN", "REGROW_NEIGHBOUR_CLAIM"
_CONNECT_S = 10.0
_BLOCK_BYTES = 4 << 20


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Of what a neighbour keeps of one run."""

    endpoint: Endpoint
    run: str

    @property
    def url(self) -> str:
        return f"{SCHEME}://{self.endpoint}/{self.run}"


def address_of(place: str) -> Address:
    """Of HOST:PORT/RUN, as a URL has it behind its scheme."""
    where, _, run = place.removeprefix(f"{SCHEME}://").strip("/").partition("/")
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal() or not run or "/" in run:
        raise ConfigError(f"{SCHEME}://{place}: write {SCHEME}://HOST:PORT/RUN")
    return Address(endpoint=Endpoint(host.strip("[]"), int(port)), run=run)


def taken_over(address: Address, resumes: bool) -> int:
    """The claim under which this run writes there from now on. InfraError where nobody answers; ConfigError where the run
    does not resume, and there is something to go on from."""
    with _visited(address, 0) as line:
        line.send(TakeOver(resumes=resumes))
        return heard(line, TakenOver, _CONNECT_S).claim


def own_claim() -> int:
    """0: this process has none."""
    return int(os.environ.get(CLAIM) or 0)


def fetched_logs(address: Address, told: Told) -> dict[str, int]:
    """All logs that lie there, each in a file of this process, by names that no others have: MEMBER@CLAIM. Fenced where
    another run has taken over since: what that one commits is nothing that follows here."""
    found: dict[str, int] = {}
    try:
        with _visited(address, own_claim()) as line:
            line.send(GetLogs())
            while (answer := heard(line, LogFile)).name:
                fd = found[answer.name] = os.memfd_create("regrow-log", os.MFD_CLOEXEC)
                block = memoryview(bytearray(_BLOCK_BYTES))
                for at in range(0, answer.size_bytes, _BLOCK_BYTES):
                    view = block[: min(_BLOCK_BYTES, answer.size_bytes - at)]
                    line.receive_raw_into(view)
                    log.write(fd, view, at)
                    told(len(view))
    except BaseException:
        for fd in found.values():
            os.close(fd)
        raise
    return found


class NeighbourStore:
    """From any thread: each has a line to itself while it asks."""

    def __init__(self, place: str, pacer: Pacer | None = None) -> None:
        self._address = address_of(place)
        self.url = self._address.url
        self._pacer = pacer or Pacer()
        self._idle: SimpleQueue[Blocking] = SimpleQueue()

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        self._put(path, [part.cast("B") for part in parts if part.nbytes], is_new=False)

    def create(self, path: str, data: bytes) -> bool:
        return self._put(path, [memoryview(data)], is_new=True)

    def read(self, path: str) -> bytes | None:
        names_in(path)
        with self._line() as line:
            line.send(Get(path=path))
            if (size_bytes := heard(line, File).size_bytes) < 0:
                return None
            data = bytearray(size_bytes)
            line.receive_raw_into(memoryview(data))
            return bytes(data)

    def read_into(self, path: str, start: int, view: memoryview) -> None:
        names_in(path)
        with self._line() as line:
            line.send(Get(path=path, start=start, size_bytes=view.nbytes))
            if heard(line, File).size_bytes == view.nbytes:
                line.receive_raw_into(view.cast("B"))
                return
        there = self.size_bytes(path)
        how = "is missing" if there is None else f"is too short: it has {there} bytes, not {start + view.nbytes}"
        raise StateError(f"{self.url}/{path} {how}")

    def size_bytes(self, path: str) -> int | None:
        names_in(path)
        return None if (found := self._seen(path).size_bytes) < 0 else found

    def names(self, folder: str = "") -> list[str]:
        if folder:
            names_in(folder)
        return list(self._seen(folder).names)

    def settle(self, folder: str) -> None:
        """Nothing: what has a name there has it for as long as there is anything."""

    def remove(self, path: str) -> None:
        names_in(path)
        with self._line() as line:
            line.send(Drop(path=path))
            heard(line, Done)

    def _put(self, path: str, parts: list[memoryview], is_new: bool) -> bool:
        names_in(path)
        with self._line() as line:
            line.send(Put(path=path, size_bytes=sum(part.nbytes for part in parts), is_new=is_new))
            heard(line, Done)
            for part in parts:
                for at in range(0, part.nbytes, _BLOCK_BYTES):
                    block = part[at : at + _BLOCK_BYTES]
                    self._pacer.wait(len(block))
                    line.send_raw(block)
            return heard(line, Done).is_done

    def _seen(self, path: str) -> Seen:
        with self._line() as line:
            line.send(Look(path=path))
            return heard(line, Seen)

    @contextmanager
    def _line(self) -> Iterator[Blocking]:
        """Kept for whoever asks next, unless it broke."""
        try:
            line = self._idle.get_nowait()
        except Empty:
            line = _visit(self._address, own_claim())
        with _whole(line, self._idle.put):
            yield line


@contextmanager
def _visited(address: Address, claim: int) -> Iterator[Blocking]:
    with _whole(line := _visit(address, claim), lambda line: line.close()):
        yield line


@contextmanager
def _whole(line: Blocking, kept: Callable[[Blocking], None]) -> Iterator[None]:
    """What the neighbour says no to is no fault of the line; anything else leaves nobody knowing what comes next on it."""
    try:
        yield
    except PeerError as error:
        line.close()
        raise InfraError(f"the neighbour cannot be asked ({error}): start it, or see to the network between") from error
    except (ConfigError, InfraError, StateError):
        kept(line)
        raise
    except BaseException:
        line.close()
        raise
    kept(line)


def _visit(address: Address, claim: int) -> Blocking:
    if TOKEN not in os.environ:
        raise ConfigError(f"{address.url} has a door: give its token in {TOKEN}")
    try:
        return visit(address.endpoint, os.environ[TOKEN], address.run, claim, _CONNECT_S)
    except PeerError as error:
        raise InfraError(f"the neighbour cannot be reached ({error}): start it, or see to the network between") from error
