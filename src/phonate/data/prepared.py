"""From a corpus to what training reads: validated once, indexed, cached, split, found again by its fingerprint."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.denoising import denoised, denoised_blocks, require_denoiser
from phonate.audio.processor import full_scale
from phonate.audio.settings import AudioConfig
from phonate.compute.importing import aside
from phonate.compute.system import SpaceWatch
from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed
from phonate.config.words import number_of, that_many
from phonate.data.batches import SamplePreview, Streams, digest_of
from phonate.data.cache import (
    FILE_SCALE,
    NORMALISED_SCALE,
    SPLITS,
    CacheWriter,
    ComputedFeatures,
    FeatureCache,
    Index,
    Places,
    Strings,
    UnstoredFeatures,
    damaged_cache,
    new_folder,
    verify,
)
from phonate.data.cluster import executor_of
from phonate.data.corpora.manifest import cut_document, list_corpus
from phonate.data.corpora.rows import (
    LONG_SECONDS,
    REPORT,
    Problem,
    Row,
    at_rate,
    official_split,
    part_blocks,
    read_part,
    unwritable_cache,
)
from phonate.data.corpora.validation import (
    CheckedRow,
    Report,
    file_of,
    of_trained_speakers,
    usable_rows,
    validate,
    warn_left_out,
    warn_refused,
)
from phonate.data.features import FEATURES, Features
from phonate.data.parallel import (
    Progress,
    Stage,
    Threads,
    ignore_progress,
    no_crash,
    report_progress,
)
from phonate.data.settings import ExecutorName, RecordingData, VoiceData, cache_root
from phonate.data.streaming import ShardCache

if TYPE_CHECKING:
    from phonate.audio.augmentation import DataAugmentation

logger = logging.getLogger("phonate")

# ---------------------------------------------------------- Which recordings train and which validate

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
    others = _without(np.arange(len(index)), np.concatenate([test, validation]))
    if len(validation) and share > 0 and len(others):
        return others, validation, test
    pool = _without(np.arange(len(index)), test)
    ids = [index.id[int(position)] for position in pool]
    people = None if person is None else [_people_in(index, person, int(position)) for position in pool]
    train, chosen = split(ids, index.speaker[pool], share, np.asarray(index.recording)[pool], people)
    return pool[train], pool[chosen], test


def _without(positions: Positions, left_out: Positions) -> Positions:
    """Ascending positions without others, some of them or none. (np.setdiff1d imports numpy.ma.)"""
    mask = np.zeros(int(positions.max(initial=-1)) + 1, dtype=bool)
    mask[positions] = True
    mask[left_out] = False
    return np.flatnonzero(mask)


def _people_in(index: Index, person: NDArray[np.int64], position: int) -> set[int]:
    """Everybody who speaks in a row."""
    first, end = int(index.segment_first[position]), int(index.segment_first[position + 1])
    return set(person[first:end].tolist()) - {-1}


def split(
    ids: Sequence[str],
    speakers: NDArray[np.int64],
    share: float,
    recordings: NDArray[np.int64] | None = None,
    people: Sequence[set[int]] | None = None,
) -> tuple[Positions, Positions]:
    """Positions for training and for validation: the `share` of the rows whose ids hash lowest, so that nearly all
    stay on their side when others come or go. Each speaker keeps at least one row for training.

    Args:
        ids: N names.
        speakers: (N,) number of each row's speaker; -1 for none or several, of which any row may be chosen.
        share: from 0 to 1.
        recordings: (N,) equal for rows of one recording, which stay together unless each speaker has only one; by
            default each row has its own.
        people: the numbers of everybody who speaks in each row, where a row may have several; by default its speaker.
    """
    people = people or [{number} - {-1} for number in np.asarray(speakers).tolist()]
    groups: dict[int, list[int]] = {}
    for position in range(len(ids)):
        groups.setdefault(position if recordings is None else int(recordings[position]), []).append(position)
    order = sorted(groups.values(), key=lambda group: derived_seed("validation", min(ids[i] for i in group)))
    left = Counter(chain.from_iterable(people))
    target = max(1, round(share * len(ids))) if share > 0 else 0
    chosen: list[int] = []

    def choose(group: list[int]) -> None:
        leaving = Counter(chain.from_iterable(people[i] for i in group))
        named = all(left[speaker] > count for speaker, count in leaving.items())
        if named and len(chosen) + len(group) < len(ids):
            left.subtract(leaving)
            chosen.extend(group)

    for group in order:
        if len(chosen) + len(group) <= target:
            choose(group)
    for group in sorted(order, key=len):  # where each recording has more rows than are wanted
        if target and not chosen:
            choose(group)
    if target and not chosen and recordings is not None and len(groups) < len(ids):
        logger.warning("each speaker has only one recording, so its parts are split into training and validation")
        return split(ids, speakers, share, people=people)
    if target and not chosen:
        why = "there is a single one" if len(ids) == 1 else "each recording has a speaker who is in no other"
        logger.warning("no recording is held out for validation: %s", why)
    validation = np.array(sorted(chosen), dtype=np.int64)
    return _without(np.arange(len(ids), dtype=np.int64), validation), validation


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
    validating = np.isin(numbers, chosen)
    return np.flatnonzero(~validating), np.flatnonzero(validating)


_LINKED = (
    "speakers link all recordings, so validation hears those of training; if names such as A or spk00 are somebody "
    "else in each recording, set data.speaker_names=recording"
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
    allowed = _without(np.arange(len(index)), test)
    if share == 0 or SPLITS.index("validation") in official or len(allowed) < 2:
        return split_index(index, share)
    person = persons(index, names_of)
    groups = _linked(index, person, allowed)
    if len(groups) < 2:
        if len(np.unique(person[person >= 0])) > 1:  # of one speaker there are no strangers anyway
            logger.warning(_LINKED)
        return split_index(index, share)
    frames, chosen = np.asarray(index.frames), list[int]()
    target = share * int(frames[allowed].sum())
    order = sorted(groups, key=lambda group: derived_seed("validation", min(index.id[i] for i in group)))
    for group in order[:-1]:
        if frames[chosen].sum() + frames[group].sum() <= target:
            chosen.extend(group)
    chosen = chosen or min(order, key=lambda group: int(frames[group].sum()))
    validation = np.array(sorted(chosen), dtype=np.int64)
    return _without(allowed, validation), validation, test


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
        for number in _people_in(index, person, position):
            leader[find(("person", number))] = row = find(row)
    groups: dict[tuple[str, int], list[int]] = {}
    for position in allowed.tolist():
        groups.setdefault(find(("recording", int(index.recording[position]))), []).append(position)
    return list(groups.values())


# -------------------------- Writing a prepared corpus: waveforms, features, index, manifest and report

THREADS = 2
_LOUDNESS = "loudness"
_SCRATCH = "scratch.float32"
_BLOCK_SAMPLES = 1 << 20


Computed = tuple[FloatArray, NDArray[Any], str] | None
"""Waveform (samples,) and features (frames, W) of a recording, and why it lacks the loudness that it is to have; None
for a long one, which is written in blocks."""


def build(
    folder: Path,
    rows: Sequence[Row | Problem],
    settings: RecordingData,
    report: Report,
    features: Features,
    progress: Progress | None,
) -> None:
    """Write everything beside its final name, then rename. Raises DataError where nothing can be used, or the disk is
    full or read-only."""
    try:
        digests: dict[str, str] = {}
        with new_folder(folder, digests) as beside:
            full_scale = NORMALISED_SCALE if features.normalises_level else FILE_SCALE
            checked: list[CheckedRow] = []
            streamed = _streamed(rows)
            space, positions = _space_for(beside, rows)
            with CacheWriter(beside, features.width, features.dtype, full_scale, not streamed) as writer:
                for item, computed in _computed(rows, settings, report, features, progress):
                    if computed is None:
                        quieter = _write_long(writer, item, features, beside / _SCRATCH)
                    else:
                        writer.add(*computed[:2])
                        quieter = computed[2]
                    if quieter:
                        report.warnings.append(Problem(item.row.id, item.row.place, _LOUDNESS, quieter))
                    checked.append(item)
                    space.add(positions.get(item.row.id, len(checked) - 1), writer.take_written())
                report.require_usable()
            digests |= writer.file_digests
            index_of(checked, writer).save(beside)
            if streamed:
                np.save(beside / _SOUNDS, np.frombuffer(b"".join(writer.digests), dtype=np.uint8).reshape(-1, 16))
            with gzip.open(beside / "cuts.jsonl.gz", "wt", encoding="ascii") as manifest:
                manifest.writelines(json.dumps(cut_document(one)) + "\n" for one in checked)
            (beside / REPORT).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    except OSError as error:
        raise unwritable_cache(folder.parent, error) from error


def _space_for(folder: Path, rows: Sequence[Row | Problem]) -> tuple[SpaceWatch, dict[str, int]]:
    """Whether the disk has room for all, and the number of each by its id: what a recording takes is in proportion to
    its seconds, or, of files of one suffix, to their sizes."""
    weights, kinds = [], []
    positions: dict[str, int] = {}
    for number, row in enumerate(rows):
        weight, kind = 0.0, ""
        if isinstance(row, Row):
            positions.setdefault(row.id, number)
            seconds = row.listed_seconds if row.end is None else row.end - row.start
            weight, kind = (1.0, "shards") if seconds is None else (seconds, "seconds")
            if seconds is None and row.member is None:
                with suppress(OSError, ValueError):  # the reader says what is wrong with it
                    weight, kind = float(row.path.stat().st_size), row.path.suffix.lower()
        weights.append(weight)
        kinds.append(kind)
    return SpaceWatch(folder, weights, kinds), positions


def _computed(
    rows: Sequence[Row | Problem],
    settings: RecordingData,
    report: Report,
    features: Features,
    progress: Progress | None,
) -> Iterator[tuple[CheckedRow, Computed]]:
    """The recordings that can be used with what is written of them; `report` is complete at the end.

    Each is computed from the samples that were read to check it. Where rows are held out, whose speakers may not be in
    training, it is known only of all rows together which can be used: then they are decoded again."""
    compute: Callable[[CheckedRow, FloatArray | None], Computed] = partial(_computed_of, features)
    needs, threads, executor = settings.requirements, settings.threads, settings.executor
    notes = cache_root(settings)
    splits = {official_split(row.split) for row in rows if isinstance(row, Row)}
    if not needs.trained_speaker or splits.isdisjoint(settings.held_out_splits):
        yield from usable_rows(rows, needs, report, compute, Stage.PREPARING, progress, threads, executor, notes)
        return
    usable = validate(rows, needs, report, progress, threads, executor, notes)
    checked = of_trained_speakers(usable, report, settings.held_out_splits)
    results = executor_of(executor, Threads(threads or THREADS)).map(
        partial(_decoded_again, features), checked, no_crash, lambda item: file_of(item.row)
    )
    for done, result in enumerate(zip(checked, results, strict=True), start=1):
        yield result
        (progress or report_progress)(Stage.PREPARING, done, len(checked))


def _computed_of(features: Features, item: CheckedRow, waveform: FloatArray | None) -> Computed:
    """`waveform`: the samples that were read, at their own rate; None: they are read again."""
    if item.seconds > LONG_SECONDS:
        return None
    rate = features.audio.sample_rate
    if waveform is None:
        samples, _ = read_part(item.row, rate)
    else:
        samples, _ = at_rate(item.row, waveform, item.sample_rate, rate)
    if features.audio.denoise is not None:
        samples = denoised(samples, rate)
    quieter = ""
    if equalises_level(features):
        unscaled = samples
        full, quieter = full_scale(lambda: [unscaled], rate, features.audio.loudness)
        samples = np.divide(unscaled, full, out=None if unscaled is waveform else unscaled)
    return samples, features.of_recording(item.row.id).compute(samples), quieter


def _decoded_again(features: Features, item: CheckedRow) -> Computed:
    return _computed_of(features, item, None)


def equalises_level(features: Features) -> bool:
    """Whether recordings are brought to one level before `features` are computed."""
    return features.normalises_level or features.audio.loudness is not None


def _write_long(writer: CacheWriter, item: CheckedRow, features: Features, scratch: Path) -> str:
    """Decode and resample to a scratch file, then read that several times: the level is known only at the end, and
    decoding again would cost more than reading. Returns why it lacks the loudness that it is to have, or ""."""
    full, quieter = np.float32(1.0), ""
    blocks = part_blocks(item.row, rate := features.audio.sample_rate)
    with scratch.open("wb") as file:
        for block in blocks if features.audio.denoise is None else denoised_blocks(blocks, rate):
            file.write(block.tobytes())

    def read() -> Iterator[FloatArray]:
        with scratch.open("rb") as opened:
            while len(block := np.fromfile(opened, dtype=np.float32, count=_BLOCK_SAMPLES)):
                yield block / full

    if equalises_level(features):
        full, quieter = full_scale(read, rate, features.audio.loudness)

    for block in read():
        writer.add_samples(block)
    for values in features.of_recording(item.row.id).compute_blocks(read):
        writer.add_features(values)
    writer.end_recording()
    scratch.unlink()
    return quieter


def index_of(checked: Sequence[CheckedRow], writer: CacheWriter) -> Index:
    """The index of what was written."""
    segments = [one.segments for one in checked]
    every = list(chain.from_iterable(segments))
    names = sorted({one.speaker for one in every if one.speaker is not None})
    number = {name: i for i, name in enumerate(names)} | {None: -1}
    files: dict[str, int] = {}
    paths = [one.row.source for one in checked]
    splits = [SPLITS.index(official_split(one.row.split) or "") for one in checked]
    return Index(
        id=Strings.of([one.row.id for one in checked]),
        path=Strings.of(paths),
        speakers=Strings.of(names),
        segment_first=np.cumsum([0, *map(len, segments)], dtype=np.int64),
        segment_start=np.array([one.start for one in every], dtype=np.float64),
        segment_end=np.array([one.end for one in every], dtype=np.float64),
        segment_speaker=np.array([number[one.speaker] for one in every], dtype=np.int64),
        segment_text=Strings.of([one.text or "" for one in every]),
        recording=np.array([files.setdefault(path, len(files)) for path in paths], dtype=np.int64),
        official_split=np.array(splits, dtype=np.int64),
        sample_start=np.array(writer.sample_start, dtype=np.int64),
        frame_start=np.array(writer.frame_start, dtype=np.int64),
        places=_places_of([one.row for one in checked]),
    )


def _streamed(rows: Iterable[Row | Problem]) -> bool:
    """Whether recordings are in shards. Raises DataError where only some are."""
    kinds = {row.member is not None for row in rows if isinstance(row, Row)}
    if len(kinds) > 1:
        raise DataError("shards and recordings in files can't be one corpus; write the latter as shards, too")
    return True in kinds


def _places_of(rows: Sequence[Row]) -> Places | None:
    members = [row.member for row in rows if row.member is not None]
    if not members:
        return None
    shards = dict.fromkeys((one.shard, one.stamp) for one in members)
    number = {shard: i for i, (shard, _) in enumerate(shards)}
    return Places(
        shards=Strings.of([shard for shard, _ in shards]),
        stamps=Strings.of([stamp for _, stamp in shards]),
        names=Strings.of([one.name for one in members]),
        shard=np.array([number[one.shard] for one in members], dtype=np.int64),
        offset=np.array([one.offset for one in members], dtype=np.int64),
        size=np.array([one.size for one in members], dtype=np.int64),
        start=np.array([row.start for row in rows], dtype=np.float64),
        end=np.array([np.nan if row.end is None else row.end for row in rows], dtype=np.float64),
        channel=np.array([-1 if row.channel is None else row.channel for row in rows], dtype=np.int64),
    )


# ---------------------------------------------------------------- From a corpus to what training reads

FORMAT = 2
_SOUNDS = "sounds.npy"


@dataclass(frozen=True)
class PreparedCorpus:
    """A corpus that is ready to be trained on."""

    folder: Path
    """Where its files are."""
    fingerprint: str
    """Identifies the recordings and settings that the files were made from."""
    index: Index
    cache: FeatureCache
    report: dict[str, Any]
    """`Report.to_json` of its validation."""
    train: NDArray[np.int64]
    """Positions in the index."""
    validation: NDArray[np.int64]
    """Positions in the index."""
    test: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Positions in the index: rows of an official test split, which nothing is trained on."""
    executor: ExecutorName = "local"
    """Where to compute what is derived from it."""

    @property
    def speakers(self) -> list[str]:
        """Names by number."""
        return self.index.speakers[:]

    def positions(self, split: str) -> list[int]:
        """Positions in the index of the recordings of a split, "train" or "validation"."""
        return [int(position) for position in (self.train if split == "train" else self.validation)]

    def preview(self, position: int, waveform: FloatArray, sample_rate: int) -> SamplePreview:
        """The recording at `position`, which sounds like `waveform`."""
        segments = self.index.segments(position)
        speakers = dict.fromkeys(self.index.speakers[one.speaker] for one in segments if one.speaker >= 0)
        text = " ".join(one.text for one in segments if one.text)
        return SamplePreview(text, ", ".join(speakers), waveform, sample_rate)

    def digests(self, positions: Iterable[int]) -> dict[str, int]:
        """A digest of each recording at `positions`, by its id: of the sound, the texts and the speakers.

        The sounds are read once in the life of the cache, and the result is kept there.
        """
        sounds, index = self._sounds, self.index
        speakers = [*index.speakers, None]
        return {
            index.id[i]: digest_of(
                sounds[i], [(one.start, one.end, speakers[one.speaker], one.text) for one in index.segments(i)]
            )
            for i in map(int, positions)
        }

    @cached_property
    def _sounds(self) -> NDArray[np.uint8]:
        """(N, 16) a digest of the sound of each recording."""
        file = self.folder / _SOUNDS
        with suppress(OSError, ValueError, EOFError):
            known = np.load(file)
            if known.shape == (len(self.index), 16):
                return np.asarray(known, dtype=np.uint8)
        digests = b"".join(self.cache.digest(i) for i in range(len(self.index)))
        sounds = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 16)
        with suppress(OSError):  # a cache that is read only is read each time
            beside = self.folder / f".{os.getpid()}.{_SOUNDS}"
            np.save(beside, sounds)
            beside.replace(file)
        return sounds


