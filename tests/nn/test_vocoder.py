"""The vocoder network: its transforms, its source, and what it can do before it has learnt anything."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phonate.audio.processor import AudioProcessor
from phonate.nn.vocoder import ShortTimeFourier, Vocoder, _filled, phase_of, pulses
from phonate.rendering import TrainedVocoder

RATE, HOP = 22050, 256


@pytest.mark.parametrize("as_products", [False, True])
@pytest.mark.parametrize(("n_fft", "hop"), [(1024, HOP), (1000, 300), (1022, 255), (512, HOP)])
def test_a_transform_is_undone_by_its_inverse(n_fft, hop, as_products):
    fourier = ShortTimeFourier(n_fft, hop)
    if as_products:
        fourier.use_products()
    samples = torch.randn(2, 40 * hop, generator=torch.Generator().manual_seed(1))
    again = fourier.inverse(fourier(samples))
    assert torch.allclose(again, samples, atol=2e-5)


def test_the_inverse_is_as_exact_where_products_are_rounded():
    fourier = ShortTimeFourier(1024, HOP)
    spectrum = fourier(torch.randn(1, 20 * HOP, generator=torch.Generator().manual_seed(1)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = fourier.inverse(spectrum)
    assert torch.equal(rounded, fourier.inverse(spectrum))


@pytest.mark.parametrize("length", [20 * HOP, 20 * HOP - 1, 20 * HOP + 1])
def test_the_transform_is_torchs(length):
    samples = torch.randn(1, length, generator=torch.Generator().manual_seed(1))
    theirs = torch.stft(
        samples, 1024, HOP, window=torch.hann_window(1024), center=True, pad_mode="constant", return_complex=True
    )
    for as_products in (False, True):
        fourier = ShortTimeFourier(1024, HOP)
        if as_products:
            fourier.use_products()
        real, imaginary = fourier(samples).chunk(2, dim=-1)
        assert torch.allclose(real, theirs.real.transpose(1, 2), atol=1e-3)
        assert torch.allclose(imaginary, theirs.imag.transpose(1, 2), atol=1e-3)


def test_pulses_have_the_pitch_asked_for_and_power_one():
    f0 = torch.full((1, 87), 150.0)
    signal = pulses(f0, HOP, RATE)[0]
    assert signal.square().mean() == pytest.approx(1.0, abs=0.05)
    spectrum = torch.fft.rfft(signal * torch.hann_window(len(signal))).abs()
    hertz = torch.fft.rfftfreq(len(signal), 1 / RATE)
    for harmonic in (1, 5, 30):
        around = (hertz > 150 * (harmonic - 0.5)) & (hertz < 150 * (harmonic + 0.5))
        peak = hertz[around][spectrum[around].argmax()]
        assert peak == pytest.approx(150 * harmonic, abs=2.0)


def test_unvoiced_frames_have_no_pulses():
    f0 = torch.zeros(1, 40)
    f0[:, 20:] = 200.0
    signal = pulses(f0, HOP, RATE)[0]
    assert not signal[: 19 * HOP].any()
    assert signal[21 * HOP :].square().mean() > 0.8


def test_a_pitch_goes_on_where_there_is_no_voice():
    f0 = torch.tensor([[0, 0, 150, 0, 0, 200, 210, 0], [90, 0, 0, 0, 0, 0, 0, 80], [0, 0, 0, 0, 0, 0, 0, 0.0]])
    assert _filled(f0).tolist() == [
        [100, 100, 150, 150, 150, 200, 210, 210],
        [90, 90, 90, 90, 90, 90, 90, 80],
        [100] * 8,
    ]


def test_untrained_it_already_keeps_the_spectral_envelope(voiced_sound):
    """The mel is guessed back into bins, so training starts from a sound and not from noise."""
    processor = AudioProcessor()
    waveform, hertz = voiced_sound
    mel = processor.mel(waveform)
    vocoder = Vocoder.of(processor, width=32, layers=1)
    pitch = torch.full((1, len(mel)), hertz)
    with torch.no_grad():
        made = vocoder(torch.from_numpy(mel)[None], pitch)[0].numpy()
    assert len(made) == (len(mel) - 1) * processor.config.hop_length
    again = processor.mel(made)
    inner = slice(4, -4)
    difference = (again - mel[: len(again)])[inner]
    assert np.abs(difference - np.median(difference)).mean() < 0.04  # 4 dB a band, after levels are made equal
    other = mel[:, ::-1]
    assert np.abs(mel - other)[inner].mean() > 0.1


def test_the_postfilter_moves_levels_away_from_those_around_them():
    processor = AudioProcessor()
    levels = np.full(80, 0.5)
    levels[30:34] += 0.1  # a formant of 10 dB
    levels[50:54] -= 0.1
    mel = torch.tensor(np.tile(levels, (60, 1))[None], dtype=torch.float32)
    f0 = torch.zeros(1, 60)

    def heard(share: float, mel: torch.Tensor) -> np.ndarray:
        torch.manual_seed(0)
        made = Vocoder.of(processor, width=32, layers=1, postfilter=share)(mel, f0)[0].detach().numpy()
        return processor.mel(made)[10:-10].mean(0)

    change = heard(0.2, mel) - heard(0.0, mel)
    change -= change[:15].mean()  # the whole is normalised
    expected = 0.2 * 0.1 * (1 - 4 / 25)
    assert change[31:33] == pytest.approx(expected, abs=0.002)
    assert change[51:53] == pytest.approx(-expected, abs=0.002)
    assert np.all(change[[24, 26, 38]] < -0.1 * expected)
    assert np.ptp(change[:15]) < 1e-3
    flat = torch.full((1, 60, 80), 0.5)
    assert heard(0.2, flat) == pytest.approx(heard(0.0, flat), abs=1e-5)


def test_noise_varies_by_chance_less_than_white_noise_does():
    """A mel says how loud each band of each frame is; noise that varies on top of it is rough."""
    processor = AudioProcessor()
    mel, f0 = torch.full((1, 120, 80), 0.5), torch.zeros(1, 120)
    vocoder = Vocoder.of(processor, width=32, layers=1)
    with torch.no_grad():
        made = processor.mel(vocoder(mel, f0)[0].numpy())[10:-10]
        noise = processor.mel(vocoder.source(f0)[1][0].numpy())[10:-10]
    assert made.std(0).mean() < 0.7 * noise.std(0).mean()
    assert np.ptp(made.mean(0)) < 0.02  # 2 dB


def test_the_envelope_of_noise_is_its_wave_in_time():
    """Sums of shifted bins are what the waves would make of the windowed noise."""
    vocoder = Vocoder.of(AudioProcessor(), width=32, layers=1)
    n_fft, samples = vocoder.fourier.n_fft, torch.randn(1, 20 * HOP, generator=torch.Generator().manual_seed(1))
    spectrum = vocoder.fourier(samples)
    shape = torch.zeros(1, spectrum.shape[1], 8, 4)
    shape[:, :, 0], shape[:, :, 3], shape[:, :, 6] = -0.4, 0.2, 0.1
    made = vocoder.shaped(spectrum, shape.flatten(2))
    angle = 2.0 * np.pi * torch.arange(n_fft) / n_fft
    envelope = 1.0 - 0.8 * angle.cos() + 0.4 * (2 * angle).sin() + 0.2 * (4 * angle).cos()
    padded = torch.nn.functional.pad(samples, (n_fft // 2, n_fft // 2))
    expected = torch.fft.rfft(padded.unfold(1, n_fft, HOP) * vocoder.fourier.window * envelope)
    inner = slice(8, -8)  # bins at the edges lack neighbours
    for part, wanted in zip(made.chunk(2, dim=-1), (expected.real, expected.imag), strict=True):
        assert torch.allclose(part[..., inner], wanted[..., inner], atol=1e-3)


def test_a_burst_can_be_shorter_than_the_window():
    """A mel only says that there is one in the windows of four frames."""
    processor = AudioProcessor()
    vocoder, at, frames = Vocoder.of(processor, width=32, layers=1), 20 * HOP + 100, 41
    burst = np.zeros(frames * HOP, dtype=np.float32)
    burst[at - 32 : at + 32] = 0.1 * np.random.default_rng(1).standard_normal(64)
    mel = torch.from_numpy(processor.mel(burst))[None]
    angle_T = 2.0 * np.pi * (at + vocoder.fourier.n_fft // 2 - HOP * torch.arange(mel.shape[1])) / vocoder.fourier.n_fft
    waves_KT = [wave(periods * angle_T) for periods in range(1, 5) for wave in (torch.cos, torch.sin)]

    def milliseconds() -> float:
        """Time that holds 80 % of the energy."""
        with torch.no_grad():
            power = vocoder(mel, torch.zeros(mel.shape[:2]))[0].square()
        ends = torch.searchsorted(power.cumsum(0) / power.sum(), torch.tensor([0.1, 0.9]))
        return 1000.0 * float(ends[1] - ends[0]) / RATE

    unshaped = milliseconds()
    shape = torch.stack(waves_KT, dim=-1).float()[None, :, :, None].expand(-1, -1, -1, 4).flatten(2)
    vocoder.shape_head = Constant(shape)
    assert milliseconds() < 0.4 * unshaped


class Constant(torch.nn.Module):
    """Gives the same, whatever comes in."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.value


