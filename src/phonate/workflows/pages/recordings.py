"""Pages about recordings: the profile of a voice, the worst clips of a corpus, who speaks when, what is said."""

from __future__ import annotations

import io
import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile
from markupsafe import Markup

from phonate.audio.decoding import read_blocks, read_start, resample
from phonate.audio.mel_filters import band_edges
from phonate.audio.quality import N_MELS, N_MFCC, VoiceFeatures, envelopes, magnitudes, mel_decibels
from phonate.compute.system import write_output
from phonate.config.errors import DataError, InputError, option
from phonate.config.words import duration, number_of
from phonate.data.annotations import SpeakerTurn
from phonate.data.corpora.manifest import check_corpus
from phonate.data.corpora.rows import Problem, printable, read_part
from phonate.data.corpora.validation import FAILURES, CheckedRow, Finding, Rates, Report, findings, has_words, reason_of
from phonate.data.parallel import Progress
from phonate.data.settings import RecordingData, VoiceRules
from phonate.data.transcripts import Transcription
from phonate.data.voices import VoiceFile
from phonate.text.captions import LINE, LONG_PAUSE, SHORTEST, TimedWord
from phonate.workflows.pages import plots
from phonate.workflows.pages.plots import render, sound_url, write_page

if TYPE_CHECKING:
    from phonate.pretrained import Transcriber
    from phonate.tasks.diarization.inference import Diarization


# --------------------------------------------------------- The profile of a voice: charts and sounds

_MOST_PROBLEMS = 200
_MOST_CLIPS = 3  # number of worst and of typical recordings
_CLIP_SECONDS = 6.0
_CLIP_RATE = 24_000  # maximum rate in Hz, to limit the size of the page
_SCORE_STEP = 0.05
_HERTZ = (
    (0, "0"),
    (500, "500 Hz"),
    (1000, "1 kHz"),
    (2000, "2 kHz"),
    (4000, "4 kHz"),
    (8000, "8 kHz"),
    (16000, "16 kHz"),
)
_USUAL = (10, 90)  # percentiles that bound the middle 80 % of recordings


def write_voice_page(
    path: str | Path,
    name: str,
    profile: dict[str, Any],
    files: Sequence[VoiceFile],
    features: Sequence[VoiceFeatures],
    report: Report,
    rules: VoiceRules | None = None,
) -> Path:
    """Write the page of a voice: figures, distributions, rejected recordings, and some recordings to listen to.

    Args:
        path: the page, written atomically.
        name: name of the voice, shown as the title.
        profile: `phonate.data.voices.voice_profile` of `files` and `features`.
        files: recordings used for the voice.
        features: features of each of `files`.
        report: report of their validation.
        rules: rules of the validation. None: the defaults.

    Returns:
        `path`.

    Raises:
        DataError: there are no recordings.
        InputError: the page can't be written.
    """
    if not files or len(files) != len(features):
        raise DataError(f"a voice page needs features of all recordings; {len(files)} have {len(features)}")
    rules = rules or VoiceRules()
    page = {
        "kind": "phonate voice profile",
        "name": printable(name),
        "summary": _summary(profile, report),
        "figures": _figures(profile, report),
        "facts": _facts(profile),
        "pitch": _pitch(profile["voice_pitch"], features),
        "spectrum": _spectrum(profile, features, rules.sample_rate),
        "recordings": [_quality(profile, files, rules), _durations(files)],
        "lowered": _counted(reason.partition(" (")[0] for file in files for reason in file.lowered_by),
        "sample_count": len(files),
        "listening": _listening(files, features, profile, report, rules),
        "problems": [_table(title, problems, report) for title, problems in _problems(report).items() if problems],
    }
    return write_page(path, render("voice.html.jinja", page))


def _summary(profile: dict[str, Any], report: Report) -> str:
    count, left_out = profile["sample_count"], report.listed - profile["sample_count"]
    rest = f"{left_out:,} more {'is' if left_out == 1 else 'are'} left out" if left_out else "none is left out"
    return f"{_recordings(count)} of {report.path}, {duration(profile['total_duration'])} in all; {rest}."


