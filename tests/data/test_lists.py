"""Lists of recordings as other programs write them: which column is the path, the speaker and the text is decided by
the values, whatever the list and its columns are called."""

from __future__ import annotations

import json
import logging
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import soundfile
from small_corpora import corpus, rows_of, wav

from phonate.config.errors import DataError
from phonate.data.corpora.manifest import check_corpus, list_corpus
from phonate.data.settings import VoiceData

TEXTS = (
    "Author of the danger trail, Philip Steels, etc.",
    "Not at this particular case, Tom, apologized Whittemore.",
    "For the twentieth time that evening the two men shook hands.",
    "Lord, but I'm glad to see you again, Phil.",
    "Will we ever forget it.",
    "God bless 'em, I hope I'll go on seeing them forever.",
    "And you always want to see it in the superlative degree.",
    "Gad, your letter came just in time.",
)
SPEAKERS = ("anna", "ben") * 4
PHONES = tuple(f"ɔːθɚ ʌv ðə dˈeɪndʒɚ tɹˈeɪl {number}" for number in range(8))


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """A folder with wavs/a0.wav to a7.wav."""
    folder = tmp_path_factory.mktemp("lists")
    for number in range(8):
        wav(folder / f"wavs/a{number}.wav", hertz=200 + 10 * number)
    return folder


@pytest.fixture
def voice(sounds, tmp_path):
    """A folder of its own with the same recordings."""
    (tmp_path / "voice").mkdir()
    (tmp_path / "voice/wavs").symlink_to(sounds / "wavs")
    return tmp_path / "voice"


def lines(*columns, separator="|"):
    return "".join(separator.join(map(str, row)) + "\n" for row in zip(*columns, strict=True))


