"""The copy of a state into an arena, made in the background while training goes on.

What an optimizer owns (its parameters, and the state it keeps for them) changes in its step and nowhere else: forward and
backward read it. So it is copied after `save` has returned, and no optimizer of this process steps until the copy is done
(`Hold`). Anything else may change at any moment and is copied at once. A tensor's version proves the rest: torch counts the
changes of every tensor, and a copy of one that was changed meanwhile is void.

Two kinds of change are not counted by torch and have to stay out of a copy's time: writing through `.data` or a numpy view,
and a step inside a captured CUDA graph, which calls no hook. Whoever does these calls `Hold.wait` first.
"""

import ctypes
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from regrow.state.memory import plain

_CLONE_BYTES = 16 << 20
"""A tensor on a GPU up to this size is copied there, so that nobody waits for the GPU."""


class Room(Protocol):
    """What a state is copied into."""

    @property
    def address(self) -> int: ...

    def fit(self, size_bytes: int, pinned: bool = False) -> None:
        """On the thread that copies: returns once there is room."""

    def has_room(self, size_bytes: int) -> bool:
        """At once."""

    def tensor(self, offset: int, size_bytes: int) -> torch.Tensor: ...


class Piece(msgspec.Struct, kw_only=True):
    """Bytes of a tensor, and where in the arena they go."""

    offset: int
    tensor: torch.Tensor
    start: int
    stop: int


class Owned(Piece, kw_only=True):
    """One that stays as it is until an optimizer steps."""

    path: str
    version: int

    @property
    def is_changed(self) -> bool:
        return self.tensor._version != self.version