def _figures(profile: dict[str, Any], report: Report) -> list[dict[str, str]]:
    pitch = profile["voice_pitch"]
    has_pitch = pitch["mean"] is not None
    spread = f"mean pitch, from {pitch['min']:.0f} to {pitch['max']:.0f} Hz" if has_pitch else "no recording is voiced"
    cards = [
        (f"{profile['sample_count']:,}", f"recordings used of {report.listed:,} found"),
        (duration(profile["total_duration"]), "of speech"),
        (f"{profile['avg_quality_score']:.2f}", "mean quality (0 to 1)"),
        (f"{pitch['mean']:.0f} Hz" if has_pitch else "no pitch", spread),
    ]
    return [{"value": value, "label": label} for value, label in cards]


def _facts(profile: dict[str, Any]) -> list[dict[str, str]]:
    pitch, spectrum, energy = profile["voice_pitch"], profile["spectral_profile"], profile["energy_profile"]
    rows = {
        "Pitch": "no pitch",
        "Spectral centroid": f"{spectrum['centroid_mean']:,.0f} Hz, "
        f"standard deviation {spectrum['centroid_std']:,.0f} Hz",
        "Spectral rolloff": f"{spectrum['rolloff_mean']:,.0f} Hz, below which 85 % of the magnitude lies",
        "Zero crossings": f"{100 * spectrum['zero_crossing_rate_mean']:.1f} % of samples",
        "Energy": f"RMS {energy['mean']:.4f} of full scale, standard deviation {energy['std']:.4f}; "
        f"the quietest recording {energy['min']:.4f}, the loudest {energy['max']:.4f}",
    }
    if pitch["mean"] is not None:
        rows["Pitch"] = (
            f"{pitch['mean']:.1f} Hz, standard deviation {pitch['std']:.1f} Hz, "
            f"lowest {pitch['min']:.1f} Hz, highest {pitch['max']:.1f} Hz"
        )
    return [{"label": label, "value": value} for label, value in rows.items()]


def _recordings(count: int) -> str:
    return f"{count:,} recording{'s' if count != 1 else ''}"


def _counted(reasons: Any) -> list[dict[str, Any]]:
    return [{"reason": reason, "count": count} for reason, count in Counter(reasons).most_common()]


def _chart(title: str, svg: str, note: str) -> dict[str, Any]:
    return {"title": title, "svg": Markup(svg), "note": note}  # texts in it are escaped where it is made


def _pitch(pitch: dict[str, float | None], features: Sequence[VoiceFeatures]) -> dict[str, Any] | None:
    """Histogram of the mean pitch of each recording; None if there is no pitch."""
    means = [one.pitch_mean for one in features if one.pitch_mean is not None]
    mean, std = pitch["mean"], pitch["std"]
    if not means or mean is None or std is None:
        return None
    edges, counts = plots.bins(means)
    span = (max(mean - std, 0.0), mean + std)
    label = f"Histogram of the mean pitch of {_recordings(len(means))}, from {min(means):.0f} to {max(means):.0f} Hz"
    svg = plots.bar_chart(edges, counts, label, "Hz", [(mean, f"voice {mean:.0f} Hz")], span)
    note = "Dashed line: mean over all voiced frames of 10 ms. Shaded: one standard deviation."
    silent = len(features) - len(means)
    note += f" {_recordings(silent)} without pitch {'is' if silent == 1 else 'are'} not counted." if silent else ""
    return _chart("Mean pitch of each recording, Hz", svg, note)


def _spectrum(profile: dict[str, Any], features: Sequence[VoiceFeatures], sample_rate: int) -> dict[str, Any]:
    """The mean spectral envelope, and the spread over the recordings."""
    mean_M = envelopes(profile["mfcc_profile"]["mean"])
    peak = float(mean_M.max())
    spread = None
    if len(features) > 1:
        low_M, high_M = np.percentile(envelopes([one.mfcc_mean for one in features]), _USUAL, axis=0) - peak
        spread = (low_M.tolist(), high_M.tolist())
    edges = band_edges(N_MELS, 0.0, sample_rate / 2)  # band i peaks at [i + 1]

    def place(hertz: float) -> float:
        return float(np.interp(hertz, edges, np.arange(-1, N_MELS + 1)))

    centroid, rolloff = profile["spectral_profile"]["centroid_mean"], profile["spectral_profile"]["rolloff_mean"]
    svg = plots.band_chart(
        (mean_M - peak).tolist(),
        spread,
        [(place(hertz), label) for hertz, label in _HERTZ if hertz <= sample_rate / 2],
        f"Mean spectral envelope of the voice from 0 to {sample_rate / 2:,.0f} Hz, strongest at "
        f"{edges[1 + int(mean_M.argmax())]:,.0f} Hz",
        [(place(centroid), f"centroid {centroid:,.0f} Hz"), (place(rolloff), f"rolloff {rolloff:,.0f} Hz")],
    )
    note = (
        f"The mean of the {N_MFCC} mel-frequency cepstral coefficients over all frames, including pauses, converted to "
        f"{N_MELS} mel bands by the inverse cosine transform; fine structure such as harmonics is not included."
    )
    note += " Shaded: the middle 80 % of recordings." if spread else ""
    return _chart("Mean spectral envelope, dB below its peak", svg, note)


