"""What limits the F0 error of a voice: the error that is left where parts of a recording's pitch are known.

    python scripts/melody_limits.py RUN

RUN is a parallel voice whose corpus is still there. The first rows are contours in the recordings' own timing: of
training recordings by nine-fold cross-validation, and of those held out. The others are sounds of the voice, measured
as `phonate evaluate` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import f0
from phonate.audio.settings import F0Method
from phonate.evaluation.distances import distances
from phonate.tasks.speech.arrays import CONTOUR_FRAMES, noise_table
from phonate.tasks.speech.data import SpeechCorpus, melody
from phonate.tasks.speech.inference import Synthesiser
from phonate.tasks.speech.model import ParallelModel, Prosody, hertz
from phonate.training.plan import plan

FOLDS = 9
_APART, _ENDS, _RIDGE = 12.0, 8, 1000.0
"""Frames between the places where symbols are looked for; columns of `ends`; penalty of the symbols, chosen by
cross-validation."""
_DOUBTFUL = 300.0
"""Cents between two methods."""
CENTS = 1200.0 / np.log(2.0)
Array = NDArray[np.float64]


class Contour(NamedTuple):
    """The voiced frames of a recording."""

    frames_V: Array
    """From the first voiced one on."""
    cents_V: Array
    doubtful_V: NDArray[np.bool_]
    """Where the other method finds another octave, or nearly so."""
    symbols_VK: Array
    """How near each symbol of the inventory is, now, and 0.14 seconds earlier and later."""


def contour(corpus: SpeechCorpus, position: int) -> Contour:
    """The voiced frames of a recording."""
    audio = corpus.data.audio
    f0_T = corpus.pitch[position][:, 0].astype(np.float64)
    other: F0Method = "yin" if corpus.data.f0_method == "swift" else "swift"
    other_T = f0(corpus.prepared.cache.waveform(position), audio.sample_rate, audio.hop_length, other)
    voiced_V = np.flatnonzero(f0_T)
    durations_L = corpus.durations[position][:, 0]
    middles_L = np.cumsum(durations_L) - durations_L / 2.0
    away_V3L = voiced_V[:, None, None] - middles_L - np.array([-_APART, 0.0, _APART])[:, None]
    symbols_LS = np.eye(len(corpus.inventory))[corpus.inventory.ids(corpus.words[position])]
    near_V3S = np.exp(-0.5 * np.square(2.0 * away_V3L / _APART)) @ symbols_LS
    apart_V = np.abs(CENTS * np.log(np.maximum(other_T[voiced_V], 1.0) / f0_T[voiced_V]))
    return Contour(
        frames_V=(voiced_V - voiced_V[0]).astype(float),
        cents_V=CENTS * np.log(f0_T[voiced_V]),
        doubtful_V=(apart_V > _DOUBTFUL) & (other_T[voiced_V] > 0),
        symbols_VK=near_V3S.reshape(len(voiced_V), -1),
    )


def nothing(one: Contour) -> Array:
    """A constant (V, 1)."""
    return np.ones((len(one.cents_V), 1))


def line(one: Contour) -> Array:
    """A straight line from the first to the last voiced frame (V, 2)."""
    return np.stack([np.ones(len(one.cents_V)), one.frames_V / one.frames_V[-1]], axis=1)


def ends(one: Contour) -> Array:
    """The line, and the nearness of both ends as in the model (V, 8)."""
    sides = (one.frames_V, one.frames_V[-1] - one.frames_V)
    near = [np.exp(-far_V / frames) for far_V in sides for frames in CONTOUR_FRAMES]
    return np.concatenate([line(one), np.stack(near, axis=1)], axis=1)


def text(one: Contour) -> Array:
    """The ends and the symbols (V, 8 + K)."""
    return np.concatenate([ends(one), one.symbols_VK], axis=1)


def fitted(basis: Basis, recordings: list[Contour]) -> Array:
    """Weights of the contour that fits `recordings` best, of symbols by ridge regression."""
    x = np.concatenate([basis(one) for one in recordings])
    penalty = np.where(np.arange(x.shape[1]) < _ENDS, 1e-3, _RIDGE)
    weights: Array = np.linalg.solve(
        x.T @ x + np.diag(penalty), x.T @ np.concatenate([one.cents_V for one in recordings])
    )
    return weights


def residual(one: Contour, expected_V: Array, own: int | None) -> Array:
    """What a contour is off by (V,); where `own` is not None, what a polynomial of that degree does not explain."""
    rest_V = one.cents_V - expected_V
    if own is None:
        return rest_V
    powers = np.polynomial.legendre.legvander(2.0 * line(one)[:, 1] - 1.0, own)
    explained_V: Array = powers @ np.linalg.lstsq(powers, rest_V, rcond=None)[0]
    return rest_V - explained_V


def rmse(residuals: list[Array]) -> float:
    """Mean over recordings of the root mean square."""
    return float(np.mean([np.sqrt(np.square(one).mean()) for one in residuals]))


def contours(corpus: SpeechCorpus) -> Iterator[tuple[str, float, float, float]]:
    """Name, error of training recordings, error of those held out, share of doubtful frames in the squared error."""
    train, held_out = ([contour(corpus, i) for i in corpus.positions(part)] for part in ("train", "validation"))
    doubtful_V = np.concatenate([one.doubtful_V for one in train])
    for name, basis, own in CONTOURS:
        validated: dict[int, Array] = {}
        for fold in range(FOLDS):
            weights = fitted(basis, [one for i, one in enumerate(train) if i % FOLDS != fold])
            for i in range(fold, len(train), FOLDS):
                validated[i] = residual(train[i], basis(train[i]) @ weights, own)
        weights = fitted(basis, train)
        reported = [residual(one, basis(one) @ weights, own) for one in held_out]
        squares_V = np.square(np.concatenate([validated[i] for i in range(len(train))]))
        share = float(squares_V[doubtful_V].sum() / squares_V.sum())
        yield name, rmse(list(validated.values())), rmse(reported), share


Basis = Callable[[Contour], Array]
CONTOURS: tuple[tuple[str, Basis, int | None], ...] = (
    ("a constant", nothing, None),
    ("a line", line, None),
    ("the ends of sentences", ends, None),
    ("ends and symbols", text, None),
    ("ends and symbols, and each recording's mean", text, 0),
    ("ends and symbols, and each recording's cubic", text, 3),
)


def stretched(values_TF: FloatArray, recorded_L: NDArray[np.int64], spoken_L: NDArray[np.int64]) -> FloatArray:
    """Frames of recorded tokens as those of spoken ones, whose durations differ."""
    begins_L = np.cumsum(recorded_L) - recorded_L
    places = [
        begin + (np.arange(spoken) + 0.5) * recorded / spoken
        for begin, recorded, spoken in zip(begins_L, recorded_L, spoken_L, strict=True)
        if spoken
    ]
    return values_TF[np.minimum(np.concatenate(places).astype(int), len(values_TF) - 1)]


@torch.no_grad()
def spoken(voice: Synthesiser, corpus: SpeechCorpus, position: int, durations: bool, pitch: bool) -> FloatArray:
    """A text with the recorded durations and pitch, or with those that the voice predicts."""
    model = voice.model
    assert isinstance(model, ParallelModel)
    tokens_1L = torch.tensor(corpus.inventory.ids(corpus.words[position]))[None]
    recorded_L = corpus.durations[position][:, 0].astype(np.int64)
    encoded_1LD = model.encode(tokens_1L, torch.tensor([int(corpus.prepared.index.speaker[position])]), None)
    prosody = model.prosody(model.predict(encoded_1LD, None))
    if durations:
        prosody = Prosody(torch.from_numpy(recorded_L)[None], prosody.energy_BL)
    frames = int(prosody.durations_BL.sum())
    regulated_1TD = model.regulated(encoded_1LD, prosody, frames)
    if pitch:
        recorded_T2 = melody(corpus.pitch[position][:, 0])
        melody_1T2 = torch.from_numpy(stretched(recorded_T2, recorded_L, prosody.durations_BL[0].numpy()))[None]
    else:
        melody_1T2 = model.pitch(regulated_1TD, None)
        melody_1T2[..., 1] = (melody_1T2[..., 1] > 0).float()
    noise_1TN = torch.from_numpy(np.resize(noise_table(), (1, frames, noise_table().shape[1])))
    mel_1TM = model.decode(regulated_1TD, melody_1T2, noise_1TN, None).clamp(0.0, 1.0)
    return voice.render(mel_1TM[0].numpy(), hertz(melody_1T2)[0].numpy())


def main() -> None:
    """Print both tables."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    corpus = plan(sys.argv[1]).task.corpus
    print("F0 error in cents, contours: cross-validated, held out; share of squares where two methods differ")
    for name, train, held_out, share in contours(corpus):
        print(f"  {name}: {train:.0f}, {held_out:.0f}; {share:.1%}", flush=True)
    voice = Synthesiser.load_torch(sys.argv[1])
    print("F0 error in cents, voicing error and MCD of sounds held out")
    for name, durations, pitch in (
        ("recorded durations and pitch", True, True),
        ("recorded pitch", False, True),
        ("recorded durations", True, False),
        ("as spoken", False, False),
    ):
        rows = []
        for i in corpus.positions("validation"):
            sound = spoken(voice, corpus, i, durations, pitch)
            rows.append(distances(sound, corpus.prepared.cache.waveform(i), voice.sample_rate))
        pitch_error, voicing, mcd = np.mean(
            [(d.f0_rmse, d.voicing_error, d.mel_cepstral_distortion) for d in rows], axis=0
        )
        print(f"  {name}: {pitch_error:.0f}, {voicing:.1%}, {mcd:.2f}", flush=True)


if __name__ == "__main__":
    main()
