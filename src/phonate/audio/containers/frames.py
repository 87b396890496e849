"""How long a frame of MPEG audio, AAC, AC-3 or DTS is, as its first bytes say."""

from __future__ import annotations

from functools import lru_cache

_KBPS = {
    (True, 1): range(32, 449, 32),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates by whether it is MPEG-1, and layer."""


@lru_cache(maxsize=1024)
def mpeg_frame(header: bytes) -> tuple[int, tuple[int, int, int]] | None:
    """Length in bytes of the frame with these 4 bytes, and what does not change in a stream: version and layer, rate,
    whether it is mono. (ISO/IEC 11172-3, 2.4.2.3)"""
    if len(header) < 4 or header[0] != 0xFF or header[1] < 0xE0:
        return None
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)  # version 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    bits, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer == 4 or not 0 < bits < 15 or rate == 3:
        return None
    hz = (44_100, 48_000, 32_000)[rate] // {3: 1, 2: 2, 0: 4}[version]
    kbps = _KBPS[(version == 3, layer)][bits - 1]
    if layer == 1:
        length = 4 * (12_000 * kbps // hz + padding)
    else:
        length = (72_000 if layer == 3 and version != 3 else 144_000) * kbps // hz + padding
    return length, (header[1] & 0xFE, hz, int(header[3] >> 6 == 3))


def mpeg_samples(version_and_layer: int) -> int:
    """Samples of a frame with this second byte."""
    version, layer = version_and_layer >> 3 & 3, 4 - (version_and_layer >> 1 & 3)
    return 384 if layer == 1 else 1152 if layer == 2 or version == 3 else 576


def frame_bytes(codec: str, head: bytes) -> int:
    """The length of the frame that begins with `head`, as it says; 0 where it does not. (AAC in ADTS: ISO/IEC 13818-7,
    6.2; AC-3: ATSC A/52, 5.3 and E.1.3.1; DTS: ETSI TS 102 114, 5.3.1)"""
    head = head.ljust(8, b"\0")
    if codec in ("mp1", "mp2", "mp3", "mp3float"):
        frame = mpeg_frame(head[:4])
        return 0 if frame is None else frame[0]
    if codec == "aac" and head[:1] == b"\xff" and head[1] & 0xF6 == 0xF0:
        return int.from_bytes(head[3:6], "big") >> 5 & 0x1FFF
    if codec in ("ac3", "eac3") and head[:2] == b"\x0bw":
        if head[5] >> 3 > 10:
            return 2 * ((int.from_bytes(head[2:4], "big") & 0x7FF) + 1)
        rate, size = head[4] >> 6, head[4] & 63
        if rate < 3 and size < 38:
            words = 96_000 * _AC3_KBPS[size // 2] // (48_000, 44_100, 32_000)[rate]
            return 2 * (words + (size & 1 if rate == 1 else 0))
    if codec in ("dts", "dca") and head[:4] == b"\x7f\xfe\x80\x01":
        return (int.from_bytes(head[5:8], "big") >> 4 & 0x3FFF) + 1
    return 0


_AC3_KBPS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)
