"""RUN/previews: the latest audio and images of the task, as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phonate.config.errors import TrainingError
from phonate.training.tracking.stream import Sink
from phonate.training.tracking.tensorboard import grey

if TYPE_CHECKING:
    from phonate.training.task import Preview


class PreviewFolder(Sink):
    """Writes each preview to `folder` as FLAC or PNG, replacing that of the previous validation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write audio and images."""
        from PIL import Image

        from phonate.audio.decoding import write_audio
        from phonate.training.task import Sound

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, preview in previews.items():
                target = self.folder / name.replace("/", "-")
                if isinstance(preview, Sound):
                    write_audio(target.with_name(target.name + ".flac"), preview.waveform, preview.sample_rate)
                else:
                    Image.fromarray(grey(preview.values)).save(target.with_name(target.name + ".png"))
        except OSError as error:
            raise TrainingError(
                f"{self.folder}: can't write previews: {error.strerror}; fix this, then --resume; or set "
                "training.validation.previews=false"
            ) from error
