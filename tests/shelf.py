"""A store in memory, and stores that die, stand still or lag behind; and small checkpoints to put there."""

import mmap
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from regrow.core.checkpoint import Manifest, Pointer
from regrow.core.delta import Cost
from regrow.core.draft import Draft, draft
from regrow.core.errors import InfraError, NoRoom, StateError
from regrow.core.retention import Retention
from regrow.state.archive import Archive
from regrow.state.chaining import Chaining
from regrow.state.exact import exact, read_exact
from regrow.state.local_store import LocalStore
from regrow.state.memory import bytes_of, plain
from regrow.state.store import Store
from regrow.state.tree import flatten, leaves, unflatten


class Shelf:
    """What the Protocol says, and nothing else."""

    url = "memory:/shelf"

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self._lock = threading.Lock()

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        data = b"".join(parts)
        with self._lock:
            self.files[path] = data

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            return self.files.setdefault(path, data) is data

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def read_into(self, path: str, start: int, view: memoryview) -> None:
        data = self.files.get(path, b"")[start : start + len(view)]
        if len(data) != len(view):
            raise StateError(f"{self.url}/{path} is missing or too short")
        view[:] = data

    def size_bytes(self, path: str) -> int | None:
        data = self.files.get(path)
        return None if data is None else len(data)

    def names(self, folder: str = "") -> list[str]:
        start = f"{folder}/" if folder else ""
        with self._lock:
            return sorted({path.removeprefix(start).split("/")[0] for path in self.files if path.startswith(start)})

    def settle(self, folder: str) -> None:
        pass

    def remove(self, path: str) -> None:
        with self._lock:
            self.files = {
                name: data for name, data in self.files.items() if name != path and not name.startswith(f"{path}/")
            }


class Dead(BaseException):
    """The process is gone: nobody may handle this."""


