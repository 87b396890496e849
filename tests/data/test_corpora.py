"""Corpora of every format, good and bad: their rows, and why a row is refused."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from small_corpora import RATE, corpus, rows_of, tone, wav

from phonate.audio.decoding import write_audio
from phonate.config.errors import DataError, InputError
from phonate.data.corpora.manifest import check_corpus
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData


def test_folder_with_a_sub_folder_a_speaker(folder):
    (folder / "ann/0.txt").write_text("hello\n")
    (folder / "ann/.hidden.wav").write_bytes(b"no audio")
    rows, report = rows_of(corpus(folder))
    assert rows["ann/0"] == ("ann", "hello")
    assert rows["bob/2"] == ("bob", None)
    assert report.format == "folder"
    assert (report.listed, report.usable, report.speakers) == (6, 6, {"ann": 3, "bob": 3})


@pytest.mark.parametrize(
    "wrap", [lambda samples: samples, lambda samples: {"samples": samples}], ids=["list", "object"]
)
def test_both_json_forms(folder, wrap):
    samples = [
        {"audio_path": "ann/0.wav", "speaker_id": "ann", "text": "one", "duration": 0.4},
        {"audio_path": "bob/1.wav", "speaker_id": 7, "text": "two", "duration": 0.4},
    ]
    (folder / "metadata.json").write_text(json.dumps(wrap(samples)))
    for path in (folder, folder / "metadata.json"):
        rows, report = rows_of(corpus(path))
        assert rows == {"ann/0": ("ann", "one"), "bob/1": ("7", "two")}
        assert report.format == "json"


@pytest.mark.parametrize("separator", [",", "|", "\t", ";"])
def test_csv_with_columns_in_any_order(folder, separator):
    lines = [["text", "speaker_id", "audio_path"], ["one", "ann", "ann/0.wav"], ["two", "bob", "bob/1.wav"]]
    (folder / "metadata.csv").write_text("\ufeff" + "\n".join(separator.join(line) for line in lines))
    rows, report = rows_of(corpus(folder / "metadata.csv"))
    assert rows == {"ann/0": ("ann", "one"), "bob/1": ("bob", "two")}
    assert report.format == "csv"


def test_ljspeech_and_its_look_alike(tmp_path):
    for name in ("a1", "a2", "a3", "a4"):
        wav(tmp_path / f"lj/wavs/{name}.wav")
        wav(tmp_path / f"many/wavs/{name}.WAV")
    (tmp_path / "lj/metadata.csv").write_text("a1|Mr. A|Mister A\na2|two|two\na3|three|three\n")
    rows, report = rows_of(corpus(tmp_path / "lj"))
    assert report.format == "ljspeech"
    assert rows["a1"] == ("lj", "Mister A")
    (tmp_path / "many/metadata.csv").write_text("a1|ann|HI\na2|ann|YES\na3|bob|NO\na4|bob|OH\n")
    rows, report = rows_of(corpus(tmp_path / "many"))
    assert report.format == "csv"
    assert rows["a3"] == ("bob", "NO")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("text.wav", b"Hello there,\nfriend", "a text that begins with 'Hello there, friend'; give a folder"),
        ("text.wav", "Hello".encode("utf-16"), "a text that begins with 'Hello'; give a folder"),
        (
            "list.dat",
            b"one two\n",
            "a text that begins with 'one two'; give .*; a list of another format needs data.format",
        ),
        ("program.wav", b"\x7fELF\x02\x01\x01" + bytes(9), r"a file that begins with b'\\x7fELF\\x02"),
        ("empty.wav", b"", "an empty file; give a folder of recordings"),
        ("sound.bin", b"fLaC" + bytes(40), r"a recording \(FLAC\); give a folder of recordings, or a list of them"),
    ],
)
def test_a_file_that_is_no_corpus_is_called_what_it_is(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        check_corpus(corpus(tmp_path / name))
    assert ("data.format" in str(caught.value)) == (name == "list.dat")


MALFORMED = {
    "metadata.json": (json.dumps([{"audio_path": "ann/0.wav", "speaker_id": "ann", "text": 5}, {"text": "x"}, 7]), 2),
    "metadata.csv": ("audio_path,speaker_id,text\nann/0.wav,ann,5\n,ann,x\n\x00bad,ann,x\n", 1),
    "pipes/metadata.csv": ("../ann/0|ann|hello\n../ann/1|ann\n../bob/0|bob|more\n", 1),
    "lj/metadata.csv": ("../ann/0|hello|hello\n../ann/1|a|b|c\n../bob/0|more|more\n", 1),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_row_that_cannot_be_read_is_refused_and_the_others_are_used(folder, name):
    content, malformed = MALFORMED[name]
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    prepared = prepare(corpus(folder / name))
    reasons = prepared.report["reasons"]
    assert reasons["malformed row"] == malformed
    assert prepared.report["listed"] == len(prepared.index) + sum(reasons.values())
    assert all(name in problem["place"] for problem in prepared.report["refused"])
    assert prepared.speakers == {"lj/metadata.csv": ["lj"], "pipes/metadata.csv": ["ann", "bob"]}.get(name, ["ann"])


def test_librispeech_names_hold_the_speaker(tmp_path):
    for name in ("x/84-1-0000", "x/84-2-0001", "y/19-3-0002"):
        wav(tmp_path / "books" / f"{name}.wav")
    (tmp_path / "books/x/84-2.trans.txt").write_text("\n84-2-0001 HE SAID\n \n")
    rows, report = rows_of(corpus(tmp_path / "books"))
    assert report.format == "librispeech"
    assert rows == {"84-1-0000": ("84", None), "84-2-0001": ("84", "HE SAID"), "19-3-0002": ("19", None)}
    wav(tmp_path / "books/y/other.wav")
    assert check_corpus(corpus(tmp_path / "books"))[1].format == "folder"
    assert check_corpus(corpus(tmp_path / "books", format="librispeech"))[1].reasons() == {"malformed row": 1}


def rename(folder, names):
    """Move ann/0.wav and so on to ann/NAME.wav, with a text beside each."""
    for speaker in ("ann", "bob"):
        for number, name in enumerate(names):
            (folder / speaker / f"{number}.wav").rename(folder / speaker / f"{name}.wav")
            (folder / speaker / f"{name}.txt").write_text(f"take {number}")


@pytest.mark.parametrize(
    "names",
    [
        ("2024-03-01", "2024-03-02", "2024-04-01"),
        ("01-11-2024", "02-11-2024", "03-11-2024"),
        ("555-0101-2024", "555-0102-2024", "555-0103-2024"),
        ("1-2-3", "1-2-4", "2-2-1"),
        ("84-121123-0000", "84-121123-0001", "84-121123-0002"),
    ],
)
def test_dates_and_takes_are_no_names_of_librispeech(folder, names, caplog):
    rename(folder, names)
    rows, report = rows_of(corpus(folder))
    assert report.format == "folder"
    assert set(report.speakers) == {"ann", "bob"}
    assert sorted(text for _, text in rows.values()) == sorted(2 * [f"take {number}" for number in range(3)])
    assert ("data.format=librispeech" in caplog.text) == names[0].endswith("-0000")


def test_names_as_librispeech_has_them_are_told_once_where_they_name_other_speakers(folder, caplog, monkeypatch):
    for speaker, number in (("ann", 84), ("bob", 85)):
        for file in (folder / speaker).iterdir():
            file.rename(file.with_name(f"{number}-121123-000{file.stem}.wav"))
    check_corpus(corpus(folder))
    assert "data.format=librispeech" not in caplog.text  # each folder has one speaker's
    (folder / "ann/84-121123-0000.wav").rename(folder / "ann/86-121123-0000.wav")
    monkeypatch.chdir(folder.parent)
    for path in (folder, folder.relative_to(folder.parent)):
        check_corpus(corpus(path))
    assert caplog.text.count("data.format=librispeech") == 1


@pytest.mark.parametrize("above", ["2024/03", "2024", "ann/2024"])
def test_dates_in_folders_of_years_are_no_names_of_librispeech(tmp_path, above):
    for day in ("01", "02"):
        wav(tmp_path / f"notes/{above}/2024-03-{day}.wav", hertz=200 + 20 * int(day))
    assert check_corpus(corpus(tmp_path / "notes"))[1].format == "folder"


@pytest.mark.parametrize("above", ["84/121123", "84", "train-clean-100", "LibriSpeech/dev-other"])
def test_folders_of_librispeech(tmp_path, above):
    for number in range(2):
        wav(tmp_path / f"books/{above}/84-121123-000{number}.wav", hertz=200 + 20 * number)
        (tmp_path / f"books/{above}/84-121123-000{number}.txt").write_text(f"line {number}")
    folders = [tmp_path / "books", tmp_path / "books" / above]
    for path in folders:
        rows, report = rows_of(corpus(path))
        assert report.format == "librispeech"
        assert rows == {f"84-121123-000{number}": ("84", f"line {number}") for number in range(2)}


def test_one_speaker_of_all_recordings(folder, tmp_path):
    rows, report = rows_of(corpus(folder, speaker="carla"))
    assert {speaker for speaker, _ in rows.values()} == {"carla"}
    assert list(rows) == list(rows_of(corpus(folder))[0])
    assert report.speakers == {"carla": 6}
    assert prepare(corpus(folder, speaker="carla")).speakers == ["carla"]
    assert prepare(corpus(folder)).speakers == ["ann", "bob"]
    lines = ["ann/0.wav,ann,0,0.2", "ann/0.wav,bob,0.2,0.4", "bob/1.wav,,,"]
    (folder / "list.csv").write_text("\n".join(["audio_path,speaker_id,start,end", *lines]))
    assert {one.row.speaker for one in check_corpus(corpus(folder, speaker="carla"))[0]} == {"carla"}


@pytest.mark.parametrize(
    ("speaker", "mend"), [("carla", ""), ("ann", "; for recordings of ann alone, give only those as data.path")]
)
def test_one_speaker_in_place_of_several_is_told(folder, caplog, speaker, mend):
    with caplog.at_level("INFO"):
        for _ in range(2):
            check_corpus(corpus(folder, speaker=speaker))
    (told,) = [text for text in caplog.messages if "stands for" in text]
    assert told == f"{folder}: data.speaker={speaker} stands for all 2 speakers (ann, bob){mend}"
    caplog.clear()
    check_corpus(corpus(folder / "ann", speaker=speaker))
    assert "stands for" not in caplog.text


def test_the_same_samples_twice_are_warned_of(folder):
    wav(folder / "bob/copy.wav", hertz=200)
    _, report = check_corpus(corpus(folder))
    assert report.usable == 7
    warned = {p.id: p.detail for p in report.warnings if p.reason == "duplicate content"}
    assert warned["bob/copy"] == "the same samples as 'ann/0'"


def test_a_text_may_hold_unusual_separators(folder):
    (folder / "metadata.csv").write_text("audio_path,speaker_id,text\nann/0.wav,ann,a\u2028b\x85c\n")
    assert rows_of(corpus(folder))[0] == {"ann/0": ("ann", "a\u2028b\x85c")}


def test_every_bad_row_is_refused_counted_and_named(folder):
    (folder / "ann/empty.wav").write_bytes(b"")
    (folder / "ann/text.wav").write_text("this is no audio")
    whole = wav(folder / "ann/whole.wav", 1.0)
    (folder / "ann/cut.wav").write_bytes(whole.read_bytes()[:9000])
    wav(folder / "ann/short.wav", 0.05)
    wav(folder / "ann/long.wav", 6.0)
    write_audio(folder / "ann/silent.wav", np.zeros(RATE, dtype=np.float32), RATE)
    import soundfile

    soundfile.write(folder / "ann/nan.wav", np.full(RATE, np.nan, dtype=np.float32), RATE, subtype="FLOAT")
    _, report = check_corpus(corpus(folder))
    assert report.usable == 7
    assert {p.id.split("/")[1]: p.reason for p in report.refused} == {
        "empty": "empty file",
        "text": "unreadable",
        "cut": "unreadable",
        "short": "too short",
        "long": "too long",
        "silent": "silent",
        "nan": "unreadable",
    }
    assert sum(report.reasons().values()) == report.listed - report.usable
    for problem in report.refused:
        assert problem.id.split("/")[1] in problem.place + problem.detail


def test_rows_without_file_or_speaker_and_duplicates(folder):
    samples = [
        {"audio_path": "ann/0.wav", "speaker_id": "ann"},
        {"audio_path": "ann/0.wav", "speaker_id": "ann"},
        {"audio_path": "ann/1.wav"},
        {"audio_path": "ann/gone.wav", "speaker_id": "ann"},
    ]
    (folder / "metadata.json").write_text(json.dumps(samples))
    _, report = check_corpus(corpus(folder))
    assert report.reasons() == {"duplicate id": 1, "no speaker": 1, "missing file": 1}
    assert all("sample" in problem.place for problem in report.refused)


def test_nothing_usable_is_one_clear_error(tmp_path):
    (tmp_path / "corpus/x").mkdir(parents=True)
    (tmp_path / "corpus/x/a.wav").write_text("no")
    with pytest.raises(DataError, match=r"none of 1 .*a\.wav"):
        check_corpus(corpus(tmp_path / "corpus"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="no audio files"):
        check_corpus(corpus(tmp_path / "nothing"))
    with pytest.raises(DataError, match="gone: no such"):
        check_corpus(corpus(tmp_path / "gone"))
    with pytest.raises(InputError, match="did you mean ljspeech"):
        check_corpus(corpus(tmp_path / "corpus", format="ljspeach"))


def test_broken_metadata_names_file_and_line(folder):
    (folder / "metadata.json").write_text('{"samples": 3}')
    with pytest.raises(DataError, match=r"metadata\.json.*list"):
        check_corpus(corpus(folder))
    (folder / "metadata.json").write_text('[{"text": "x"}]')
    with pytest.raises(DataError, match="sample 1: no audio_path"):
        check_corpus(corpus(folder))
    (folder / "metadata.json").unlink()
    (folder / "metadata.csv").write_bytes(b"audio_path,speaker_id\n\xff\xfe,x\n")
    with pytest.raises(DataError, match=r"metadata\.csv:2: .*UTF-8"):
        check_corpus(corpus(folder))


def test_link_loops_and_strange_names(folder):
    (folder / "ann/loop").symlink_to(folder)
    os.rename(folder / "bob/0.wav", os.fsencode(folder / "bob") + b"/\xff\xfe.WAV")
    checked, report = check_corpus(corpus(folder))
    assert report.usable == 6
    assert any("\\udcff" in one.row.id for one in checked)
    assert len(prepare(corpus(folder)).index) == 6


BROKEN_TEXTS = {
    "text": {"text": "hi \ud83d"},
    "speaker": {"speaker_id": "ann\udcff"},
    "path": {"audio_path": "ann/\ud83d.wav"},
}


@pytest.mark.parametrize("what", BROKEN_TEXTS)
def test_json_that_spells_no_utf8_is_refused_but_for_names_of_files(folder, what):
    os.rename(folder / "bob/0.wav", os.fsencode(folder / "bob") + b"/\xff.wav")
    good = {"audio_path": "ann/0.wav", "speaker_id": "ann", "text": "one"}
    samples = [good, {**good, "audio_path": "bob/\udcff.wav"}, {**good, "id": "\ud83d", "audio_path": "ann/1.wav"}]
    samples.append({**good, "audio_path": "ann/2.wav", **BROKEN_TEXTS[what]})
    (folder / "metadata.json").write_text(json.dumps(samples))
    prepared = prepare(corpus(folder))
    assert prepared.index.id[:] == ["ann/0", "bob/\\udcff", "\\ud83d"]
    (refused,) = prepared.report["refused"]
    assert (refused["reason"], refused["place"]) == ("malformed row", f"{folder / 'metadata.json'}: sample 4")
    assert what in refused["detail"]
    assert "UTF-8" in refused["detail"]


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg", "opus", "m4a", "WAV", "Mp3"])
def test_every_audio_format_in_any_case(tmp_path, suffix):
    import av
    import soundfile

    path = tmp_path / "corpus/ann" / f"a.{suffix}"
    path.parent.mkdir(parents=True)
    if suffix == "m4a":
        with av.open(str(path), "w", format="ipod") as container:
            stream = container.add_stream("aac", rate=RATE, layout="mono")
            frame = av.AudioFrame.from_ndarray(tone(1.0)[None], format="fltp", layout="mono")
            frame.rate = RATE
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    else:
        kind = {"ogg": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS"), "mp3": ("MP3", None)}.get(suffix.lower())
        container, subtype = kind or (suffix.upper(), None)
        soundfile.write(path, tone(1.0), RATE, format=container, subtype=subtype)
    prepared = prepare(corpus(tmp_path / "corpus"))
    assert prepared.speakers == ["ann"]
    assert prepared.cache.waveform(0).size == pytest.approx(RATE, rel=0.15)


@pytest.mark.slow
def test_real_corpora(recordings, tmp_path):
    expected = {
        "asr_en_an4": ("csv", 296, 74),
        "spk_en_librispeech": ("librispeech", 124, 104),
        "tts_en_lj": ("ljspeech", 20, 1),
        "tts_de_kerstin": ("ljspeech", 90, 1),
        "voice_ar_commands": ("csv", 180, 18),
    }
    for name, (kind, clips, speakers) in expected.items():
        _, report = check_corpus(VoiceData(path=str(recordings / name)))
        assert (report.format, report.usable, len(report.speakers)) == (kind, clips, speakers), name
