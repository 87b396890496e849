"""The data of voice cloning: pairs of a reference and a target, checked, split and packed into batches.

Rows of two shapes are understood, in ChatML (see `phonate.data.dialogues`):

    user: [transcript of the reference, reference, text to speak]    assistant: [text, speech]
    user: transcript    assistant: reference    user: text to speak    assistant: speech

The transcript may be missing, and so may one of the two copies of the text.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phonate.audio.decoding import FloatArray, read_audio
from phonate.compute.resources import cores
from phonate.compute.system import cache_folder
from phonate.config.errors import DataError, InputError
from phonate.config.words import number_of
from phonate.data.batches import PackedRows, SamplePreview, digest_of
from phonate.data.codes import Codes, CodeStore, Measurement, measure
from phonate.data.corpora.rows import Problem, printable
from phonate.data.corpora.validation import Finding, Inspection, Report, Unusable, has_words, require_length
from phonate.data.dialogues import (
    Audio,
    Dialogue,
    RefusedRow,
    Text,
    Turn,
    read_dialogues,
    require_rows,
    split_by_contents,
)
from phonate.tasks.cloning.model import Load
from phonate.tasks.cloning.network import WhisperCache, sequence_layout
from phonate.tasks.cloning.sequences import (
    CODEBOOKS,
    NO_POOL,
    REFERENCE,
    CloningTokenizer,
    Example,
    Script,
    TrainingSequence,
    training_sequence,
)
from phonate.tasks.cloning.settings import CloningData
from phonate.text.arabic import ArabicText, normalise_arabic
from phonate.training.task import Batch

if TYPE_CHECKING:
    from phonate.audio.higgs_codec import HiggsCodec

logger = logging.getLogger("phonate")


# --------------- Dialogues -> samples: a reference, and a text that is spoken in the reference's voice

INSTRUCTION = "Please generate speech for given text in reference audio's voice:"
"""What may stand before the text to speak. It is left out: the model was not trained with it."""
_INSTRUCTION = re.compile(
    r"\s*please\s+generate\s+speech\s+for\s+(?:the\s+)?given\s+text\s+in\s+(?:the\s+)?reference\s+audio['’]?s\s+voice\s*:",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CloningSample:
    """A reference with its transcript, and a text with its recording in the same voice."""

    id: str
    """Where it was read: file:line, or file:row of a .json file."""
    speaker: str | None
    system: str | None
    """The system message; None: there is none."""
    reference_text: str | None
    """What the reference says; None: unknown."""
    reference: Audio
    target_text: str
    """What the target says."""
    target: Audio
    prompted_text: str | None = None
    """The text that the prompt asks for, where it is not what the target says."""


def cloning_sample(dialogue: Dialogue) -> CloningSample:
    """The sample in a dialogue, of which the last turn that is learnt is the target.

    What is learnt as spoken is the assistant's text, where it has one, otherwise the text that the prompt asks for.

    Raises DataError, with what to write, for a dialogue without a reference, a target or a text, or with more of them.
    """
    if dialogue.is_plain:
        raise DataError(f"{dialogue.id}: a plain text; write a user's message with a reference and an assistant's")
    response, prompt = dialogue.response, [turn for turn in dialogue.prompt if turn.role != "system"]
    target = _only([part for part in response.parts if isinstance(part, Audio)], dialogue.id, "assistant's message")
    reference = _only([audio for turn in prompt for audio in turn.audio], dialogue.id, "messages before it")
    transcript, requested = _texts(prompt, reference, bool(response.text), dialogue.id)
    spoken = _joined(response.text) or requested
    if spoken is None:
        raise DataError(f"{dialogue.id}: no text to speak; add a text part behind the reference, or to the assistant's")
    system = " ".join(turn.text for turn in dialogue.prompt if turn.role == "system")
    return CloningSample(
        id=dialogue.id,
        speaker=dialogue.speaker,
        system=system or None,
        reference_text=transcript,
        reference=reference,
        target_text=spoken,
        target=target,
        prompted_text=requested if requested not in (None, spoken) else None,
    )


def _only(audios: Sequence[Audio], id: str, where: str) -> Audio:
    if len(audios) != 1:
        many = f"{len(audios)} recordings" if audios else "no recording"
        raise DataError(f'{id}: {many} in the {where}; one {{"type": "audio", "audio_url": FILE}} is expected')
    return audios[0]


def _texts(prompt: Sequence[Turn], reference: Audio, spoken_known: bool, id: str) -> tuple[str | None, str | None]:
    """The reference's transcript and the text that is asked for; None for one that is not there.

    The text asked for is the one behind the instruction, otherwise the last one. A text that stands alone is the
    transcript if it comes before the reference and the assistant's message says what is spoken.
    """
    parts = [(part, turn.role) for turn in prompt for part in turn.parts]
    at = next(index for index, (part, _) in enumerate(parts) if part is reference)
    own = [part.text for part, role in parts if isinstance(part, Text) and role == "assistant"]
    texts = [
        (index, part.text) for index, (part, role) in enumerate(parts) if isinstance(part, Text) and role == "user"
    ]
    instructed = [entry for entry in texts if _INSTRUCTION.match(entry[1])]
    request = instructed[-1] if instructed else texts[-1] if texts else None
    if request and not instructed and request[0] < at and (len(texts) > 1 or spoken_known or own):
        request = None
    others = [text for entry in texts if entry is not request and (text := _joined(entry[1]))]
    transcripts = list(dict.fromkeys([*map(_joined, own), *others]))
    if len(transcripts) > 1:
        raise DataError(
            f"{id}: {len(transcripts)} texts beside the one to speak; one, the transcript of the reference, is expected"
        )
    requested = _joined(_INSTRUCTION.sub("", request[1], count=1)) if request else ""
    return (transcripts[0] or None if transcripts else None), requested or None


def _joined(text: str) -> str:
    """The text with single spaces."""
    return " ".join(text.split())


# --------------------------------------- Which pairs of a corpus can be used, and why the others can't

FORMAT = "chatml"
MALFORMED = "malformed row"
"""The reason for rows that can't be read as conversations."""


