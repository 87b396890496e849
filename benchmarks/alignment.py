"""How far the boundaries that aligners find are from where espeak-ng put them.

    OMP_NUM_THREADS=1 python benchmarks/alignment.py [--sentences 300] [--steps 1000] [--phonemes espeak english]
        [--seed 0] [--voice ada] [--folder FOLDER] [--recordings FOLDER] [--out FILE.json]

One voice of espeak-ng says sentences drawn from the words of the embedded corpus, and notes the sample at which each
word and each phone begins. A boundary is the first frame of a word or phone, as training uses it, in milliseconds
(frame number times 11.6 ms). Compared are the beginnings of words, and those of phones in the words where the aligner
has the same phones as espeak: all of them with espeak's phones, those of some words with English ones. Printed:

- median, p90  of the absolute error in ms
- bias         median of the signed error: below 0 is too early
- count        boundaries compared
- minutes      CPU time, training included

With `--recordings`, a corpus in English, further rows compare the learnt aligner with pocketsphinx on it, with English
phones for both: no one knows the truth there.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phonate.tasks.speech import durations as textgrids
from phonate.tasks.speech.data import SpeechCorpus
from phonate.tasks.speech.durations import Grid, Span
from phonate.tasks.speech.settings import SpeechData
from phonate.text import espeak
from phonate.text.phonemes import Word
from phonate.workflows.demo import embedded

ARPABET = {
    **dict(zip("bdfklmnpstvwz", ["B", "D", "F", "K", "L", "M", "N", "P", "S", "T", "V", "W", "Z"], strict=True)),
    "ɡ": "G", "h": "HH", "j": "Y", "ŋ": "NG", "ɹ": "R", "ʃ": "SH", "ʒ": "ZH", "θ": "TH", "ð": "DH", "ɾ": "T",
    "tʃ": "CH", "dʒ": "JH", "ɑː": "AA", "æ": "AE", "ʌ": "AH", "ə": "AH", "ɐ": "AH", "ɔː": "AO", "aʊ": "AW",
    "aɪ": "AY", "ɛ": "EH", "ɜː": "ER", "ɚ": "ER", "eɪ": "EY", "ɪ": "IH", "ᵻ": "IH", "iː": "IY", "i": "IY",
    "oʊ": "OW", "ɔɪ": "OY", "ʊ": "UH", "uː": "UW",
}  # fmt: skip
"""espeak's English phones that have one counterpart."""


