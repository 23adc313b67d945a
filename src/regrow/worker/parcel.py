"""A microbatch on its way from a data worker: in memory that both processes map, so that no tensor is copied twice.

The memory is a memfd, handed over by its descriptor: it has no name, and is gone with the last process that maps it. Tensors
keep their strides and their place within 64 bytes, because kernels choose their way of adding by both. What is not a
plain tensor or array is pickled; both ends are processes of one worker, forked from it.
"""

import io
import mmap
import os
import pickle
from typing import Any

import msgspec
import torch

from regrow.state.memory import bytes_of

_ALIGN_BYTES = 512
_LINE_BYTES = 64


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """What lies where in a memfd of this size."""

    size_bytes: int
    table_at: int
    """From there on: where each buffer lies, and then the pickle, as [start, stop] each."""


def pack(thing: object) -> tuple[Parcel, int]:
    """Into a fresh memfd, whose descriptor the caller closes."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=5, buffer_callback=buffers.append)
    pickler.dump(thing)  # its memo keeps all that was seen alive: the buffers do not
    views = [buffer.raw() for buffer in buffers] + [file.getbuffer()]
    spans, at = [], 0
    for view in views:
        spans.append((at, at + view.nbytes))
        at = -(-(at + view.nbytes) // _ALIGN_BYTES) * _ALIGN_BYTES
    table = msgspec.msgpack.encode(spans)
    parcel = Parcel(at + len(table), at)
    fd = os.memfd_create("batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, parcel.size_bytes)
        with mmap.mmap(fd, parcel.size_bytes) as memory, memoryview(memory) as target:
            for (start, stop), view in zip(spans, views, strict=True):
                target[start:stop] = view
            target[at:] = table
        pickler.clear_memo()
    except BaseException:
        os.close(fd)
        raise
    return parcel, fd


def unpack(parcel: Parcel, fd: int) -> Any:
    """What was packed; its tensors and arrays lie in the memfd, which may be closed."""
    memory = memoryview(mmap.mmap(fd, parcel.size_bytes))
    *spans, (start, stop) = msgspec.msgpack.decode(memory[parcel.table_at :], type=list[tuple[int, int]])
    return pickle.loads(memory[start:stop], buffers=[memory[low:high] for low, high in spans])


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not torch.Tensor or not _is_plain(thing):
            return NotImplemented
        item = thing.element_size()
        reach = 1 + sum((size - 1) * stride for size, stride in zip(thing.shape, thing.stride(), strict=True))
        address, first = thing.data_ptr(), thing.untyped_storage().data_ptr()
        lead = min(address % _LINE_BYTES, address - first)
        lead -= lead % item
        stored = torch.empty(0, dtype=torch.uint8).set_(thing.untyped_storage())
        start = address - first - lead
        buffer = bytes_of(stored)[start : start + lead + reach * item]
        return _tensor, (pickle.PickleBuffer(buffer), thing.dtype, lead, tuple(thing.shape), thing.stride())


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _tensor(buffer: Any, dtype: torch.dtype, lead: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=dtype, offset=lead).as_strided(shape, stride)
