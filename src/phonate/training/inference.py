"""A trained model ready for use: the base of what `phonate.load` returns, whatever the task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from phonate.audio.decoding import FloatArray
from phonate.compute.device import choose
from phonate.training.speech_service import SpeechService

Device = str | torch.device


@dataclass(frozen=True)
class Demonstration:
    """What a model makes of one example, for the end of a session."""

    summary: str
    """One sentence without a full stop."""
    command: str
    """The command that does the same; {run} stands for the quoted path of the model."""
    waveform: FloatArray | None = None
    """(N,) at the model's `sample_rate`, where it makes sound."""


class Inference(ABC):
    """A trained model on one device.

    A task subclasses it in its module `inference` and adds its verb (`speak`, `convert`, `transcribe`, ...), which
    takes one input or a list of them. The subclass is named by `TaskInfo.inference`.
    """

    sample_rate: int | None = None
    """Rate in Hz of the audio that goes in and comes out; None for models of text."""
    inference_metadata: Mapping[str, Any]
    """What the task saved beside the weights (`Task.inference_metadata`)."""

    @classmethod
    @abstractmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The model of a run (its best checkpoint, or else its newest) or of one checkpoint, on `device` (None: cpu).

        Raises CheckpointError where there is none, or it is damaged or of another task; InputError where the device is
        not available.
        """

    @property
    @abstractmethod
    def networks(self) -> Sequence[nn.Module]:
        """The networks that `to` moves, the model first."""

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """What the model makes of one training example, of which there is a recording, a text, both or neither. None:
        there is nothing to show."""
        return None

    def speech_service(self, max_batch: int = 8) -> SpeechService | None:
        """The model as a server uses it, working on up to `max_batch` requests at once; None: it makes no speech of
        text."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.networks[0].parameters()).device

    def to(self, device: Device | None) -> Self:
        """Move the networks to `device`, such as "cuda:0" (None: leave them). Returns itself.

        Raises InputError where the device is not available.
        """
        if device is not None:
            target = choose(device=device) if isinstance(device, str) else device
            for network in self.networks:
                network.to(target)
        return self
