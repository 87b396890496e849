"""The page of a voice: true to the profile, whole in itself, and not broken by any recording or name."""

from __future__ import annotations

import base64
import functools
import io
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pages import Page, assert_self_contained
from phonate.audio.decoding import read_start
from phonate.audio.quality import VoiceFeatures
from phonate.config.errors import DataError, InputError
from phonate.data.corpora.rows import Problem
from phonate.data.corpora.validation import Report
from phonate.data.settings import VoiceRules
from phonate.data.voices import VoiceDataDetector, VoiceFile, extract_features, validate_voice_files, voice_profile
from phonate.workflows.pages.plots import bar_chart, bins
from phonate.workflows.pages.recordings import write_voice_page
from sounds import SAMPLE_RATE, voiced_tone

FORMANTS = (700.0, 1800.0, 2900.0)
Found = tuple[dict, list[VoiceFile], list[VoiceFeatures], Report]


def write(path: Path, samples: np.ndarray, rate: int = SAMPLE_RATE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(os.fsencode(path), samples, rate, format="WAV", subtype="PCM_16")
    return path


def look(folder: Path, rules: VoiceRules | None = None) -> Found:
    """What a page is made of."""
    usable, report = validate_voice_files(VoiceDataDetector(folder), rules, processes=1)
    found = extract_features(usable, rules, processes=1)
    return voice_profile(found.files, found.features), found.files, found.features, report


look_once = functools.cache(look)
"""Of a folder that stays as it is."""


def some_of(folder: Path, count: int, into: Path) -> Path:
    """A folder of links to the first recordings of another."""
    into.mkdir()
    for file in sorted(folder.glob("wavs/*"))[:count]:
        (into / file.name).symlink_to(file)
    return into


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve voices from 100 to 210 Hz, of which two are quiet, one is clipped, and one is too short."""
    folder = tmp_path_factory.mktemp("tones")
    for number in range(12):
        tone = voiced_tone(2.5 + 0.3 * number, 100.0 + 10 * number, FORMANTS, seed=number)
        tone = {3: 0.02 * tone, 4: 0.02 * tone, 5: np.clip(4 * tone, -1, 1)}.get(number, tone)
        write(folder / f"{number:02d}.wav", tone)
    write(folder / "short.wav", voiced_tone(1.0, 150.0, FORMANTS, seed=50))
    return folder


def written(path: Path, found: Found, name: str = "Ada", rules: VoiceRules | None = None) -> str:
    assert write_voice_page(path, name, *found, rules) == path
    return path.read_text(encoding="utf-8")


def charts(text: str) -> dict[str, str]:
    """Heading -> SVG."""
    return dict(re.findall(r"<h3>([^<]+)</h3>\s*(<svg.*?</svg>)", text, re.S))


def bars(svg: str) -> list[tuple[float, float, int]]:
    found = re.findall(r"<title>([\d.]+) to ([\d.]+)[^:]*: ([\d,]+) recordings?</title>", svg)
    return [(float(low), float(high), int(count.replace(",", ""))) for low, high, count in found]


def assert_true_to(text: str, found: Found) -> None:
    """Every figure of the page is that of the profile, and the bars are the recordings."""
    profile, files, features, report = found
    page = Page(text)
    pitch, spectrum, energy = profile["voice_pitch"], profile["spectral_profile"], profile["energy_profile"]
    assert f" {profile['sample_count']:,} recordings used of {report.listed:,} found" in page.text
    assert f" {profile['avg_quality_score']:.2f} mean quality" in page.text
    assert f" {pitch['mean']:.0f} Hz mean pitch, from {pitch['min']:.0f} to {pitch['max']:.0f} Hz" in page.text
    said = re.search(r"([\d.]+) (s|min|h) of speech", page.text)
    assert said is not None
    unit, rounded = {"s": (1, 0.51), "min": (60, 3.1), "h": (3600, 181)}[said[2]]
    assert float(said[1]) * unit == pytest.approx(profile["total_duration"], abs=rounded)
    for figure in (
        f"Pitch {pitch['mean']:.1f} Hz, standard deviation {pitch['std']:.1f} Hz",
        f"lowest {pitch['min']:.1f} Hz, highest {pitch['max']:.1f} Hz",
        f"{spectrum['centroid_mean']:,.0f} Hz, standard deviation {spectrum['centroid_std']:,.0f} Hz",
        f"{spectrum['rolloff_mean']:,.0f} Hz, below which 85 %",
        f"{100 * spectrum['zero_crossing_rate_mean']:.1f} % of samples",
        f"RMS {energy['mean']:.4f} of full scale, standard deviation {energy['std']:.4f}",
        f"quietest recording {energy['min']:.4f}, the loudest {energy['max']:.4f}",
    ):
        assert figure in page.text, figure
    values = {
        "Mean pitch of each recording, Hz": [one.pitch_mean for one in features if one.pitch_mean is not None],
        "Quality of each recording, from 0 to 1": [file.quality for file in files],
        "Length of each recording, s": [file.seconds for file in files],
    }
    for title, expected in values.items():
        drawn = bars(charts(text)[title])
        assert sum(count for _, _, count in drawn) == len(expected), title
        for low, high, count in drawn:
            inside = sum(low <= value < high for value in expected)
            at_the_end = sum(value == high for value in expected)
            assert inside <= count <= inside + at_the_end, (title, low, high)


def test_the_page_is_true_to_the_profile(tones: Path, tmp_path: Path) -> None:
    found = look_once(tones)
    text = written(tmp_path / "new/page.html", found)
    assert_true_to(text, found)
    page = Page(text)
    assert " 10 recordings used of 13 found" in page.text
    assert "2 low quality, 1 too short" in page.text
    assert (
        "short.wav too short 1.000 s, shorter than session.rules.min_seconds 2; record longer ones, or join them"
        in page.text
    )
    assert f"{tones}/" not in text.replace("&#34;", '"')  # recordings are called as in their folder
    assert [file.name for file in tmp_path.joinpath("new").iterdir()] == ["page.html"]


def test_what_lowers_the_quality_is_counted(tones: Path, tmp_path: Path) -> None:
    rules = VoiceRules(min_quality=0.0)
    text = written(tmp_path / "page.html", look(tones, rules), rules=rules)
    said = Page(text).text
    lowered = said[said.index("Quality deductions") : said.index("Listen")]
    assert "quiet 2 of 12" in lowered
    assert "short 2 of 12" in lowered
    assert "clipped 1 of 12" in lowered
    drawn = bars(charts(text)["Quality of each recording, from 0 to 1"])
    assert drawn == [(0.475, 0.525, 2), (0.775, 0.825, 1), (0.875, 0.925, 2), (0.975, 1.025, 7)]
    assert said.index("03.wav quality 0.50") < said.index("04.wav quality 0.50") < said.index("05.wav quality 0.80")


@pytest.mark.parametrize("corpus", ["tts_en_kathleen", "voice_ar_commands"])
def test_pages_of_real_voices_are_true_to_the_profile(recordings: Path, tmp_path: Path, corpus: str) -> None:
    found = look(some_of(recordings / corpus, 8, tmp_path / corpus))
    text = written(tmp_path / "page.html", found, corpus)
    assert_true_to(text, found)
    assert_self_contained(text)


@pytest.mark.slow
def test_the_page_of_hundreds_of_recordings_is_small(recordings: Path, tmp_path: Path) -> None:
    """From 60 on it does not grow."""
    found = look(some_of(recordings / "tts_en_kathleen", 250, tmp_path / "some"))
    text = written(tmp_path / "page.html", found)
    assert_true_to(text, found)
    assert len(text) < 2_000_000


def test_the_envelope_is_the_inverse_of_the_coefficients(tones: Path, tmp_path: Path) -> None:
    librosa = pytest.importorskip("librosa")
    found = look_once(tones)
    svg = charts(written(tmp_path / "page.html", found))["Mean spectral envelope, dB below its peak"]
    mean = np.array(found[0]["mfcc_profile"]["mean"])
    power = librosa.feature.inverse.mfcc_to_mel(mean[:, None], n_mels=128)[:, 0]
    expected = librosa.power_to_db(power, amin=1e-30, top_db=None)
    texts = re.findall(r'<text style="[^"]*" x="([\d.]+)" y="([\d.]+)">([^<]+)</text>', svg.replace("−", "-"))
    heights = [float(y) for y in re.findall(r'd="M 60 ([\d.]+) L 456 [\d.]+ " style="[^"]*var\(--faint\)', svg)]
    values = [float(said) for x, _, said in texts if re.fullmatch(r"-?\d+", said) and float(x) < 60]
    points = re.search(r' d="M ([^"]+)" style="[^"]*stroke: var\(--s0\); stroke-width: 2', svg)
    assert points is not None
    drawn = np.array([[float(one) for one in point.split()] for point in points[1].split("L")])
    scale = (values[1] - values[0]) / (heights[1] - heights[0])
    decibels = values[0] + (drawn[:, 1] - heights[0]) * scale
    np.testing.assert_allclose(decibels, expected - expected.max(), atol=0.15 * abs(scale))  # pixels are tenths

    # bands lie where librosa's do
    places = {said: float(x) for x, _, said in texts if re.fullmatch(r"\d+ k?Hz", said)}
    assert list(places) == ["500 Hz", "1 kHz", "2 kHz", "4 kHz", "8 kHz"]
    peaks = librosa.mel_frequencies(130, fmin=0.0, fmax=8000.0)[1:-1]
    for said, hertz in {"500 Hz": 500, "1 kHz": 1000, "2 kHz": 2000, "4 kHz": 4000}.items():
        assert np.interp(places[said], drawn[:, 0], peaks) == pytest.approx(hertz, rel=0.01)


def test_clips_can_be_heard(tmp_path: Path) -> None:
    folder = tmp_path / "voice"
    long = voiced_tone(9.0, 120.0, FORMANTS, seed=1)
    write(folder / "long.wav", long)
    write(folder / "wide.wav", np.stack([long, long], axis=1), 48_000)
    page = Page(written(tmp_path / "page.html", look(folder)))
    assert "long.wav quality 1.00, 9.0 s" in page.text
    heard = {}
    for player in page.all("audio"):
        kind, _, content = str(player["src"]).partition(",")
        assert kind == "data:audio/flac;base64"
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(content)))
        heard[rate] = samples
    assert sorted(heard) == [SAMPLE_RATE, 24_000]
    original, _ = read_start(folder / "long.wav", 6.0)
    np.testing.assert_allclose(heard[SAMPLE_RATE], original, atol=1e-4)
    assert [str(one["src"])[:15] for one in page.all("img")] == ["data:image/png;"] * 2


def test_any_name_can_stand_in_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "a <i> & voice"
    tone = voiced_tone(3.5, 120.0, FORMANTS, seed=1)
    odd = os.fsdecode(b"<script>\"x' & \xff\xfe.wav")
    write(folder / odd, np.clip(4 * tone, -1, 1))
    write(folder / os.fsdecode(b"<b>short \xe4.wav"), tone[:9000])
    write(folder / "مرحبا.wav", tone)
    path = tmp_path / os.fsdecode(b"p\xe4ge.html")
    text = written(path, look(folder), name=os.fsdecode(b"<img src=x> \xff"))
    assert_self_contained(text)
    page = Page(text)
    assert {"script", "i"}.isdisjoint(tag for tag, _ in page.tags)
    for said in (r"<img src=x> \udcff", r"""<script>"x' & \udcff\udcfe.wav""", r"<b>short \udce4.wav", "مرحبا.wav"):
        assert said in page.text, said
    assert len(page.all("audio")) == 2


