"""From a trained run to text.

Shapes: B batch, T mel frames, M mel bands, U = ceil(T / 4) frames, S symbols, N samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from torch import nn

from phonate.audio.decoding import Audio, AudioT, FloatArray, as_waveform, windows
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import InputError
from phonate.data.batches import padded
from phonate.data.corpora.rows import one_line
from phonate.tasks.recognition.data import BLANK, Symbols, standardised
from phonate.tasks.recognition.decoding import LanguageModelFusion, SymbolModel, beam_search, greedy
from phonate.tasks.recognition.model import SUBSAMPLING, CtcModel, build_model, reduced
from phonate.tasks.recognition.settings import RecognitionRecipe
from phonate.training.checkpoints.loading import open_trained
from phonate.training.inference import Demonstration, Device, Inference

_WINDOW_SECONDS = 30.0
_BATCH = 8
"""Windows that the model reads at once."""
_PAUSE_SECONDS = 0.3
"""A stream is cut where the model has been silent for so long."""


class Transcriber(Inference):
    """Transcribes recordings."""

    sample_rate: int

    def __init__(
        self,
        model: CtcModel,
        recipe: RecognitionRecipe,
        symbols: Symbols,
        language: SymbolModel | None,
        inference_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """`recipe`: that the model was trained with; `language`: counted in the training texts; `inference_metadata`:
        what the task saved with the checkpoint."""
        self.model = model.eval()
        self.recipe = recipe
        self.symbols = symbols
        self.inference_metadata = dict(inference_metadata or {})
        self.processor = AudioProcessor(recipe.data.audio)
        self.sample_rate = recipe.data.audio.sample_rate
        settings = recipe.model
        self.fusion = (
            LanguageModelFusion(language, settings.language_weight, settings.symbol_bonus)
            if language
            else LanguageModelFusion()
        )
        """What the beam search adds to the network's probabilities."""
        self.window = round(_WINDOW_SECONDS * recipe.data.audio.frames_per_second)
        """Mel frames of a long recording that are read at once, beside the model's context around them."""

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The transcriber of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Args:
            source: A run's folder or a checkpoint's.
            device: Such as "cuda:0"; None: cpu.

        Raises CheckpointError where there is no checkpoint, or it is damaged, or of another task.
        """
        trained = open_trained(source, "recognition", RecognitionRecipe)
        recipe, metadata = trained.recipe, trained.inference_metadata
        trained.require_features(AudioProcessor(recipe.data.audio).fingerprint)
        symbols = Symbols.read(metadata["symbols"])
        model = build_model(recipe.model, recipe.data.audio.n_mels, len(symbols))
        trained.load_into(model)
        language = SymbolModel.read(metadata["language_model"]) if metadata["language_model"] else None
        return cls(model, recipe, symbols, language, metadata).to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The acoustic model."""
        return (self.model,)

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`recording`, transcribed."""
        if recording is None:
            return None
        summary = f'It hears "{self.transcribe(recording)}" in {one_line(recording.name)}'
        return Demonstration(summary, "phonate transcribe {run} in.wav")

    @overload
    def transcribe(self, audio: Audio, beam: int | None = None, *, sample_rate: int | None = None) -> str: ...

    @overload
    def transcribe(
        self, audio: list[AudioT] | tuple[AudioT, ...], beam: int | None = None, *, sample_rate: int | None = None
    ) -> list[str]: ...

    def transcribe(
        self,
        audio: Audio | list[AudioT] | tuple[AudioT, ...],
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
    ) -> str | list[str]:
        """What is said in a recording, as lower-case words; "" for silence.

        Args:
            audio: The path of a recording of any format, rate and length, or samples (N,); or a list of them, which
                are transcribed in batches.
            beam: Hypotheses that the search keeps; 1 takes the likeliest symbol of each frame, without the language
                model. None: the recipe's `model.beam`.
            sample_rate: Hz of arrays; None: they are at `self.sample_rate`.

        Raises InputError for a beam under 1, DataError for audio that can't be read.
        """
        beam = self._beam(beam)
        several = isinstance(audio, list | tuple)
        listed: Sequence[Audio] = audio if isinstance(audio, list | tuple) else [audio]
        waveforms = [as_waveform(one, self.sample_rate, sample_rate) for one in listed]
        heard = [index for index, waveform in enumerate(waveforms) if waveform.any()]
        mels = [standardised(self.processor.mel(waveforms[index])) for index in heard]
        texts = [""] * len(waveforms)
        for index, log_probs_US in zip(heard, self.log_probs(mels), strict=True):
            texts[index] = self.text(log_probs_US, beam)
        return texts if several else texts[0]

    def stream(self, audio: Audio, beam: int | None = None, *, sample_rate: int | None = None) -> Iterator[str]:
        """As `transcribe` for one long recording, in parts of half a minute or so, each ending in a pause."""
        beam = self._beam(beam)
        waveform = as_waveform(audio, self.sample_rate, sample_rate)
        if not waveform.any():
            return
        mel_TM = standardised(self.processor.mel(waveform))
        pause = max(1, round(_PAUSE_SECONDS * self.recipe.data.audio.frames_per_second / SUBSAMPLING))
        rest_US: FloatArray | None = None
        for start, end in windows(len(mel_TM), self._window_frames, 0):
            read_US = self._read([mel_TM], [(0, start, end)])[0]
            rest_US = read_US if rest_US is None else np.concatenate([rest_US, read_US])
            cut = len(rest_US) if end == len(mel_TM) else _last_pause(rest_US, pause)
            said, rest_US = self.text(rest_US[:cut], beam) if cut else "", rest_US[cut:]
            if said:
                yield said

    def _beam(self, beam: int | None) -> int:
        beam = self.recipe.model.beam if beam is None else beam
        if beam < 1:
            raise InputError(f"beam {beam}: must be 1 or more; 1 is the fastest, 16 a good value")
        return beam

    def text(self, log_probs_US: FloatArray, beam: int) -> str:
        """The likeliest text, from log probabilities (U, S)."""
        ids = greedy(log_probs_US) if beam == 1 else beam_search(log_probs_US, beam, self.fusion)
        return self.symbols.text(ids)

    def log_probs(self, mels: Sequence[FloatArray]) -> list[FloatArray]:
        """Log probabilities (U, S) of the symbols for each mel (T, M).

        Long ones are read in windows with the model's context around them, which gives the same as reading them at
        once; windows of like length are read together.
        """
        places = [(index, *cut) for index, mel in enumerate(mels) for cut in windows(len(mel), self._window_frames, 0)]
        order = sorted(range(len(places)), key=lambda i: places[i][2] - places[i][1])
        read: dict[int, FloatArray] = {}
        for first in range(0, len(order), _BATCH):
            chosen = order[first : first + _BATCH]
            read |= zip(chosen, self._read(mels, [places[i] for i in chosen]), strict=True)
        parts: list[list[FloatArray]] = [[] for _ in mels]
        for number, (index, _, _) in enumerate(places):
            parts[index].append(read[number])
        return [np.concatenate(part) for part in parts]

    @property
    def _window_frames(self) -> int:
        """A whole number of the model's frames, so that each window is cut at the same places as the whole."""
        return SUBSAMPLING * -(-self.window // SUBSAMPLING)

    @torch.no_grad()
    def _read(self, mels: Sequence[FloatArray], places: Sequence[tuple[int, int, int]]) -> list[FloatArray]:
        """Log probabilities (U, S) for the windows (number of the mel, start, end), in one forward pass."""
        margin = SUBSAMPLING * -(-self.model.context // SUBSAMPLING)
        cuts = [(max(0, start - margin), min(len(mels[index]), end + margin)) for index, start, end in places]
        inputs = [mels[index][first:last] for (index, _, _), (first, last) in zip(places, cuts, strict=True)]
        lengths_B = torch.tensor([len(one) for one in inputs], device=self.device)
        logits_BUS, _ = self.model(padded(inputs).to(self.device), lengths_B)
        log_probs_BUS = logits_BUS.float().log_softmax(-1).cpu().numpy()
        found = []
        for row_US, (_, start, end), (first, _) in zip(log_probs_BUS, places, cuts, strict=True):
            begin = (start - first) // SUBSAMPLING
            found.append(row_US[begin : begin + reduced(end - start)])
        return found


def _last_pause(log_probs_US: FloatArray, least: int) -> int:
    """Where the last run of `least` frames or more of blanks begins (U, S), in its middle; 0 where there is none."""
    silent_U = np.concatenate([[0], log_probs_US.argmax(axis=1) == BLANK, [0]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(silent_U)).reshape(-1, 2)
    long = edges[edges[:, 1] - edges[:, 0] >= least]
    return int(long[-1].mean()) if len(long) else 0
