"""How well a voice from a few recordings is understood, beside the recordings of the same texts: cross-validation.

    python scripts/cross_validate_small_voice.py $RECORDINGS/tts_en_lj FOLDER [--folds 5] [key=value ...]

The corpus has the layout of LJ Speech. For each fold a voice is trained on the recordings of the others by `phonate
train speech` (`key=value` are changes to the recipe), and speaks the texts of this one.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

import phonate
from phonate.audio.decoding import FloatArray, read_audio
from phonate.evaluation.words import count_word_errors
from phonate.pretrained import MosPredictor, Transcriber
from phonate.workflows.train import train

RATE = 22050
Texts = list[tuple[Path, str]]


def recorded(corpus: Path) -> Texts:
    """The recordings and their texts."""
    rows = (line.split("|") for line in (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines())
    return [(next((corpus / "wavs").glob(f"{name}.*")).resolve(), text) for name, _, text in rows]


def spoken(train_on: Texts, texts: list[str], speaker: str, folder: Path, changes: list[str]) -> list[FloatArray]:
    """Texts in the voice of some recordings."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["audio_path", "speaker_id", "text"])
        table.writerows([path, speaker, text] for path, text in train_on)
    train("speech", [f"data.path={folder / 'train.csv'}", *changes], output=folder / "run", resume="auto")
    return phonate.load(folder / "run", "speech").speak(texts)


def main() -> None:
    """Train a voice for each fold; print a row for the recordings and one for the voices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("changes", nargs="*", metavar="key=value")
    parser.add_argument("--folds", type=int, default=5)
    args = parser.parse_args()
    everything = recorded(args.corpus)
    voices: list[tuple[str, FloatArray]] = []
    for fold in range(args.folds):
        texts = [text for _, text in everything[fold :: args.folds]]
        others = [one for number, one in enumerate(everything) if number % args.folds != fold]
        sounds = spoken(others, texts, args.corpus.name, args.folder / str(fold), args.changes)
        voices += zip(texts, sounds, strict=True)
    natural = [(text, read_audio(path, RATE)[0]) for path, text in everything]
    recogniser, naturalness = Transcriber(), MosPredictor()
    for name, pairs in {"recordings": natural, "voices": voices}.items():
        errors = count_word_errors(
            [text for text, _ in pairs], [recogniser.transcribe(sound, RATE) for _, sound in pairs]
        )
        mos = np.mean([naturalness.score_synthesised(sound, RATE, name) for _, sound in pairs])
        print(f"{name}: WER {errors.rate:.1%} of {errors.words} words, MOS {mos:.2f}")


if __name__ == "__main__":
    main()
