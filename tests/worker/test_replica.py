"""What a replica that came later has ready for those who come after it."""

import torch

from regrow.state.memory import plain
from regrow.state.tracked import Tracked
from regrow.worker.healing import Received
from regrow.worker.replica import Replica


def built(is_trained: bool) -> Replica:
    torch.manual_seed(1 if is_trained else 2)
    model = torch.nn.Linear(300, 200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tracked = Tracked()
    tracked.add("model", model)
    tracked.add("optimizer", optimizer)
    replica = Replica(tracked, steps=100)
    if is_trained:
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
    return replica


def test_a_replica_that_took_over_moments_copies_its_state_into_memory_that_is_there() -> None:
    donor, joiner = built(True), built(False)
    joiner.measure()  # as before its first step
    offer, _ = donor.offer(57)
    tensors = [plain(tensor).clone() for tensor in donor.tracked.flatten().tensors]
    joiner.take(Received(offer=offer, tensors=tensors, size_bytes=sum(offer.sizes)))
    joiner.prepare().join()
    ready = joiner._darkroom._memory
    snapshot = joiner.snap(57)
    assert snapshot._memory is ready, "training waited for the memory"
    assert snapshot.size_bytes > 3 * 300 * 200 * 4