@dataclass(frozen=True)
class CheckedPairs:
    """The outcome of a check."""

    report: Report
    """`seconds` are those of targets."""
    samples: list[CloningSample]
    """Those that can be used."""
    facts: dict[Audio, Inspection]
    """Of their recordings."""

    def refuse(self, sample: CloningSample, reason: str, detail: str) -> None:
        """Count a sample as one that can't be used."""
        report = self.report
        report.refused.append(Problem(sample.id, sample.id, reason, printable(detail)))
        report.usable -= 1
        report.seconds -= self.facts[sample.target].quality.duration
        if sample.speaker is not None:
            report.speakers[sample.speaker] -= 1
            report.speakers = {name: count for name, count in report.speakers.items() if count}


def check_pairs(data: CloningData, remembered: Path | None = None) -> CheckedPairs:
    """Read all rows at `data.path`, decode all their recordings in several threads, and apply the limits of `data`.

    Args:
        data: What is read, and the limits.
        remembered: A file of measurements of recordings, which is used and updated; None: measure all.

    Raises DataError if no row can be read.
    """
    read = read_dialogues(data.path)
    report = Report(data.path, FORMAT, listed=len(read.dialogues) + len(read.refused))
    report.refused += [Problem("", row.place, MALFORMED, printable(row.reason)) for row in read.refused]
    samples = list(_samples(read.dialogues, report))
    audios = [audio for sample in samples for audio in (sample.reference, sample.target)]
    measurements = measure(audios, data.max_seconds, remembered, data.workers)
    usable = [sample for sample in samples if _accepted(sample, measurements, data, report)]
    facts = {audio: one for audio, one in measurements.items() if isinstance(one, Inspection)}
    report.warnings += _duplicates(usable, facts)
    return CheckedPairs(report, usable, facts)


def _samples(dialogues: Sequence[Dialogue], report: Report) -> Iterator[CloningSample]:
    for dialogue in dialogues:
        try:
            yield cloning_sample(dialogue)
        except DataError as error:
            detail = str(error).removeprefix(f"{dialogue.id}: ")
            report.refused.append(Problem(dialogue.id, dialogue.id, "not a pair", printable(detail)))


def _accepted(
    sample: CloningSample, measurements: Mapping[Audio, Measurement], data: CloningData, report: Report
) -> bool:
    """Whether a sample can be used; what is to be said of it goes to the report."""
    try:
        _require_usable(sample, measurements, data)
    except Unusable as why:
        report.refused.append(why.problem(sample.id, sample.id))
        return False
    report.warnings += [
        Problem(sample.id, sample.id, one.reason, printable(one.detail)) for one in _warnings(sample, measurements)
    ]
    target = measurements[sample.target]
    assert isinstance(target, Inspection)
    report.usable += 1
    report.seconds += target.quality.duration
    if sample.speaker is not None:
        report.speakers[sample.speaker] = report.speakers.get(sample.speaker, 0) + 1
    return True