def prepare(settings: RecordingData, progress: Progress | None = None) -> PreparedCorpus:
    """Prepare a corpus, or open it if it was prepared before from the same recordings with the same settings.

    Recordings that do not meet `settings.requirements` are refused and reported.

    Raises DataError when nothing can be used, the disk is full or the folder can't be written.
    """
    if settings.audio.denoise is not None:
        require_denoiser()
    rows, report = list_corpus(settings)
    if settings.audio.denoise is not None and _streamed(rows):
        raise DataError(
            "data.denoise: recordings in shards are decoded anew in each epoch, and denoising them takes longer than "
            "training; unpack them into files, or leave data.denoise out"
        )
    features, stored, fingerprint = _computed_by(settings, rows)
    for warning in report.warnings:  # of ids to drop: they change no row, so that a report from before lacks them
        logger.warning("%s: %s", warning.place, warning.detail)
    folder = cache_root(settings) / fingerprint
    if prepared_before := (folder / REPORT).is_file():
        verify(folder)
    else:
        progress = progress or (None if settings.shows_progress else ignore_progress)
        with aside():
            build(folder, rows, settings, report, stored, progress)
    try:
        index = Index.load(folder)
        cache = _cache(settings, folder, index, features)
    except (OSError, ValueError, EOFError) as error:
        raise damaged_cache(folder, error) from error
    report_json = _report(folder)
    _warn_refused(report_json, settings.label, folder / REPORT, prepared_before)
    quieter = [f"{one['id']}: {one['detail']}" for one in report_json["warnings"] if one["reason"] == _LOUDNESS]
    if quieter:
        shown = "; ".join(quieter[:3]) + ("; ..." if len(quieter) > 3 else "")
        many = number_of(len(quieter), "recording")
        logger.warning("%s without the loudness of data.loudness: %s", many, shown)
    train, validation, test = _split(settings, index)
    return PreparedCorpus(folder, fingerprint, index, cache, report_json, train, validation, test, settings.executor)


