"""Page of the worst clips of a corpus: listen to them, tick those to exclude, save the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import InputError, plain_file
from phonate.data.manifests.manifest import check_corpus
from phonate.data.manifests.rows import read_part
from phonate.data.manifests.validation import Checked, Finding, Rates, findings, has_words
from phonate.data.parallel import Progress
from phonate.data.settings import RecordingData
from phonate.workflows.pages.plots import render, sound_url

if TYPE_CHECKING:
    from phonate.pretrained.transcription import Recogniser

SHOWN = 20
_BAD_WER = 0.3
_MOST_SECONDS = 60.0  # maximum length of a clip in the page


@dataclass(frozen=True)
class Suspect:
    """A clip with its findings."""

    clip: Checked
    found: list[Finding]
    heard: str | None
    """Transcript by the recogniser."""

    @property
    def score(self) -> float:
        """Sort key: first the sum of the findings that are warnings, then the worst of the others."""
        warned = sum(one.score for one in self.found if one.score >= 1.0)
        return 10.0 * warned + max((one.score for one in self.found), default=0.0)


def write_page(
    settings: RecordingData, page: str | Path, transcribe: Recogniser | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Write the page of the worst clips. Returns its path and the number of clips with findings.

    With a recogniser, the transcript of each clip is compared with its text.
    """
    path = Path(page)
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"--page {page}: must be a file name that ends in .html")
    clips, report = check_corpus(settings, progress)
    rates = Rates.of(clips)
    suspects = []
    for done, clip in enumerate(clips, start=1):
        heard = None
        if transcribe is not None and has_words(clip.row.text):
            heard = transcribe.transcribe(*read_part(clip.row))
            if progress is not None:
                progress("transcribing", done, len(clips))
        suspects.append(Suspect(clip, [*findings(clip, rates), *_misheard(clip, heard)], heard))
    worst = sorted(suspects, key=lambda one: (-one.score, one.clip.row.id))[:SHOWN]
    try:
        plain_file(path).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_render(worst, report.path, len(clips)), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InputError(f"--page {page}: can't be written ({error.strerror}); choose another path") from error
    odd = sum(any(finding.score >= 1.0 for finding in one.found) for one in suspects)
    return {"page": str(path), "shown": len(worst), "with_findings": odd, "worst": [one.clip.row.id for one in worst]}


def _misheard(clip: Checked, heard: str | None) -> list[Finding]:
    from phonate.pretrained.transcription import word_error_rate

    if heard is None:
        return []
    rate = word_error_rate([str(clip.row.text)], [heard])
    return [Finding("different words", f"{100 * rate:.0f} % of the words are transcribed differently", rate / _BAD_WER)]


def _render(worst: Sequence[Suspect], corpus: str, count: int) -> str:
    clips = [_shown(one) for one in worst]
    return render("worst.html.jinja", {"corpus": corpus, "count": count, "clips": clips})


def _shown(one: Suspect) -> dict[str, Any]:
    row = one.clip.row
    found = sorted(one.found, key=lambda found: -found.score)
    warned = [f"{finding.reason}: {finding.detail}" for finding in found if finding.score >= 1.0]
    nearest = next((finding.detail for finding in found if finding.score > 0.0), None)
    return {
        "id": row.id,
        "speaker": row.speaker or "",
        "seconds": f"{one.clip.seconds:.1f} s",
        "text": row.text or "",
        "heard": one.heard,
        "reasons": warned,
        "nearest": nearest,
        "sound": _sound(one.clip),
    }


def _sound(clip: Checked) -> str:
    """The recording as a data URL; only its beginning if it is very long."""
    waveform, rate = read_part(clip.row)
    return sound_url(waveform[: int(_MOST_SECONDS * rate)], rate)