def _require_usable(sample: CloningSample, measurements: Mapping[Audio, Measurement], data: CloningData) -> None:
    """Raises Unusable for a sample that can't be used."""
    for name, audio in (("reference", sample.reference), ("target", sample.target)):
        facts = measurements[audio]
        try:
            if isinstance(facts, Unusable):
                raise facts
            require_length(facts.seconds, "data", data.min_seconds)
            facts.require_sound()
        except Unusable as why:
            place = "" if audio.path in why.detail else f"{audio.path}: "
            raise Unusable(why.reason, f"{name}: {place}{why.detail}") from why
    if not has_words(sample.target_text):
        raise Unusable("no words", f"the text {sample.target_text[:40]!r} has no letter and no digit")
    if (length := len(sample.target_text)) < data.min_characters:
        few = f"{length} characters, fewer than data.min_characters {data.min_characters}"
        raise Unusable("text too short", few)


def _warnings(sample: CloningSample, measurements: Mapping[Audio, Measurement]) -> Iterator[Finding]:
    if sample.prompted_text is not None:
        prompt, response = sample.prompted_text[:40], sample.target_text[:40]
        detail = f"the prompt asks for {prompt!r}, the assistant says {response!r}; training uses the assistant's"
        yield Finding("texts differ", detail, 1.0)
    for name, audio in (("reference", sample.reference), ("target", sample.target)):
        facts = measurements[audio]
        assert isinstance(facts, Inspection)
        for finding in (*facts.warnings(), facts.clipping()):
            if finding.score >= 1.0:
                yield replace(finding, detail=f"{name}: {audio.path}: {finding.detail}")


def _duplicates(samples: Sequence[CloningSample], facts: Mapping[Audio, Inspection]) -> Iterator[Problem]:
    """Pairs of a recording with itself, and pairs that are there twice."""
    first: dict[tuple[str, str, str], str] = {}
    for sample in samples:
        reference, target = facts[sample.reference].digest, facts[sample.target].digest
        if reference == target:
            detail = f"reference and target are the same recording, {sample.target.path}"
            yield Problem(sample.id, sample.id, "same recording", printable(detail))
        earlier = first.setdefault((reference, target, sample.target_text), sample.id)
        if earlier != sample.id:
            yield Problem(sample.id, sample.id, "duplicate pair", f"the same as {earlier}")


# ----------------------------- The pairs of a run: read, checked, split, and their recordings as codes

_THREADS = 4
"""Reading and encoding at the same time; the codec itself uses all cores, or the GPU."""
NAMED = 5
"""Rows of each kind of problem that the log names."""


class CloningCorpus:
    """The pairs at `data.path`, read and checked when they are first needed."""

    def __init__(self, data: CloningData, codec: Callable[[], HiggsCodec]) -> None:
        """`codec` is called once, when codes are first needed."""
        self.data = data
        self._codec = codec
        self._cache = cache_folder(data.cache_dir) / "codes"

    @cached_property
    def checked(self) -> CheckedPairs:
        """The pairs that can be used. Raises DataError if there are none."""
        path = Path(self.data.path).absolute()
        remembered = self._cache / f"checked-{hashlib.sha256(bytes(path)).hexdigest()[:16]}.jsonl"
        checked = check_pairs(self.data, remembered)
        _log(checked.report.refused, f"{self.data.path}: %d of {checked.report.listed} rows are left out, %s")
        _log(checked.report.warnings, f"{self.data.path}: %d rows have findings, %s")
        checked.report.require_usable()
        return checked

    @cached_property
    def _splits(self) -> tuple[list[CloningSample], list[CloningSample]]:
        facts = self.checked.facts
        samples = [normalised(sample, self.data.arabic) for sample in self.checked.samples]
        contents = [[facts[sample.target].digest] for sample in samples]
        train, validation = split_by_contents(samples, contents, self.data.validation)
        logger.info(
            "%s: %s for training, %d for validation", self.data.path, number_of(len(train), "pair"), len(validation)
        )
        return train, validation

    def samples(self, split: str) -> list[CloningSample]:
        """The pairs of "train" or "validation", with texts as `data.arabic` says.

        The side of a pair depends on the samples of its target alone, so that a target, also a copy of it in another
        file, is on one side only. Raises DataError if no pair can be used.
        """
        return self._splits[split != "train"]

    def seconds(self, audio: Audio) -> float:
        """Length of an audio of a pair."""
        return self.checked.facts[audio].quality.duration

    def codes(self, audio: Audio) -> Codes:
        """The codes (T, K) of an audio of a pair; those of the whole corpus are made when the first are asked for.

        Raises:
            DataError: A recording can't be read any more, the cache is damaged, or it can't be written.
            InputError: The codec can't be loaded.
        """
        return self.store[self.checked.facts[audio].digest]

    def frames(self, audio: Audio) -> int:
        """T of `codes`."""
        return self.store.frames(self.checked.facts[audio].digest)

    @cached_property
    def store(self) -> CodeStore:
        """The codes of all recordings of all pairs, by digest."""
        codec = self._codec()
        store = CodeStore(self._cache / codec.fingerprint, codec.codebooks, codec.codebook_size)
        facts = self.checked.facts
        used = [audio for one in self.checked.samples for audio in (one.reference, one.target)]
        audio_of = {facts[audio].digest: audio for audio in reversed(used)}
        threads = self.data.workers or min(_THREADS, cores())
        store.add(list(audio_of), lambda digest: encode(codec, audio_of[digest]), threads)
        codec.to("cpu")  # its work is done, and a GPU's memory is for the model
        return store