def _quality(profile: dict[str, Any], files: Sequence[VoiceFile], rules: VoiceRules) -> dict[str, Any]:
    scores = [file.quality for file in files]
    # from the lowest accepted score, centred on multiples of the step: scores are products of 0.5, 0.8 and 0.9
    first, last = round(min(rules.min_quality, *scores) / _SCORE_STEP), round(1.0 / _SCORE_STEP)
    edges = (np.arange(first, last + 2) - 0.5) * _SCORE_STEP
    counts, _ = np.histogram(scores, edges)
    mean = profile["avg_quality_score"]
    label = f"Histogram of the quality of {_recordings(len(files))}, mean {mean:.2f}"
    svg = plots.bar_chart(edges.tolist(), counts.tolist(), label, marks=[(mean, f"mean {mean:.2f}")])
    return _chart("Quality of each recording, from 0 to 1", svg, "")


def _durations(files: Sequence[VoiceFile]) -> dict[str, Any]:
    seconds = [file.seconds for file in files]
    edges, counts = plots.bins(seconds)
    label = f"Histogram of the length of {_recordings(len(files))}, from {min(seconds):.1f} to {max(seconds):.1f} s"
    cut = sum(file.seconds < file.whole_seconds for file in files)
    note = f"Of {_recordings(cut)} only the beginning is used." if cut else ""
    return _chart("Length of each recording, s", plots.bar_chart(edges, counts, label, "s"), note)


def _problems(report: Report) -> dict[str, list[Problem]]:
    return {"Refused": report.refused, "Warnings": report.warnings}


def _table(title: str, problems: Sequence[Problem], report: Report) -> dict[str, Any]:
    rows = [
        {"reason": printable(one.reason), "place": _within(one.place, report), "detail": printable(one.detail)}
        for one in problems[:_MOST_PROBLEMS]
    ]
    counts = _counted(one.reason for one in problems)
    reasons = ", ".join(f"{one['count']:,} {printable(one['reason'])}" for one in counts)
    return {"title": title, "note": reasons, "rows": rows, "more": len(problems) - len(rows)}


def _within(path: Path | str, report: Report) -> str:
    """Path of a recording relative to its folder."""
    return printable(str(path)).removeprefix(f"{report.path}{os.sep}")


def _listening(
    files: Sequence[VoiceFile],
    features: Sequence[VoiceFeatures],
    profile: dict[str, Any],
    report: Report,
    rules: VoiceRules,
) -> dict[str, Any]:
    """A few recordings to listen to: the worst, and the most typical."""
    lowest = [
        number for number in np.argsort([file.quality for file in files], kind="stable") if files[number].lowered_by
    ]
    worst = lowest[:_MOST_CLIPS]
    mfcc_RC = np.array([one.mfcc_mean for one in features])
    spread_C = np.maximum(mfcc_RC.std(axis=0), 1e-6)
    far_R = np.square((mfcc_RC - np.array(profile["mfcc_profile"]["mean"])) / spread_C).sum(axis=1)
    typical = [number for number in np.argsort(far_R, kind="stable") if number not in worst][:_MOST_CLIPS]
    chosen = {"Lowest quality": worst, "Typical spectral envelopes": typical}
    examples = [
        {"title": title, "clips": [_clip(files[number], report, rules) for number in numbers]}
        for title, numbers in chosen.items()
        if numbers
    ]
    return {"note": f"Up to {_CLIP_SECONDS:g} s of each, mixed to mono.", "examples": examples}


