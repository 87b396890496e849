"""Which recordings train and which validate."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed
from phonate.data.store.index import SPLITS, Index

logger = logging.getLogger("phonate")

Positions = NDArray[np.int64]


def split_index(
    index: Index, share: float, person: NDArray[np.int64] | None = None
) -> tuple[Positions, Positions, Positions]:
    """Positions for training, validation and test.

    Rows keep their official split; those of "test" take part in neither training nor validation. Where no row is
    officially for validation, `share` of the others is, chosen by `split`; a share of 0 makes none of any row.

    `person`: (K,) for each segment who speaks in it (see `persons`); each of them then keeps a row for training.
    """
    official = np.asarray(index.official_split)
    test = np.flatnonzero(official == SPLITS.index("test"))
    validation = np.flatnonzero(official == SPLITS.index("validation"))
    others = np.setdiff1d(np.arange(len(index)), np.concatenate([test, validation]))
    if len(validation) and share > 0 and len(others):
        return others, validation, test
    pool = np.setdiff1d(np.arange(len(index)), test)
    ids = [index.id[int(position)] for position in pool]
    heard = None if person is None else [_heard(index, person, int(position)) for position in pool]
    train, chosen = split(ids, index.speaker[pool], share, np.asarray(index.recording)[pool], heard)
    return pool[train], pool[chosen], test


def _heard(index: Index, person: NDArray[np.int64], position: int) -> set[int]:
    """Everybody who speaks in a row."""
    first, end = int(index.segment_first[position]), int(index.segment_first[position + 1])
    return set(person[first:end].tolist()) - {-1}


def split(
    ids: Sequence[str],
    speakers: NDArray[np.int64],
    share: float,
    recordings: NDArray[np.int64] | None = None,
    heard: Sequence[set[int]] | None = None,
) -> tuple[Positions, Positions]:
    """Positions for training and for validation: the `share` of the rows whose ids hash lowest, so that nearly all
    stay on their side when others come or go. Each speaker keeps at least one row for training.

    Args:
        ids: N names.
        speakers: (N,) number of each row's speaker; -1 for none or several, of which any row may be chosen.
        share: from 0 to 1.
        recordings: (N,) equal for rows of one recording, which stay together unless each speaker has only one; by
            default each row has its own.
        heard: the numbers of everybody who speaks in each row, where a row may have several; by default its speaker.
    """
    heard = heard or [{number} - {-1} for number in np.asarray(speakers).tolist()]
    groups: dict[int, list[int]] = {}
    for position in range(len(ids)):
        groups.setdefault(position if recordings is None else int(recordings[position]), []).append(position)
    order = sorted(groups.values(), key=lambda group: derived_seed("validation", min(ids[i] for i in group)))
    left = Counter(chain.from_iterable(heard))
    wanted = max(1, round(share * len(ids))) if share > 0 else 0
    chosen: list[int] = []

    def choose(group: list[int]) -> None:
        taken = Counter(chain.from_iterable(heard[i] for i in group))
        named = all(left[speaker] > count for speaker, count in taken.items())
        if named and len(chosen) + len(group) < len(ids):
            left.subtract(taken)
            chosen.extend(group)

    for group in order:
        if len(chosen) + len(group) <= wanted:
            choose(group)
    for group in sorted(order, key=len):  # where each recording has more rows than are wanted
        if wanted and not chosen:
            choose(group)
    if wanted and not chosen and recordings is not None and len(groups) < len(ids):
        logger.warning("each speaker has only one recording, so its parts are split into training and validation")
        return split(ids, speakers, share, heard=heard)
    if wanted and not chosen:
        logger.warning("no validation split: each recording has a speaker who is in no other")
    validation = np.array(sorted(chosen), dtype=np.int64)
    return np.setdiff1d(np.arange(len(ids), dtype=np.int64), validation), validation


def split_speakers(
    names: Sequence[str], speakers: NDArray[np.int64], share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions for training and for validation, which share no speaker: for validation the speakers whose names hash
    lowest, until they have `share` of the recordings.

    `speakers` has each recording's number in `names`. Raises DataError where there is only one speaker.
    """
    numbers = np.asarray(speakers)
    counts = np.bincount(numbers, minlength=len(names))
    chosen: list[int] = []
    present = np.flatnonzero(counts).tolist()
    for number in sorted(present, key=lambda i: derived_seed("validation", names[i])):
        if counts[chosen].sum() < share * len(numbers):
            chosen.append(number)
    if len(chosen) == len(present):
        chosen.pop()
    if share > 0 and not chosen:
        raise DataError("there is only one speaker, so none can be kept for validation (data.validation_by: speaker)")
    kept = np.isin(numbers, chosen)
    return np.flatnonzero(~kept), np.flatnonzero(kept)


