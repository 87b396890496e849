"""The three kinds of devices that models are trained on. Needs no torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class HasType(Protocol):
    """A `torch.device`, or an object with the same attribute."""

    @property
    def type(self) -> str:
        """torch's name for its kind."""
        ...


class DeviceType(StrEnum):
    """A kind of device, by torch's name for it: `DeviceType.of(device) is DeviceType.CUDA`."""

    CUDA = "cuda"
    MPS = "mps"
    CPU = "cpu"

    @classmethod
    def of(cls, device: HasType | str) -> DeviceType:
        """The kind of a `torch.device` or of a name such as "cuda:1". Raises ValueError for other kinds (xpu, ...)."""
        name = device.partition(":")[0] if isinstance(device, str) else device.type
        return cls(name)
