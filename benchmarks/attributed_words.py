"""Who said what in meetings: cpWER of transcripts with speakers, of ten extracts of AMI.

    python benchmarks/attributed_words.py CORPUS DIARIZED.rttm ... [--model whisper/tiny.en]

CORPUS is the folder of the extracts with ref.rttm; meeting_words.stm beside this file has their words, of which
scripts/prepare_meeting_words.py tells. The words that the model hears have the speakers of each diarization, of the
labels, or one for all. Without fillers both sides are first normalised as in the Whisper paper, which leaves out um, uh
and hmm.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from phonate.data.annotations import SpeakerTurn, read_rttm
from phonate.data.corpora.rows import Segment
from phonate.data.labels import Texts, read_texts
from phonate.data.transcripts import Transcription
from phonate.evaluation.words import score_transcripts, spoken_form
from phonate.tasks.recognition.inference import Recogniser

WORDS = Path(__file__).with_name("meeting_words.stm")


def attributed(transcription: Transcription) -> Texts:
    """The words, each with its speaker."""
    words = [Segment(one.start, one.end, one.speaker or "nobody", one.text) for one in transcription.words]
    return Texts(words, words)


def without_fillers(texts: Texts) -> Texts:
    """What each speaker says, normalised in one piece."""
    said: dict[str | None, list[str]] = {}
    for one in texts.segments:
        said.setdefault(one.speaker, []).append(one.text or "")
    segments = [Segment(0.0, 1.0, speaker, spoken_form(" ".join(parts))) for speaker, parts in said.items()]
    return Texts(segments, segments)


def main() -> None:
    """Print a row for each diarization."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("diarized", type=Path, nargs="*")
    parser.add_argument("--model", default="whisper/tiny.en")
    args = parser.parse_args()
    reference, truth = read_texts(WORDS), read_rttm(args.corpus / "ref.rttm")
    model = Recogniser.load(args.model)
    files = (one for one in args.corpus.rglob("*") if one.stem in truth and one.suffix in {".flac", ".wav"})
    heard = {file.stem: model.timed(file, language="en") for file in sorted(files)}
    everybody = {name: [SpeakerTurn(0.0, one.seconds, "one")] for name, one in heard.items()}
    print(f"| speakers of the words of {args.model} | cpWER | without fillers | WER |")
    print("|---|---|---|---|")
    diarized = {str(path): read_rttm(path) for path in args.diarized}
    for title, turns in {"one speaker": everybody, **diarized, "the labels": truth}.items():
        hypothesis = {name: attributed(one.with_speakers(turns.get(name, []))) for name, one in heard.items()}
        total = score_transcripts(reference, hypothesis)["total"].document()
        fluent = score_transcripts(
            {name: without_fillers(one) for name, one in reference.items()},
            {name: without_fillers(one) for name, one in hypothesis.items()},
        )["total"].document()
        print(f"| {title} | {total['cpwer']:.1%} | {fluent['cpwer']:.1%} | {total['wer']:.1%} |", flush=True)


if __name__ == "__main__":
    main()