def make_corpus(folder: Path, sentences: int, seed: int, voice: str) -> None:
    """LJSpeech's layout in `folder`, with a TextGrid beside each wav."""
    vocabulary = sorted({word.strip(".,?") for text in embedded.SENTENCES for word in text.lower().split()})
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(sentences):
        words = list(rng.choice(vocabulary, size=rng.integers(5, 12)))
        if rng.random() < 0.4:
            words[len(words) // 2] += ","
        texts.append(" ".join(words).capitalize() + ".")
    speaker = next(one for one in embedded.SPEAKERS if one.name == voice)
    jobs = [(folder / "wavs" / f"{number:04d}.wav", text, speaker) for number, text in enumerate(texts)]
    embedded.say(jobs, alignments=True)
    lines = "".join(f"{number:04d}|{text}\n" for number, text in enumerate(texts))
    (folder / "metadata.csv").write_text(lines, encoding="utf-8")


def compared(corpus: SpeechCorpus, position: int) -> Iterator[tuple[str, float]]:
    """("words" or "phones", error in ms) of each boundary of one recording."""
    durations = corpus.durations[position][:, 0].astype(np.int64)
    if not len(durations):
        return
    words = corpus.words[position]
    starts = 1000.0 * (np.cumsum(durations) - durations) / corpus.data.audio.frames_per_second
    grid = textgrids.read(Path(corpus.prepared.index.path[position]).with_suffix(".TextGrid"))
    if len(grid.words) != sum(len(word.text.split()) for word in words):
        return
    spoken, token = 0, 1
    for word in words:
        spans = grid.words[spoken : spoken + len(word.text.split())]
        yield "words", float(starts[token] - 1000.0 * spans[0].start)
        for place, phone in matching(corpus, word, grid, spans):
            yield "phones", float(starts[token + place] - 1000.0 * phone.start)
        spoken, token = spoken + len(spans), token + len(word.phones) + 1


def matching(corpus: SpeechCorpus, word: Word, grid: Grid, spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """(place among the word's phones, espeak's phone) of the phones of a word; none where they differ."""
    phones = [one for one in grid.phones if spans[0].start <= (one.start + one.end) / 2 < spans[-1].end and one.label]
    if corpus.phonemizer.name == "espeak":
        if "".join(espeak.plain(one.label) for one in phones) != "".join(word.phones):
            return []
        places = np.cumsum([0, *(len(espeak.plain(one.label)) for one in phones)])
        # the stress before a vowel has no frames, so that the vowel begins where its mark does
        return [(int(place), one) for place, one in zip(places, phones, strict=False)]
    mapped = [ARPABET.get(one.label.strip("ˈˌ")) for one in phones]
    if mapped != [phone.rstrip("012") for phone in word.phones]:
        return []
    return list(enumerate(phones))


def aligned(path: Path, cache: Path, phonemes: str, durations: str, steps: int) -> tuple[SpeechCorpus, float]:
    """A corpus with durations, and the CPU minutes that they took."""
    data = SpeechData(path=str(path), cache_dir=str(cache), phonemes=phonemes, durations=durations, aligner_steps=steps)
    corpus = SpeechCorpus(data)
    start = time.process_time()
    len(corpus.durations[0])
    return corpus, (time.process_time() - start) / 60


def measure(folder: Path, phonemes: str, durations: str, steps: int) -> list[dict[str, Any]]:
    """A row for words and one for phones."""
    corpus, minutes = aligned(folder / "voice", folder / "cache", phonemes, durations, steps)
    missing = sum(not len(corpus.durations[position]) for position in range(len(corpus.words)))
    errors: dict[str, list[float]] = {"words": [], "phones": []}
    for position in range(len(corpus.words)):
        for what, error in compared(corpus, position):
            errors[what].append(error)
    rest = {"not_aligned": missing, "cpu_minutes": round(minutes, 1)}
    return [row(durations, phonemes, what, values) | rest for what, values in errors.items() if values]


def beside_pocketsphinx(recordings: Path, cache: Path, steps: int) -> list[dict[str, Any]]:
    """The same rows for recordings, with pocketsphinx in the place of the truth."""
    other, _ = aligned(recordings, cache, "english", "pocketsphinx", steps)
    corpus, minutes = aligned(recordings, cache, "english", "learnt", steps)
    errors: dict[str, list[float]] = {"words": [], "phones": []}
    missing = 0
    for position, words in enumerate(corpus.words):
        found, given = (one.durations[position][:, 0] for one in (corpus, other))
        if not len(found) or not len(given):
            missing += 1
            continue
        late = 1000.0 * (np.cumsum(found - given) - (found - given)) / corpus.data.audio.frames_per_second
        token = 1
        for word in words:
            errors["words"].append(float(late[token]))
            errors["phones"] += late[token : token + len(word.phones)].tolist()
            token += len(word.phones) + 1
    name, rest = f"learnt, {recordings.name}", {"not_aligned": missing, "cpu_minutes": round(minutes, 1)}
    return [row(name, "english", what, values) | rest for what, values in errors.items()]


def row(aligner: str, phonemes: str, what: str, errors: Sequence[float]) -> dict[str, Any]:
    """Statistics of errors in ms."""
    return {
        "aligner": aligner,
        "phonemes": phonemes,
        "boundaries": what,
        "median_ms": round(float(np.median(np.abs(errors))), 1),
        "p90_ms": round(float(np.percentile(np.abs(errors), 90)), 1),
        "bias_ms": round(float(np.median(errors)), 1),
        "count": len(errors),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as markdown."""
    names = list(rows[0])
    lines = [" | ".join(names), "|".join("---" for _ in names)]
    lines += [" | ".join(str(row[name]) for name in names) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="boundaries of aligners beside espeak's own")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the sentences")
    parser.add_argument("--voice", default="ada", choices=[one.name for one in embedded.SPEAKERS])
    parser.add_argument("--steps", type=int, default=1000, help="training steps of the learnt aligner")
    parser.add_argument("--phonemes", nargs="+", default=["espeak", "english"], help="of the learnt aligner")
    parser.add_argument(
        "--recordings", type=Path, help="English ones, on which pocketsphinx and the learnt one are compared"
    )
    parser.add_argument("--folder", type=Path, help="keep corpus and cache here, and use what is there")
    parser.add_argument("--out", type=Path, help="write the rows to this file too, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "voice" / "metadata.csv").exists():
            make_corpus(folder / "voice", args.sentences, args.seed, args.voice)
        rows = measure(folder, "espeak", "espeak", args.steps) + measure(folder, "english", "pocketsphinx", args.steps)
        for phonemes in args.phonemes:
            rows += measure(folder, phonemes, "learnt", args.steps)
        if args.recordings:
            rows += beside_pocketsphinx(args.recordings, folder / "cache", args.steps)
    print(table(rows))
    if args.out:
        document = {
            "command": shlex.join(["python", *sys.argv]),
            "sentences": args.sentences,
            "voice": args.voice,
            "steps": args.steps,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "rows": rows,
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
