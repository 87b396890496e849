"""From a trained run to text. Shapes: T mel frames, M mel bands, U = ceil(T / 4) frames, S symbols, N samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phonate.audio.chunks import windows
from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import InputError
from phonate.tasks.recognition.dataset import standardised
from phonate.tasks.recognition.decoding import LanguageModelFusion, beam_search, greedy
from phonate.tasks.recognition.language import SymbolModel
from phonate.tasks.recognition.model import SUBSAMPLING, CtcModel, build_model, reduced
from phonate.tasks.recognition.symbols import Symbols
from phonate.training.checkpoints.trained import open_trained

_WINDOW_SECONDS = 30.0


class Transcriber:
    """Writes down what is said in recordings."""

    def __init__(
        self,
        model: CtcModel,
        recipe: Any,
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
        self.sample_rate: int = recipe.data.audio.sample_rate
        settings = recipe.model
        self.fusion = (
            LanguageModelFusion(language, settings.language_weight, settings.symbol_bonus)
            if language
            else LanguageModelFusion()
        )
        """What the search looks for beside the network's probabilities."""
        self.window = round(_WINDOW_SECONDS * recipe.data.audio.frames_per_second)
        """Mel frames of a long recording that are read at once, beside what the model sees around them."""

    @classmethod
    def load(cls, source: str | Path) -> Transcriber:
        """The transcriber of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Raises CheckpointError where there is none, or it is damaged, or of another task.
        """
        trained = open_trained(source, "recognition")
        recipe, metadata = trained.recipe, trained.inference_metadata
        trained.require_features(AudioProcessor(recipe.data.audio).fingerprint)
        symbols = Symbols.read(metadata["symbols"])
        model = build_model(recipe.model, recipe.data.audio.n_mels, len(symbols))
        model.load_state_dict(trained.weights)
        language = SymbolModel.read(metadata["language_model"]) if metadata["language_model"] else None
        return cls(model, recipe, symbols, language, metadata)

    def transcribe_file(self, path: str | Path, beam: int | None = None) -> str:
        """What is said in the recording at `path`, in any format, at any rate and of any length: see `transcribe`.

        Raises DataError where it can't be read.
        """
        return self.transcribe(read_audio(path, self.sample_rate)[0], beam)

    def transcribe(self, waveform: FloatArray, beam: int | None = None) -> str:
        """What is said in samples (N,) at `sample_rate`, as lower-case words; "" for silence.

        `beam`: texts that the search keeps; 1 is the likeliest symbol of each frame, without the language model. None:
        the recipe's `model.beam`. Raises InputError for less than 1.
        """
        beam = self.recipe.model.beam if beam is None else beam
        if beam < 1:
            raise InputError(f"a beam of {beam} finds nothing; 1 is the fastest, 16 a good one")
        if not waveform.any():
            return ""
        return self.text(self.log_probs(standardised(self.processor.mel(waveform))), beam)

    def text(self, log_probs_US: FloatArray, beam: int) -> str:
        """The likeliest text."""
        ids = greedy(log_probs_US) if beam == 1 else beam_search(log_probs_US, beam, self.fusion)
        return self.symbols.text(ids)

    @torch.no_grad()
    def log_probs(self, mel_TM: FloatArray) -> FloatArray:
        """Log probabilities (U, S) of the symbols. Long recordings are read in windows with what the model sees around
        them, which gives the same as reading them at once."""
        device = self.model.output.weight.device
        margin = SUBSAMPLING * -(-self.model.context // SUBSAMPLING)
        window = SUBSAMPLING * -(-self.window // SUBSAMPLING)
        parts: list[FloatArray] = []
        # Whole numbers of the model's frames, so that each window is cut at the same places as the whole.
        for start, end in windows(len(mel_TM), window, 0):
            first, last = max(0, start - margin), min(len(mel_TM), end + margin)
            mel_1TM = torch.from_numpy(np.ascontiguousarray(mel_TM[None, first:last])).to(device)
            logits_1US, _ = self.model(mel_1TM, torch.tensor([last - first], device=device))
            inside = slice((start - first) // SUBSAMPLING, reduced(end - first))
            parts.append(logits_1US[0, inside].float().log_softmax(-1).cpu().numpy())
        return np.concatenate(parts)