def test_without_voice_there_is_no_pitch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        write(tmp_path / f"noise/{number}.wav", 0.1 * rng.standard_normal(4 * SAMPLE_RATE))
    found = look(tmp_path / "noise")
    assert found[0]["voice_pitch"]["mean"] is None
    page = Page(written(tmp_path / "page.html", found))
    assert "no pitch no recording is voiced" in page.text
    assert "Pitch no pitch" in page.text
    assert len(page.all("svg")) == 3


def test_recordings_without_voice_are_not_counted_in_the_pitch(tmp_path: Path) -> None:
    write(tmp_path / "mixed/noise.wav", 0.1 * np.random.default_rng(0).standard_normal(4 * SAMPLE_RATE))
    write(tmp_path / "mixed/voice.wav", voiced_tone(4.0, 130.0, FORMANTS, seed=1))
    found = look(tmp_path / "mixed")
    text = written(tmp_path / "page.html", found)
    assert_true_to(text, found)
    assert "1 recording without pitch is not counted." in Page(text).text


def test_one_recording_has_a_page(tmp_path: Path) -> None:
    write(tmp_path / "one/only.wav", voiced_tone(4.0, 130.0, FORMANTS, seed=1))
    found = look(tmp_path / "one")
    text = written(tmp_path / "page.html", found)
    assert_true_to(text, found)
    assert "none is left out" in text
    assert "every recording has the full score" in text
    assert "<polygon" not in text  # of one there is no spread
    assert "nan" not in re.sub(r"data:[^\"]+", "", text)


