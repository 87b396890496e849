"""How far `phonate align` is from where words begin, in long recordings, with right and with wrong texts.

    OMP_NUM_THREADS=1 python benchmarks/long_alignment.py [--sentences 60] [--by pocketsphinx whisper/tiny.en]
        [--out FILE.md]

One voice of espeak-ng says sentences of random words, and notes the sample at which each word begins; joined they are
one recording with one text. In the wrong text, a word that is not said follows a word of every other sentence, and
every fifth sentence is left out. Printed for each aligner:

- median, p95  of the absolute error of the beginnings of words, in ms, and `bias`, its median with the sign
- missing      words that are said and were taken for missing, of all
- found        words that are not said and were taken for missing, of all of these
- speed        seconds of computation per second of audio
"""

from __future__ import annotations

import argparse
import difflib
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import phonate
from alignment import make_corpus
from phonate.audio.decoding import read_audio
from phonate.tasks.speech.durations import read

RATE = 16000
ADDED = ("extraordinary", "elephants", "very", "some", "parliament", "yesterday")


@dataclass(frozen=True)
class Word:
    """A word of a text, and when it begins; None: it is not said."""

    text: str
    start: float | None


def spoken(folder: Path, sentences: int) -> tuple[np.ndarray, list[list[Word]]]:
    """The recording, and the words of each sentence."""
    waveforms: list[np.ndarray] = []
    words: list[list[Word]] = []
    at = 0.0
    for line in (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()[:sentences]:
        name, text = line.split("|")
        grid = read(folder / "wavs" / f"{name}.TextGrid")
        if len(grid.words) == len(text.split()):
            waveforms.append(read_audio(folder / "wavs" / f"{name}.wav", RATE)[0])
            pairs = zip(text.split(), grid.words, strict=True)
            words.append([Word(word, at + span.start) for word, span in pairs])
            at += len(waveforms[-1]) / RATE
    return np.concatenate(waveforms), words


def wrong(words: list[list[Word]]) -> list[list[Word]]:
    """The wrong text."""
    draw = random.Random(0)
    changed = []
    for number, sentence in enumerate(words):
        place = draw.randrange(1, len(sentence))
        added = [Word(draw.choice(ADDED), None)] if number % 2 else []
        if number % 5 != 4:
            changed.append([*sentence[:place], *added, *sentence[place:]])
    return changed


def row(by: str, name: str, samples: np.ndarray, sentences: list[list[Word]]) -> list[str]:
    """The figures of one aligner and text."""
    words = [word for sentence in sentences for word in sentence]
    began = time.process_time()
    result = phonate.align(samples, " ".join(word.text for word in words), by=by)
    seconds = time.process_time() - began
    errors: list[float] = []
    aligned: set[int] = set()
    matcher = difflib.SequenceMatcher(
        None, [one.text for one in words], [one.text for one in result.words], autojunk=False
    )
    for first, second, size in matcher.get_matching_blocks():
        for place in range(size):
            start = words[first + place].start
            aligned.add(first + place)
            if start is not None:
                errors.append(1000.0 * (result.words[second + place].start - start))
    said = [number for number, word in enumerate(words) if word.start is not None]
    others = [number for number, word in enumerate(words) if word.start is None]
    return [
        by,
        name,
        f"{np.median(np.abs(errors)):.0f}",
        f"{np.quantile(np.abs(errors), 0.95):.0f}",
        f"{np.median(errors):+.0f}",
        f"{len(set(said) - aligned)} of {len(said)}",
        f"{len(set(others) - aligned)} of {len(others)}" if others else "–",
        f"{seconds / (len(samples) / RATE):.2f}",
    ]


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--by", nargs="+", default=["pocketsphinx", "whisper/tiny.en"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    header = ["aligner", "text", "median ms", "p95 ms", "bias ms", "missing", "found", "speed"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    with tempfile.TemporaryDirectory() as folder:
        make_corpus(Path(folder), args.sentences, 0, "ada")
        samples, words = spoken(Path(folder), args.sentences)
        for by in args.by:
            for name, sentences in (("right", words), ("wrong", wrong(words))):
                lines.append("| " + " | ".join(row(by, name, samples, sentences)) + " |")
                print(lines[-1], flush=True)
    text = f"Recording of {len(samples) / RATE:.0f} s.\n\n" + "\n".join(lines) + "\n"
    if args.out is not None:
        args.out.write_text(f"`{' '.join(['python', *sys.argv])}`\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