def _computed_by(settings: RecordingData, rows: Sequence[Row | Problem]) -> tuple[Features, Features, str]:
    """The features, what the cache stores of them, and its fingerprint."""
    features = FEATURES.get(settings.feature_name)(settings)
    stored = features if settings.storage == "disk" and not _streamed(rows) else UnstoredFeatures(features)
    return features, stored, _fingerprint(rows, settings, stored)


def _report(folder: Path) -> dict[str, Any]:
    """What was left out and warned of when the corpus in `folder` of the cache was prepared. Raises DataError where it
    is damaged."""
    try:
        report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged_cache(folder, error) from error
    return report


def refused(settings: RecordingData) -> list[dict[str, str]] | None:
    """What a corpus lists and was not used when it was prepared, from its report in the cache: `id`, `place`, `reason`
    and `detail`. None where it is not there, or the recordings are no longer the same. Raises DataError as `_report`
    does, and where the corpus can't be listed."""
    rows, _ = list_corpus(settings)
    *_, fingerprint = _computed_by(settings, rows)
    folder = cache_root(settings) / fingerprint
    if not (folder / REPORT).is_file():
        return None
    problems: list[dict[str, str]] = _report(folder)["refused"]
    return problems


def _warn_refused(report: Mapping[str, Any], label: str, file: Path, before: bool) -> None:
    """Log what the corpora `label` list and can't be used, of which the `file` is the report; where that was done
    `before`, only how many."""
    untrained = [one for one in report["refused"] if one["reason"] == "speaker not in training"]
    unusable = [one for one in report["refused"] if one["reason"] != "speaker not in training"]
    warn_left_out("are of speakers who are not in training", [f"{one['id']}: {one['detail']}" for one in untrained])
    if unusable and before:
        many = that_many(len(unusable), "recording", "can't be used, and are left out")
        logger.warning("%s: %s, as before; %s says why", label, many, file)
    else:
        warn_refused(unusable, str(file))