def test_weights_of_before_noise_was_shaped_sound_as_they_did(voiced_sound):
    processor = AudioProcessor()
    mel = torch.from_numpy(processor.mel(voiced_sound[0]))[None]
    vocoder, again = (Vocoder.of(processor, width=32, layers=1) for _ in range(2))
    torch.nn.init.normal_(again.shape_head.weight)
    before = {name: value for name, value in vocoder.state_dict().items() if not name.startswith("shape_head")}
    again.load_state_dict(before)
    with torch.no_grad():
        assert torch.equal(vocoder(mel), again(mel))
    with pytest.raises(RuntimeError, match=r"head\.weight"):
        again.load_state_dict({name: value for name, value in before.items() if name != "head.weight"})


def test_pulses_are_brought_in_step_with_a_recording():
    """Its pitch is known with an error, which alone would put the pulses out of step."""
    frames = 100
    true_f0 = torch.linspace(120.0, 180.0, frames)[None]
    recording = pulses(true_f0, HOP, RATE, torch.full((1, frames), 0.3))
    heard_f0 = 1.01 * true_f0
    heard_f0[:, 40:44] = 0.0

    def alike(phase: torch.Tensor | None) -> float:
        made = pulses(heard_f0, HOP, RATE, phase)
        voiced = slice(50 * HOP, 90 * HOP)
        bass = [torch.fft.rfft(sound[0, voiced])[:1000] for sound in (made, recording)]  # 10 harmonics
        return float((bass[0] * bass[1].conj()).real.sum() / (bass[0].abs().norm() * bass[1].abs().norm()))

    assert alike(phase_of(recording, heard_f0, HOP, RATE)) > 0.95
    assert alike(None) < 0.5


