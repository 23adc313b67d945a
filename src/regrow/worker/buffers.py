"""The model's buffers: every lane starts from the committed ones; what the lanes made of them is agreed on at the commit.

Outside a lane the live buffers are the committed ones. A buffer counts as changed when autograd's version counter says so,
or when it was put in another's place. Batch norm writes its running statistics past that counter, so a buffer is also taken
for changed when its module is a norm in training, or when another buffer of the same module has changed.
"""

import msgspec
import torch
from torch.nn.modules.batchnorm import _NormBase

from regrow.core.errors import ConfigError
from regrow.state.byproducts import Byproducts, Changed, Outcomes, packed, raw, unpacked
from regrow.state.memory import bytes_of, plain
from regrow.state.tracked import Tracked


class _Slot(msgspec.Struct, kw_only=True):
    """Where a buffer lives, and its committed value."""

    name: str
    module: torch.nn.Module
    key: str
    live: torch.Tensor
    saved: torch.Tensor
    version: int

    @property
    def now(self) -> torch.Tensor | None:
        return self.module._buffers.get(self.key)

    @property
    def is_touched(self) -> bool:
        return self.now is not self.live or self.live._version != self.version

    def write(self, value: torch.Tensor) -> None:
        with torch.no_grad():
            self.live.copy_(value)
        self.module._buffers[self.key] = self.live
        self.version = self.live._version


class Buffers:
    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        self._slots: list[_Slot] = []

    def settle(self) -> None:
        """A step begins: whatever the buffers are now is the committed value."""
        known = {(id(slot.module), slot.key): slot for slot in self._slots}
        self._slots = []
        for name, module, key, live in self._tracked.buffers():
            slot = known.get((id(module), key))
            if slot is None or slot.live is not live or slot.saved.shape != live.shape:
                saved = live.detach().clone()
                slot = _Slot(name=name, module=module, key=key, live=live, saved=saved, version=live._version)
            elif slot.is_touched or isinstance(module, _NormBase):
                slot.saved.copy_(live.detach())
                slot.version = live._version
            self._slots.append(slot)

    def rewind(self) -> None:
        """A lane begins."""
        for slot in self._changed():
            slot.write(slot.saved)

    def take(self, step: int) -> tuple[dict[int, Changed], dict[int, Outcomes]]:
        """A lane is done: what it made of the buffers, which are the committed ones again."""
        floats: dict[int, Changed] = {}
        others: dict[int, Outcomes] = {}
        changed = {id(slot) for slot in self._changed()}
        for index, slot in enumerate(self._slots):
            if id(slot) not in changed:
                continue
            value = self._value(slot, step)
            if value.dtype.is_floating_point:
                floats[index] = Changed(1, packed(value))
            else:
                others[index] = Outcomes(1, (raw(value),))
            slot.write(slot.saved)
        return floats, others

    def commit(self, found: Byproducts, step: int) -> None:
        for index, changed in found.floats.items():
            slot = self._slots[index]
            total = unpacked(changed.total).reshape(slot.saved.shape)
            if changed.lanes < found.lanes:
                total += (found.lanes - changed.lanes) * plain(slot.saved).to(torch.float64)
            slot.write(total / found.lanes)
            slot.saved.copy_(slot.live)
        for index, outcomes in found.others.items():
            slot = self._slots[index]
            committed = raw(slot.saved)
            values = {*outcomes.values, *((committed,) if outcomes.lanes < found.lanes else ())}
            if len(values) > 1:
                raise ConfigError(
                    f"the buffer {slot.name} ({slot.saved.dtype}) came out of step {step} with {len(values)} different "
                    "values in different lanes: only buffers of floats are averaged, any other must not depend on the batch"
                )
            value = torch.empty_like(slot.saved, device="cpu").contiguous()
            bytes_of(value)[:] = values.pop()
            slot.write(value)
            slot.saved.copy_(slot.live)

    def _changed(self) -> list[_Slot]:
        touched = {id(slot.module) for slot in self._slots if slot.is_touched}
        touched |= {id(s.module) for s in self._slots if isinstance(s.module, _NormBase) and s.module.training}
        return [slot for slot in self._slots if id(slot.module) in touched]

    def _value(self, slot: _Slot, step: int) -> torch.Tensor:
        value = slot.now
        if value is None or (value.shape, value.dtype) != (slot.saved.shape, slot.saved.dtype):
            raise ConfigError(
                f"the buffer {slot.name} changed its shape or type in step {step}: what a forward pass changes keeps both"
            )
        if slot.key in slot.module._non_persistent_buffers_set:
            raise ConfigError(
                f"the buffer {slot.name} was changed by the forward pass of step {step}, but is not part of the state that "
                "a replica grows back with: register it with persistent=True"
            )
        return value
