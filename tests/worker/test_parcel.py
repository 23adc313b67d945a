"""A microbatch in memory that two processes map: what comes out is what went in, to the stride."""

import os
from collections import namedtuple

import numpy
import pytest
import torch

from regrow.worker.parcel import pack, unpack

Pair = namedtuple("Pair", "left right")


def sent(thing: object) -> object:
    parcel, fd = pack(thing)
    try:
        return unpack(parcel, fd)
    finally:
        os.close(fd)


BASE = torch.arange(240, dtype=torch.float32)
TENSORS = {
    "plain": BASE.reshape(2, 3, 40),
    "channels last": BASE.reshape(2, 3, 8, 5).contiguous(memory_format=torch.channels_last),
    "every other": BASE[1::2],
    "transposed": BASE.reshape(12, 20).T,
    "expanded": BASE[:3, None].expand(3, 4),
    "from the middle": BASE[3:9],
    "a number": torch.tensor(3.5, dtype=torch.float64),
    "bits": torch.tensor([True, False]),
    "bfloat16": BASE.bfloat16(),
    "complex": torch.complex(BASE, BASE),
    "conjugate": torch.complex(BASE, BASE).conj(),
    "of numpy": torch.from_numpy(numpy.arange(7)),
    "empty": torch.empty(0, 3),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_out_as_it_went_in(name: str) -> None:
    tensor = TENSORS[name]
    (found,) = sent([tensor])
    assert type(found) is type(tensor) and found.dtype == tensor.dtype and found.requires_grad == tensor.requires_grad
    assert torch.equal(found.to_dense(), tensor.to_dense())
    if tensor.layout is torch.strided:
        assert found.stride() == tensor.stride()


@pytest.mark.parametrize("offset", range(0, 17, 3))
def test_a_tensor_keeps_its_place_within_a_cache_line(offset: int) -> None:
    tensor = BASE[offset : offset + 20]
    found = sent(tensor)
    assert isinstance(found, torch.Tensor)
    assert found.data_ptr() % 64 == tensor.data_ptr() % 64


def test_whatever_else_a_batch_holds_comes_along() -> None:
    batch = {"x": torch.ones(3), "names": ["a", "b"], "pair": Pair(1, numpy.arange(6).reshape(2, 3)), "none": None}
    found = sent(batch)
    assert isinstance(found, dict)
    assert torch.equal(found["x"], batch["x"]) and found["names"] == ["a", "b"] and found["none"] is None
    assert isinstance(found["pair"], Pair) and numpy.array_equal(found["pair"].right, batch["pair"].right)


def test_only_the_used_part_of_a_large_tensor_travels() -> None:
    parcel, fd = pack(torch.zeros(10_000_000)[5_000_000:5_000_010])
    os.close(fd)
    assert parcel.size_bytes < 4096


def test_a_batch_may_be_changed_and_its_memory_goes_with_it() -> None:
    before = len(os.listdir("/proc/self/fd"))
    found = sent(torch.zeros(1000))
    assert isinstance(found, torch.Tensor)
    found += 1
    assert found.sum() == 1000
    del found
    assert len(os.listdir("/proc/self/fd")) == before