class Copy(msgspec.Struct, kw_only=True):
    """One state on its way into the arena."""

    arena: Room
    size_bytes: int
    owned: list[Owned]
    kept: list[Piece]
    """Copies of tensors that could change at any moment."""
    reached: Callable[[int], None]
    """Called on the thread that copies: all before this byte of the arena is there, if the copy turns out to be sound."""
    done: Callable[["Outcome"], None]
    """Called once, there too; the optimizers still wait."""
    marks: dict[torch.device, torch.cuda.Event] = {}
    """Per GPU: when what was asked of it before the save is done."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    changed: tuple[str, ...] = ()
    """Paths of tensors that did not stay as they were: the copy is void."""
    error: Exception | None = None
    """There is no copy."""
    seconds: float = 0.0


def copy_of(
    tensors: Sequence[tuple[str, torch.Tensor, int]],
    owners: Iterable[torch.optim.Optimizer],
    arena: Room,
    size_bytes: int,
    restless: Collection[str],
    reached: Callable[[int], None],
    done: Callable[[Outcome], None],
    portion: tuple[int, int] | None = None,
) -> Copy:
    """Of these tensors (path, tensor, offset in the arena). Whatever could change at any moment is safe on return, and so
    are the tensors whose path is in `restless`. Of a portion of the arena, only what lies in it."""
    ours = _places(owners)
    first, last = portion or (0, size_bytes)
    owned: list[Owned] = []
    kept: list[Piece] = []
    for path, tensor, offset in tensors:
        start, stop = max(0, first - offset), min(tensor.nbytes, last - offset)
        if start >= stop:
            continue
        piece = Piece(offset=offset + start, tensor=tensor, start=start, stop=stop)
        if path not in restless and _place(tensor) in ours and not tensor.is_inference():
            owned.append(Owned(**msgspec.structs.asdict(piece), path=path, version=tensor._version))
        elif tensor.device.type == "cpu" and arena.has_room(size_bytes):
            _copy(piece, arena)
        else:
            kept.append(_kept(piece))
    marks = {}
    for device in {tensor.device for _, tensor, _ in tensors if tensor.is_cuda and tensor.nbytes}:
        with torch.cuda.device(device):
            marks[device] = torch.cuda.current_stream().record_event()
    return Copy(arena=arena, size_bytes=size_bytes, owned=owned, kept=kept, reached=reached, done=done, marks=marks)


class Hold:
    """Copies one state at a time; while it does, optimizers wait."""

    def __init__(self, before_step: Callable[[], None]) -> None:
        """`before_step` is called before each step of an optimizer, on its thread, and has to `wait`."""
        self._before_step = before_step
        self._copies: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="regrow-copy", daemon=True)
        self._thread.start()
        # Of every optimizer: one that nobody has told us of may own the same parameters, and the fused ones change them
        # without being counted. Compiled steps leave their graph for it.
        self._hook = register_optimizer_step_pre_hook(torch.compiler.disable(self._pause))  # type: ignore[no-untyped-call]

    def begin(self, copy: Copy) -> None:
        """Returns at once; the one before must be done (see `wait`)."""
        self._is_idle.clear()
        self._copies.put(copy)

    @property
    def is_idle(self) -> bool:
        return self._is_idle.is_set()

    def wait(self) -> float:
        """Until no copy is being made; the seconds it took."""
        if self._is_idle.is_set():
            return 0.0
        begun_s = time.monotonic()
        self._is_idle.wait()
        return time.monotonic() - begun_s

    def close(self) -> None:
        """What has been begun is finished first."""
        self._copies.put(None)
        self._thread.join()
        self._hook.remove()

    def _pause(self, *_: object) -> None:
        if os.getpid() == self._pid:  # the thread did not come along into a forked child
            self._before_step()

    def _run(self) -> None:
        # At the priority of training, which waits for it sooner or later: a nice thread would starve beside other processes.
        while (copy := self._copies.get()) is not None:
            copy.done(carried_out(copy))
            del copy  # or its tensors would live until the next
            self._is_idle.set()


def carried_out(copy: Copy) -> Outcome:
    begun_s = time.monotonic()
    try:
        copy.arena.fit(copy.size_bytes, pinned=bool(copy.marks))
        copy.reached(0)
        _copy_all(copy)
    except Exception as error:  # the edge of a thread: training would wait for it forever
        return Outcome(error=error)
    changed = tuple(piece.path for piece in copy.owned if piece.is_changed)
    return Outcome(changed=changed, seconds=time.monotonic() - begun_s)


def _copy_all(copy: Copy) -> None:
    streams = {device: _stream(device, mark) for device, mark in copy.marks.items()}
    pieces: list[Piece] = [*copy.owned, *copy.kept]
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        if not streams:  # a GPU says only at the end what has come
            copy.reached(piece.offset)
        if piece.tensor.is_cuda:
            with torch.cuda.stream(streams[piece.tensor.device]):
                flat = _bytes(piece)
                copy.arena.tensor(piece.offset, flat.nbytes).copy_(flat, non_blocking=True)
        else:
            _copy(piece, copy.arena)
    for stream in streams.values():
        stream.record_event().synchronize()


def _stream(device: torch.device, mark: torch.cuda.Event) -> torch.cuda.Stream:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_event(mark)
    return stream


def _copy(piece: Piece, arena: Room) -> None:
    held, size = plain(piece.tensor), piece.stop - piece.start
    ctypes.memmove(
        arena.address + piece.offset, held.data_ptr() + piece.start, size
    )  # as fast as memory is, without the GIL


def _bytes(piece: Piece) -> torch.Tensor:
    return piece.tensor.detach().contiguous().reshape(-1).view(torch.uint8)[piece.start : piece.stop]


def _kept(piece: Piece) -> Piece:
    held = _bytes(piece)
    size = held.nbytes
    held = held.cpu() if held.is_cuda and size > _CLONE_BYTES else held.clone()
    return Piece(offset=piece.offset, tensor=held, start=0, stop=size)


_Place = tuple[torch.device, int, torch.dtype, torch.Size, tuple[int, ...]]


def _places(owners: Iterable[torch.optim.Optimizer]) -> set[_Place]:
    """The memory of what these optimizers own. Only whole tensors count: a view of a part is somebody else's affair."""
    found: set[_Place] = set()
    for optimizer in owners:
        if not getattr(type(optimizer).step, "hooked", False):
            continue  # it never called torch's own constructor, and its steps call no hook
        found.update(_place(parameter) for group in optimizer.param_groups for parameter in group["params"])
        for state in optimizer.state.values():
            found.update(_place(value) for value in state.values() if isinstance(value, torch.Tensor))
    return found


def _place(tensor: torch.Tensor) -> _Place:
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