def _clip(file: VoiceFile, report: Report, rules: VoiceRules) -> dict[str, Any]:
    note = f"quality {file.quality:.2f}, {file.seconds:.1f} s{''.join(f'; {reason}' for reason in file.lowered_by)}"
    clip = {"label": _within(file.path, report), "note": note, "sound": "", "picture": ""}
    try:
        waveform, info = read_start(file.path, min(_CLIP_SECONDS, rules.max_seconds))
    except FAILURES as error:  # it was deleted or changed after validation; the rest of the page is still valid
        return {**clip, "note": f"{note}; can't be played: {reason_of(error)}"}
    rate = min(info.sample_rate, _CLIP_RATE)
    played = waveform if rate == info.sample_rate else resample(waveform, info.sample_rate, rate)
    mel_TM = mel_decibels(magnitudes(resample(waveform, info.sample_rate, rules.sample_rate)), rules.sample_rate)
    picture = plots.data_url(plots.spectrogram_png(mel_TM.T), "image/png")
    axes = plots.spectrogram_axes(len(waveform) / info.sample_rate, band_edges(N_MELS, 0.0, rules.sample_rate / 2))
    return {**clip, "sound": plots.sound_url(played, rate), "picture": picture, **axes}


# --------------- The worst clips of a corpus: listen to them, tick those to leave out, save the list

SHOWN = 20
_BAD_WER = 0.3
_MOST_SECONDS = 60.0  # maximum length of a clip in the page


@dataclass(frozen=True)
class Suspect:
    """A clip with its findings."""

    clip: CheckedRow
    findings: list[Finding]
    hypothesis: str | None
    """Transcript by the recogniser."""

    @property
    def score(self) -> float:
        """Sort key: first the sum of the findings that are warnings, then the worst of the others."""
        warned = sum(one.score for one in self.findings if one.score >= 1.0)
        return 10.0 * warned + max((one.score for one in self.findings), default=0.0)


