"""Whatever the corpus: one Lhotse CutSet and one report."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from phonate.config.errors import DataError
from phonate.data.manifests.detection import detect_format
from phonate.data.manifests.dropping import leave_out, limited
from phonate.data.manifests.rows import Checked, Problem, Row
from phonate.data.manifests.validation import Progress, Report, validate
from phonate.data.settings import CORPORA, VoiceData, cache_root

if TYPE_CHECKING:
    from lhotse import CutSet

Rows = Callable[..., Iterable[Row | Problem]]


def list_corpus(settings: VoiceData) -> tuple[list[Row | Problem], Report]:
    """What a corpus lists, without what `drop` and `limit` leave out, and the report that its validation is to fill
    in."""
    path = Path(settings.path).expanduser()
    name = detect_format(path) if settings.format == "auto" else settings.format
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; data.path is relative to {Path.cwd()}")
    rows = cast(Rows, CORPORA.get(name))
    extra = {"cache": cache_root(settings) / "audio"} if "cache" in inspect.signature(rows).parameters else {}
    report = Report(str(path), name)
    listed = leave_out(list(rows(path, **extra)), settings.drop, report)
    return limited(listed, settings.limit, report), report


def check_corpus(
    settings: VoiceData, progress: Progress | None = None, *, text_required: bool = False
) -> tuple[list[Checked], Report]:
    """The usable recordings of a corpus, and the report on all. Raises DataError when there are none."""
    rows, report = list_corpus(settings)
    checked = validate(rows, settings.audio, report, progress, text_required=text_required)
    report.require_usable()
    return checked, report


def read_corpus(settings: VoiceData, progress: Progress | None = None) -> tuple[CutSet, Report]:
    """A corpus as a Lhotse CutSet, and the report on it."""
    checked, report = check_corpus(settings, progress)
    return to_cuts(checked), report


def to_cuts(recordings: Sequence[Checked]) -> CutSet:
    """A CutSet with a cut and a supervision for each recording."""
    from lhotse import CutSet, Recording, SupervisionSegment
    from lhotse.audio import AudioSource

    def cut(one: Checked) -> object:
        channels = list(range(one.channels))
        samples = round(one.seconds * one.sample_rate)
        recording = Recording(
            id=one.row.id,
            sources=[AudioSource("file", channels, str(one.row.path.resolve()))],
            sampling_rate=one.sample_rate,
            num_samples=samples,
            duration=samples / one.sample_rate,
        )
        said = SupervisionSegment(
            id=one.row.id,
            recording_id=one.row.id,
            start=0.0,
            duration=recording.duration,
            channel=channels if len(channels) > 1 else 0,
            text=one.row.text,
            speaker=one.row.speaker,
        )
        made = recording.to_cut()
        made.id = one.row.id
        made.supervisions = [said]
        return made

    return CutSet.from_cuts(cut(one) for one in recordings)
