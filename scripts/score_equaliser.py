"""Scores how far converted spectra are best moved to the target's (`data.equalise`), on many speakers.

    python scripts/score_equaliser.py RUN CORPUS [--shares 1 0.5 0] [--vocoder RUN]

RUN is a run of the task conversion, CORPUS has recordings of its target and of others, such as development.json of
prepare_conversion_study.py. Converted are the first eight seconds of one recording of each speaker whom the run does
not know. `pair`: mean cosine to the single recordings of the target; `MOS`: predicted. Further shares than the first
have differences from it, in pairs, with their standard errors.
"""

from __future__ import annotations

import argparse

import numpy as np

from phonate.config.errors import InputError
from phonate.evaluation.held_out import clips_of
from phonate.evaluation.speakers import similarity
from phonate.pretrained import MosPredictor, SpeakerEncoder
from phonate.tasks.conversion.inference import Converter

SECONDS = 8.0


def difference(of: list[float], first: list[float]) -> str:
    """Mean difference in pairs with its standard error."""
    pairs = np.subtract(of, first)
    return f"{pairs.mean():+.3f} ± {pairs.std(ddof=1) / len(pairs) ** 0.5:.3f}"


def main() -> None:
    """Print a row of each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("corpus")
    parser.add_argument("--shares", type=float, nargs="+", default=(1.0, 0.5, 0.0))
    parser.add_argument("--vocoder")
    args = parser.parse_args()
    converter = Converter.load(args.run, args.vocoder)
    data, rate = converter.extractor.data, converter.sample_rate
    naturalness, speakers = MosPredictor(), SpeakerEncoder()
    sources: dict[str, np.ndarray] = {}
    wanted: list[np.ndarray] = []
    for clip in clips_of(data, args.corpus):
        if clip.speaker == converter.target:
            wanted.append(speakers.embed(clip.waveform, rate, clip.id))
        elif clip.speaker not in converter.speakers:
            sources.setdefault(clip.speaker, clip.waveform[: round(SECONDS * rate)])
    if not wanted or len(sources) < 2:
        raise InputError(f"{args.corpus}: needs clips of {converter.target} and of two unknown speakers")
    print(f"{len(sources)} speakers, {len(wanted)} clips of {converter.target}")
    print("| share | pair | MOS |\n|---|---|---|")
    first: tuple[list[float], list[float]] | None = None
    for share in args.shares:
        converter.extractor.data = data.model_copy(update={"equalise": share})
        made = [converter.convert(waveform) for waveform in sources.values()]
        alike = [similarity(speakers.embed(one, rate), wanted) for one in made]
        rated = [naturalness.score_synthesised(one, rate, "a conversion") for one in made]
        if first is None:
            first = alike, rated
            cells = f"{np.mean(alike):.3f} | {np.mean(rated):.2f}"
        else:
            cells = f"{difference(alike, first[0])} | {difference(rated, first[1])}"
        print(f"| {share:g} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