def write_worst_page(
    settings: RecordingData, page: str | Path, transcribe: Transcriber | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Write the page of the worst clips. Returns its path and the number of clips with findings.

    With a recogniser, the transcript of each clip is compared with its text.
    """
    path = Path(page)
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"{option('page', str(page))}: must be a file name that ends in .html")
    clips, report = check_corpus(settings, progress)
    rates, warned = Rates.of(clips), defaultdict[str, list[Finding]](list)
    for one in report.warnings:
        warned[one.id].append(Finding(one.reason, one.detail, 1.0))
    suspects = []
    for done, clip in enumerate(clips, start=1):
        hypothesis = None
        if transcribe is not None and has_words(clip.row.text):
            hypothesis = transcribe.transcribe(*read_part(clip.row))
            if progress is not None:
                progress("transcribing", done, len(clips))
        found = [*findings(clip, rates), *_misheard(clip, hypothesis)]
        found += [one for one in warned[clip.row.id] if one.reason not in {known.reason for known in found}]
        suspects.append(Suspect(clip, found, hypothesis))
    worst = sorted(suspects, key=lambda one: (-one.score, one.clip.row.id))[:SHOWN]
    write_output(path, _render(worst, report.path, len(clips)).encode(errors="backslashreplace"), parents=True)
    odd = [{finding.reason for finding in one.findings if finding.score >= 1.0} for one in suspects]
    return {
        "page": str(path),
        "shown": len(worst),
        "with_findings": sum(map(bool, odd)),
        "findings": dict(Counter(reason for reasons in odd for reason in sorted(reasons)).most_common()),
        "worst": [one.clip.row.id for one in worst],
    }


def _misheard(clip: CheckedRow, hypothesis: str | None) -> list[Finding]:
    from phonate.evaluation.words import word_error_rate

    if hypothesis is None:
        return []
    rate = word_error_rate([str(clip.row.text)], [hypothesis])
    return [Finding("different words", f"{100 * rate:.0f} % of the words are transcribed differently", rate / _BAD_WER)]


def _render(worst: Sequence[Suspect], corpus: str, count: int) -> str:
    clips = [_clip_row(one) for one in worst]
    return render("worst.html.jinja", {"corpus": corpus, "count": count, "clips": clips})


def _clip_row(one: Suspect) -> dict[str, Any]:
    row = one.clip.row
    worst_first = sorted(one.findings, key=lambda worst_first: -worst_first.score)
    warned = [f"{finding.reason}: {finding.detail}" for finding in worst_first if finding.score >= 1.0]
    nearest = next((finding.detail for finding in worst_first if finding.score > 0.0), None)
    return {
        "id": row.id,
        "speaker": row.speaker or "",
        "seconds": f"{one.clip.seconds:.1f} s",
        "text": row.text or "",
        "heard": one.hypothesis,
        "reasons": warned,
        "nearest": nearest,
        "sound": _sound(one.clip),
    }


def _sound(clip: CheckedRow) -> str:
    """The recording as a data URL; only its beginning if it is very long."""
    waveform, rate = read_part(clip.row)
    return sound_url(waveform[: int(_MOST_SECONDS * rate)], rate)


# ---------------------- Who speaks when: a picture, and a page with a coloured timeline and a player

_PLAYED_RATE = 16_000
_ROW_SECONDS = 300.0
"""Length of a row of the timeline in seconds; shorter recordings have one row."""
_GOLDEN_ANGLE = 137.508
"""Degrees between successive hues, which keeps any number of them distinct."""


def colour(number: int) -> tuple[float, float, float]:
    """Hue in degrees, saturation and lightness in per cent, of speaker number `number`."""
    return ((222.0 + number * _GOLDEN_ANGLE) % 360.0, 60.0, 52.0)


def write_picture(path: str | Path, diarization: Diarization) -> Path:
    """Draw the turns of each speaker over time, as PNG, SVG or PDF depending on the suffix.

    Raises InputError if the file can't be written.
    """
    from colorsys import hls_to_rgb

    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    path = Path(path)
    figure = Figure(figsize=(12.0, 1.2 + 0.45 * max(1, len(diarization.speakers))), layout="constrained")
    axes = figure.subplots()
    for row, speaker in enumerate(diarization.speakers):
        hue, saturation, lightness = colour(row)
        spans = [(turn.start, turn.duration) for turn in diarization.turns if turn.speaker == speaker]
        axes.broken_barh(spans, (row - 0.4, 0.8), color=hls_to_rgb(hue / 360, lightness / 100, saturation / 100))
    axes.set(xlim=(0.0, diarization.seconds), ylim=(max(1, len(diarization.speakers)) - 0.5, -0.5))
    axes.set_yticks(range(len(diarization.speakers)), diarization.speakers)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: clock(seconds)))
    axes.grid(axis="x", alpha=0.3)
    return write_output(path, lambda beside: figure.savefig(beside, dpi=150, format=Path(path).suffix[1:] or None))


def write_diarization_page(path: str | Path, recording: str | Path, diarization: Diarization) -> Path:
    """Write a self-contained page with a player and a timeline of the speakers.

    Raises InputError if it can't be written, DataError if the recording can't be read.
    """
    name = printable(Path(recording).name)
    speech = sum(turn.duration for turn in diarization.turns)
    count = len(diarization.speakers)
    page = {
        "kind": "phonate diarization",
        "name": name,
        "summary": f"{number_of(count, 'speaker')} in {number_of(len(diarization.turns), 'turn')}.",
        "figures": [
            {"value": str(count), "label": "speakers"},
            {"value": duration(diarization.seconds), "label": "length"},
            {"value": duration(speech), "label": "speech, summed over speakers"},
            {"value": f"{overlapped(diarization.turns):.1f} s", "label": "overlapping speech"},
        ],
        "speakers": [_speaker(number, diarization, speech) for number in range(count)],
        "rows": _rows(diarization),
        "turns": [
            {"start": turn.start, "from": clock(turn.start), "to": clock(turn.end), "speaker": printable(turn.speaker)}
            for turn in diarization.turns
        ],
        "sound": plots.data_url(_compressed(recording), "audio/mpeg"),
    }
    return write_page(path, render("diarization.html.jinja", page))


_UNSURE = 0.5
"""Words of less confidence are marked."""


def write_transcript_page(path: str | Path, recording: str | Path, transcription: Transcription) -> Path:
    """Write a self-contained page with a player and the words, which light up as they are said and can be corrected.

    Raises InputError if it can't be written, DataError if the recording can't be read.
    """
    count, speakers = len(transcription.words), transcription.speakers
    who = f" of {len(speakers)} speaker{'s' * (len(speakers) != 1)}" if speakers else ""
    page = {
        "kind": "phonate transcript",
        "name": printable(Path(recording).name),
        "summary": f"{count:,} word{'s' * (count != 1)}{who}, {duration(transcription.seconds)}.",
        "figures": [],
        "language": transcription.language or "",
        "unsure": any(map(_is_unsure, transcription.words)),
        "line": LINE,
        "pause": LONG_PAUSE,
        "shortest": SHORTEST,
        "stem": printable(Path(recording).stem),
        "document": transcription.document(Path(recording).name),
        "paragraphs": [
            {
                "speaker": words[0].speaker,
                "colour": _css(speakers.index(words[0].speaker)) if words[0].speaker else "",
                "time": clock(words[0].start),
                "words": [
                    {"text": word.text, "start": word.start, "end": word.end, "unsure": _is_unsure(word)}
                    for word in words
                ],
            }
            for words in transcription.paragraphs()
        ],
        "sound": plots.data_url(_compressed(recording), "audio/mpeg"),
    }
    return write_page(path, render("transcript.html.jinja", page))


def _is_unsure(word: TimedWord) -> bool:
    return word.confidence is not None and word.confidence < _UNSURE


def clock(seconds: float) -> str:
    """83.21 -> 1:23.2, 3683.2 -> 1:01:23.2; zero tenths are omitted."""
    tenths = round(10 * seconds)
    minutes, rest = divmod(tenths, 600)
    text = f"{rest // 10:02d}" + (f".{rest % 10}" if rest % 10 else "")
    return f"{minutes // 60}:{minutes % 60:02d}:{text}" if minutes >= 60 else f"{minutes}:{text}"


def overlapped(turns: Sequence[SpeakerTurn]) -> float:
    """Seconds of overlapping speech."""
    changes = sorted([(turn.start, 1) for turn in turns] + [(turn.end, -1) for turn in turns])
    total, talking, before = 0.0, 0, 0.0
    for time, change in changes:
        total += (time - before) * (talking > 1)
        talking, before = talking + change, time
    return total


def _css(number: int) -> str:
    hue, saturation, lightness = colour(number)
    return f"hsl({hue:.0f} {saturation:.0f}% {lightness:.0f}%)"


def _speaker(number: int, diarization: Diarization, speech: float) -> dict[str, Any]:
    turns = [turn for turn in diarization.turns if turn.speaker == diarization.speakers[number]]
    seconds = sum(turn.duration for turn in turns)
    return {
        "name": printable(diarization.speakers[number]),
        "colour": _css(number),
        "seconds": f"{seconds:.1f} s",
        "share": f"{100 * seconds / speech:.0f} %",
        "turns": f"{len(turns):,}",
    }


def _rows(diarization: Diarization) -> list[dict[str, Any]]:
    """The rows of the timeline, with the parts of turns in each."""
    length = min(_ROW_SECONDS, diarization.seconds)
    rows = []
    for number in range(math.ceil(diarization.seconds / length)):
        start, end = number * length, (number + 1) * length
        bars = [
            {
                "lane": diarization.speakers.index(turn.speaker),
                "colour": _css(diarization.speakers.index(turn.speaker)),
                "x": round(max(turn.start, start) - start, 3),
                "width": round(min(turn.end, end) - max(turn.start, start), 3),
                "title": f"{printable(turn.speaker)}, {clock(turn.start)} to {clock(turn.end)}",
            }
            for turn in diarization.turns
            if turn.start < end and turn.end > start
        ]
        label = f"{clock(start)} to {clock(min(end, diarization.seconds))}"
        rows.append({"start": start, "seconds": length, "label": label, "bars": bars})
    return rows


def _compressed(recording: str | Path) -> bytes:
    packed = io.BytesIO()
    kind = {"format": "MP3", "subtype": "MPEG_LAYER_III", "compression_level": 0.8}
    with soundfile.SoundFile(packed, "w", _PLAYED_RATE, 1, **kind) as file:
        for block in read_blocks(recording, _PLAYED_RATE):
            file.write(block.clip(-1.0, 1.0))
    return packed.getvalue()
