"""Evaluation of a diarization model beside baselines, and tuning of its decoding on validation data.

Shapes: U frames of the detector, P segments, D embedding, S speakers, N samples of a frame.

The model is evaluated without voice embeddings (speakers of neighbouring windows are matched by their activity) and
with clustered embeddings, without and with the number of speakers given. The baseline is WebRTC's voice activity
detector (webrtcvad), d-vectors of 1.6 s (resemblyzer) and average linkage, which can't detect overlapping speech.

In tuning, the cluster distance, the threshold with the median filter, and the minimum pause and turn are optimised in
this order by grid search, each for the lowest DER over all conversations. The model runs over each conversation once,
and again with what a search has chosen.
"""

from __future__ import annotations

import itertools
import logging
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray, resample
from phonate.config.errors import InputError, PhonateError, fixed_recipe, option
from phonate.config.randomness import generator
from phonate.config.words import number_of
from phonate.data.annotations import SpeakerTurn, turns_from_activity
from phonate.data.conversations import turns_of
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Row, official_split, part_blocks
from phonate.data.parallel import track
from phonate.data.prepared import PreparedCorpus
from phonate.evaluation.diarization import DER, JER, DiarizationErrors, score
from phonate.evaluation.held_out import check_other, warn_trained_on, warn_unknown
from phonate.evaluation.tables import FEW, RTF, THESE, TUNED_ON, Evaluation, before_training, in_words, legend
from phonate.pretrained import SPEAKER_RATE, SpeakerEncoder, webrtc_detector
from phonate.tasks.diarization.data import DiarizationCorpus
from phonate.tasks.diarization.inference import TUNED, Analysis, Diarizer
from phonate.tasks.diarization.segmentation import LocalSpeakers, SpeakerLimits, cluster
from phonate.tasks.diarization.settings import (
    FEWEST_TUNED_ON,
    METRICS,
    SAME_SPEAKERS,
    DecodingSettings,
    DiarizationData,
    DiarizationRecipe,
    has_corpus,
    require_turns,
)
from phonate.training.checkpoints.files import is_packaged
from phonate.training.run import Run

logger = logging.getLogger("phonate")

# ----------------------------------------------------------------- Diarization without a trained model

_FRAME_SECONDS = 0.03
"""webrtcvad accepts frames of 10, 20 or 30 ms."""
_AGGRESSIVENESS = 3
"""webrtcvad's mode from 0 to 3; 3 rejects most non-speech, and is the best on meetings."""
_SMOOTHED_SECONDS = 0.3
_PIECES_PER_SECOND = 4
_MOST_CLUSTERED = 3000
"""If there are more segments, evenly spaced ones are clustered and the others assigned to the nearest cluster."""