def test_phase_and_noise_start_vary_the_source_and_nothing_else(voiced_sound):
    processor = AudioProcessor()
    mel = torch.from_numpy(processor.mel(voiced_sound[0]))[None]
    vocoder = Vocoder.of(processor, width=32, layers=1)
    f0 = torch.full(mel.shape[:2], voiced_sound[1])
    with torch.no_grad():
        first = vocoder(mel, f0, torch.zeros_like(f0), torch.tensor([0]))
        same = vocoder(mel, f0, torch.zeros_like(f0), torch.tensor([0]))
        other = vocoder(mel, f0, torch.full_like(f0, 0.5), torch.tensor([999]))
    assert torch.equal(first, same)
    assert not torch.allclose(first, other, atol=1e-2)
    levels = [processor.mel(sound[0].numpy())[4:-4] for sound in (first, other)]
    assert np.abs(levels[0] - levels[1]).mean() < 0.05


def test_levels_are_corrected_to_the_mel_once_trained(voiced_sound):
    processor = AudioProcessor()
    mel = processor.mel(voiced_sound[0])
    centred = Vocoder.of(processor, width=32, layers=1)
    causal = Vocoder.of(processor, width=32, layers=1, lookahead=1)
    f0 = torch.full((1, len(mel)), voiced_sound[1])

    def error(vocoder: Vocoder) -> float:
        with torch.no_grad():
            made = processor.mel(vocoder(torch.from_numpy(mel)[None], f0)[0].numpy())
        difference = (made - mel)[mel > 0.3]
        return float(np.abs(difference - np.median(difference)).mean())  # `mel` scales the peak to 1

    assert error(centred.eval()) < 0.75 * error(centred.train())
    assert error(causal.eval()) == error(causal.train())
    assert centred.eval().context > centred.train().context


