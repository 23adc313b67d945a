"""The bytes of a tensor, without a copy and without numpy."""

import ctypes

import torch


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A writable view of a contiguous CPU tensor's bytes. The tensor must outlive it."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"a {tensor.device.type} tensor with strides {tensor.stride()} has no plain bytes: copy it first")
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its bytes are plain, else a contiguous CPU copy."""
    return tensor.detach().cpu().contiguous()
