"""This replica's state as the protocol sees it: what it offers a joiner, and how a joiner takes it over."""

import torch

from regrow.core.errors import ConfigError, Mismatch
from regrow.core.messages import Offer
from regrow.core.resolve import Manifest
from regrow.state.memory import bytes_of, plain
from regrow.state.tracked import Tracked, decode_skeleton, encode_skeleton, first_difference
from regrow.worker.healing import Received


class Replica:
    def __init__(self, tracked: Tracked, steps: int) -> None:
        self.tracked = tracked
        self.steps = steps
        self.structure: Manifest = tracked.structure()
        """As the script built it, before any step: what a joiner's script must build too."""

    def trained(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters that are not frozen just now."""
        trained = [(name, parameter) for name, parameter in self.tracked.parameters() if parameter.requires_grad]
        if not trained:
            raise ConfigError("none of the tracked objects has a parameter that requires a gradient: track the model")
        return trained

    def offer(self, step: int) -> tuple[Offer, list[memoryview]]:
        """The live state, without a copy: it must not change until the offer is done with."""
        flat = self.tracked.flatten()
        tensors: list[torch.Tensor] = [plain(tensor) for tensor in flat.tensors]
        views = [bytes_of(tensor) for tensor in tensors]
        self._offered = tensors  # a view does not keep its tensor alive
        offer = Offer(
            step=step,
            structure=self.structure,
            frozen=tuple(name for name, parameter in self.tracked.parameters() if not parameter.requires_grad),
            skeleton=encode_skeleton(flat.skeleton),
            sizes=tuple(len(view) for view in views),
            digest=self.tracked.fingerprint(),
        )
        return offer, views

    def snapshot(self, step: int) -> tuple[Offer, list[torch.Tensor]]:
        """A copy of the state: it may change meanwhile."""
        offer, _ = self.offer(step)
        return offer, [tensor.clone() for tensor in self._offered]

    def take(self, received: Received) -> None:
        difference = first_difference(self.structure, received.offer.structure)
        if difference is not None:
            raise Mismatch(
                f"this replica's script built another state than the job's: {difference} (the donor). Run the same script "
                "with the same arguments on every replica"
            )
        for name, parameter in self.tracked.parameters():
            if parameter.requires_grad != (name not in received.offer.frozen):
                parameter.requires_grad_(name not in received.offer.frozen)
        self.tracked.restore(decode_skeleton(received.offer.skeleton), received.tensors, received.offer.digest)