PATHS = tuple(f"wavs/a{number}.wav" for number in range(8))
IDS = tuple(f"a{number}" for number in range(8))
ONE = ("voice",) * 8
NUMBERS = ("0", "1") * 4
SHORT = ("good morning everybody", "hello there", "good night", "come in", "three apples", "go on", "stop", "wait")
RAW = ("3 apples", "4 pears", "5 plums", "6 figs", "7 nuts", "8 dates", "9 limes", "2 kiwis")
SPOKEN = (
    "three apples",
    "four pears",
    "five plums",
    "six figs",
    "seven nuts",
    "eight dates",
    "nine limes",
    "two kiwis",
)
LAYOUTS = {
    "path, text, number": (lines(PATHS, TEXTS, NUMBERS), NUMBERS, TEXTS),
    "path, text, one number": (lines(PATHS, TEXTS, "0" * 8), "0" * 8, TEXTS),
    "path, short text, number": (lines(PATHS, SHORT, NUMBERS), NUMBERS, SHORT),
    "id, text, name": (lines(IDS, TEXTS, SPEAKERS), SPEAKERS, TEXTS),
    "id, name, text": (lines(IDS, SPEAKERS, TEXTS), SPEAKERS, TEXTS),
    "id, name, short text": (lines(IDS, SPEAKERS, SHORT), SPEAKERS, SHORT),
    "path, number, text": (lines(PATHS, NUMBERS, TEXTS), NUMBERS, TEXTS),
    "name, path, text": (lines(SPEAKERS, PATHS, TEXTS), SPEAKERS, TEXTS),
    "path, text, phones": (lines(PATHS, TEXTS, PHONES), ONE, TEXTS),
    "path, text, ARPAbet": (lines(PATHS, TEXTS, ["{HH AH0 L OW1}"] * 8), ONE, TEXTS),
    "id, text, empty": (lines(IDS, TEXTS, [""] * 8), ONE, TEXTS),
    "id, name, empty": (lines(IDS, SPEAKERS, [""] * 8), SPEAKERS, [None] * 8),
    "id, raw, normalised": (lines(IDS, RAW, SPOKEN), ONE, SPOKEN),
    "id, raw in quotes, normalised": (lines(IDS, [f"“{text}”" for text in TEXTS], TEXTS), ONE, TEXTS),
    "id, text, text": (lines(IDS, TEXTS, TEXTS), ONE, TEXTS),
    "GPT-SoVITS": (lines(PATHS, SPEAKERS, ["en"] * 8, TEXTS), SPEAKERS, TEXTS),
    "GPT-SoVITS, one speaker": (lines(PATHS, ["al"] * 8, ["EN"] * 8, TEXTS), ["al"] * 8, TEXTS),
    "id, name, phones, text": (lines(IDS, SPEAKERS, ["{HH AH0 L OW1}"] * 8, TEXTS), SPEAKERS, TEXTS),
    "id, raw, normalised, name": (lines(IDS, TEXTS, TEXTS, SPEAKERS), SPEAKERS, TEXTS),
    "path, name, seconds": (
        lines(PATHS, SPEAKERS, [f"{3.2 + 0.13 * i:.3f}" for i in range(8)]),
        SPEAKERS,
        [None] * 8,
    ),
    "path, mel, text": (lines(PATHS, [f"mels/a{i}.npy" for i in range(8)], TEXTS), ONE, TEXTS),
    "path, seconds, text": (lines(PATHS, [f"{3.2 + 0.13 * i:.3f}" for i in range(8)], TEXTS), ONE, TEXTS),
    "path, times, text": (lines(PATHS, [f"0:0{i % 2}.50" for i in range(8)], TEXTS), ONE, TEXTS),
    "path, date, text": (lines(PATHS, [f"2021-03-0{1 + i % 2}" for i in range(8)], TEXTS), ONE, TEXTS),
    "path, name, short text, date": (lines(PATHS, SPEAKERS, SHORT, ["1.12.2024"] * 8), SPEAKERS, SHORT),
    "path, text, and text is a time": (
        lines(PATHS, [f"1{i}:30" for i in range(8)]),
        ONE,
        [f"1{i}:30" for i in range(8)],
    ),
    "Bert-VITS2": (
        lines(PATHS, SPEAKERS, ["EN"] * 8, TEXTS, ["_ hh ah l ow _"] * 8, ["0 1 2 0"] * 8, ["1 2 2"] * 8),
        SPEAKERS,
        TEXTS,
    ),
    "Chinese": (lines(PATHS, [f"今天我们去公园里散步{i}次" for i in range(8)], SPEAKERS), SPEAKERS, None),
    "tabs": (lines(PATHS, TEXTS, separator="\t"), ONE, TEXTS),
    "tabs with speakers": (lines(PATHS, TEXTS, SPEAKERS, separator="\t"), SPEAKERS, TEXTS),
    "commas and quotes": (lines(PATHS, [f'"{text}"' for text in TEXTS], SPEAKERS, separator=","), SPEAKERS, TEXTS),
    "bars and semicolons": (lines(PATHS, [text.replace(",", ";") for text in TEXTS]), ONE, None),
    "a header with bars": ("audio_file|text|speaker_name\n" + lines(PATHS, TEXTS, SPEAKERS), SPEAKERS, TEXTS),
    "a header with tabs": ("path\tsentence\n" + lines(PATHS, TEXTS, separator="\t"), ONE, TEXTS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["metadata.csv", "train.txt", "speakers.list", "metadata_train.csv", "train.tsv"])
def test_columns_are_told_apart_by_their_values(voice, layout, name):
    content, speakers, texts = LAYOUTS[layout]
    (voice / name).write_text(content)
    for path in (voice, voice / name):
        rows, report = list_corpus(corpus(path))
        assert report.format in {"csv", "ljspeech"}
        assert [row.path.name for row in rows] == [f"a{number}.wav" for number in range(8)]
        assert [row.speaker for row in rows] == list(speakers)
        if texts is not None:
            assert [row.text for row in rows] == list(texts)


def test_a_single_line_with_a_number_behind_its_text(voice):
    (voice / "metadata.csv").write_text("wavs/a0.wav|good morning everybody|0\n")
    assert rows_of(corpus(voice))[0] == {"wavs/a0.wav": ("0", "good morning everybody")}


def test_a_recording_that_comes_between_two_listings_is_there_in_the_second(tmp_path):
    (tmp_path / "metadata.csv").write_text(lines(IDS, SPEAKERS, TEXTS))
    for number in range(8):
        wav(tmp_path / f"wavs/a{number}{'.WAV' if number % 2 else '.wav'}")
        *_, last = (row.path for row in list_corpus(corpus(tmp_path / "metadata.csv"))[0] if row.path.is_file())
        assert last.stem == f"a{number}"


def test_where_two_readings_are_possible_a_line_names_both(voice, caplog):
    (voice / "metadata.csv").write_text(lines(IDS, SHORT, SPOKEN))
    rows, _ = list_corpus(corpus(voice))
    assert [row.text for row in rows] == list(SPOKEN)
    (line,) = [record.getMessage() for record in caplog.records if "first line" in record.getMessage()]
    assert "audio_path|speaker_id|text" in line
    assert "audio_path|text|speaker_id" in line
    (voice / "metadata.csv").write_text("audio_path|text|speaker_id\n" + lines(IDS, SHORT, SPOKEN))
    assert [row.text for row in list_corpus(corpus(voice))[0]] == list(SHORT)


def test_two_columns_of_texts_are_refused_with_what_to_write(voice):
    other = [f"das ist ein anderer Satz mit der Nummer {number}, nicht?" for number in range(8)]
    (voice / "metadata.csv").write_text(lines(IDS, TEXTS, other))
    with pytest.raises(
        DataError, match=r"metadata\.csv: columns 2 and 3 .*audio_path\|text or audio_path\|unused\|text"
    ):
        list_corpus(corpus(voice))
    (voice / "metadata.csv").write_text("audio_path|text|german\n" + lines(IDS, TEXTS, other))
    assert [row.text for row in list_corpus(corpus(voice))[0]] == list(TEXTS)


def test_phones_in_the_place_of_texts_are_named(voice, caplog):
    (voice / "train_list.txt").write_text(lines(PATHS, PHONES, NUMBERS))
    rows, _ = list_corpus(corpus(voice))
    assert [(row.speaker, row.text) for row in rows] == list(zip(NUMBERS, PHONES, strict=True))
    assert "its texts are phones" in caplog.text


def test_one_of_two_lists_is_not_the_corpus_because_the_others_texts_have_commas(voice):
    (voice / "train.txt").write_text(lines(PATHS[:6], TEXTS[:6]))
    (voice / "val.txt").write_text(lines(PATHS[6:], SHORT[6:]))
    rows, _ = list_corpus(corpus(voice))
    assert [(row.text, row.split) for row in rows] == [
        *((text, "train") for text in TEXTS[:6]),
        *((text, "validation") for text in SHORT[6:]),
    ]


def test_a_text_beside_a_recording_is_no_list(tmp_path):
    for name, text in (("yes", "no, yes"), ("no", "yes, no")):
        wav(tmp_path / f"words/{name}.wav")
        (tmp_path / f"words/{name}.txt").write_text(text)
    rows, report = rows_of(corpus(tmp_path / "words"))
    assert report.format == "folder"
    assert {text for _, text in rows.values()} == {"no, yes", "yes, no"}


def test_an_open_quote_is_named_with_the_rows_that_it_swallows(voice):
    rows = [f'{PATHS[i]},anna,"{TEXTS[i]}"' for i in range(8)]
    rows[2] = rows[2][:-1]
    (voice / "metadata.csv").write_text("audio_path,speaker_id,text\n" + "\n".join(rows) + "\n")
    _, report = check_corpus(corpus(voice))
    (problem,) = report.refused
    assert problem.place == f"{voice / 'metadata.csv'}:4"
    assert "lines 4 to 5, 2 rows" in problem.detail
    assert report.usable == 6


def test_rows_within_a_text_are_not_swallowed_in_silence(voice):
    rows = [f"{PATHS[i]},anna,text {i}" for i in range(8)]
    rows[2], rows[5] = f'{PATHS[2]},anna,"text', f'{PATHS[5]},anna,text"'
    (voice / "metadata.csv").write_text("audio_path,speaker_id,text\n" + "\n".join(rows) + "\n")
    _, report = check_corpus(corpus(voice))
    (problem,) = report.refused
    assert problem.place == f"{voice / 'metadata.csv'}:4"
    assert "4 rows" in problem.detail
    assert report.usable == 4


def test_names_in_another_unicode_form(tmp_path):
    names = ("größe0", "größe1")
    composed, decomposed = ([unicodedata.normalize(form, name) for name in names] for form in ("NFC", "NFD"))
    assert composed != decomposed
    folder = tmp_path / "voice"
    for number, name in enumerate(decomposed):
        wav(folder / f"wäv/{name}.wav", hertz=200 + 20 * number)
    wanted = {unicodedata.normalize("NFD", f"wäv/{name}.wav") for name in names}
    for list_name, content in {
        "metadata.csv": "".join(f"wäv/{name}.wav|Ein Satz, größer.\n" for name in composed),
        "train.txt": "".join(f"wäv/{name}.wav|Ein Satz, größer.\n" for name in composed),
        "manifest.jsonl": "".join(
            json.dumps({"audio_filepath": f"wäv/{name}.wav", "text": "Ein Satz."}) + "\n" for name in composed
        ),
    }.items():
        (folder / list_name).write_text(content)
        checked, report = check_corpus(corpus(folder))
        assert report.usable == 2, report.refused
        assert {unicodedata.normalize("NFD", one.row.path.relative_to(folder).as_posix()) for one in checked} == wanted
        assert all(one.row.text for one in checked)
        (folder / list_name).unlink()
    for name in composed:
        (folder / f"wäv/{name}.txt").write_text("Ein Satz.")
    rows, report = rows_of(corpus(folder))
    assert [text for _, text in rows.values()] == ["Ein Satz."] * 2
    assert not report.refused


def test_backslashes_in_lists(voice):
    windows = [path.replace("/", "\\") for path in PATHS]
    (voice / "metadata.csv").write_text(lines(windows, TEXTS))
    _, report = rows_of(corpus(voice))
    assert report.usable == 8
    (voice / "metadata.csv").unlink()
    samples = [{"audio_path": path, "speaker_id": "anna", "text": "Hi."} for path in windows]
    (voice / "manifest.json").write_text(json.dumps(samples))
    _, report = check_corpus(corpus(voice))
    assert (report.format, report.usable) == ("json", 8)


def test_a_list_made_on_another_machine_is_told_so(voice):
    (voice / "metadata.csv").write_text("D:\\voices\\b0.wav|anna|Hello there.\n/home/x/b1.wav|ben|Good night.\n")
    rows, _ = list_corpus(corpus(voice))
    with pytest.raises(DataError, match="missing file"):
        check_corpus(corpus(voice))
    assert len(rows) == 2


def test_a_duration_that_is_not_the_files_is_a_part(voice):
    wav(voice / "long.wav", seconds=2.0)
    rows = [
        {"audio_filepath": "long.wav", "duration": 0.7, "text": "One."},
        {"audio_filepath": "long.wav", "offset": 0.7, "duration": 0.8, "text": "Two."},
        {"audio_filepath": "wavs/a0.wav", "duration": 0.4, "text": "Whole."},
    ]
    (voice / "manifest.json").write_text("\n".join(map(json.dumps, rows)))
    checked, _ = check_corpus(corpus(voice))
    assert {one.row.text: round(one.seconds, 3) for one in checked} == {"One.": 0.7, "Two.": 0.8, "Whole.": 0.4}
    assert checked[2].row.id == "wavs/a0"


@pytest.mark.parametrize("folder", ["/nowhere/output/slicer", "C:\\data\\wavs", "/nowhere/else/wavs"])
def test_a_list_of_a_corpus_that_was_moved_names_its_recordings(folder: str, tmp_path: Path) -> None:
    separator = "\\" if "\\" in folder else "/"
    (tmp_path / "wavs").mkdir()
    lines = []
    for number in range(4):
        soundfile.write(tmp_path / f"wavs/a{number}.wav", np.random.default_rng(number).normal(size=16_000) / 9, 16_000)
        lines.append(f"{folder}{separator}a{number}.wav|anna|EN|good morning number {number}")
    (tmp_path / "gpt.list").write_text("\n".join(lines) + "\n")
    usable, report = check_corpus(VoiceData(path=str(tmp_path)))
    assert [one.row.text for one in usable] == [f"good morning number {number}" for number in range(4)], report.refused


def test_a_corpus_is_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list.csv")
    with pytest.raises(DataError, match="a pipe"):
        check_corpus(VoiceData(path=str(tmp_path / "list.csv")))


# ------------------------------------------------------------------------------- Neighbours of what failed once

SENTENCES = [f"Sentence {word}, which nobody is called." for word in ("one", "two", "three", "four", "five", "six")]


def listed(folder, lines, name="train.txt"):
    """Check a folder of six recordings with a list of them."""
    for number in range(6):
        wav(folder / f"wavs/a{number}.wav", 0.5, 200.0 + 10 * number)
    texts = {"text": SENTENCES, "who": ["anna", "ben"] * 3}
    (folder / name).write_text(
        "".join(lines.format(i=i, text=texts["text"][i], who=texts["who"][i]) + "\n" for i in range(6)),
        encoding="utf-8",
    )
    return check_corpus(corpus(folder))


@pytest.mark.parametrize(
    "lines", ["wavs/a{i}.wav|{text}|1.00", "wavs/a{i}.wav|0.50|{text}", "wavs/a{i}.wav\t{text}\t2.5"]
)
def test_a_column_of_durations_is_no_column_of_speakers(tmp_path, lines):
    checked, report = listed(tmp_path / "voice", lines)
    assert list(report.speakers) == ["voice"]
    assert [one.row.text for one in checked] == SENTENCES


def test_short_raw_texts_are_no_speakers(tmp_path, caplog):
    checked, report = listed(tmp_path / "voice", "a{i}|{i} apples, ok|{text}")
    assert list(report.speakers) == ["voice"]
    assert [one.row.text for one in checked] == SENTENCES
    assert "speaker_id" in caplog.text


def test_where_no_speaker_returns_both_readings_are_told(tmp_path, caplog):
    _, report = listed(tmp_path / "voice", "wavs/a{i}.wav|{text}|7f3a{i}c")
    assert list(report.speakers) == ["voice"]
    assert "read as audio_path|text; if it is audio_path|text|speaker_id, add that" in caplog.text


@pytest.mark.parametrize("name", ["train.lst", "voice.filelist", "VAL.LIST", "filelist"])
def test_lists_with_other_suffixes_or_none_are_seen(tmp_path, name):
    _, report = listed(tmp_path / "voice", "wavs/a{i}.wav|{who}|{text}", name)
    assert set(report.speakers) == {"anna", "ben"}


@pytest.mark.parametrize("lines", ["Wavs/A{i}.WAV|{text}", "C:\\Users\\me\\corpus\\WAVS\\a{i}.wav|{text}"])
def test_lists_from_systems_that_ignore_capitals_are_read(tmp_path, lines):
    checked, _ = listed(tmp_path / "voice", lines)
    assert [one.row.text for one in checked] == SENTENCES


def test_names_that_differ_in_capitals_alone_are_not_confused(tmp_path):
    for name in ("A0.wav", "a0.wav", "a1.wav"):
        wav(tmp_path / "voice" / name, 0.5)
    lines = [f"{name}|{text}\n" for name, text in zip(("A0.WAV", "a0.wav", "A1.WAV"), SENTENCES, strict=False)]
    (tmp_path / "voice/train.txt").write_text("".join(lines))
    checked, report = check_corpus(corpus(tmp_path / "voice"))
    assert [one.row.path.name for one in checked] == ["a0.wav", "a1.wav"]
    assert report.reasons() == {"missing file": 1}


def test_absolute_names_in_another_form_of_unicode_are_read(tmp_path):
    for number in range(3):
        wav(tmp_path / "voice/wavs" / unicodedata.normalize("NFD", f"größe{number}.wav"), 0.5)
    lines = [f"C:\\me\\wavs\\größe{number}.wav|{SENTENCES[number]}\n" for number in range(3)]
    (tmp_path / "voice/train.txt").write_text("".join(lines), encoding="utf-8")
    checked, _ = check_corpus(corpus(tmp_path / "voice"))
    assert [one.row.text for one in checked] == SENTENCES[:3]


def test_every_file_of_a_folder_is_used_or_told(tmp_path, caplog):
    folder = tmp_path / "voice"
    data = wav(folder / "ann/0.wav").read_bytes()
    for name in ("take", "take.bin", "0.wav.bak"):
        (folder / "ann" / name).write_bytes(data)
    (folder / "cover.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    os.mkfifo(folder / "ann/pipe.wav")
    with caplog.at_level(logging.INFO):
        _, report = check_corpus(corpus(folder))
    assert (report.usable, report.reasons()) == (1, {"not a file": 1})
    assert "3 files hold sound" in caplog.text
    assert "1 .jpg" in caplog.text


TRANSCRIPTS = {
    # MLS, and LibriTTS, lie in SPEAKER/CHAPTER
    "mls": ("train/audio/{s}/7/{s}_7_{i:06d}", "train/transcripts.txt", "{s}_7_{i:06d}\t{t}"),
    "libritts": ("train-clean-100/{s}/198/{s}_198_000000_{i:06d}", None, "{t}"),
    "jsut": ("basic5000/{s}/B_{i:04d}", "basic5000/transcript_utf8.txt", "B_{i:04d}:{t}"),
    "aishell": ("wav/train/{s}/BAC{i}", "transcript/all.txt", "BAC{i} {t}"),
    "mailabs": ("by_book/{s}/emma_{i}", "by_book/metadata.csv", "emma_{i}|raw|{t}"),
    "vits": ("DUMMY/{s}/p_{i}", "filelists/train.txt", "DUMMY/{s}/p_{i}.wav|3|{t}"),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcripts_beside_folders_of_speakers(name, sounds, tmp_path, caplog):
    recording, transcript, line = TRANSCRIPTS[name]
    texts = []
    for i, text in enumerate(TEXTS):
        names = {"i": i, "s": 100 + i % 2, "t": text}
        file = tmp_path / "voice" / f"{recording.format(**names)}.wav"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(sounds / f"wavs/a{i}.wav")
        texts.append(line.format(**names))
        if transcript is None:
            file.with_suffix(".normalized.txt").write_text(text)
            file.with_suffix(".original.txt").write_text("another")
    if transcript is not None:
        list_of_texts = tmp_path / "voice" / transcript
        list_of_texts.parent.mkdir(parents=True, exist_ok=True)
        list_of_texts.write_text("\n".join(texts), "utf-16" if name == "vits" else "utf-8")
    with caplog.at_level(logging.INFO):
        checked, report = check_corpus(corpus(tmp_path / "voice"))
    assert not report.refused
    heard = {(one.row.path.resolve().stem, one.row.speaker, one.row.text) for one in checked}
    assert heard == {(f"a{i}", str(100 + i % 2), text) for i, text in enumerate(TEXTS)}
    assert "left alone" not in caplog.text


@pytest.mark.parametrize("line", ["a{i} s{i}", "a{i} 1.25", "a{i}|native speaker", "a{i}.wav\tguang3 zhou1", "{t}"])
def test_what_may_hold_texts_and_is_not_read_is_told(line, voice, caplog):
    (voice / "of").mkdir()
    (voice / "of/list.txt").write_text("".join(line.format(i=i, t=text) + "\n" for i, text in enumerate(TEXTS)))
    checked, _ = check_corpus(corpus(voice))
    assert [one.row.text for one in checked] == [None] * 8
    assert "ignored, not recordings: 1 .txt (such as of/list.txt); no recording has a text" in caplog.text


def test_lists_in_a_folder_beside_that_of_the_recordings_and_in_utf_16(voice):
    (voice / "filelists").mkdir()
    (voice / "filelists/train.txt").write_text(lines(PATHS, TEXTS), "utf-16")
    assert [one.row.text for one in check_corpus(corpus(voice / "filelists/train.txt"))[0]] == list(TEXTS)
    (voice / "filelists/wavs").mkdir()  # those beside it are of another corpus then
    with pytest.raises(DataError, match="8 missing file"):
        check_corpus(corpus(voice / "filelists/train.txt"))


def test_of_many_files_no_more_are_counted_than_were_looked_at(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("phonate.data.corpora.folders.MOST_LOOKED_AT", 2)
    folder = tmp_path / "voice"
    data = wav(folder / "ann/0.wav").read_bytes()
    for number in range(4):
        (folder / "ann" / f"{number}.take").write_bytes(data)
    with caplog.at_level(logging.INFO):
        check_corpus(corpus(folder))
    assert "at least 2 files hold sound" in caplog.text
    assert "2 .take" in caplog.text
    assert "no recordings" not in caplog.text


def test_a_list_that_says_more_seconds_than_there_are_is_told(tmp_path):
    wav(tmp_path / "voice/a.wav", 0.5)
    line = {"audio_filepath": "a.wav", "duration": 4.0, "text": "one two"}
    (tmp_path / "voice/list.jsonl").write_text(json.dumps(line) + "\n")
    _, report = check_corpus(corpus(tmp_path / "voice"))
    (detail,) = [one.detail for one in report.warnings if one.reason == "other length"]
    assert "4.00 s" in detail


def test_texts_in_files_that_a_list_names(tmp_path):
    """NeMo's text_filepath."""
    (tmp_path / "voice/texts").mkdir(parents=True)
    lines = []
    for number, content in enumerate([b"One two,\nthree.", b"\xff\xfe\xfd", None, b"never read"]):
        wav(tmp_path / f"voice/{number}.wav", 0.5, hertz=200 + 20 * number)
        name = f"texts/{number}.txt" if number != 3 else str(tmp_path / "voice/texts/3.txt")
        if content is not None:
            (tmp_path / f"voice/texts/{number}.txt").write_bytes(content)
        lines.append({"audio_filepath": f"{number}.wav", "duration": 0.5, "text_filepath": name})
    lines[3]["text"] = "Four."
    (tmp_path / "voice/list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows, _ = list_corpus(corpus(tmp_path / "voice"))
    assert [row.text for row in rows if not hasattr(row, "reason")] == ["One two, three.", "Four."]
    problems = [row for row in rows if hasattr(row, "reason")]
    assert [(one.id, one.reason, one.detail.partition(":")[0]) for one in problems] == [
        ("1", "unreadable text", "texts/1.txt"),
        ("2", "unreadable text", "texts/2.txt"),
    ]
