"""How far live conversion is behind the voice that it converts.

    python benchmarks/live_conversion.py RUN [RUN ...] --recordings IN.wav [IN.wav ...] [--seconds 60] [--out FILE]

RUN is a run of a recipe conversion-live that names a causal vocoder. The recordings, repeated, are fed on one core in
real time, as a sound card would: a block is handed over when its last sample has been heard, and until then the program
sleeps. The delay of a block, in ms, is the time by the clock from its oldest sample's to that sample's conversion:
algorithmic delay, wait for the block and computation together (but no buffers of a sound card). `algorithm` is the part
without computation; `rtf` is processor time over the length of the sound; `late` counts blocks that took longer to
compute than to speak. `differs` is the largest difference between these blocks, joined, and what both networks make of
all frames of the recording at once.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch

from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.live import streamed
from phonate.audio.pitch import f0_stream
from phonate.tasks.conversion.inference import Converter, MelConversion


def in_real_time(converter: Converter, sound: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Delay of each block that came back and computation of each that went in (both in seconds), the sound that came
    back, and processor time over the sound's length."""
    live = converter.live()
    rate, size = live.sample_rate, live.block
    delays, computed, parts, given = [], [], [], 0
    processor = time.process_time()
    start = time.perf_counter()
    for number in range(len(sound) // size):
        time.sleep(max(0.0, start + (number + 1) * size / rate - time.perf_counter()))
        began = time.perf_counter()
        made = live.push(sound[number * size : (number + 1) * size])
        ended = time.perf_counter()
        computed.append(ended - began)
        if len(made):
            delays.append(ended - (start + given / rate))
        given += len(made)
        parts.append(made)
    busy = time.process_time() - processor
    parts.append(live.finish())
    seconds = len(sound) // size * size / rate
    return np.array(delays), np.array(computed), np.concatenate(parts), busy / seconds


@torch.no_grad()
def at_once(converter: Converter, sound: FloatArray) -> FloatArray:
    """The conversion of a recording whose features both networks read as a whole."""
    extractor, target, vocoder = converter.extractor, converter.target, converter.networks[1]
    assert target is not None
    hop, rate = extractor.data.audio.hop_length, converter.sample_rate
    mel_stream, pitch = extractor.processor.mel_stream(), f0_stream(rate, hop, extractor.data.f0_method)
    mel_TM = np.concatenate([mel_stream.push(sound), mel_stream.finish()])
    f0_T = np.concatenate([pitch.push(sound), pitch.finish(len(mel_TM))])
    conversion = MelConversion(converter.model, extractor, converter.voices[target], converter.speaker(target))
    converted_TM, source_T = conversion.push(mel_TM, f0_T)
    converted_TM = np.concatenate([converted_TM, conversion.finish()])
    made_1N = vocoder(torch.from_numpy(converted_TM)[None], torch.from_numpy(source_T)[None])
    return streamed(made_1N[0].numpy())


def row(run: str, converter: Converter, sound: FloatArray) -> str:
    """A row of the results."""
    live = converter.live()
    size, rate = live.block, live.sample_rate
    sound = sound[: len(sound) // size * size]
    warm = converter.live()
    for start in range(0, 40 * size, size):  # the first blocks allocate
        warm.push(sound[start : start + size])
    load = os.getloadavg()[0]
    delays, computed, made, rtf = in_real_time(converter, sound)
    differs = float(np.abs(made - at_once(converter, sound)).max())
    parameters = sum(p.numel() for network in converter.networks for p in network.parameters())
    values = [1000 * live.latency / rate, *np.multiply(1000, np.percentile(delays, [50, 95, 99, 100]))]
    cells = [*(f"{value:.1f}" for value in values), f"{1000 * np.median(computed):.1f}", f"{rtf:.3f}"]
    late = f"{int((computed > size / rate).sum())} of {len(computed)}"
    return f"| {run} | {parameters / 1e6:.1f} M | {' | '.join(cells)} | {late} | {differs:.0e} | {load:.1f} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--recordings", nargs="+", required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/live_conversion.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = " ".join(Path(path).name for path in args.recordings)
    given = f"{' '.join(args.runs)} --recordings {names} --seconds {args.seconds:.0f}"
    header = ["", "parameters", "algorithm", "median", "95 %", "99 %", "largest", "computation, median", "rtf", "late"]
    header += ["differs", "load"]
    text = (
        f"`python benchmarks/live_conversion.py {given}`: one core ({platform.machine()}), torch {torch.__version__}; "
        "times in ms.\n\n"
        f"| {' | '.join(header)} |\n{'|---' * len(header)}|\n"
    )
    for run in args.runs:
        converter = Converter.load(run)
        once = np.concatenate([read_audio(path, converter.sample_rate)[0] for path in args.recordings])
        wanted = int(args.seconds * converter.sample_rate)
        text += row(run, converter, np.tile(once, -(-wanted // len(once)))[:wanted])
    print(text)
    args.out.write_text(text)


if __name__ == "__main__":
    main()