def test_levels_are_corrected_by_six_decibels_at_most(voiced_sound):
    processor = AudioProcessor()
    mel = torch.from_numpy(processor.mel(voiced_sound[0]))[None]
    vocoder = Vocoder.of(processor, width=32, layers=1)
    noise = torch.randn(1, (mel.shape[1] - 1) * HOP)
    with torch.no_grad():
        louder = vocoder.corrected(1e-4 * noise, mel).square().mean() / (1e-4 * noise).square().mean()
        quieter = vocoder.corrected(1e4 * noise, mel).square().mean() / (1e4 * noise).square().mean()
        silent = vocoder.corrected(torch.zeros_like(noise), mel)
    assert 3.0 < float(louder) <= 10**0.61
    assert 10**-0.61 <= float(quieter) < 0.3
    assert not silent.any()


@pytest.fixture
def voiced_sound():
    """Half a second of a vowel-like sound at 140 Hz, and its pitch."""
    time = np.arange(RATE // 2) / RATE
    formants = [(700, 1.0), (1200, 0.5), (2600, 0.25)]
    sound = np.zeros_like(time)
    for harmonic in range(1, 50):
        hertz = 140.0 * harmonic
        gain = sum(weight / (1 + ((hertz - centre) / 150) ** 2) for centre, weight in formants)
        sound += gain * np.cos(2 * np.pi * hertz * time)
    sound += 1e-3 * np.random.default_rng(0).standard_normal(len(time))
    return (sound / np.abs(sound).max()).astype(np.float32), 140.0


def test_a_stream_of_pieces_is_the_whole(voiced_sound, monkeypatch):
    """Seen to fail when a piece has too little context, or a source of its own."""
    processor = AudioProcessor()
    vocoder = Vocoder.of(processor, width=32, layers=2)
    torch.nn.init.normal_(vocoder.head.weight, std=0.05)
    torch.nn.init.normal_(vocoder.shape_head.weight, std=0.05)
    mel = np.tile(processor.mel(voiced_sound[0]), (4, 1))
    rendering = TrainedVocoder(vocoder)
    pieces = list(rendering.stream(mel, first=8, piece=20))
    whole = rendering(mel)
    assert len(pieces) > 5
    lengths = [len(piece) for piece in pieces[1:]]
    assert max(lengths) - min(lengths) <= processor.config.hop_length  # a short last one would cost context for little
    assert len(whole) == (len(mel) - 1) * processor.config.hop_length
    assert np.allclose(np.concatenate(pieces), whole, atol=1e-4)
    monkeypatch.setattr(Vocoder, "context", 1)
    assert not np.allclose(np.concatenate(list(rendering.stream(mel, None, 8, 20))), whole, atol=1e-4)
