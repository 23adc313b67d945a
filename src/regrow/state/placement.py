"""On which device the state of an optimizer belongs. What comes over a wire or out of a file lies on the host.

The rule is torch's own, of `Optimizer.load_state_dict`: state lies where its parameter does, but for `step`, which the host
counts unless the optimizer wants it on the device. Its casts are left out: fp32 state of a bf16 parameter stays fp32.
"""

from collections.abc import Mapping
from typing import Any

import torch

_ON_DEVICE = ("capturable", "fused")
"""Options of a group with which kernels read the step themselves."""


def home(key: object, device: torch.device, group: Mapping[str, Any]) -> torch.device | None:
    """Of what an optimizer keeps under this key for a parameter on this device; None: wherever it is."""
    if key == "step" and not any(group.get(option) for option in _ON_DEVICE):
        return None
    return device


def placed(value: Any, device: torch.device, group: Mapping[str, Any], key: object = None) -> Any:
    """The state of one parameter, each of its tensors at home. What is there already is not copied."""
    if isinstance(value, torch.Tensor):
        place = home(key, device, group)
        return value if place is None else value.to(place)
    if isinstance(value, dict):
        return {name: placed(item, device, group, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(placed(item, device, group, key) for item in value)
    return value