class Mortal:
    """A store whose user dies at a change, counted from 1: before it, or right after."""

    def __init__(self, store: Store, at: int = 0, after: bool = False) -> None:
        self.url = store.url
        self.changes = 0
        self._store = store
        self._at = at
        self._after = after
        self._lock = threading.Lock()

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        self._change(lambda: self._store.put(path, parts))

    def create(self, path: str, data: bytes) -> bool:
        return self._change(lambda: self._store.create(path, data))

    def remove(self, path: str) -> None:
        self._change(lambda: self._store.remove(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _change(self, change: Callable[[], Any]) -> Any:
        with self._lock:
            self.changes += 1
            if self._at and self.changes >= self._at + self._after:
                raise Dead
            found = change()
            if self._at and self.changes >= self._at:
                raise Dead
            return found


class Interposed:
    """A store in which something happens before a pointer is created, and maybe instead of a listing or after."""

    def __init__(
        self,
        store: Store,
        before: Callable[[str], None] = lambda _path: None,
        after: Callable[[str], None] = lambda _path: None,
        names: Callable[[list[str]], list[str]] = list,
    ) -> None:
        self._store, self._before, self._after, self._names = store, before, after, names
        self.url = store.url

    def create(self, path: str, data: bytes) -> bool:
        self._before(path)
        is_made = self._store.create(path, data)
        self._after(path)
        return is_made

    def names(self, folder: str = "") -> list[str]:
        return self._names(self._store.names(folder))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Moving:
    """A folder in which a saver completes the next checkpoint, and removes all others, whenever such a file is looked at."""

    def __init__(self, folder: Path, looked_at: str) -> None:
        self._folder, self._looked_at = folder, looked_at
        self._store = LocalStore(folder)
        self.url = self._store.url

    @staticmethod
    def put_off(folder: Path) -> None:
        """All checkpoints but the first are still to be completed."""
        for pointer in sorted((folder / "pointers").iterdir())[1:]:
            pointer.rename(folder / pointer.name)

    def read(self, path: str) -> bytes | None:
        self._move_on(path)
        return self._store.read(path)

    def size_bytes(self, path: str) -> int | None:
        self._move_on(path)
        return self._store.size_bytes(path)

    def _move_on(self, path: str) -> None:
        later = sorted(self._folder.glob("*.json"))
        if self._looked_at in path and later:
            later[0].rename(self._folder / "pointers" / later[0].name)
            Archive(self._store).prune(Retention(last=1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Refusing(Shelf):
    """Full after so many bytes."""

    def __init__(self, files: dict[str, bytes], room_bytes: int) -> None:
        super().__init__(files)
        self._room_bytes = room_bytes

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        data = b"".join(parts)
        if sum(map(len, self.files.values())) + len(data) > self._room_bytes:
            raise NoRoom(f"{self.url}/{path}: no room for {len(data)} bytes")
        super().put(path, [memoryview(data)])


class Clinging(Shelf):
    """Some of it cannot be removed."""

    def __init__(self, files: dict[str, bytes], held: Iterable[str]) -> None:
        super().__init__(files)
        self.held = set(held)

    def remove(self, path: str) -> None:
        if path in self.held:
            raise InfraError(f"{self.url}/{path} is locked")
        super().remove(path)


# Checkpoints


def drafted(tree: Any, step: int = 1, term: int = 1, shard_bytes: int = 1 << 20) -> tuple[Draft, memoryview]:
    """A state, ready to be written."""
    flat = flatten(tree, "")
    held = [plain(tensor) for tensor in flat.tensors]
    kinds = [
        (path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes)
        for path, tensor in zip(flat.paths, held, strict=True)
    ]
    made = draft(step=step, term=term, mathematics={}, skeleton=flat.skeleton, tensors=kinds, shard_bytes=shard_bytes)
    arena = memoryview(mmap.mmap(-1, max(1, made.arena_bytes)))
    for offset, tensor in zip(made.offsets, held, strict=True):
        arena[offset : offset + tensor.nbytes] = bytes_of(tensor)
    return made, arena


def save(store: Store, step: int, term: int = 1, tree: Any = None, shard_bytes: int = 1 << 20) -> Pointer:
    return Archive(store).write(*drafted(small(step) if tree is None else tree, step, term, shard_bytes))


class Chained:
    """A writer that makes deltas where it can, as long as it lives."""

    def __init__(self, limit: int) -> None:
        self.chaining = Chaining(limit)
        self.costs: list[Cost] = []
        self.news: list[str] = []

    def save(self, store: Store, step: int, tree: Any, term: int = 1, shard_bytes: int = 1 << 20) -> Pointer:
        archive, (made, arena) = Archive(store), drafted(tree, step, term, shard_bytes)
        costs: list[Cost] = []
        self.chaining.begun()
        pointer = archive.write(made, arena, base=self.chaining.base(made), paid=costs.append)
        news = self.chaining.saved(made, arena, pointer, next(iter(costs), None), archive.manifest)
        self.costs += costs
        self.news += [news] if news else []
        return pointer


def depth(archive: Archive, pointer: Pointer) -> int:
    """How many deltas lie on the whole one at its end."""
    return len(archive.links(pointer, archive.manifest(pointer))) - 1


def small(step: int) -> Any:
    return {"model": {"w": torch.arange(6.0) + step, "b": torch.tensor([step], dtype=torch.int64)}, "note": f"step {step}"}


def load(archive: Archive, pointer: Pointer) -> Any:
    """The state again, or a StateError."""
    manifest = archive.manifest(pointer)
    tensors = places(manifest)
    read_exact(archive, pointer, manifest, [bytes_of(tensor) for tensor in tensors])
    return unflatten(exact(manifest)[0], tensors)


def places(manifest: Manifest) -> list[torch.Tensor]:
    named = sorted(leaves(exact(manifest)[0]), key=lambda leaf: leaf[0])
    return [torch.empty(shape, dtype=dtype) for _, dtype, shape in named]


def newest(archive: Archive) -> tuple[int | None, Any, list[str]]:
    """What a restore would do: the newest that is whole, and all damage that was met."""
    pointers, damages = archive.pointers()
    for pointer in pointers:
        try:
            return pointer.step, load(archive, pointer), damages
        except StateError as error:
            damages.append(str(error))
    return None, None, damages


def same(left: Any, right: Any) -> bool:
    """Equal in type, dtype, shape and bytes."""
    if isinstance(left, torch.Tensor):
        a, b = plain(left), plain(right)
        return a.dtype == b.dtype and a.shape == b.shape and bytes(bytes_of(a)) == bytes(bytes_of(b))
    if isinstance(left, dict):
        return type(right) is dict and list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and repr(left) == repr(right)
