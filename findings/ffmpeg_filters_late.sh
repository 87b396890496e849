#!/usr/bin/env bash
# Guess: a filter of FFmpeg that cleans a recording and gives as many samples as came leaves the sound where it was, as FFmpeg
# knows the times of everything that passes through it.
# What happens: some filters that need to look ahead give the sound late by as much, with the old times, and drop as much of
# its end: the denoiser afftdn 25 ms, the limiter alimiter 5 ms, superequalizer 4095 samples, a quarter of a second at 16 kHz.
# Others (adeclick, afwtdn, dynaudnorm) are in time.
# Why a phonate user meets it: recordings with times of words or turns are often cleaned by one command of ffmpeg, and the
# last phones of tightly cut clips are gone.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PY'
from fractions import Fraction
import av, numpy as np
rate = 16_000
print("av", av.__version__, "libavfilter", ".".join(map(str, av.library_versions["libavfilter"])))
def filtered(sound, name):
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=rate, format="flt", layout="mono", time_base=Fraction(1, rate))
    chain = [source, graph.add(name), graph.add("aformat", "sample_fmts=flt"), graph.add("abuffersink")]
    for one, other in zip(chain, chain[1:]): one.link_to(other)
    graph.configure()
    parts = []
    def pull():
        while True:
            try: frame = chain[-1].pull()
            except (av.error.BlockingIOError, av.error.EOFError): return
            parts.append((frame.pts, frame.to_ndarray()[0]))
    for start in range(0, len(sound), 1024):
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound[None, start:start + 1024]), format="flt", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        source.push(frame); pull()
    source.push(None); pull()
    return parts[0][0], np.concatenate([samples for _, samples in parts])
times = np.arange(3 * rate) / rate
phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(4.4 * times)) / rate
sound = 0.05 * (np.sin(14.5 * times) > 0) * sum(np.sin(k * phase) / k for k in range(1, 20))
sound = (sound + 0.001 * np.random.default_rng(0).standard_normal(len(times))).astype(np.float32)
for name, late in (("afftdn", 400), ("alimiter", 79), ("superequalizer", 4095), ("adeclick", 0), ("afwtdn", 0), ("dynaudnorm", 0)):
    first, output = filtered(sound, name)
    products = np.fft.irfft(np.fft.rfft(output, 1 << 17) * np.conj(np.fft.rfft(sound, 1 << 17)))
    lag = int(np.argmax(products)); lag -= (lag > 1 << 16) << 17
    print(f"{name}: {len(output)} of {len(sound)} samples, first time {first}, the sound is {lag} samples late")
    if (len(output), first) != (len(sound), 0) or abs(lag - late) > 1:
        raise SystemExit(f"{name} is otherwise now")
PY
