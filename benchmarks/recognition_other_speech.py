"""What fine-tuned Whispers get wrong, of their task's speech and of other, beside the Whisper that they started from.

    python benchmarks/recognition_other_speech.py CORPUS.json ... --runs RUN ...

Word errors of each corpus, with texts as they are spoken, transcribed as `phonate transcribe` does.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from phonate.evaluation.words import word_edits
from phonate.tasks.recognition.data import Wording
from phonate.tasks.recognition.inference import Recogniser
from phonate.tasks.recognition.whisper import FineTunedWhisper, WhisperTranscriber


def wrong(transcriber: WhisperTranscriber, corpus: Path) -> tuple[int, int]:
    """Words wrong, and words, of `corpus`."""
    wording = Wording("en-us", refuses=False)
    rows = json.loads(corpus.read_text(encoding="utf-8"))["samples"]
    heard = [transcriber.transcribe(row["audio_path"]) for row in rows]
    return word_edits([wording(row["text"]) for row in rows], [wording(text) if text else "" for text in heard])


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("|".join(["", "", *(one.stem for one in args.corpora), ""]))
    print("|---" * (1 + len(args.corpora)) + "|")
    models: list[tuple[str, WhisperTranscriber]] = []
    for run in args.runs:
        tuned = Recogniser.load(run)
        assert isinstance(tuned, FineTunedWhisper)
        if not models and (before := tuned.started_from()) is not None:
            models.append((before.name, before))
        models.append((str(run), tuned))
    for name, model in models:
        found = [wrong(model, corpus) for corpus in args.corpora]
        cells = (f"{errors} of {words}, {errors / words:.1%}" for errors, words in found)
        print("|".join(["", name, *cells, ""]), flush=True)


if __name__ == "__main__":
    main()
