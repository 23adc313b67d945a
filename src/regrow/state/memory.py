"""The bytes of a tensor, without a copy and without numpy."""

import ctypes

import torch

_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200  # PyBUF_WRITE


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A writable view of a contiguous CPU tensor's bytes. The tensor must outlive it."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"a {tensor.device.type} tensor with strides {tensor.stride()} has no plain bytes: copy it first")
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    view: memoryview = _view(tensor.data_ptr(), size, _WRITABLE)
    return view


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its bytes are plain, else a contiguous CPU copy."""
    return tensor.detach().cpu().contiguous()
