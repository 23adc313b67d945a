"""Where a state in memory was harmed."""

import pytest
import torch
from shelf import drafted

from regrow.core.stripes import PIECE_BYTES
from regrow.state.pieces import digests, harm

TREE = {"a": torch.zeros(PIECE_BYTES + 100, dtype=torch.uint8), "b": torch.zeros(100), "c": torch.zeros(10)}


@pytest.mark.parametrize(
    ("name", "at", "words"),
    [
        ("a", 5, f"1 of 2 pieces are harmed, the first one within a (byte 0 to {PIECE_BYTES - 1}): it has the root "),
        (
            "b",
            5,
            f"1 of 2 pieces are harmed, the first one within a (byte {PIECE_BYTES} to {PIECE_BYTES + 99}), b (byte 0 to",
        ),
    ],
)
def test_a_flipped_bit_is_named_with_the_tensors_of_its_piece(name: str, at: int, words: str) -> None:
    made, arena = drafted(TREE)
    said = digests(made, arena)
    assert harm(made, said, said) is None
    index = [leaf.name for leaf in made.leaves].index(name)
    arena[made.offsets[index] + at] ^= 1
    told = harm(made, said, digests(made, arena))
    assert told is not None and told.startswith(words)
    assert told.endswith(f"its label says {said.root}")


def test_bytes_that_belong_to_no_tensor_are_no_harm() -> None:
    made, arena = drafted(TREE)
    said = digests(made, arena)
    arena[made.extents[-1][1]] ^= 1
    assert harm(made, said, digests(made, arena)) is None