def normalised(sample: CloningSample, arabic: ArabicText) -> CloningSample:
    """The sample with texts as `data.arabic` says."""
    spoken = sample.reference_text
    return replace(
        sample,
        reference_text=None if spoken is None else normalise_arabic(spoken, arabic) or None,
        target_text=normalise_arabic(sample.target_text, arabic),
    )


def encode(codec: HiggsCodec, audio: Audio) -> Codes:
    """The codes (T, K) of an audio. Raises DataError if it can't be read, or is shorter than a frame."""
    waveform, rate = read_audio(audio.path, offset=audio.start, duration=audio.duration)
    try:
        return codec.encode(waveform, rate)
    except InputError as error:
        raise DataError(f"{audio.path}: {error}") from error


def _log(problems: list[Problem], message: str) -> None:
    """How many rows have problems, how many of each kind, and the first of each kind. Malformed rows were named when
    they were read."""
    if not problems:
        return
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.reason, []).append(problem)
    logger.warning(message, len(problems), ", ".join(f"{len(rows)} {reason}" for reason, rows in kinds.items()))
    for reason, rows in kinds.items():
        if reason == MALFORMED:
            continue
        for problem in rows[:NAMED]:
            logger.warning("%s: %s: %s", problem.place, reason, problem.detail)
        if len(rows) > NAMED:
            logger.warning("... and %d more: %s", len(rows) - NAMED, reason)


# ----------------------- Samples -> training sequences, several of them packed into one row of a batch


@dataclass(frozen=True)
class CloningItem:
    """A sample of a row."""

    sequence: TrainingSequence
    speaker: int
    """The number of its speaker."""
    whisper: FloatArray | None
    """(T, C) Whisper's features of its reference, if they are wanted."""

    def __len__(self) -> int:
        """L."""
        return len(self.sequence)


