"""Counts the words that vocoders and a voice lose, beside the recordings of the same texts.

    python scripts/score_words.py KATHLEEN [--vocoders base/vocoder griffin_lim RUN ...] [--voice base/voice]

KATHLEEN is a folder in LJSpeech's layout. Recognised (Whisper tiny.en) are 220 of its recordings, their copies by each
vocoder from the recorded mel, and the same texts as the voice speaks them with each vocoder. They are of those that
`prepare_base.py` does not hold out, so that choices can be made on them. `fewer, more`: in how many texts there are
fewer and more errors than in the recording, and the probability of a difference so large by chance (sign test).
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import numpy as np
from prepare_base import held_out, rows

import phonate
from phonate.audio.processor import normalised_peak
from phonate.evaluation.words import WordErrors, count_word_errors
from phonate.pretrained import MosPredictor, Transcriber
from phonate.rendering import renderer

TEXTS, PEAK = 220, 0.95


def chance(fewer: int, more: int) -> float:
    """Probability that of as many texts so few, or fewer, lie on one side by chance (two-sided sign test)."""
    tried = fewer + more
    side = sum(math.comb(tried, one) for one in range(min(fewer, more) + 1))
    return min(1.0, 2.0 * side / 2**tried)


def wrong(one: WordErrors) -> int:
    """All errors."""
    return one.substituted + one.inserted + one.deleted


def main() -> None:
    """Print a row for the recordings, and two for each vocoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kathleen", type=Path)
    parser.add_argument("--vocoders", nargs="+", default=("base/vocoder", "griffin_lim"), metavar="RUN")
    parser.add_argument("--voice", default="base/voice")
    args = parser.parse_args()
    voice = phonate.load(args.voice, "speech")
    rate, processor = voice.sample_rate, voice.processor
    recogniser, naturalness = Transcriber(), MosPredictor()
    table = rows(args.kathleen, "kathleen")
    kept = held_out(table)
    chosen = random.Random(7).sample([row for row in table if row[0] not in kept], TEXTS)
    texts = [text for *_, text in chosen]
    natural = [processor.load(path) for path, *_ in chosen]
    words = sum(len(text.split()) for text in texts)
    print(f"{len(texts)} texts, {words} words\n| | WER | fewer, more | MOS |\n|---|---|---|---|")
    recorded: list[int] = []

    def row(name: str, sounds: list[np.ndarray]) -> None:
        loud = [PEAK * normalised_peak(one) for one in sounds]
        said = [recogniser.transcribe(one, rate) for one in loud]
        errors = [wrong(count_word_errors([text], [one])) for text, one in zip(texts, said, strict=True)]
        recorded.extend(errors if not recorded else ())
        fewer = sum(one < of for one, of in zip(errors, recorded, strict=True))
        more = sum(one > of for one, of in zip(errors, recorded, strict=True))
        beside = f"{fewer}, {more} (p = {chance(fewer, more):.2g})" if fewer + more else ""
        mos = np.mean([naturalness.score_synthesised(one, rate, name) for one in loud])
        print(f"| {name} | {count_word_errors(texts, said).rate:.2%} | {beside} | {mos:.2f} |", flush=True)

    row("recordings", natural)
    for run in args.vocoders:
        voice.render = renderer(run, processor)
        row(f"copies by {run}", [voice.render(processor.mel(one)) for one in natural])
        row(f"{args.voice} with {run}", voice.speak(texts))


if __name__ == "__main__":
    main()