def test_a_recording_without_a_voice_has_a_page(tmp_path: Path) -> None:
    rules = VoiceRules(min_quality=0.0)
    noise = 1e-3 * np.random.default_rng(0).standard_normal(3 * SAMPLE_RATE)
    write(tmp_path / "still/still.wav", noise)
    page = Page(written(tmp_path / "page.html", look(tmp_path / "still", rules), rules=rules))
    assert "no pitch" in page.text
    assert len(page.all("audio")) == 1


def test_the_page_stays_small(tones: Path, tmp_path: Path) -> None:
    _, files, features, report = look_once(tones)
    rng = np.random.default_rng(0)
    many = [replace(files[number % 10], seconds=rng.uniform(2, 30)) for number in range(2000)]
    theirs = [replace(features[number % 10], pitch_mean=rng.uniform(60, 400)) for number in range(2000)]
    report.listed = 5000
    long = "x" * 200
    report.refused = [Problem(long, f"{number} {long}", "unreadable", long) for number in range(3000)]
    report.warnings = [Problem("", f"w{number}", "too long", "cut") for number in range(201)]
    found = (voice_profile(many, theirs), many, theirs, report)
    text = written(tmp_path / "page.html", found)
    assert_true_to(text, found)
    page = Page(text)
    assert len(text) < 3_000_000
    assert len(page.all("audio")) == 6
    assert len(page.all("rect")) < 100
    assert len(page.all("tr")) < 420
    assert "and 2,800 more" in page.text
    assert "3,000 unreadable" in page.text
    assert "and 1 more" in page.text