class CloningDataset(PackedRows):
    """Rows of one or more samples, at most `max_length` tokens each.

    Args:
        examples: The samples, none of them longer than `max_length`.
        tokenizer: Writes them.
        max_length: Tokens of a row.
        packing: Whether rows hold several samples.
        learn_text: Whether the targets' texts are learnt too.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: CloningTokenizer,
        max_length: int,
        *,
        packing: bool = True,
        learn_text: bool = False,
    ) -> None:
        super().__init__([one.id for one in examples], [len(one) for one in examples], max_length, packing)
        self.examples = examples
        self.tokenizer = tokenizer
        self.learn_text = learn_text
        names = sorted({one.speaker for one in examples if one.speaker is not None})
        self._speakers = {name: number for number, name in enumerate(names)}

    @property
    def digests(self) -> Mapping[str, int]:
        """See `DigestedDataset`: of the texts, codes and speaker of each sample."""
        return {
            one.id: digest_of(np.asarray(one.reference_codes), np.asarray(one.target_codes), one.script, one.speaker)
            for one in self.examples
        }

    def largest(self, rows: int) -> Load:
        """At most what a batch of so many rows holds."""
        audio = [sum(len(self.examples[i].target_codes) + CODEBOOKS for i in row) for row in self.rows]
        texts = [sum(len(self.examples[i].script.after) if self.learn_text else 3 for i in row) for row in self.rows]
        return Load(rows * int(self.lengths.max()), rows * max(audio), rows * max(texts))

    def preview(self, index: int, rng: np.random.Generator) -> SamplePreview:
        """See `PreviewDataset`: the texts and speakers of a row; its sounds are there as codes only."""
        examples = [self.examples[i] for i in self.rows[index]]
        scripts = [one.script for one in examples]
        texts = [self.tokenizer.text.decode(one.after[one.target_text].tolist()) for one in scripts]
        return SamplePreview("\n".join(texts), ", ".join(dict.fromkeys(one.speaker or "" for one in examples)))

    def get(self, index: int, rng: np.random.Generator) -> list[CloningItem]:
        """The samples of a row. Nothing about it is random."""
        return [self._item(i) for i in self.rows[index]]

    def _item(self, index: int) -> CloningItem:
        example = self.examples[index]
        # A sample of an unknown speaker is of a speaker of its own.
        number = len(self._speakers) + index if example.speaker is None else self._speakers[example.speaker]
        whisper = None if example.whisper is None else np.load(example.whisper)
        return CloningItem(training_sequence(self.tokenizer, example, self.learn_text), number, whisper)

    def collate(self, items: list[Any]) -> Batch:
        """Rows as a batch of S samples, one behind the other without padding. All positions are indices into L.

        Returns:
            `input_ids` (1, L).
            `position_ids` (1, L): they start again at 0 with every sequence.
            `frames` (A, K), `frame_positions` (A,): the audio, and where it is read.
            `other_positions` (L - A,): all other positions.
            `read_frames`, `read_others`: those of each whose result a label or more is compared with.
            `sequences` (S, T), `places` (L,): as `sequence_layout` gives them, for attention; `cu_seqlens`
            (S + 1,), int32: where each sequence begins, and the last one ends.
            `text_positions` (M,), `text_labels` (M,), `audio_positions` (P,), `audio_labels` (P, K): the label of a
            position is what comes after it.
            `pools` (A,): 2 s for the frames of sample s's reference, 2 s + 1 for its target's, -1 for frames around
            the codes.
            `speakers` (S,): a number for each speaker.
            `references` and `target_lengths`, on the host: for each sample where in `frames` its reference begins and
            ends, and the frames T of its target.
            `whisper_positions` (E,), `whisper_features` (E, C), if the model takes them: Whisper's features of
            references, at the frames with a code in the first codebook.
        """
        samples: list[CloningItem] = [one for row in items for one in row]
        sequences = [one.sequence for one in samples]
        lengths = [len(one) for one in sequences]
        starts: list[int] = [0, *np.cumsum(lengths[:-1]).tolist()]
        input_ids = _concatenated([one.input_ids for one in sequences])[None]
        position_ids = torch.cat([torch.arange(length) for length in lengths])[None]
        frame_positions = _shifted([one.frame_positions for one in sequences], starts)
        text_positions = _shifted([one.text_positions for one in sequences], starts)
        audio_positions = _shifted([one.audio_positions for one in sequences], starts)
        is_frame = _marked(input_ids.numel(), frame_positions)
        is_read = _marked(input_ids.numel(), text_positions, audio_positions)
        side_by_side, places = sequence_layout(starts, lengths, input_ids.numel())
        pools = [np.where(one.pools == NO_POOL, NO_POOL, 2 * s + one.pools) for s, one in enumerate(sequences)]
        return {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "frames": _concatenated([one.frames for one in sequences]),
            "frame_positions": frame_positions,
            "other_positions": (~is_frame).nonzero()[:, 0],
            "read_frames": (is_frame & is_read).nonzero()[:, 0],
            "read_others": (~is_frame & is_read).nonzero()[:, 0],
            "sequences": side_by_side,
            "places": places,
            "cu_seqlens": torch.tensor([*starts, input_ids.numel()], dtype=torch.int32),
            "text_positions": text_positions,
            "text_labels": _concatenated([one.text_labels for one in sequences]),
            "audio_positions": audio_positions,
            "audio_labels": _concatenated([one.audio_labels for one in sequences]),
            "pools": _concatenated(pools),
            "speakers": torch.tensor([one.speaker for one in samples]),
            "references": _spans(sequences),
            "target_lengths": [len(one.audio_labels) - one.audio_labels.shape[1] for one in sequences],
            **_whisper_features(samples, starts),
        }

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Samples with their two voices, text tokens that are learnt, and frames of targets (an end included) with
        their codes."""
        samples, codebooks = len(batch["target_lengths"]), batch["frames"].shape[1]
        frames = sum(batch["target_lengths"]) + samples
        return {
            "samples": samples,
            "voices": 2 * samples,
            "text tokens": len(batch["text_labels"]),
            "frames": frames,
            "codes": frames * codebooks,
        }


