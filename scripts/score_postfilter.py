"""Scores vocoders, and what their postfilters do, by copies of recordings and by speech.

    python scripts/score_postfilter.py RECORDINGS [--shares 0 0.05 0.1 0.15 0.2] [--vocoders base/vocoder RUN ...]

RECORDINGS has tts_en_kathleen and tts_en_lj (LJSpeech's layout) and text/en_ljspeech_sentences.txt. Judged are copies
of the recordings of Kathleen that the vocoder's training only validated on, copies of LJ Speech, which it did not know,
and base/voice speaking sentences that are not those of score_small_voice.py. `voice`: mean cosine of a copy to its
recording; of a sentence, to the mean of those recordings of Kathleen.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from prepare_base import rows
from score_small_voice import sentences

import phonate
from phonate.audio.processor import normalised_peak
from phonate.config.resolve import Recipe
from phonate.nn.vocoder import Vocoder
from phonate.pretrained import MosPredictor, SpeakerEncoder
from phonate.rendering import TrainedVocoder
from phonate.training.checkpoints.loading import open_trained

PEAK = 0.95


def main() -> None:
    """Print a row of each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.0, 0.05, 0.1, 0.15, 0.2))
    parser.add_argument("--vocoders", nargs="+", default=("base/vocoder",), metavar="RUN")
    args = parser.parse_args()
    voice = phonate.load("base/voice", "speech")
    vocoders = [open_trained(run, "vocoder", Recipe[Any, Any, Any]) for run in args.vocoders]
    rate, processor = voice.sample_rate, voice.processor
    naturalness, speakers = MosPredictor(), SpeakerEncoder()

    def embedded(sound: np.ndarray) -> np.ndarray:
        return speakers.embed(PEAK * normalised_peak(sound), rate)

    lj = rows(args.recordings / "tts_en_lj", "lj")
    read = {text for *_, text in lj}
    texts = sentences(args.recordings, read.union(sentences(args.recordings, read)), seed=3)
    validated = set(open_trained("base/vocoder", "vocoder", Recipe[Any, Any, Any]).inference_metadata["validation"])
    kathleen = [row for row in rows(args.recordings / "tts_en_kathleen", "kathleen") if Path(row[0]).stem in validated]
    natural = {name: [processor.load(path) for path, *_ in one] for name, one in (("Kathleen", kathleen), ("LJ", lj))}
    known = {name: [embedded(sound) for sound in sounds] for name, sounds in natural.items()}
    mean = np.mean(known["Kathleen"], axis=0)
    mean /= np.linalg.norm(mean)
    counts = [f"{name}'s copies, {len(sounds)} | voice" for name, sounds in natural.items()]
    print("\n".join((f"| vocoder, share | {' | '.join(counts)} | sentences, {len(texts)} | voice |", "|---" * 7 + "|")))
    for (run, vocoder), share in itertools.product(zip(args.vocoders, vocoders, strict=True), args.shares):
        model = vocoder.recipe.model
        network = Vocoder.of(processor, model.width, model.layers, model.lookahead, share)
        vocoder.load_into(network, "vocoder")
        voice.render = TrainedVocoder(network)
        made = {name: [voice.render(processor.mel(one)) for one in sounds] for name, sounds in natural.items()}
        spoken = voice.speak(texts)
        cells = [f"{run}, {share:g}"]
        for sounds, wanted in (*((made[name], known[name]) for name in made), (spoken, [mean] * len(texts))):
            rated = [naturalness.score_synthesised(one, rate, "a copy") for one in sounds]
            alike = [float(embedded(one) @ other) for one, other in zip(sounds, wanted, strict=True)]
            cells += [f"{np.mean(rated):.2f}", f"{np.mean(alike):.3f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
