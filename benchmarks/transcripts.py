"""How right the texts are that `data.transcribe` writes: word errors against a corpus's own texts.

    OMP_NUM_THREADS=1 python benchmarks/transcripts.py CORPUS [--language en] [--models tiny.en base] [--long]

The recordings are copied without their texts, transcribed as `phonate train speech data.transcribe=true` does, and what
that wrote is compared with the corpus's texts. `--long` also joins all recordings, half a second apart, into one, which
is cut at pauses again. Needs phonate[eval] and the models.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from phonate.audio.decoding import read_audio, write_audio
from phonate.data.corpora.manifest import LEFT_OUT, TEXTS, list_corpus, read_entries
from phonate.data.corpora.rows import Row
from phonate.data.settings import SpokenData
from phonate.evaluation.words import count_word_errors, word_edits
from phonate.workflows.datasets.transcripts import transcribe

PAUSE = 0.5
RATE = 22050
_HEADER = """{clips} recordings, {minutes:.1f} minutes, {machine}, {cores} cores, load {load:.2f}; Python {python}.

| recordings | Whisper | clips | left out | wrong words, % | words | seconds |
|---|---|---|---|---|---|---|
"""


def edits(texts: list[str], heard: list[str], language: str) -> tuple[int, int]:
    """Word errors, and words of the texts."""
    if language == "en":
        found = count_word_errors(texts, heard)
        return found.substituted + found.inserted + found.deleted, found.words
    return word_edits(texts, heard)


def measure(folder: Path, texts: dict[str, str], language: str, model: str, whole: bool) -> str:
    """A row of the table for the recordings in `folder`."""
    with tempfile.TemporaryDirectory() as cache:
        data = SpokenData(path=str(folder), transcribe=model, language=language, cache_dir=cache)
        started = time.perf_counter()
        transcribe(data)
        seconds = time.perf_counter() - started
        assert data.transcripts is not None
        heard = {str(entry["id"]): str(entry["text"]) for _, entry in read_entries(data.transcripts / TEXTS)}
        left_out = len(read_entries(data.transcripts / LEFT_OUT))
    if whole:
        wrong, words = edits([" ".join(texts.values())], [" ".join(heard[id] for id in sorted(heard))], language)
    else:
        wrong, words = edits(list(texts.values()), [heard.get(id, "") for id in texts], language)
    name = "one recording" if whole else "as they are"
    return f"| {name} | {model} | {len(heard)} | {left_out} | {100 * wrong / words:.1f} | {words} | {seconds:.0f} |\n"


def main() -> None:
    """Measure every model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--language", default="en")
    parser.add_argument("--models", nargs="+", default=["tiny.en", "base"])
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    listed, _ = list_corpus(SpokenData(path=options.corpus))
    rows = {row.id: row for row in listed if isinstance(row, Row) and row.text}
    texts = {id: str(rows[id].text) for id in sorted(rows)}
    with tempfile.TemporaryDirectory() as made:
        clips, joined = Path(made) / "clips", Path(made) / "joined"
        clips.mkdir()
        joined.mkdir()
        for id in texts:
            shutil.copy(rows[id].path, clips / f"{id}{rows[id].path.suffix}")
        sounds = [read_audio(rows[id].path, RATE)[0] for id in texts]
        pause = np.zeros(round(PAUSE * RATE), np.float32)
        write_audio(joined / "all.flac", np.concatenate([part for one in sounds for part in (one, pause)]), RATE)
        lines = [measure(clips, texts, options.language, model, False) for model in options.models]
        if options.long:
            lines += [measure(joined, texts, options.language, model, True) for model in options.models]
    header = _HEADER.format(
        clips=len(texts),
        minutes=sum(map(len, sounds)) / RATE / 60,
        machine=platform.processor() or platform.machine(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        python=platform.python_version(),
    )
    print(header + "".join(lines))


if __name__ == "__main__":
    main()