_LINKED = (
    "all recordings are linked by common speakers, so validation hears speakers of the training set; if names such as "
    "A or spk00 are somebody else in each recording, set data.speaker_names: recording"
)


def persons(index: Index, names_of: Literal["corpus", "recording"]) -> NDArray[np.int64]:
    """(K,) for each segment the number of its person, -1 for nobody known: a speaker's name stands for one person in
    the whole corpus, or in each recording for another."""
    speakers = np.asarray(index.segment_speaker)
    if names_of == "corpus":
        return speakers
    recordings = np.repeat(np.asarray(index.recording), np.diff(index.segment_first))
    return np.where(speakers < 0, -1, recordings * len(index.speakers) + speakers)


def split_strangers(
    index: Index, share: float, names_of: Literal["corpus", "recording"]
) -> tuple[Positions, Positions, Positions]:
    """Positions for training, validation and test; validation has nobody who is in training.

    Official splits are kept, as by `split_index`. Without one for validation, groups of recordings that are linked by
    common speakers stay together, and those whose ids hash lowest validate as long as they fit into `share` of the
    frames; the smallest one does where none fits. Where all recordings are linked, `split_index` decides, with a
    warning.
    """
    official = np.asarray(index.official_split)
    test = np.flatnonzero(official == SPLITS.index("test"))
    allowed = np.setdiff1d(np.arange(len(index)), test)
    if share == 0 or SPLITS.index("validation") in official or len(allowed) < 2:
        return split_index(index, share)
    groups = _linked(index, persons(index, names_of), allowed)
    if len(groups) < 2:
        logger.warning(_LINKED)
        return split_index(index, share)
    frames, chosen = np.asarray(index.frames), list[int]()
    wanted = share * int(frames[allowed].sum())
    order = sorted(groups, key=lambda group: derived_seed("validation", min(index.id[i] for i in group)))
    for group in order[:-1]:
        if frames[chosen].sum() + frames[group].sum() <= wanted:
            chosen.extend(group)
    chosen = chosen or min(order, key=lambda group: int(frames[group].sum()))
    validation = np.array(sorted(chosen), dtype=np.int64)
    return np.setdiff1d(allowed, validation), validation, test


def _linked(index: Index, person: NDArray[np.int64], allowed: Positions) -> list[list[int]]:
    """Positions in groups: rows of one recording, or with a common person, are in the same."""
    leader: dict[tuple[str, int], tuple[str, int]] = {}

    def find(one: tuple[str, int]) -> tuple[str, int]:
        while (above := leader.setdefault(one, one)) != one:
            leader[one] = leader[above]
            one = above
        return one

    for position in allowed.tolist():
        row = find(("recording", int(index.recording[position])))
        for number in _heard(index, person, position):
            leader[find(("person", number))] = row = find(row)
    groups: dict[tuple[str, int], list[int]] = {}
    for position in allowed.tolist():
        groups.setdefault(find(("recording", int(index.recording[position]))), []).append(position)
    return list(groups.values())
