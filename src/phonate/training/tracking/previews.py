"""RUN/previews: the latest audio and images of the task, as files."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import TrainingError
from phonate.training.tracking.stream import Sink

if TYPE_CHECKING:
    from phonate.training.task import Preview


class PreviewFolder(Sink):
    """Writes each preview to `folder` as FLAC or PNG, replacing that of the previous validation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write audio and images."""
        from phonate.audio.decoding import write_audio
        from phonate.training.task import Sound

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, preview in previews.items():
                target = self.folder / name.replace("/", "-")
                if isinstance(preview, Sound):
                    write_audio(target.with_name(target.name + ".flac"), preview.waveform, preview.sample_rate)
                else:
                    target.with_name(target.name + ".png").write_bytes(png(grey(preview.values)))
        except OSError as error:
            raise TrainingError(
                f"{self.folder}: can't write previews: {error.strerror}; fix this, then --resume; or set "
                "training.validation.previews=false"
            ) from error


def grey(values: Any) -> Any:
    """A (height, width) array scaled to bytes, 0 darkest, with low frequencies at the bottom."""
    import numpy as np

    low, high = float(np.min(values)), float(np.max(values))
    return (255 * (values[::-1] - low) / max(high - low, 1e-12)).astype(np.uint8)


def png(pixels_HW: Any, palette: Any = None) -> bytes:
    """A (height, width) array of bytes as a PNG file: shades of grey, or numbers in `palette` (256, 3)."""
    height, width = pixels_HW.shape
    colour_type = 0 if palette is None else 3
    rows = b"".join(b"\0" + row.tobytes() for row in pixels_HW)  # each begins with its filter: none
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0))]
    chunks += [] if palette is None else [(b"PLTE", palette.tobytes())]
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)