def _marked(count: int, *positions: Tensor) -> Tensor:
    """(count,): True at the `positions`."""
    marked = torch.zeros(count, dtype=torch.bool)
    marked[torch.cat(positions)] = True
    return marked


def _whisper_features(samples: Sequence[CloningItem], starts: Sequence[int]) -> dict[str, Tensor]:
    """Whisper's features and where they go, if there are any."""
    features = [one.whisper for one in samples if one.whisper is not None]
    if not features:
        return {}
    sequences = [one.sequence for one in samples]
    positions = [one.frame_positions[one.pools == REFERENCE] for one in sequences]
    joined = torch.from_numpy(np.concatenate(features))
    return {"whisper_positions": _shifted(positions, starts), "whisper_features": joined}


def _spans(sequences: Sequence[TrainingSequence]) -> list[tuple[int, int]]:
    """Where in the joined frames of `sequences` those of each reference begin and end."""
    spans, start = [], 0
    for one in sequences:
        end = start + len(one.frames)
        # the target has one frame more than it has labels
        spans.append((start, end - len(one.audio_labels) - 1))
        start = end
    return spans


def examples_of(
    corpus: CloningCorpus,
    split: str,
    tokenizer: CloningTokenizer,
    data: CloningData,
    whisper: WhisperCache | None = None,
) -> list[Example]:
    """The samples of "train" or "validation" as tokens and codes, with Whisper's features from the cache `whisper`.

    Those that can't be written or are too long are named in the log. Raises DataError if there is nothing to train on.
    """
    examples: list[Example] = []
    refused: list[RefusedRow] = []
    samples = corpus.samples(split)
    for sample in samples[:1]:
        corpus.codes(sample.target)  # encodes all; a cache that can't be read or written is no fault of a sample
    for sample in samples:
        try:
            example = _example(corpus, sample, tokenizer, data, whisper)
        except InputError as error:
            refused.append(RefusedRow(sample.id, str(error)))
            continue
        if len(example) > data.max_length:
            why = f"{len(example)} tokens, over data.max_length {data.max_length}; raise it"
            refused.append(RefusedRow(sample.id, why))
        else:
            examples.append(example)
    require_rows(data.path, examples, refused, "to train on" if split == "train" else None)
    return examples


def _example(
    corpus: CloningCorpus,
    sample: CloningSample,
    tokenizer: CloningTokenizer,
    data: CloningData,
    whisper: WhisperCache | None,
) -> Example:
    """Raises InputError for a text that can't be written, or is too long."""
    script = script_of(sample, tokenizer, data)
    codes = corpus.codes(sample.reference), corpus.codes(sample.target)
    whisper_file = None if whisper is None else whisper(sample.reference, len(codes[0]))
    return Example(sample.id, sample.speaker, script, *codes, whisper=whisper_file)


def check_scripts(checked: CheckedPairs, tokenizer: CloningTokenizer, data: CloningData) -> None:
    """Refuse, in the report, the pairs whose texts training leaves out, as the model's tokenizer writes them."""
    for sample in checked.samples:
        try:
            script_of(normalised(sample, data.arabic), tokenizer, data)
        except InputError as error:
            checked.refuse(sample, "text", str(error))


def script_of(sample: CloningSample, tokenizer: CloningTokenizer, data: CloningData) -> Script:
    """The texts of a sample as tokens. Raises InputError for one that can't be written, or is too long."""
    script = tokenizer.script(sample.reference_text, sample.target_text, sample.system)
    tokens = script.target_text.stop - script.target_text.start
    if tokens > data.max_tokens:
        raise InputError(f"a text of {tokens} tokens, over data.max_tokens {data.max_tokens}; raise it")
    return script


def _concatenated(arrays: Sequence[NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays))


def _shifted(positions: Sequence[NDArray[np.int64]], starts: Sequence[int]) -> Tensor:
    """Positions within sequences as positions within the batch."""
    return _concatenated([one + start for one, start in zip(positions, starts, strict=True)])
