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


def _noise(path: Path, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(path.name))
    write_audio(path, 0.1 * rng.standard_normal(round(16000 * seconds)).astype(np.float32), 16000)


def voxconverse(folder: Path) -> Path:
    """One recording of each part."""
    for part, name in (("dev", "abjxc"), ("test", "aepyx")):
        _noise(folder / part / f"{name}.wav", 3.0)
        turns = [(0.4, 1.6, "spk00"), (1.5, 1.0, "spk01")]
        lines = [f"SPEAKER {name} 1 {start} {length} <NA> <NA> {who} <NA> <NA>\n" for start, length, who in turns]
        (folder / part / f"{name}.rttm").write_text("".join(lines))
    return folder


def librispeech(folder: Path) -> Path:
    """An utterance of each part of mini LibriSpeech."""
    for part, speaker in (("train-clean-5", "19"), ("dev-clean-2", "84")):
        chapter = folder / part / speaker / "198"
        _noise(chapter / f"{speaker}-198-0000.flac", 1.0)
        (chapter / f"{speaker}-198.trans.txt").write_text(f"{speaker}-198-0000 NORTHANGER ABBEY\n")
    return folder


def timit(folder: Path) -> Path:
    """A sentence of each part."""
    for part, speaker in (("TRAIN", "FCJF0"), ("TEST", "FAKS0"), ("TEST", "MDAB0")):
        sentence = folder / "data" / part / "DR1" / speaker / "SA1"
        _noise(sentence.with_suffix(".wav"), 1.0)
        sentence.with_suffix(".wav").rename(sentence.with_suffix(".WAV"))
        sentence.with_suffix(".TXT").write_text("0 16000 She had\n")
        sentence.with_suffix(".WRD").write_text("0 8000 she\n8000 16000 had\n")
        sentence.with_suffix(".PHN").write_text("0 8000 h#\n8000 16000 ae\n")
    return folder