class Baseline:
    """Detects speech and clusters its segments by speaker."""

    def __init__(self, distance: float, device: str | torch.device = "cpu") -> None:
        """`distance`: cosine distance above which clusters are not merged, if the number of speakers is not given;
        `device`: to compute on.

        Raises MissingPackageError if resemblyzer is not installed.
        """
        self._distance = distance
        self._judge = SpeakerEncoder(device)

    @cached_property
    def _detector(self) -> Any:
        return webrtc_detector(_AGGRESSIVENESS)

    def diarize(
        self, blocks: Iterable[FloatArray], sample_rate: int, limits: SpeakerLimits | None = None
    ) -> list[SpeakerTurn]:
        """The turns of a recording, given in blocks (N,) at `sample_rate` Hz."""
        waveform = np.concatenate(list(blocks))
        if sample_rate != SPEAKER_RATE:
            waveform = resample(waveform, sample_rate, SPEAKER_RATE)
        voiced_U = self._voiced(waveform)
        pieces_PD, middle_P = self._judge.embed_continuously(waveform, _PIECES_PER_SECOND)
        if not voiced_U.any():
            return []
        frame_P = np.minimum((middle_P / _FRAME_SECONDS).astype(int), len(voiced_U) - 1)
        speech_P = np.flatnonzero(voiced_U[frame_P])
        if not len(speech_P):  # the speech is so short that no segment is centred on it
            speech_P = np.arange(len(middle_P))
        clustered_P = np.zeros(len(speech_P), dtype=np.float32)
        clustered_P[:: -(-len(speech_P) // _MOST_CLUSTERED)] = 10.0
        speakers = LocalSpeakers(np.arange(len(speech_P)), pieces_PD[speech_P], clustered_P, np.arange(len(speech_P)))
        labels_P = cluster(speakers, self._distance, limits or SpeakerLimits())
        time_U = (np.arange(len(voiced_U)) + 0.5) * _FRAME_SECONDS
        label_U = labels_P[np.rint(np.interp(time_U, middle_P[speech_P], np.arange(len(speech_P)))).astype(int)]
        active_US = (label_U[:, None] == np.arange(labels_P.max() + 1)) & voiced_U[:, None]
        names = [f"speaker{number + 1}" for number in range(active_US.shape[1])]
        return turns_from_activity(active_US, 1.0 / _FRAME_SECONDS, names)

    def _voiced(self, waveform: FloatArray) -> NDArray[np.bool_]:
        """(U,) speech activity of each frame, smoothed by a median filter."""
        from scipy.ndimage import median_filter

        size = round(_FRAME_SECONDS * SPEAKER_RATE)
        frames_UN = waveform[: len(waveform) // size * size].reshape(-1, size)
        pcm_UN = (frames_UN.clip(-1.0, 1.0) * 32767).astype("<i2")
        voiced_U = np.array([self._detector.is_speech(one.tobytes(), SPEAKER_RATE) for one in pcm_UN], dtype=bool)
        width = round(_SMOOTHED_SECONDS / _FRAME_SECONDS) | 1
        return np.asarray(median_filter(voiced_U.astype(np.uint8), width)) > 0 if len(voiced_U) else voiced_U


# ------------------------ Conversations to evaluate on: another corpus, or the validation set of a run

_BLOCK_SECONDS = 30.0
_MOST_SIMULATED = 100


@dataclass(frozen=True)
class LabelledRecording:
    """A conversation with its reference turns."""

    id: str
    read: Callable[[], Iterable[FloatArray]]
    """Iterates over the waveform in blocks (N,), at the model's sample rate."""
    turns: list[SpeakerTurn]
    """Sorted by start."""
    seconds: float
    """Length."""
    file: str | None = None
    """The recording's file; None for simulated conversations and prepared recordings."""


def conversations_of(data: DiarizationData, path: str, *, whole: bool = False) -> Iterator[LabelledRecording]:
    """The usable recordings of the corpus at `path`, read at the sample rate of `data`. `whole`: those without labels
    are of one speaker throughout.

    Raises DataError if there are none, and where nothing says who speaks when in one of them.
    """
    recordings = check_other(data.model_copy(update={"datasets": (), "simulation": None}), path)
    if not whole:
        with fixed_recipe():
            require_turns(path, [one.row for one in recordings])
    for one in recordings:
        turns = [
            SpeakerTurn(segment.start, segment.end or one.seconds, str(segment.speaker))
            for segment in one.segments
            if (segment.end or one.seconds) > segment.start
        ]
        read = partial(part_blocks, one.row, data.audio.sample_rate)
        yield LabelledRecording(one.row.id, read, sorted(turns), one.seconds, str(one.row.path))


def validation_recordings(recipe: DiarizationRecipe) -> Iterator[LabelledRecording]:
    """The validation set of a run of this recipe: recordings, or simulated conversations.

    Raises InputError if it is empty.
    """
    corpus = DiarizationCorpus.of(recipe)
    simulator = corpus.simulators.get("validation")
    if simulator is not None:
        rate, samples = corpus.data.audio.sample_rate, corpus.samples(corpus.data.chunk_frames)
        for number in range(min(_MOST_SIMULATED, simulator.settings.validation_samples)):
            conversation = simulator.conversation(samples, generator("validation conversation", number))
            read: Callable[[], Iterable[FloatArray]] = partial(list, [conversation.waveform_N])
            yield LabelledRecording(f"simulated#{number}", read, turns_of(conversation, simulator), samples / rate)
        return
    positions = corpus.positions("validation")
    if corpus.prepared is None or not positions:
        raise InputError(f"the run has no validation recordings (data.validation); give a corpus with {option('data')}")
    for position in positions:
        yield _recorded(corpus.prepared, position, recipe.data.audio.sample_rate)


def _recorded(prepared: PreparedCorpus, position: int, rate: int) -> LabelledRecording:
    index, cache, size = prepared.index, prepared.cache, round(_BLOCK_SECONDS * rate)
    samples = int(index.sample_start[position + 1] - index.sample_start[position])

    def read() -> Iterator[FloatArray]:
        for start in range(0, samples, size):
            yield cache.waveform(position, start, start + size)

    turns = [
        SpeakerTurn(one.start, one.end, index.speakers[one.speaker])
        for one in index.segments(position)
        if one.end > one.start
    ]
    return LabelledRecording(index.id[position], read, sorted(turns), samples / rate)


# ------- Evaluation of a diarization model: error rates, compared with baselines that need no training

_MEANINGS = {
    "der": f"{DER}, without collar, overlapping speech included",
    "jer": JER,
    "speakers": "by how many speakers too many or too few were found on average",
    "rtf": RTF,
}
_TOLD = ", told how many speak"
"""The end of the names of systems that know the number of speakers."""
_NOT_SPLIT = " (told their number, as by --speakers, too few may be found all the same: near voices stay one)"
_BASELINE_DISTANCE = 0.4
"""A cosine similarity of 0.6, the best of 0.6, 0.65 and 0.7 on extracts of AMI."""
_PIPELINE = "voice activity, embeddings, clustering"
_DIARIZED = "the model, as phonate diarize does it"
_OTHERWISE = {"embeddings": "the model, voices compared", "overlap": "the model, voices not compared"}
"""The model with the `stitching` that its recipe does not have."""
System = Callable[[LabelledRecording], list[SpeakerTurn]]


@dataclass
class _Tally:
    """Errors and cost of one system over all conversations."""

    errors: DiarizationErrors = field(default_factory=DiarizationErrors)
    off: int = 0
    """Sum of the absolute errors of the number of speakers."""
    seconds: float = 0.0
    """Computation time."""


def evaluate(run: Path, data: str | None = None, *, device: str | None = None) -> Evaluation:
    """Evaluate the model of `run` on the corpus `data` (None: the run's validation set), on `device` (None: cpu).

    Raises InputError if there is nothing to evaluate on, or if the label type is custom.
    """
    diarizer = Diarizer.load(run, device=device)
    if diarizer.label_type == "custom":
        raise InputError(f"{run}: models with label_type custom can't be evaluated: the labels' meaning is not known")
    settings = diarizer.recipe.data
    whole = diarizer.label_type in SAME_SPEAKERS
    recordings = list(
        validation_recordings(diarizer.recipe) if data is None else conversations_of(settings, data, whole=whole)
    )
    if not any(one.turns for one in recordings):
        raise InputError(f"{data or run}: none of the {len(recordings)} recordings contains labelled speech")
    trained_on = 0 if data is None else None if is_packaged(run) else _trained_on(diarizer, recordings)
    systems, focus, start = _systems(diarizer)
    tallies: dict[str, _Tally] = {name: _Tally() for name in systems}
    items: dict[str, dict[str, object]] = {}
    for one in track("diarizing", recordings):
        reference = diarizer.comparable(one.turns)
        for name, system in systems.items():
            started = time.perf_counter()
            turns = system(one)
            tally = tallies[name]
            tally.seconds += time.perf_counter() - started
            errors = score(reference, turns, regions=[(0.0, one.seconds)])
            tally.errors += errors
            tally.off += abs(_speakers(turns) - _speakers(reference))
            if name == focus:
                items[one.id] = {"speakers": _speakers(reference), "found": _speakers(turns), **_figures(errors)}
    seconds = sum(one.seconds for one in recordings)
    results = {
        name: {
            **_figures(tally.errors),
            "speakers": tally.off / len(recordings),
            "rtf": tally.seconds / seconds,
        }
        for name, tally in tallies.items()
    }
    notes: dict[str, object] = {
        "recordings": len(recordings),
        "seconds": round(seconds, 1),
        "seconds_of_speech": round(tallies[focus].errors.speech, 1),
        "collar": "none",
        "model.decoding": diarizer.decoding.model_dump(mode="json"),
        "recordings_trained_on": trained_on,
    }
    simpler = results.get(_OTHERWISE["overlap"])
    held_out = recordings if data is None else diarizer.inference_metadata["validation"]
    tunable = len(held_out) >= FEWEST_TUNED_ON and not is_packaged(run)
    if diarizer.decoding != diarizer.recipe.model.decoding:
        notes[TUNED_ON] = THESE if data is None else "validation data"
    elif simpler is not None and simpler["der"] < results[focus]["der"] and tunable:
        tuned = f"phonate evaluate {shlex.quote(str(run))} --tune"
        notes["advice"] = f"comparing voices makes it worse here; {tuned} may mend that"
    told = _NOT_SPLIT if any(name.endswith(_TOLD) for name in systems) else ""
    meaning = legend(_MEANINGS | {"speakers": _MEANINGS["speakers"] + told}, results, METRICS)
    compared = tuple(name for name in systems if name in (_PIPELINE, start))
    return Evaluation(
        "diarization", results, focus, meaning, notes, items, columns=METRICS, compared=compared, start=start
    )


def _systems(diarizer: Diarizer) -> tuple[dict[str, System], str, str]:
    """The systems to evaluate, by name, and the names of the one that the recipe configures and of the one that
    training began from ("" for none)."""
    if diarizer.label_type in SAME_SPEAKERS:
        return {"always speech": _one_speaker, "the model": lambda one: _decoded(diarizer, one)}, "the model", ""
    baseline = Baseline(_BASELINE_DISTANCE, diarizer.device)
    rate = diarizer.sample_rate
    default, other = "overlap", "embeddings"
    if diarizer.decoding.stitching == "embeddings":
        default, other = other, default
    before = before_training(diarizer.recipe.training.init_from, partial(Diarizer.load, device=str(diarizer.device)))
    systems: dict[str, System] = {
        "one speaker throughout": _one_speaker,
        _PIPELINE: lambda one: baseline.diarize(one.read(), rate),
        f"{_PIPELINE}{_TOLD}": lambda one: baseline.diarize(one.read(), rate, _limits(one)),
        **{name: partial(_decoded, start) for name, start in before.items()},
        _DIARIZED: lambda one: _decoded(diarizer, one, stitching=default),
        _OTHERWISE[other]: lambda one: _decoded(diarizer, one, stitching=other),
        f"the model, voices compared{_TOLD}": lambda one: _decoded(
            diarizer, one, stitching="embeddings", limits=_limits(one)
        ),
    }
    return systems, _DIARIZED, next(iter(before), "")


def _one_speaker(one: LabelledRecording) -> list[SpeakerTurn]:
    return [SpeakerTurn(0.0, one.seconds, "speaker1")]


def _limits(one: LabelledRecording) -> SpeakerLimits:
    count = max(1, _speakers(one.turns))
    return SpeakerLimits(count, count)


def _decoded(
    diarizer: Diarizer, one: LabelledRecording, stitching: str | None = None, limits: SpeakerLimits | None = None
) -> list[SpeakerTurn]:
    settings = diarizer.decoding if stitching is None else diarizer.decoding.model_copy(update={"stitching": stitching})
    analysis = diarizer.analyse(one.read, limits, settings, name=one.id)
    return diarizer.decode(analysis, limits, settings).turns


def _speakers(turns: Sequence[SpeakerTurn]) -> int:
    return len({turn.speaker for turn in turns})


def _figures(errors: DiarizationErrors) -> dict[str, float]:
    speech = errors.speech or 1.0
    parts = {name: getattr(errors, name) / speech for name in ("miss", "false_alarm", "confusion")}
    return {"der": errors.der, **parts, "jer": errors.jer}


def _trained_on(diarizer: Diarizer, recordings: Sequence[LabelledRecording]) -> int | None:
    """How many of the recordings the model was trained on; None if unknown. Logs a warning if there are any."""
    settings = diarizer.recipe.data
    if not has_corpus(settings):
        return 0
    try:
        rows = [row for row in list_corpus(settings)[0] if isinstance(row, Row)]
    except PhonateError as error:
        warn_unknown(error)
        return None
    held_out = set(diarizer.inference_metadata["validation"])
    trained = {
        str(row.path.resolve()) for row in rows if row.id not in held_out and official_split(row.split) != "test"
    }
    known = sum(one.file is not None and str(Path(one.file).resolve()) in trained for one in recordings)
    warn_trained_on(known, len(recordings))
    return known


# ------------------------ Tuning of the decoding settings for the lowest error rate on validation data

_DISTANCES = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)
_THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(3, 18))
_MEDIANS = (1, 3, 5, 7, 11)
_PAUSES = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
_TURNS = (0.0, 0.1, 0.2, 0.3, 0.5)


def tune(run: Path, *, device: str | None = None) -> dict[str, Any]:
    """Tune on the run's validation set and write the values to the run, from which inference reads them.

    Returns the values that differ from the recipe's. Logs the error rate with the recipe's and with these, and how to
    undo. Raises InputError if the validation set has fewer than `FEWEST_TUNED_ON` recordings.
    """
    diarizer = Diarizer.load(run, device=device)
    if diarizer.label_type == "custom":
        raise InputError(f"{run}: models with label_type custom can't be tuned: the labels' meaning is not known")
    recipe = diarizer.recipe
    recordings = list(validation_recordings(recipe))
    if len(recordings) < FEWEST_TUNED_ON:
        raise InputError(
            f"{run}: training held out {number_of(len(recordings), 'recording')}, and {option('tune', True)} needs "
            f"{FEWEST_TUNED_ON} or more to choose values that others gain by; train with more labelled recordings, or "
            "a larger data.validation"
        )
    tuned, before, after = _tuned(diarizer, recordings)
    untuned = recipe.model.decoding.model_dump(mode="json")
    chosen = {name: value for name, value in tuned.model_dump(mode="json").items() if value != untuned[name]}
    if not chosen:
        (run / TUNED).unlink(missing_ok=True)
        logger.info(
            "tuned on the validation data, %d recordings: nothing is better than the values of the recipe, DER %s",
            len(recordings),
            METRICS["der"].told(before, 3),
        )
        return chosen
    logger.info(
        "tuned on the validation data, %d recordings: DER %s -> %s with %s; kept in %s, which every use of the run "
        "reads: delete it to undo",
        len(recordings),
        METRICS["der"].told(before, 3),
        METRICS["der"].told(after, 3),
        in_words(chosen),
        run / TUNED,
    )
    Run(run).write_json(TUNED, chosen)
    if len(recordings) < FEW:
        logger.warning("so few recordings may decide badly for others: hold out more (data.validation)")
    return chosen


@dataclass(frozen=True)
class _Trial:
    reference: list[SpeakerTurn]
    analysis: Analysis
    seconds: float


def _trials(diarizer: Diarizer, recordings: Sequence[LabelledRecording], settings: DecodingSettings) -> list[_Trial]:
    return [
        _Trial(diarizer.comparable(one.turns), diarizer.analyse(one.read, settings=settings, name=one.id), one.seconds)
        for one in track("tuning", recordings)
    ]


def _tuned(diarizer: Diarizer, recordings: Sequence[LabelledRecording]) -> tuple[DecodingSettings, float, float]:
    """The recipe's settings with the values that have the lowest DER, of equal ones the first; the DER with the
    recipe's and with these. What voices are taken from depends on the settings: values are taken over where the DER is
    lower when the recordings are analysed with them, too."""
    best = diarizer.recipe.model.decoding
    trials = _trials(diarizer, recordings, best)
    before = lowest = _errors(diarizer, trials, best)
    compared = any(trial.analysis.voices is not None for trial in trials)
    stages: list[Iterable[dict[str, Any]]] = [
        ({"cluster_distance": one} for one in _DISTANCES if compared),
        ({"threshold": one, "median": two} for one, two in itertools.product(_THRESHOLDS, _MEDIANS)),
        ({"min_silence": one, "min_speech": two} for one, two in itertools.product(_PAUSES, _TURNS)),
    ]
    for changes in stages:
        chosen = _best(diarizer, trials, best, changes)
        anew = trials if chosen == best else _trials(diarizer, recordings, chosen)
        errors = _errors(diarizer, anew, chosen)
        if errors.wrong < lowest.wrong:
            best, trials, lowest = chosen, anew, errors
    return best, before.der, lowest.der


def _best(
    diarizer: Diarizer, trials: Sequence[_Trial], start: DecodingSettings, changes: Iterable[dict[str, Any]]
) -> DecodingSettings:
    tried = [start, *(start.model_copy(update=change) for change in changes)]
    return min(tried, key=lambda settings: round(_errors(diarizer, trials, settings).wrong, 6))


def _errors(diarizer: Diarizer, trials: Sequence[_Trial], settings: DecodingSettings) -> DiarizationErrors:
    return sum(
        (
            score(
                trial.reference,
                diarizer.decode(trial.analysis, settings=settings).turns,
                regions=[(0.0, trial.seconds)],
            )
            for trial in trials
        ),
        DiarizationErrors(),
    )