def test_a_recording_that_is_gone_says_so(tones: Path, tmp_path: Path) -> None:
    found = look(shutil.copytree(tones, tmp_path / "tones"))
    (tmp_path / "tones/05.wav").unlink()
    page = Page(written(tmp_path / "page.html", found))
    assert re.search(r"05\.wav quality 0\.80, .*; can't be played: .*no such file", page.text)
    assert len(page.all("audio")) == 5


def test_mistakes_are_named(tones: Path, tmp_path: Path) -> None:
    profile, files, features, report = look_once(tones)
    with pytest.raises(DataError, match="0 have 0"):
        write_voice_page(tmp_path / "page.html", "Ada", profile, [], [], report)
    with pytest.raises(DataError, match="10 have 9"):
        write_voice_page(tmp_path / "page.html", "Ada", profile, files, features[1:], report)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/page\.html: "):
        write_voice_page(tmp_path / "file/page.html", "Ada", profile, files, features, report)


@pytest.mark.parametrize(
    "values", [[0.0], [200.0], [200.0, 200.0 + 1e-9], [1e-6, 5e5], [3.0] * 500, list(range(2000)), [0.1, 0.2, 0.3]]
)
def test_bins_hold_every_value_and_stay_within_the_frame(values: list[float]) -> None:
    edges, counts = bins(values)
    assert sum(counts) == len(values)
    assert 1 <= len(counts) <= 30
    svg = bar_chart(edges, counts, "odd", "Hz", [(values[0], "first")], (values[0] - 1, values[0] + 1))
    bars = re.findall(r'recordings?</title> <path d="M ([^"]+) z "', svg)
    assert bars
    for bar in bars:
        x, y = np.array([[float(one) for one in point.split()] for point in bar.split("L")]).T
        assert 0 <= x.min() <= x.max() <= 480
        assert 0 <= y.min() <= y.max() - 1 <= 229


def test_a_histogram_of_nothing_is_left_out() -> None:
    assert bar_chart([0.0, 1.0, 2.0], [0, 0], "nothing") == ""
