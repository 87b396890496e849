"""How many words of a transcript a diarization gives to the wrong speaker: cpWER of a recogniser that errs in no word.

    python benchmarks/attributed_words.py CORPUS DIARIZED.rttm ... [--model whisper/tiny.en]

CORPUS is a folder of recordings with ref.rttm. The words that the model hears are those of the reference, too; there,
they have the speakers of ref.rttm. Words during which nobody speaks, according to it, are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
    print(f"| {sum(len(one.words) for one in heard.values())} words | cpWER |\n|---|---|")
    for title, found in [("one speaker", nobody), *((str(path), read_rttm(path)) for path in args.diarized)]:
        hypothesis = {name: attributed(one, found.get(name, [])) for name, one in heard.items()}
        total = score_transcripts(reference, hypothesis)["total"].document()
        print(f"| {title} | {total['cpwer']:.1%} |", flush=True)


if __name__ == "__main__":
    main()
