"""The mels that a voice makes of its own corpus, frame by frame beside the recorded ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.data.store.predicted import write_predicted
from phonate.tasks.speech.corpus import Corpus
from phonate.tasks.speech.dataset import SpeechDataset
from phonate.tasks.speech.inference import Synthesiser, parallel
from phonate.tasks.speech.models.parallel import Prosody


def predict_corpus(run: str | Path, folder: Path) -> int:
    """Write the mels of all recordings of the run's corpus into `folder`; returns how many.

    They are said with the recorded durations, energy and pitch, so they fit the recordings frame by frame. Raises
    DataError when `folder` is there already.
    """
    synthesiser = Synthesiser.load(run)
    model = parallel(synthesiser, "predict mels beside recordings")
    corpus = Corpus(synthesiser.data)
    splits = [SpeechDataset(corpus, split) for split in ("train", "validation")]
    places = [(samples, index) for samples in splits for index in range(len(samples.ids))]

    @torch.no_grad()
    def predict(place: int) -> FloatArray:
        samples, index = places[place]
        batch = samples.collate([samples.get(index, np.random.default_rng(place))])
        recorded = Prosody(batch["durations"], batch["energy"], batch["pitch"])
        said = model(
            batch["tokens"], batch["token_lengths"], recorded, batch["noise"], batch["lengths"], batch["speaker_id"]
        )
        return np.asarray(said.mel_BTM[0].float().clamp(0.0, 1.0))

    ids = [samples.ids[index] for samples, index in places]
    write_predicted(folder, synthesiser.processor.fingerprint, ids, predict)
    return len(ids)
