"""A store at a URL that fsspec reaches: s3:// (with regrow[s3]), and memory:// within one process.

Reading and listing are fsspec's. Writing and removing are not, where they would show half a file, overwrite, or keep silent
about what was not done: they are left to the `Means` of each protocol. One without such means is trusted on the user's word
alone: one-writer+URL says that no two ever save there at once. Listings are never cached: whoever asks for the latest
pointer must not be told of yesterday's.
"""

import contextlib
import io
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from fsspec.core import url_to_fs  # type: ignore[import-untyped]
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.shell.faultpoint import faultpoint
from regrow.shell.pacing import Pacer
from regrow.state.store import names_in

PATIENCE_S = 60.0
ONE_WRITER = "one-writer+"
"""Before a URL: only one job ever saves there at a time. A pointer is then created by looking first."""
READ_BYTES = 16 << 20
"""At most so much in one request."""
_WRITE_BYTES = 8 << 20


class Means(Protocol):
    """How a protocol writes, whole or not at all, and removes."""

    errors: tuple[type[Exception], ...]
    """What it raises, OSError among it."""

    def ask(self, method: str, *arguments: object, **options: object) -> Any:
        """A method of fsspec's file system, TimeoutError when patience ends."""

    def put(self, place: str, views: list[memoryview]) -> None: ...

    def create(self, place: str, data: bytes) -> bool: ...

    def remove(self, place: str) -> None: ...


def reach(url: str, patience_s: float = PATIENCE_S, pacer: Pacer | None = None) -> "FsspecStore":
    """Nothing is asked of the service yet. It may let each request wait for so long before InfraError is raised."""
    scheme, _, place = url.partition("://")
    place = place.strip("/")
    if "@" in place.split("/")[0]:
        raise ConfigError(
            f"{scheme}://...: leave the credentials out of the URL, where logs would show them; {scheme} finds its own"
        )
    means: Means
    match scheme.lower():
        case "memory":
            means = InMemory(pacer)
        case "s3" | "s3a":
            if not place:
                raise ConfigError(f"{url} names no bucket: write s3://BUCKET/FOLDER")
            means = _s3(url, patience_s, pacer)
        case other if other.startswith(ONE_WRITER):
            trusted = OneWriter(url[len(ONE_WRITER) :], pacer)
            return FsspecStore(url.rstrip("/"), trusted.root, trusted, patience_s)
        case _:
            raise ConfigError(
                f"{url}: of two that save at once only one may create a pointer, and regrow cannot be sure of that at "
                f"{scheme}://; use s3://, or a folder (a mounted one, perhaps), or say {ONE_WRITER}{url} where you are sure "
                "that no two will ever save there at once"
            )
    return FsspecStore(f"{scheme}://{place}", place, means, patience_s)


def _s3(url: str, patience_s: float, pacer: Pacer | None) -> Means:
    try:
        from regrow.state.s3 import S3
    except ImportError as error:
        raise ConfigError(f"{url} needs the package {error.name}: pip install 'regrow[s3]'") from error
    return S3(patience_s, pacer)


class FsspecStore:
    def __init__(self, url: str, root: str, means: Means, patience_s: float) -> None:
        self.url = url
        self._root = root
        self._means = means
        self._patience_s = patience_s

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        with self._told(path):
            self._means.put(self._place(path), [part.cast("B") for part in parts])

    def create(self, path: str, data: bytes) -> bool:
        with self._told(path):
            return self._means.create(self._place(path), data)

    def read(self, path: str) -> bytes | None:
        with self._told(path):
            try:
                return bytes(self._means.ask("cat_file", self._place(path), max_concurrency=1))  # in one request
            except FileNotFoundError as error:
                _raise_if_unreachable(error)
                return None

    def read_into(self, path: str, start: int, view: memoryview) -> None:
        target = view.cast("B")
        with self._told(path):
            for at in range(0, len(target), READ_BYTES):
                piece = target[at : at + READ_BYTES]
                try:
                    data = self._means.ask("cat_file", self._place(path), start=start + at, end=start + at + len(piece))
                except OSError:
                    self._must_reach(path, start + len(target))
                    raise
                if len(data) != len(piece):
                    self._must_reach(path, start + len(target))
                    raise InfraError(
                        f"{self.url}/{path}: {len(data)} bytes came when {len(piece)} were asked for; try again"
                    )
                piece[:] = data
            if not target:
                self._must_reach(path, start)

    def _must_reach(self, path: str, stop: int) -> None:
        size_bytes = self.size_bytes(path)
        if size_bytes is None:
            raise StateError(f"{self.url}/{path} is missing")
        if size_bytes < stop:
            raise StateError(f"{self.url}/{path} is too short: it has {size_bytes} bytes, and {stop} are wanted of it")

    def size_bytes(self, path: str) -> int | None:
        with self._told(path):
            try:
                info = self._means.ask("info", self._place(path))
            except FileNotFoundError as error:
                _raise_if_unreachable(error)
                return None
            return int(info["size"]) if info["type"] == "file" else None

    def names(self, folder: str = "") -> list[str]:
        place = self._place(folder)
        with self._told(folder):
            try:
                found = self._means.ask("ls", place, detail=True, refresh=True)
            except FileNotFoundError as error:
                _raise_if_unreachable(error)
                return []
            paths = (entry["name"].strip("/") for entry in found)
            return sorted({path.rsplit("/", 1)[-1] for path in paths if path.startswith(place + "/")})

    def settle(self, folder: str) -> None:
        """Nothing: an object has its name once the service says that it has it, and durably so."""

    def remove(self, path: str) -> None:
        with self._told(path):
            self._means.remove(self._place(path))

    def _place(self, path: str) -> str:
        return "/".join((self._root, *names_in(path))).lstrip("/") if path else self._root

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        place = f"{self.url}/{path}"
        try:
            yield
        except PermissionError as error:
            raise InfraError(f"{place} is refused ({error}): check the credentials and what they allow") from error
        except TimeoutError as error:
            raise InfraError(
                f"{place}: no answer within {self._patience_s:g} s; check the service and the way to it"
            ) from error
        except self._means.errors as error:
            _raise_if_unreachable(error)
            raise InfraError(f"{place} cannot be used ({error}): check the service and the way to it") from error


