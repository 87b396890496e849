"""Which pairs of a corpus can be used, and why the others can't. Every row is read, and every recording decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.codes.facts import AudioFacts, Found, Unusable, measure
from phonate.data.dialogues.dialogue import Audio, Dialogue
from phonate.data.dialogues.reading import read_dialogues
from phonate.data.manifests.rows import Problem, printable
from phonate.data.manifests.text_checks import CLIPPED_SHARE, has_words
from phonate.data.manifests.validation import SILENT_SHARE, Report
from phonate.tasks.cloning.pairs.samples import CloningSample, cloning_sample
from phonate.tasks.cloning.pairs.settings import CloningData

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
    facts: dict[Audio, AudioFacts]
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
    found = measure(audios, data.max_seconds, remembered, data.workers)
    usable = [sample for sample in samples if _accepted(sample, found, data, report)]
    facts = {audio: one for audio, one in found.items() if isinstance(one, AudioFacts)}
    report.warnings += _duplicates(usable, facts)
    return CheckedPairs(report, usable, facts)


def _samples(dialogues: Sequence[Dialogue], report: Report) -> Iterator[CloningSample]:
    for dialogue in dialogues:
        try:
            yield cloning_sample(dialogue)
        except DataError as error:
            detail = str(error).removeprefix(f"{dialogue.id}: ")
            report.refused.append(Problem(dialogue.id, dialogue.id, "not a pair", printable(detail)))


def _accepted(sample: CloningSample, found: Mapping[Audio, Found], data: CloningData, report: Report) -> bool:
    """Whether a sample can be used; what is to be said of it goes to the report."""
    refusal = _refusal(sample, found, data)
    if refusal is not None:
        report.refused.append(Problem(sample.id, sample.id, refusal.reason, printable(refusal.detail)))
        return False
    report.warnings += [
        Problem(sample.id, sample.id, one.reason, printable(one.detail)) for one in _warnings(sample, found)
    ]
    target = found[sample.target]
    assert isinstance(target, AudioFacts)
    report.usable += 1
    report.seconds += target.quality.duration
    if sample.speaker is not None:
        report.speakers[sample.speaker] = report.speakers.get(sample.speaker, 0) + 1
    return True


def _refusal(sample: CloningSample, found: Mapping[Audio, Found], data: CloningData) -> Unusable | None:
    """Why a sample can't be used; None: it can."""
    for name, audio in (("reference", sample.reference), ("target", sample.target)):
        facts = found[audio]
        if isinstance(facts, Unusable):
            return Unusable(facts.reason, f"{name}: {facts.detail}")
        seconds = facts.quality.duration
        if seconds < data.min_seconds:
            short = f"{seconds:.3f} s, shorter than data.min_seconds {data.min_seconds:g}"
            return Unusable("too short", f"{name}: {audio.path}: {short}")
        if facts.quality.peak == 0.0:
            return Unusable("silent", f"{name}: {audio.path}: every sample is 0")
    if not has_words(sample.target_text):
        return Unusable("no words", f"the text {sample.target_text[:40]!r} has no letter and no digit")
    if (length := len(sample.target_text)) < data.min_characters:
        return Unusable("text too short", f"{length} characters, fewer than data.min_characters {data.min_characters}")
    return None


def _warnings(sample: CloningSample, found: Mapping[Audio, Found]) -> Iterator[Unusable]:
    if sample.prompted_text is not None:
        asked, said = sample.prompted_text[:40], sample.target_text[:40]
        detail = f"the prompt asks for {asked!r}, the assistant says {said!r}; training uses the assistant's"
        yield Unusable("texts differ", detail)
    for name, audio in (("reference", sample.reference), ("target", sample.target)):
        facts = found[audio]
        assert isinstance(facts, AudioFacts)
        if facts.quality.silence_share > SILENT_SHARE:
            share = f"{100 * facts.quality.silence_share:.0f} % of it is silence"
            yield Unusable("mostly silent", f"{name}: {audio.path}: {share}")
        if facts.quality.clipping_share > CLIPPED_SHARE:
            share = f"{100 * facts.quality.clipping_share:.1f} % of the samples are clipped"
            yield Unusable("clipping", f"{name}: {audio.path}: {share}")


def _duplicates(samples: Sequence[CloningSample], facts: Mapping[Audio, AudioFacts]) -> Iterator[Problem]:
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
