"""The vocoder for frames that come one after the other, as in live conversion.

Shapes: T frames, M mel bands, D width, N samples; the first dimension is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phonate.nn.convolution import limited
from phonate.nn.stft import AnalysisStream, SynthesisStream
from phonate.nn.vocoder.generator import PulseStream, Vocoder, noise


class VocoderStream:
    """The samples of one recording. Joined, they are what `Vocoder.forward` makes of all frames at once.

    Phases, overlapping windows and the past of each convolution are carried from block to block.
    """

    def __init__(self, vocoder: Vocoder) -> None:
        """Raises ValueError if the vocoder has no `lookahead`, and so sees frames that have not come yet."""
        self.vocoder = vocoder
        device = vocoder.level_K.device
        self._embedding = limited(vocoder.embedding)
        self._embedding_past = self._embedding.initial_state(1)
        self._network_state = vocoder.network.initial_state(1)
        self._pulses = PulseStream(vocoder.hop_length, vocoder.sample_rate)
        self._source = AnalysisStream(vocoder.fourier, 2)
        self._synthesis = SynthesisStream(vocoder.fourier, 1)
        self._noise_start = torch.zeros(1, dtype=torch.long, device=device)
        bins = 2 * vocoder.fourier.bins
        # frames that wait for later ones
        self._mel_1TM = torch.zeros(1, 0, vocoder.spread_MK.shape[0], device=device)
        self._f0_1T = torch.zeros(1, 0, device=device)
        self._embedded_1TD = torch.zeros(1, 0, self._embedding.out_channels, device=device)
        self._source_2TC = torch.zeros(2, 0, bins, device=device)

    @torch.inference_mode()
    def push(self, mel_1TM: Tensor, f0_1T: Tensor) -> Tensor:
        """The samples (1, N), N may be 0, that the next frames complete. One input may be ahead of the other.

        Args:
            mel_1TM: Mel features from 0 to 1.
            f0_1T: F0 in Hz, 0 where unvoiced.
        """
        self._mel_1TM = torch.cat((self._mel_1TM, mel_1TM), dim=1)
        self._f0_1T = torch.cat((self._f0_1T, f0_1T), dim=1)
        source_2TC = self._source.push(self._source_samples(f0_1T)) if f0_1T.shape[1] else self._source_2TC[:, :0]
        return self._filtered(2.0 * mel_1TM - 1.0, source_2TC)

    @torch.inference_mode()
    def finish(self) -> Tensor:
        """The last samples (1, N). The stream must not be used again."""
        behind_1TM = self._mel_1TM.new_zeros(1, self.vocoder.lookahead or 0, self._mel_1TM.shape[2])
        rest_1N = self._filtered(behind_1TM, self._source.finish())
        return torch.cat((rest_1N, self._synthesis.finish()), dim=1)

    def _source_samples(self, f0_1T: Tensor) -> Tensor:
        """Pulses and noise (2, N) up to the last of the next frames."""
        pulses_1N = self._pulses.push(f0_1T)
        noise_1N = noise(pulses_1N, self.vocoder.noise_table, self._noise_start)
        self._noise_start = (self._noise_start + pulses_1N.shape[1]) % len(self.vocoder.noise_table)
        return torch.cat((pulses_1N, noise_1N))

    def _filtered(self, scaled_1TM: Tensor, source_2TC: Tensor) -> Tensor:
        """The samples of the frames that the next ones complete, given the embedding's next input."""
        embedded_1DT = self._embedding.step(scaled_1TM.transpose(1, 2), self._embedding_past)
        self._embedded_1TD = torch.cat((self._embedded_1TD, embedded_1DT.transpose(1, 2)), dim=1)
        self._source_2TC = torch.cat((self._source_2TC, source_2TC), dim=1)
        ready = min(self._embedded_1TD.shape[1], self._source_2TC.shape[1])
        mel_1TM, self._mel_1TM = _split(self._mel_1TM, ready)
        f0_1T, self._f0_1T = _split(self._f0_1T, ready)
        embedded_1TD, self._embedded_1TD = _split(self._embedded_1TD, ready)
        source_2TC, self._source_2TC = _split(self._source_2TC, ready)
        if ready == 0:
            return self._synthesis.push(source_2TC[:1])
        vocoder = self.vocoder
        hidden_1TD = vocoder.network.step(embedded_1TD + vocoder.embedded_pitch(f0_1T), self._network_state)
        return self._synthesis.push(vocoder.spectrum(hidden_1TD, mel_1TM, source_2TC[:1], source_2TC[1:]))


def _split(values_BT: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return values_BT[:, :count], values_BT[:, count:]
