"""Scores voices that were trained on a few recordings: WER, MOS and likeness of sentences nobody recorded.

    python scripts/score_small_voice.py $RECORDINGS base/vocoder RUN [RUN ...]

RECORDINGS has LJ Speech's first recordings (tts_en_lj), its sentences (text), and other speakers (spk_en_librispeech,
tts_en_kathleen). 40 sentences of 8 to 14 words that are not among the recordings; a sentence is nearest to LJ if the
average embedding of LJ's recordings is the most similar of 50 speakers'. All averages are of about 14 s, as profiles of
more speech are closer to every voice; LJ's is of recordings that no run was trained on, where runs kept some for
validation. The first row is of the recordings' copies by the vocoder, the second of the recordings.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import phonate
from phonate.audio.decoding import read_audio
from phonate.evaluation.words import count_word_errors
from phonate.pretrained import MosPredictor, SpeakerEncoder, Transcriber
from phonate.tasks.speech.settings import SpeechRecipe
from phonate.training.checkpoints.loading import open_trained

SENTENCES, SPEAKERS, RATE = 40, 50, 22050
PROFILE_SECONDS = 14.0  # most of LibriSpeech's recordings are that long


def sentences(recordings: Path, known: set[str], seed: int = 2) -> list[str]:
    """Sentences to speak, always the same for a seed."""
    lines = (recordings / "text" / "en_ljspeech_sentences.txt").read_text(encoding="utf-8").splitlines()
    whole = [one.strip() for one in lines]
    fit = [one for one in whole if 8 <= len(one.split()) <= 14 and one[0].isupper() and one[-1] == "."]
    return random.Random(seed).sample([one for one in fit if one not in known], SENTENCES)


def profile(judge: SpeakerEncoder, files: Iterable[Path]) -> np.ndarray:
    """The average embedding of the first recordings, as many as come closest to `PROFILE_SECONDS`."""
    sounds = [read_audio(file, RATE)[0] for file in sorted(files)]
    lengths = np.cumsum([len(sound) / RATE for sound in sounds])
    enough = int(np.abs(lengths - PROFILE_SECONDS).argmin()) + 1
    mean = np.mean([judge.embed(sound, RATE, "a recording") for sound in sounds[:enough]], axis=0)
    unit: np.ndarray = mean / np.linalg.norm(mean)
    return unit


def kept(files: Iterable[Path], runs: list[str]) -> list[Path]:
    """Those that all runs trained on this speaker kept for validation; all where there are none."""
    found = list(files)
    validated = [set(open_trained(run, "speech", SpeechRecipe).inference_metadata["validation"]) for run in runs]
    held = [names for names in validated if any(file.stem in names for file in found)]
    return [file for file in found if held and all(file.stem in names for names in held)] or found


def profiles(judge: SpeakerEncoder, recordings: Path, runs: list[str]) -> np.ndarray:
    """LJ first, then others."""
    others = recordings / "spk_en_librispeech"
    folders = sorted((others / "test-other").iterdir())
    single = sorted((others / "train-clean-100").rglob("*.flac"))[: SPEAKERS - 2 - len(folders)]
    lj, kathleen = ((recordings / name / "wavs").iterdir() for name in ("tts_en_lj", "tts_en_kathleen"))
    groups = [kept(lj, runs), kathleen, *(folder.rglob("*.flac") for folder in folders)]
    return np.stack([profile(judge, group) for group in [*groups, *([one] for one in single)]])


def main() -> None:
    """Print a row for the copies, the recordings and each run."""
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    recordings, vocoder, runs = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    recogniser, naturalness, voices = Transcriber(), MosPredictor(), SpeakerEncoder()
    known = profiles(voices, recordings, runs)

    def row(name: str, texts: list[str], sounds: list[np.ndarray]) -> None:
        errors = count_word_errors(texts, [recogniser.transcribe(one, RATE) for one in sounds])
        mos = np.mean([naturalness.score_synthesised(one, RATE, name) for one in sounds])
        likeness = np.stack([known @ voices.embed(one, RATE, name) for one in sounds])
        nearest = int((likeness.argmax(1) == 0).sum())
        print(
            f"{name}: WER {errors.rate:.1%}, MOS {mos:.2f}, similarity {likeness[:, 0].mean():.3f}, "
            f"nearest {nearest} of {len(sounds)} among {len(known)}",
            flush=True,
        )

    lines = (recordings / "tts_en_lj" / "metadata.csv").read_text(encoding="utf-8").splitlines()
    texts = {name: text for name, _, text in (line.split("|") for line in lines)}
    loaded = [phonate.load(run, "speech", vocoder=vocoder) for run in runs]
    first = loaded[0]
    natural = [first.processor.load(next((recordings / "tts_en_lj" / "wavs").glob(f"{name}.*"))) for name in texts]
    row("copies", list(texts.values()), [first.render(first.processor.mel(one)) for one in natural])
    row("recordings", list(texts.values()), natural)
    spoken = sentences(recordings, set(texts.values()))
    for run, voice in zip(runs, loaded, strict=True):
        row(run, spoken, voice.speak(spoken))


if __name__ == "__main__":
    main()