def _raise_if_unreachable(error: Exception) -> None:
    """A bucket that does not exist is not an empty store: a mistyped name would start a training from nothing."""
    response = getattr(error.__cause__, "response", None) or {}
    if response.get("Error", {}).get("Code") == "NoSuchBucket":
        raise ConfigError(
            f"bucket {response['Error'].get('BucketName', '')} does not exist: create it, or correct the URL"
        ) from error


class OneWriter:
    """Any protocol of fsspec's, as it is. What a dead writer left half written is found by its digest, like any harm."""

    errors: tuple[type[Exception], ...] = (OSError,)
    _lock = threading.Lock()

    def __init__(self, url: str, pacer: Pacer | None = None) -> None:
        try:
            self._fs, path = url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
        except ImportError as error:
            raise ConfigError(f"{url} needs a package: {error}") from error
        except ValueError as error:
            raise ConfigError(f"{url} cannot be reached: {error}") from error
        self.root: str = path.strip("/")
        self._top = "/" if path.startswith("/") else ""
        self._pacer = pacer or Pacer()

    def ask(self, method: str, *arguments: object, **options: object) -> Any:
        self._fs.invalidate_cache()
        common = {name: value for name, value in options.items() if name in ("start", "end", "detail")}
        return self._call(method, *arguments, **common)

    def put(self, place: str, views: list[memoryview]) -> None:
        self._call("makedirs", place.rpartition("/")[0], exist_ok=True)
        file = self._call("open", place, mode="wb")
        with file:
            for view in views:
                for start in range(0, len(view), _WRITE_BYTES):
                    piece = view[start : start + _WRITE_BYTES]
                    self._pacer.wait(len(piece))
                    faultpoint("save-block")
                    file.write(piece)
            with contextlib.suppress(AttributeError, io.UnsupportedOperation):  # a service that says itself what it has
                fd = file.fileno()
                file.flush()
                os.fsync(fd)

    def create(self, place: str, data: bytes) -> bool:
        with self._lock:
            if self.ask("exists", place):
                return False
            self.put(place, [memoryview(data)])
            return True

    def remove(self, place: str) -> None:
        if self.ask("exists", place):
            self._call("rm", place, recursive=True)

    def _call(self, method: str, *arguments: object, **options: object) -> Any:
        place, *rest = arguments
        try:
            return getattr(self._fs, method)(f"{self._top}{place}", *rest, **options)
        except NotADirectoryError as error:
            raise FileNotFoundError(str(error)) from error
        except OSError:
            raise
        except Exception as error:  # the edge of a library: each raises what it likes
            raise OSError(f"{type(error).__name__}: {error}") from error


class InMemory:
    """fsspec's memory://: one dictionary for the whole process."""

    errors: tuple[type[Exception], ...] = (OSError,)
    _lock = threading.Lock()

    def __init__(self, pacer: Pacer | None = None) -> None:
        self._fs = MemoryFileSystem(skip_instance_cache=True)
        self._pacer = pacer or Pacer()

    def ask(self, method: str, *arguments: object, **options: object) -> Any:
        return getattr(self._fs, method)(*arguments, **options)

    def put(self, place: str, views: list[memoryview]) -> None:
        data = b"".join(views)
        self._pacer.wait(len(data))
        self._write(place, data)

    def create(self, place: str, data: bytes) -> bool:
        with self._lock:
            if self._fs.exists(place):
                return False
            self._write(place, data)
            return True

    def remove(self, place: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(place, recursive=True)

    def _write(self, place: str, data: bytes) -> None:
        faultpoint("save-block")
        self._fs.pipe_file(place, data)  # a whole new file, put in the old one's place by one assignment
