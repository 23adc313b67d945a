"""This replica's state as the protocol sees it: what it offers a joiner, and how a joiner takes it over."""

import threading
from collections.abc import Callable

import torch

from regrow.core.errors import ConfigError, Mismatch
from regrow.core.messages import Offer
from regrow.core.resolve import Manifest
from regrow.state.memory import bytes_of, plain
from regrow.state.snapshot import Darkroom, Snapshot
from regrow.state.tracked import Tracked, decode_skeleton, encode_skeleton, first_difference
from regrow.state.tree import Flat
from regrow.worker.healing import Received


class Replica:
    def __init__(self, tracked: Tracked, steps: int) -> None:
        self.tracked = tracked
        self.steps = steps
        self.structure: Manifest = tracked.structure()
        """As the script built it, before any step: what a joiner's script must build too."""
        self._darkroom = Darkroom()
        self._size_bytes, self._is_on_device = 0, False

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
        self._offered = tensors  # a view does not keep its tensor alive
        return self._describe(step, flat, self.tracked.fingerprint()), [bytes_of(tensor) for tensor in tensors]

    def measure(self) -> None:
        """On the training thread, once the state may have grown: how much memory a snapshot needs."""
        tensors = self.tracked.flatten().tensors
        self._size_bytes = sum(tensor.nbytes for tensor in tensors)
        self._is_on_device = any(tensor.is_cuda for tensor in tensors)

    def prepare(self, done: Callable[[], None] = lambda: None) -> threading.Thread:
        """On any thread: a snapshot will soon be wanted. Make memory ready for it, beside whatever comes next."""

        def make() -> None:
            try:
                self._darkroom.prepare(self._size_bytes, self._is_on_device)
            finally:
                done()  # without it, too: training then waits for the memory

        maker = threading.Thread(target=make, name="regrow-darkroom", daemon=True)
        maker.start()
        return maker

    def forget(self) -> None:
        """No snapshot is wanted any more."""
        self._darkroom.forget()

    def snap(self, step: int) -> Snapshot:
        """A copy of the state, which may change again as soon as this returns."""
        flat = self.tracked.flatten()
        return self._darkroom.take(self._describe(step, flat, ""), flat.tensors)

    def _describe(self, step: int, flat: Flat, digest: str) -> Offer:
        return Offer(
            step=step,
            structure=self.structure,
            frozen=tuple(name for name, parameter in self.tracked.parameters() if not parameter.requires_grad),
            skeleton=encode_skeleton(flat.skeleton),
            sizes=tuple(tensor.nbytes for tensor in flat.tensors),
            digest=digest,
        )

    def place(self, offer: Offer) -> list[torch.Tensor]:
        """Where an offered state is to be received: see Tracked.places. From then on this replica's own state is void."""
        self._check(offer)
        return self.tracked.places(decode_skeleton(offer.skeleton))

    def _check(self, offer: Offer) -> None:
        difference = first_difference(self.structure, offer.structure)
        if difference is not None:
            raise Mismatch(
                f"this replica's script built another state than the job's: {difference} (the donor). Run the same script "
                "with the same arguments on every replica"
            )

    def take(self, received: Received) -> None:
        self._check(received.offer)
        for name, parameter in self.tracked.parameters():
            if parameter.requires_grad != (name not in received.offer.frozen):
                parameter.requires_grad_(name not in received.offer.frozen)
        skeleton = decode_skeleton(received.offer.skeleton)
        self.tracked.restore(skeleton, received.tensors, received.offer.digest, keeps=received.is_ours)
        self.measure()  # it has moments now, which a fresh optimizer has not
