"""Builds the simulators of training and validation conversations from the recipe's `data.simulation`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed
from phonate.data.conversations.acoustics import Acoustics
from phonate.data.conversations.clips import ClipBank
from phonate.data.conversations.noise import ColouredNoise, Noise, RecordedNoise
from phonate.data.conversations.settings import AcousticSettings
from phonate.data.conversations.simulator import ConversationSimulator
from phonate.data.conversations.sources import Source
from phonate.data.store.index import SPLITS, Index
from phonate.data.store.prepared import prepare
from phonate.tasks.diarization.data_settings import DiarizationData, clip_corpora, noise_corpus

_NONE, _TRAIN, _VALIDATION, _TEST = range(len(SPLITS))


def build_simulators(
    data: DiarizationData, own: Source | None, simulated_validation: bool
) -> dict[str, ConversationSimulator]:
    """Simulators for the split train and, with `simulated_validation`, for validation, with disjoint speakers.

    Args:
        data: The recipe's `data` section; `data.simulation` is set.
        own: The recordings at `data.path` from which clips may be cut.

    Raises DataError if a split has fewer speakers than a conversation.
    """
    assert data.simulation is not None
    sources, simulation = _sources(data, own), data.simulation
    acoustics = acoustics_of(data, simulation.acoustics)
    bank = partial(ClipBank.of, sample_rate=data.audio.sample_rate, min_seconds=simulation.min_clip_seconds)
    if not simulated_validation:
        banks = {"train": bank([_without(source, _VALIDATION, _TEST) for source in sources])}
    elif data.validation == 0.0:
        banks = {"train": bank([_without(source, _TEST) for source in sources])}
    elif any(_VALIDATION in _official(source) for source in sources):
        train = bank([_without(source, _VALIDATION, _TEST) for source in sources])
        held_out = [_without(source, _NONE, _TRAIN, _TEST) for source in sources]
        strangers = set(bank(held_out).speakers) - set(train.speakers)
        _require_speakers(len(strangers), simulation.speakers[1], "the official validation split and not in training")
        banks = {"train": train, "validation": bank(held_out, people=strangers)}
    else:
        whole = [_without(source, _TEST) for source in sources]
        everybody = bank(whole)
        kept = _held_out(everybody, data.validation, simulation.speakers[1])
        others = set(everybody.speakers) - kept
        _require_speakers(len(others), simulation.speakers[1], f"training, besides {len(kept)} in validation")
        banks = {"train": bank(whole, people=others), "validation": bank(whole, people=kept)}
    return {split: ConversationSimulator(simulation, one, acoustics) for split, one in banks.items()}


def _require_speakers(found: int, wanted: int, where: str) -> None:
    if found < wanted:
        raise DataError(
            f"conversations of {wanted} speakers need at least {wanted} in each split; there are {found} in {where}. "
            "Lower data.simulation.speakers, set data.validation: 0, or add corpora to data.simulation.path"
        )


def simulator_of(data: DiarizationData) -> ConversationSimulator:
    """A simulator with all speakers of the clip corpora, of all splits; `data.simulation` must be set."""
    assert data.simulation is not None
    own = None if clip_corpora(data) else _source(data.model_copy(update={"validation": 0.0}), "")
    bank = ClipBank.of(_sources(data, own), data.audio.sample_rate, data.simulation.min_clip_seconds)
    return ConversationSimulator(data.simulation, bank, acoustics_of(data, data.simulation.acoustics))


def acoustics_of(data: DiarizationData, settings: AcousticSettings) -> Acoustics:
    """The acoustics described by `settings`, with noise recordings prepared at the corpus's sample rate."""
    noise: Noise = ColouredNoise()
    if settings.noise_path is not None:
        prepared = prepare(noise_corpus(data, settings.noise_path))
        noise = RecordedNoise(prepared, range(len(prepared.index)))
    return Acoustics(settings, data.audio.sample_rate, noise)


def _sources(data: DiarizationData, own: Source | None) -> list[Source]:
    """The clip corpora. A corpus that is also in the recipe's `data` is taken from `own`, so that its held-out
    recordings are not used."""
    corpora = clip_corpora(data)
    if not corpora:
        assert own is not None
        return [own]
    prefixes = _prefixes(data) if own is not None or len(corpora) > 1 else [""]
    return [
        _own_part(one.label, data, own) or _source(one, prefix) for one, prefix in zip(corpora, prefixes, strict=True)
    ]


def _prefixes(data: DiarizationData) -> list[str]:
    """Prefix of the speaker names of each clip corpus: equal names in different corpora are different people."""
    paths = [one.label for one in clip_corpora(data)]
    names = [Path(path).name for path in paths]
    return [f"{name if names.count(name) == 1 else path}/" for name, path in zip(names, paths, strict=True)]


def _own_part(path: str, data: DiarizationData, own: Source | None) -> Source | None:
    """The rows of `own` that belong to the corpus at `path`; None if `own` does not contain it."""
    if own is None:
        return None
    corpora, ids = data.corpora, own.prepared.index.id
    name = next((one.name for one in corpora if one.path is not None and _same(one.path, path)), None)
    if name is None:
        return None
    return own.of([one for one in own.positions if len(corpora) == 1 or ids[one].startswith(f"{name}/")])


def _same(one: str, other: str) -> bool:
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


def _source(clips: DiarizationData, prefix: str) -> Source:
    prepared = prepare(clips)
    name = partial(_name, prefix, prepared.index)
    return Source(prepared, range(len(prepared.index)), name, clips.audio.sample_rate)


def _name(prefix: str, index: Index, position: int, speaker: int) -> str:
    return f"{prefix}{index.speakers[speaker]}"


def _official(source: Source) -> set[int]:
    return set(np.asarray(source.prepared.index.official_split)[list(source.positions)].tolist())


def _without(source: Source, *splits: int) -> Source:
    """The rows of a source that are in none of these official splits."""
    official = np.asarray(source.prepared.index.official_split)
    return source.of([one for one in source.positions if int(official[one]) not in splits])


def _held_out(bank: ClipBank, share: float, least: int) -> set[str]:
    """The validation speakers: in order of the hash of their names, until there are at least `least` with the fraction
    `share` of the clips' duration."""
    seconds = dict(zip(bank.speakers, bank.seconds().tolist(), strict=True))
    wanted, kept = share * sum(seconds.values()), set[str]()
    for name in sorted(bank.speakers, key=lambda one: derived_seed("validation", one)):
        if len(kept) >= least and sum(seconds[one] for one in kept) >= wanted:
            break
        kept.add(name)
    return kept
