"""How many words of a transcript a diarization gives to the wrong speaker: cpWER of a recogniser that errs in no word.

    python benchmarks/attributed_words.py CORPUS DIARIZED.rttm ... [--model whisper/tiny.en]

CORPUS is a folder of recordings with ref.rttm. The words that the model hears are those of the reference, too; there,
they have the speakers of ref.rttm. Words during which nobody speaks, according to it, are left out. Words that have
another speaker are counted apart where one speaks alone and where several do, in which case the reference has the one
who talks for most of the word, or began first.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from phonate.data.annotations import SpeakerTurn, read_rttm
from phonate.data.corpora.rows import Segment
from phonate.data.labels import Texts
from phonate.data.transcripts import Transcription
from phonate.evaluation.words import score_transcripts
from phonate.tasks.recognition.inference import Recogniser


def attributed(transcription: Transcription, turns: Sequence[SpeakerTurn]) -> Texts:
    """The words, each with its speaker."""
    words = transcription.with_speakers(turns).words
    segments = [Segment(one.start, one.end, one.speaker or "nobody", one.text) for one in words]
    return Texts(segments, segments)


def misplaced(reference: Texts, hypothesis: Texts) -> list[bool]:
    """For each word whether it has another speaker, where as many as possible have the same."""
    pairs = [(one.speaker, other.speaker) for one, other in zip(reference.words, hypothesis.words, strict=True)]
    shared = Counter(pairs)
    right, found = sorted({one for one, _ in pairs}), sorted({other for _, other in pairs})
    counts = np.array([[shared[one, other] for other in found] for one in right]).reshape(len(right), len(found))
    same = {(right[one], found[other]) for one, other in zip(*linear_sum_assignment(-counts), strict=True)}
    return [pair not in same for pair in pairs]


def simultaneous(words: Iterable[Segment], turns: Sequence[SpeakerTurn]) -> list[bool]:
    """For each word whether several speak during it."""
    return [
        len({turn.speaker for turn in turns if min(turn.end, word.end) > max(turn.start, word.start)}) > 1
        for word in words
    ]


def main() -> None:
    """Print a row for each diarization."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("diarized", type=Path, nargs="+")
    parser.add_argument("--model", default="whisper/tiny.en")
    args = parser.parse_args()
    truth = read_rttm(args.corpus / "ref.rttm")
    model = Recogniser.load(args.model)
    heard: dict[str, Transcription] = {}
    for file in sorted(one for one in args.corpus.rglob("*") if one.stem in truth and one.suffix in {".flac", ".wav"}):
        transcription, turns = model.timed(file), truth[file.stem]
        words = [
            word
            for word in transcription.words
            if any(min(turn.end, word.end) > max(turn.start, word.start) for turn in turns)
        ]
        heard[file.stem] = replace(transcription, words=words)
    reference = {name: attributed(one, truth[name]) for name, one in heard.items()}
    nobody = {name: [SpeakerTurn(0.0, one.seconds, "one")] for name, one in heard.items()}
    several = [several for name, one in reference.items() for several in simultaneous(one.words, truth[name])]
    print(f"| {len(several)} words | cpWER | of {several.count(False)} alone | of {several.count(True)} in overlap |")
    print("|---|---|---|---|")
    for title, found in [("one speaker", nobody), *((str(path), read_rttm(path)) for path in args.diarized)]:
        hypothesis = {name: attributed(one, found.get(name, [])) for name, one in heard.items()}
        total = score_transcripts(reference, hypothesis)["total"].document()
        other = [wrong for name in reference for wrong in misplaced(reference[name], hypothesis[name])]
        counts = Counter(both for both, wrong in zip(several, other, strict=True) if wrong)
        print(f"| {title} | {total['cpwer']:.1%} | {counts[False]} | {counts[True]} |", flush=True)


if __name__ == "__main__":
    main()