def _split(settings: RecordingData, index: Index) -> tuple[Positions, Positions, Positions]:
    if settings.strangers is None:
        return split_index(index, settings.validation)
    return split_strangers(index, settings.validation, settings.strangers)


def prepare_to_train(settings: RecordingData) -> PreparedCorpus:
    """`prepare`; raises DataError also where nothing may be trained on."""
    prepared = prepare(settings)
    if not len(prepared.train):
        raise DataError(
            f"{settings.label}: every recording is of the official test split, which is not trained on; give the whole "
            "corpus as data.path, or its part for training"
        )
    return prepared


def _cache(settings: RecordingData, folder: Path, index: Index, features: Features) -> FeatureCache:
    if index.places is not None:
        return ShardCache(folder, index, features, settings.storage)
    if settings.storage == "disk":
        return FeatureCache(folder, index)
    return ComputedFeatures(folder, index, features, hold=settings.storage == "memory")


def _fingerprint(rows: Sequence[Row | Problem], settings: RecordingData, features: Features) -> str:
    """A hash of the rows, the path, size and time of each recording, and the feature settings."""
    name = "waveform" if isinstance(features, UnstoredFeatures) else settings.feature_name
    facts: tuple[object, ...] = (FORMAT, name, features.fingerprint, settings.requirements)
    if settings.requirements.trained_speaker:
        facts = (*facts, settings.held_out_splits)
    if settings.audio.loudness is not None:
        facts = (*facts, settings.audio.loudness)
    if settings.audio.denoise is not None:
        facts = (*facts, settings.audio.denoise)
    digest = hashlib.sha256(repr(facts).encode())
    for row in rows:
        if isinstance(row, Problem):
            digest.update(repr(row).encode("utf-8", "surrogateescape"))
            continue
        part: tuple[object, ...] = (row.channel, row.start, row.end, row.split)
        if row.listed_seconds is not None:
            part = (*part, row.listed_seconds)
        entry = (row.id, os.fsencode(row.path.absolute()), row.segments, part, row.stamp)
        digest.update(repr(entry).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]


