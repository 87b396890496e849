"""What log-mel spectrograms cost, beside the bare Fourier transforms in them and beside other programs, and what
Kaldi's features cost, beside kaldi-native-fbank and Lhotse.

    OMP_NUM_THREADS=1 python benchmarks/features.py [--rounds 40] [--seconds 10]

A clip of real-like sound (harmonics with noise) at 22.05 kHz becomes 80 log-mel bands (n_fft 1024, hop 256). All take
turns, in another order in each round. `/ FFT` is the median over rounds of the time over that of torch.fft.rfft on the
same frames, windowed beforehand, in the same round. `error` is the largest difference of a logarithm from librosa in
float64, over values less than 80 dB under the loudest. torchaudio has no build beside this torch; it is left out.

Kaldi's features are of 6 times as much sound at 16 kHz, with the defaults (25 ms, 10 ms, 512 points; 80 bands, 13
cepstra of 23 bands, 257 frequencies). `x real time` is seconds of sound for a second of one core, the median over
rounds, `error` the largest difference of a logarithm or cepstrum from the same formulas in double precision.
kaldi-native-fbank has no spectrogram; it is given a list of floats, as its Python interface wants, made beforehand.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version

import kaldi_native_fbank as knf
import lhotse.features.kaldi.extractors as lhotse_features
import librosa
import numpy as np
import torch

from phonate.audio.kaldi import KaldiFeatures, cosines, window
from phonate.audio.kaldi import mel_filters as kaldi_filters
from phonate.audio.mel_filters import mel_filters
from phonate.audio.processor import MelSpectrum
from phonate.audio.settings import KaldiSettings

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
        "phonate": lambda: np.log(np.maximum(ours(samples), FLOOR)),
        "torch.stft": by_torch,
        "librosa": lambda: librosa_mel(samples, filters, power),
    }


def errors(found: dict[str, Mel], samples: np.ndarray, power: int) -> dict[str, float]:
    """Largest difference from librosa in float64, where it is less than 80 dB under the loudest."""
    filters = mel_filters(RATE, N_FFT, MELS, 0.0, 8000.0)
    truth = librosa_mel(samples.astype(np.float64), filters.astype(np.float64), power)
    audible = truth > truth.max() - power * 80 / 20 * np.log(10)
    return {name: float(np.abs(mel() - truth)[audible].max()) for name, mel in found.items() if name != "bare FFT"}


def exact(samples: np.ndarray, settings: KaldiSettings) -> np.ndarray:
    """The features (frames, values) in double precision; of spectrograms the logarithm."""
    features, length, hop = KaldiFeatures(settings), settings.window_length, settings.hop_length
    count = features.frames(len(samples))
    after = (count - 1) * hop - features.before + length - len(samples)
    padded = np.pad(samples.astype(np.float64), (features.before, after), mode="symmetric")
    frames = np.lib.stride_tricks.sliding_window_view(padded, length)[::hop]
    frames = frames - frames.mean(1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    windowed = (frames - settings.preemph_coeff * before) * window(settings.window_type, length)
    power = np.abs(np.fft.rfft(windowed, settings.n_fft)) ** 2
    if settings.feature_type == "spectrogram":
        return np.log(np.maximum(power, FLOOR))
    bands = np.log(np.maximum(power @ kaldi_filters(settings).T.astype(np.float64), np.finfo(np.float32).eps))
    return bands @ cosines(settings).astype(np.float64) if settings.feature_type == "mfcc" else bands


def by_kaldi(listed: list[float], settings: KaldiSettings) -> np.ndarray:
    """What kaldi-native-fbank computes."""
    options = knf.MfccOptions() if settings.feature_type == "mfcc" else knf.FbankOptions()
    options.frame_opts.dither, options.frame_opts.snip_edges = 0.0, False
    options.mel_opts.num_bins, options.mel_opts.high_freq = settings.mel_bands, settings.high_freq
    options.use_energy = False
    computer = knf.OnlineMfcc(options) if settings.feature_type == "mfcc" else knf.OnlineFbank(options)
    computer.accept_waveform(settings.sampling_rate, listed)
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


def kaldi_systems(samples: np.ndarray, kind: str) -> dict[str, Mel]:
    """Name -> Kaldi's features of the clip."""
    features = KaldiFeatures(KaldiSettings(feature_type=kind))
    listed, row = samples.tolist(), torch.from_numpy(samples)[None]
    theirs = {"fbank": "Fbank", "mfcc": "Mfcc", "spectrogram": "Spectrogram"}[kind]
    extractor = getattr(lhotse_features, theirs)(getattr(lhotse_features, f"{theirs}Config")())
    blocks = np.array_split(samples, 8)
    found: dict[str, Mel] = {
        "phonate": lambda: features(samples),
        "phonate, in blocks": lambda: np.concatenate(list(features.blocks(blocks))),
        "lhotse": lambda: np.asarray(extractor.extract(row, features.settings.sampling_rate)),
    }
    if kind != "spectrogram":
        found["kaldi-native-fbank"] = lambda: by_kaldi(listed, features.settings)
    return found


def compare_kaldi(seconds: float, rounds: int) -> None:
    """Print the table of Kaldi's features."""
    settings = KaldiSettings()
    samples = librosa.resample(sound(seconds), orig_sr=RATE, target_sr=settings.sampling_rate)
    print("Kaldi's features\n\n| | | x real time | error |\n|---|---|---|---|")
    for kind in ("fbank", "mfcc", "spectrogram"):
        found = kaldi_systems(samples, kind)
        timings = turns(found, rounds)
        truth = exact(samples, KaldiSettings(feature_type=kind))
        for name, values in timings.items():
            made = found[name]()
            made = np.log(np.maximum(made, FLOOR)) if kind == "spectrogram" else made
            error = np.abs(made - truth).max()
            print(f"| {kind} | {name} | {1e3 * seconds / statistics.median(values):.0f} | {error:.1e} |")


def turns(found: dict[str, Mel], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each, which take turns in another order in each round; three rounds are not counted."""
    rng = np.random.default_rng(1)
    timings: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds + 3):
        for name in rng.permutation(list(found)).tolist():
            start = time.process_time()
            found[name]()
            timings[name].append(1e3 * (time.process_time() - start))
    return {name: values[3:] for name, values in timings.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of a log-mel spectrogram")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    samples = sound(args.seconds)
    print(
        f"{args.seconds:g} s, {args.rounds} rounds, one thread, load {os.getloadavg()[0]:.2f}; torch "
        f"{torch.__version__}, librosa {librosa.__version__}, lhotse {version('lhotse')}, kaldi-native-fbank "
        f"{knf.__version__}, numpy {np.__version__}, Python "
        f"{platform.python_version()}\n"
    )
    for power, title in ((2, "power"), (1, "magnitude")):
        found = systems(samples, power)
        timings = turns(found, args.rounds)
        error = errors(found, samples, power)
        print(f"{title}\n\n| | ms | / FFT | error |\n|---|---|---|---|")
        for name, values in timings.items():
            ratio = statistics.median(v / f for v, f in zip(values, timings["bare FFT"], strict=True))
            shown = f"{error[name]:.1e}" if name in error else "-"
            print(f"| {name} | {statistics.median(values):.2f} | {ratio:.2f} | {shown} |")
        print()
    compare_kaldi(6 * args.seconds, args.rounds)


if __name__ == "__main__":
    main()
