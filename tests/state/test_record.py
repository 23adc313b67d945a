"""A committed result is the same wherever it is put together again, and nothing else passes for it."""

import random

import pytest
import torch

from regrow.core.errors import StateError
from regrow.state.byproducts import Byproducts
from regrow.state.gradient import Gradient, digest
from regrow.state.layout import Layout
from regrow.state.record import fill, summary

PARAMETERS = [(f"weight {number}", torch.zeros(40 + number)) for number in range(7)]
SIZES = (1, 600, 1 << 20)


def empty(bucket_bytes: int) -> Gradient:
    layout = Layout(PARAMETERS, bucket_bytes)
    return Gradient(layout, layout.new_buffer())


def result(bucket_bytes: int, present: int) -> Gradient:
    made = empty(bucket_bytes)
    for index, view in enumerate(made.views):
        if present >> index & 1:
            view.copy_(torch.tensor([random.Random(index).random()]).expand_as(view))
    made.present, made.weight, made.loss, made.byproducts = present, 3.0, 0.5, Byproducts(lanes=4)
    return made


@pytest.mark.parametrize("theirs", SIZES)
@pytest.mark.parametrize("mine", SIZES)
@pytest.mark.parametrize("present", [0b1111111, 0b1010011])
def test_a_record_may_have_come_in_buckets_of_another_size(mine: int, theirs: int, present: int) -> None:
    sent, received = result(theirs, present), empty(mine)
    fill(received, sent.buffer, summary(sent), digest(sent))
    assert torch.equal(received.buffer, sent.buffer) and received.present == present
    assert (received.weight, received.loss, received.byproducts) == (3.0, 0.5, Byproducts(lanes=4))


@pytest.mark.parametrize("theirs", SIZES)
def test_one_that_was_harmed_is_refused(theirs: int) -> None:
    sent, received = result(theirs, 0b1111111), empty(600)
    wanted, said = digest(sent), summary(sent)
    sent.buffer[5] ^= 4
    with pytest.raises(StateError, match="did not survive"):
        fill(received, sent.buffer, said, wanted)