# ------------- Samples that are crops of recordings: what the tasks that train on crops have in common


def streams_of(index: Index, positions: Sequence[int], times: int = 1) -> Streams | None:
    """Where the recordings at `positions`, each `times` times, are in shards; None where they are not."""
    if index.places is None:
        return None
    chosen = np.repeat(np.asarray(positions, dtype=np.int64), times)
    return Streams(np.asarray(index.places.shard[chosen]), index.places.run[chosen])


class CroppedRecordings:
    """Crops of some recordings of a corpus: all of `data.batches.Dataset` but the samples themselves.

    In training each recording gives `crops_per_clip` samples an epoch, cut at random; in validation one, its middle.
    """

    def __init__(
        self,
        prepared: PreparedCorpus,
        positions: Sequence[int],
        data: VoiceData,
        crop_frames: int,
        crops_per_clip: int,
        training: bool,
    ) -> None:
        """`positions`: of the split's recordings in the corpus; `crop_frames`: mel frames of a crop."""
        self.prepared = prepared
        self.positions = positions
        self.crop_frames = crop_frames
        self.training = training
        self.crops = crops_per_clip if training else 1
        self.frames_per_second = data.audio.frames_per_second
        """Mel frames in a second."""
        self.sample_rate = data.audio.sample_rate
        self.augmentation: DataAugmentation | None = None
        if training and data.augmentation is not None:
            from phonate.audio.augmentation import DataAugmentation  # torch, which preparing does without

            self.augmentation = DataAugmentation(data.augmentation, data.audio.sample_rate)

    @property
    def ids(self) -> Sequence[str]:
        """Ids of recordings, with the number of the crop where each is used several times."""
        names = [self.prepared.index.id[position] for position in self.positions]
        return names if self.crops == 1 else [f"{name}#{crop}" for name in names for crop in range(self.crops)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Mel frames of each sample (samples,): of the crop, or of a recording that is shorter."""
        frames = np.asarray(self.prepared.index.frames[self.positions], dtype=np.int64)
        return np.repeat(np.minimum(frames, self.crop_frames), self.crops)

    @property
    def streams(self) -> Streams | None:
        """See `StreamedDataset`."""
        return streams_of(self.prepared.index, self.positions, self.crops)

    def expect(self, indices: Iterable[int]) -> None:
        """See `StreamedDataset`."""
        self.prepared.cache.expect(self.position(index) for index in indices)

    @property
    def digests(self) -> Mapping[str, int]:
        """See `DigestedDataset`: of the recordings."""
        return self.prepared.digests(self.positions)

    @property
    def cached(self) -> bool:
        """True unless waveforms are augmented."""
        return self.augmentation is None and self.prepared.index.places is None

    def position(self, index: int) -> int:
        """Position in the corpus of the recording that sample number `index` is of."""
        return self.positions[index // self.crops]

    def preview(self, index: int, rng: np.random.Generator) -> SamplePreview:
        """See `PreviewDataset`."""
        waveform = self.prepared.cache.waveform(position := self.position(index))
        if self.augmentation is not None:
            waveform = self.augmentation(waveform, rng)
        return self.prepared.preview(position, waveform, self.sample_rate)

    def start(self, frames: int, rng: np.random.Generator) -> int:
        """The frame at which to crop a recording of so many mel frames; 0 for one that is shorter than a crop."""
        spare = max(0, frames - self.crop_frames)
        return int(rng.integers(spare + 1)) if self.training else spare // 2


# --------------- Samples that are whole recordings: what the tasks that take them whole have in common


class WholeRecordings:
    """Some recordings of a corpus by number: all of `data.batches.Dataset` but the samples themselves."""

    def __init__(self, prepared: PreparedCorpus, positions: Sequence[int], audio: AudioConfig) -> None:
        self.prepared = prepared
        self.positions = positions
        """Positions of the recordings in the corpus."""
        self.frames_per_second = audio.frames_per_second
        """Mel frames in a second."""
        self.sample_rate = audio.sample_rate

    @property
    def ids(self) -> Sequence[str]:
        """Ids of recordings."""
        return [self.prepared.index.id[position] for position in self.positions]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each recording."""
        return np.asarray(self.prepared.index.frames[self.positions], dtype=np.int64)

    @property
    def streams(self) -> Streams | None:
        """See `StreamedDataset`."""
        return streams_of(self.prepared.index, self.positions)

    def expect(self, indices: Iterable[int]) -> None:
        """See `StreamedDataset`."""
        self.prepared.cache.expect(self.positions[index] for index in indices)

    @property
    def digests(self) -> Mapping[str, int]:
        """See `DigestedDataset`: of the recordings."""
        return self.prepared.digests(self.positions)

    @property
    def cached(self) -> bool:
        """Nothing is computed for a sample that takes long, unless it is read from a shard."""
        return self.prepared.index.places is None

    def preview(self, index: int, rng: np.random.Generator) -> SamplePreview:
        """See `PreviewDataset`."""
        position = self.positions[index]
        return self.prepared.preview(position, self._waveform(position, rng), self.sample_rate)

    def _waveform(self, position: int, rng: np.random.Generator) -> FloatArray:
        """The recording as `get` hears it."""
        return self.prepared.cache.waveform(position)
