"""What a log-mel spectrogram costs, beside the bare Fourier transforms in it and beside other programs.

    OMP_NUM_THREADS=1 python benchmarks/features.py [--rounds 40] [--seconds 10]

A clip of real-like sound (harmonics with noise) at 22.05 kHz becomes 80 log-mel bands (n_fft 1024, hop 256). All take
turns, in another order in each round. `/ FFT` is the median over rounds of the time over that of torch.fft.rfft on the
same frames, windowed beforehand, in the same round. `error` is the largest difference of a logarithm from librosa in
float64, over values less than 80 dB under the loudest. torchaudio has no build beside this torch; it is left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import librosa
import numpy as np
import torch

from phonate.audio.mel import MelSpectrum, mel_filters

RATE, N_FFT, HOP, MELS = 22_050, 1024, 256, 80
FLOOR = 1e-10
Mel = Callable[[], np.ndarray]


def sound(seconds: float) -> np.ndarray:
    """A gliding vowel with breath noise, float32."""
    rng = np.random.default_rng(0)
    at = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(150 * (1 + 0.2 * np.sin(2 * np.pi * 0.7 * at))) / RATE
    voice = sum(np.sin(h * phase) / h for h in range(1, 40))
    return (0.2 * voice + 0.01 * rng.standard_normal(len(at))).astype(np.float32)


def librosa_mel(samples: np.ndarray, filters: np.ndarray, power: int) -> np.ndarray:
    """(frames, bands), in the precision of the samples."""
    spectrum = np.abs(librosa.stft(samples, n_fft=N_FFT, hop_length=HOP, center=True, pad_mode="constant"))
    return np.log(np.maximum(filters.astype(spectrum.dtype) @ spectrum**power, FLOOR)).T


def systems(samples: np.ndarray, power: int) -> dict[str, Mel]:
    """Name -> log-mel of the clip."""
    filters = mel_filters(RATE, N_FFT, MELS, 0.0, 8000.0)
    ours = MelSpectrum(filters, N_FFT, HOP, N_FFT, 1 if power == 1 else 2)
    tensor, window = torch.from_numpy(samples), torch.hann_window(N_FFT)
    filters_MF = torch.from_numpy(filters)
    framed = torch.nn.functional.pad(tensor, (N_FFT // 2, N_FFT // 2)).unfold(0, N_FFT, HOP) * window

    def by_torch() -> np.ndarray:
        spectrum = torch.stft(
            tensor, N_FFT, HOP, window=window, center=True, pad_mode="constant", return_complex=True
        ).abs()
        return (filters_MF @ spectrum**power).clamp_min(FLOOR).log().T.numpy()

    return {
        "bare FFT": lambda: torch.fft.rfft(framed).numpy(),
        "phonate": lambda: ours(tensor).clamp_min_(FLOOR).log_().numpy(),
        "torch.stft": by_torch,
        "librosa": lambda: librosa_mel(samples, filters, power),
    }


def errors(found: dict[str, Mel], samples: np.ndarray, power: int) -> dict[str, float]:
    """Largest difference from librosa in float64, where it is less than 80 dB under the loudest."""
    filters = mel_filters(RATE, N_FFT, MELS, 0.0, 8000.0)
    truth = librosa_mel(samples.astype(np.float64), filters.astype(np.float64), power)
    audible = truth > truth.max() - power * 80 / 20 * np.log(10)
    return {name: float(np.abs(mel() - truth)[audible].max()) for name, mel in found.items() if name != "bare FFT"}


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of a log-mel spectrogram")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    samples = sound(args.seconds)
    rng = np.random.default_rng(1)
    print(
        f"{args.seconds:g} s, {args.rounds} rounds, one thread, load {os.getloadavg()[0]:.2f}; torch "
        f"{torch.__version__}, librosa {librosa.__version__}, numpy {np.__version__}, Python "
        f"{platform.python_version()}\n"
    )
    for power, title in ((2, "power"), (1, "magnitude")):
        found = systems(samples, power)
        timings: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(args.rounds + 3):
            for name in rng.permutation(list(found)).tolist():
                start = time.process_time()
                found[name]()
                timings[name].append(1e3 * (time.process_time() - start))
        error = errors(found, samples, power)
        print(f"{title}\n\n| | ms | / FFT | error |\n|---|---|---|---|")
        for name, values in timings.items():
            ratio = statistics.median(v / f for v, f in zip(values[3:], timings["bare FFT"][3:], strict=True))
            shown = f"{error[name]:.1e}" if name in error else "-"
            print(f"| {name} | {statistics.median(values[3:]):.2f} | {ratio:.2f} | {shown} |")
        print()


if __name__ == "__main__":
    main()
