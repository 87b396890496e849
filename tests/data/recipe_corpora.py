"""Small corpora on disk, laid out as AMI and YesNo are when they are downloaded."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from phonate.audio.decoding import write_audio

AMI_MEETINGS = {"ES2002a": "train", "ES2011a": "dev", "ES2004a": "test"}


def yesno(folder: Path) -> Path:
    """The 60 recordings, of a fifth of a second each."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for bits in itertools.islice(itertools.product("01", repeat=8), 60):
        write_audio(folder / f"{'_'.join(bits)}.wav", 0.1 * rng.standard_normal(1600).astype(np.float32), 8000)
    return folder


def ami(folder: Path) -> Path:
    """A meeting of each part, with two speakers who overlap: 0.5 to 2 s and 1.5 to 3 s of 4."""
    rng = np.random.default_rng(1)
    manual = folder / "ami_public_manual_1.6.2"
    for name in ("corpusResources", "segments", "words"):
        (manual / name).mkdir(parents=True)
    meetings = []
    for meeting in AMI_MEETINGS:
        audio = folder / "wav_db" / meeting / "audio"
        audio.mkdir(parents=True)
        for microphone in ("Mix-Headset", "Array1-01"):
            sound = 0.1 * rng.standard_normal(64000).astype(np.float32)
            write_audio(audio / f"{meeting}.{microphone}.wav", sound, 16000)
        speakers = [("A", f"F{meeting}", 0, 0.5, 2.0), ("B", f"M{meeting}", 1, 1.5, 3.0)]
        people = "".join(
            f'<speaker nxt_agent="{agent}" global_name="{name}" channel="{channel}"/>'
            for agent, name, channel, _, _ in speakers
        )
        meetings.append(f'<meeting observation="{meeting}">{people}</meeting>')
        for agent, _, _, start, end in speakers:
            (manual / "segments" / f"{meeting}.{agent}.segments.xml").write_text(
                f'<root><segment transcriber_start="{start}" transcriber_end="{end}"/></root>'
            )
            (manual / "words" / f"{meeting}.{agent}.words.xml").write_text(
                f'<root><w starttime="{start}" endtime="{start + 0.4}">so</w>'
                f'<w starttime="{end - 0.4}" endtime="{end}">yes</w></root>'
            )
    (manual / "corpusResources" / "meetings.xml").write_text(f"<root>{''.join(meetings)}</root>")
    return folder
