"""Voice profile as a single HTML page with charts and audio."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from phonate.audio.decoding import read_start, resample
from phonate.audio.mel_scale import band_edges
from phonate.audio.quality import N_MELS, N_MFCC, VoiceFeatures, envelopes, magnitudes, mel_decibels
from phonate.config.errors import DataError
from phonate.data.manifests.rows import Problem, printable
from phonate.data.manifests.validation import FAILURES, Report, reason_of
from phonate.data.voices.files import VoiceFile
from phonate.data.voices.settings import VoiceRules
from phonate.workflows.pages import plots
from phonate.workflows.pages.plots import render, write_page
from phonate.workflows.pages.report import duration

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
        profile: `phonate.data.voices.features.voice_profile` of `files` and `features`.
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
        "problems": [_table(title, found, report) for title, found in _problems(report).items() if found],
    }
    return write_page(path, render("voice.html.jinja", page))


# ---------------------------------------------------------------- words and figures


def _summary(profile: dict[str, Any], report: Report) -> str:
    count, left_out = profile["sample_count"], report.listed - profile["sample_count"]
    rest = f"{left_out:,} more {'is' if left_out == 1 else 'are'} left out" if left_out else "none is left out"
    return f"{_recordings(count)} of {report.path}, {duration(profile['total_duration'])} in all; {rest}."


def _figures(profile: dict[str, Any], report: Report) -> list[dict[str, str]]:
    """The headline numbers."""
    pitch = profile["voice_pitch"]
    heard = pitch["mean"] is not None
    spread = f"mean pitch, from {pitch['min']:.0f} to {pitch['max']:.0f} Hz" if heard else "no recording is voiced"
    cards = [
        (f"{profile['sample_count']:,}", f"recordings used of {report.listed:,} found"),
        (duration(profile["total_duration"]), "of speech"),
        (f"{profile['avg_quality_score']:.2f}", "mean quality (0 to 1)"),
        (f"{pitch['mean']:.0f} Hz" if heard else "no pitch", spread),
    ]
    return [{"value": value, "label": label} for value, label in cards]


def _facts(profile: dict[str, Any]) -> list[dict[str, str]]:
    """Rows of the table of figures."""
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


# ---------------------------------------------------------------- charts


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
        [(place(hertz), said) for hertz, said in _HERTZ if hertz <= sample_rate / 2],
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


# ---------------------------------------------------------------- refused recordings


def _problems(report: Report) -> dict[str, list[Problem]]:
    return {"Refused": report.refused, "Warnings": report.warnings}


def _table(title: str, problems: Sequence[Problem], report: Report) -> dict[str, Any]:
    rows = [
        {"reason": printable(one.reason), "place": _within(one.place, report), "detail": printable(one.detail)}
        for one in problems[:_MOST_PROBLEMS]
    ]
    counts = _counted(one.reason for one in problems)
    said = ", ".join(f"{one['count']:,} {printable(one['reason'])}" for one in counts)
    return {"title": title, "note": said, "rows": rows, "more": len(problems) - len(rows)}


def _within(path: Path | str, report: Report) -> str:
    """Path of a recording relative to its folder."""
    return printable(str(path)).removeprefix(f"{report.path}{os.sep}")


# ---------------------------------------------------------------- sounds


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


def _clip(file: VoiceFile, report: Report, rules: VoiceRules) -> dict[str, str]:
    note = f"quality {file.quality:.2f}, {file.seconds:.1f} s{''.join(f'; {reason}' for reason in file.lowered_by)}"
    clip = {"label": _within(file.path, report), "note": note, "sound": "", "picture": ""}
    try:
        waveform, info = read_start(file.path, min(_CLIP_SECONDS, rules.max_seconds))
    except FAILURES as error:  # it was deleted or changed after validation; the rest of the page is still valid
        return {**clip, "note": f"{note}; can't be played: {reason_of(error)}"}
    rate = min(info.sample_rate, _CLIP_RATE)
    heard = waveform if rate == info.sample_rate else resample(waveform, info.sample_rate, rate)
    mel_TM = mel_decibels(magnitudes(resample(waveform, info.sample_rate, rules.sample_rate)), rules.sample_rate)
    picture = plots.data_url(plots.spectrogram_png(mel_TM.T), "image/png")
    return {**clip, "sound": plots.sound_url(heard, rate), "picture": picture}
