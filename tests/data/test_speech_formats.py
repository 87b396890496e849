"""Corpora of speech with text, as tools for text-to-speech write them: each is found by itself and read whole."""

from __future__ import annotations

import gzip
import json
import shutil
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_corpora import corpus, rows_of, wav

from phonate.config.errors import DataError, MissingPackageError
from phonate.data.corpora.manifest import check_corpus, detect_format
from phonate.data.corpora.tables import csv_rows, ljspeech_rows
from phonate.data.settings import VoiceData


@pytest.fixture
def voice(tmp_path):
    """A folder `voice` with recordings in wavs/, one of them with spaces in its name."""
    for number, name in enumerate(("a1", "b 2", "c3")):
        wav(tmp_path / f"voice/wavs/{name}.wav", hertz=200 + 30 * number)
    return tmp_path / "voice"


ONE_SPEAKER = {
    "a path with a suffix": "wavs/a1.wav|Grüße.\nwavs/b 2.wav|Two.\nwavs/c3.wav|Three.\n",
    "a path without": "wavs/a1|Grüße.\nwavs/b 2|Two.\nwavs/c3|Three.\n",
    "a name": "a1.wav|Grüße.\nb 2|Two.\nc3.wav|Three.\n",
    "a header": "wav|text\na1.wav|Grüße.\nb 2.wav|Two.\nc3.wav|Three.\n",
}


@pytest.mark.parametrize("content", ONE_SPEAKER.values(), ids=ONE_SPEAKER)
@pytest.mark.parametrize("name", ["metadata.csv", "train.txt", "list.csv"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tables_of_one_speaker(voice, content, name, newline):
    (voice / name).write_bytes(("\ufeff" + content.replace("\n", newline)).encode())
    for path in (voice, voice / name):
        rows, report = rows_of(corpus(path))
        assert sorted(rows.values()) == [("voice", "Grüße."), ("voice", "Three."), ("voice", "Two.")]
        assert not report.refused


@pytest.mark.parametrize("header", ["", "wav|speaker|text\n"])
def test_tables_with_speakers(voice, header):
    (voice / "train.txt").write_text(f"{header}wavs/a1.wav|ann|One.\nwavs/b 2|bob|Two words.\nc3|ann|Three.\n")
    for path in (voice, voice / "train.txt"):
        rows, _ = rows_of(corpus(path))
        assert sorted(rows.values()) == [("ann", "One."), ("ann", "Three."), ("bob", "Two words.")]


def test_two_lists_in_a_folder_are_not_guessed_between(voice):
    for name in ("train.txt", "valid.txt"):
        (voice / name).write_text("wavs/a1.wav|One.\n")
    (voice / "notes.txt").write_text("Recorded at home | with a cold.\n")
    with pytest.raises(DataError, match=r"\(train\.txt, valid\.txt\)"):
        check_corpus(corpus(voice))
    assert check_corpus(corpus(voice / "valid.txt"))[1].usable == 1


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="|\ufeff"), max_size=40).map(
    str.strip
)
SPOKEN = WORDS.filter(lambda text: any(map(str.isalpha, text)))


@given(
    st.lists(WORDS.filter(lambda text: any(map(str.isalpha, text))), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_without_the_separator_comes_back(tmp_path, texts, speakers, newline):
    path = tmp_path / "list.txt"
    middle = "|ann 7|" if speakers else "|"
    path.write_bytes("".join(f"wavs/{n}.wav{middle}{text}{newline}" for n, text in enumerate(texts)).encode())
    rows = list((csv_rows if speakers else ljspeech_rows)(path))
    assert [(row.id, row.speaker, row.text) for row in rows] == [
        (f"wavs/{n}.wav", "ann 7" if speakers else tmp_path.name, text) for n, text in enumerate(texts)
    ]


def test_a_text_beside_each_recording(folder, caplog):
    (folder / "ann/0.txt").write_bytes("\ufeffOne\r\nmore.\r\n".encode())
    (folder / "ann/1.lab").write_text("two\n")
    (folder / "bob/0.lab").write_text("0 1200 sil\n1200 2000 ah\n")
    (folder / "ann/gone.txt").write_text("three\n")
    (folder / "ann/README.txt").write_text("about\n")
    rows, report = rows_of(corpus(folder))
    assert report.format == "folder"
    assert {id: text for id, (_, text) in rows.items() if text} == {"ann/0": "One more.", "ann/1": "two"}
    assert (report.listed, report.usable, report.refused) == (len(rows), len(rows), [])  # notes are no recordings
    assert f"{folder}: 1 text has no recording of the same name: ann/gone.txt" in caplog.text
    flat, _ = rows_of(corpus(folder / "ann"))
    assert flat["0"] == ("ann", "One more.")


LINES = {
    "nemo": [{"audio_filepath": "wavs/a1.wav", "duration": 0.4, "text": "One.", "speaker": 3}],
    "ours": [{"audio_path": "a1.wav", "speaker_id": "3", "text": "One."}],
    "audio": [{"audio": "wavs/a1.wav", "speaker": "3", "sentence": "One."}],
    "path": [{"path": "a1", "speaker_id": "3", "transcript": "One."}],
    "file": [{"file": "wavs/a1.wav", "speaker_id": "3", "text": "One."}],
    "object": [{"audio": {"path": "wavs/a1.wav"}, "speaker_id": "3", "text": "One."}],
}


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
@pytest.mark.parametrize("name", ["metadata.jsonl", "train_manifest.json", "any.jsonl"])
def test_an_object_a_line(voice, lines, name):
    lines = [*lines, {"audio_filepath": "b 2.wav", "text": "Two.", "speaker": "x"}]
    (voice / name).write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")
    for path in (voice, voice / name):
        rows, report = rows_of(corpus(path))
        assert (sorted(rows.values()), report.format) == ([("3", "One."), ("x", "Two.")], "json")


def test_lines_without_speakers_parts_and_bad_lines(voice):
    good = json.dumps({"audio_filepath": "wavs/a1.wav", "text": "One."})
    whole = {"audio_filepath": "wavs/b 2.wav", "text": "Two."}
    parts = [{**whole, "offset": 0, "duration": 0.2}, {**whole, "offset": 0.2, "duration": 0.2}]
    bad = [{**whole, "offset": 1.5, "duration": 2.0}, {**whole, "offset": "soon"}, {**whole, "offset": -1.0}]
    lines = [good, "{broken", *map(json.dumps, parts), *map(json.dumps, bad), "[1]"]
    (voice / "m.jsonl").write_text("\n".join(lines))
    rows, report = rows_of(corpus(voice / "m.jsonl"))
    assert rows == {
        "wavs/a1": ("voice", "One."),
        "wavs/b 2-00000000": ("voice", "Two."),
        "wavs/b 2-00000200": ("voice", "Two."),
    }
    assert report.seconds == pytest.approx(0.8)
    found = {problem.place.rpartition(":")[2]: problem.reason for problem in report.refused}
    assert found == {**dict.fromkeys("2678", "malformed row"), "5": "no such part"}


@pytest.mark.parametrize("columns", ["start,end", "begin,end_time", "offset,duration"])
def test_parts_in_a_table(voice, columns):
    """Each row is its part of the file, not the whole file, and not a duplicate of the row before."""
    second = "0.2,0.4" if "end" in columns else "0.2,0.2"
    lines = [
        f"audio_path,speaker_id,{columns}",
        "b 2,x,0,0.2",
        f"b 2,x,{second}",
        "b 2,x,,",
        "a1,x,0.3,0.1",
        "a1,x,now,1",
    ]
    (voice / "m.csv").write_text("\n".join(lines))
    rows, report = rows_of(corpus(voice / "m.csv"))
    assert {*rows} >= {"b 2-00000000", "b 2-00000200", "b 2"}
    found = {problem.place.rpartition(":")[2]: problem.detail for problem in report.refused}
    assert "start 'now'" in found["6"]
    assert ("5" in found) == ("end" in columns), "from 0.3 to 0.1"


def test_parts_by_start_and_end_in_json(voice):
    part = {"audio_path": "b 2", "speaker_id": "x", "start": 0.2, "end": 0.4, "text": "Two."}
    (voice / "m.jsonl").write_text(json.dumps(part))
    rows, report = rows_of(corpus(voice / "m.jsonl"))
    assert rows == {"b 2-00000200": ("x", "Two.")}
    assert report.seconds == pytest.approx(0.2)


def manifests(voice, names=("a1", "b 2")):
    from lhotse import Recording, RecordingSet, SupervisionSegment, SupervisionSet

    recordings = [Recording.from_file(voice / f"wavs/{name}.wav") for name in names]
    said = [
        SupervisionSegment(f"s-{one.id}", one.id, 0.0, one.duration, text=f"Text of {one.id}.", speaker=None)
        for one in recordings
    ]
    RecordingSet.from_recordings(recordings).to_file(voice / "lj_recordings_train.jsonl.gz")
    SupervisionSet.from_segments(said).to_file(voice / "lj_supervisions_train.jsonl.gz")


def test_recordings_and_supervisions(voice):
    manifests(voice)
    for path in (voice, voice / "lj_recordings_train.jsonl.gz", voice / "lj_supervisions_train.jsonl.gz"):
        rows, report = rows_of(corpus(path))
        assert report.format == "lhotse"
        assert rows == {"a1": ("voice", "Text of a1."), "b 2": ("voice", "Text of b 2.")}


def test_supervisions_are_segments_and_what_is_not_labelled_is_no_clip(voice):
    wav(voice / "wavs/a1.wav", seconds=3.0)
    manifests(voice, ("a1", "b 2", "c3"))
    file = voice / "lj_supervisions_train.jsonl.gz"
    with gzip.open(file, "rt") as opened:
        lines = [json.loads(line) for line in opened]
    lines[0]["duration"] = 0.2
    lines[1]["duration"] = 0.2
    lines += [{**lines[1], "id": "more", "start": 0.2}, {**lines[1], "id": "lost", "recording_id": "nowhere"}]
    with gzip.open(file, "wt") as opened:
        opened.writelines(json.dumps(line) + "\n" for line in [*lines, {"id": 3}])
    checked, report = check_corpus(corpus(voice))
    assert {one.row.id: one.row.text for one in checked} == {"b 2": "Text of b 2. Text of b 2.", "c3": "Text of c3."}
    assert report.reasons() == {"malformed row": 1, "missing file": 1, "unlabelled speech": 1}
    details = " ".join(problem.detail for problem in report.refused)
    assert "seconds 0.2 to 3 are in no segment" in details
    assert "'nowhere' is not in lj_recordings_train.jsonl.gz" in details


@pytest.mark.parametrize("where", ["", "data", "default/train"])
def test_parquet_with_embedded_audio(voice, where):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    sounds = [(voice / f"wavs/{name}.wav").read_bytes() for name in ("a1", "b 2")]
    table = arrow.table(
        {
            "file": ["/home/somebody/x.wav", "/home/somebody/y.wav"],
            "audio": [{"bytes": sounds[0], "path": "x.wav"}, {"bytes": sounds[1], "path": None}],
            "transcription": ["One.", "Two."],
            "speaker_id": [4, 5],
            "start": [[0.1, 0.3], [0.2]],  # of words, or of the recording that the clip was cut from
        }
    )
    folder = voice / "set" / where
    folder.mkdir(parents=True)
    pyarrow.parquet.write_table(table, folder / "train-00000-of-00001.parquet")
    rows, report = rows_of(corpus(voice / "set"))
    assert report.format == "huggingface"
    assert sorted(rows.values()) == [("4", "One."), ("5", "Two.")]
    written = sorted((voice / "cache/audio").rglob("*.wav"))
    assert [file.read_bytes() for file in written] == sounds
    times = [file.stat().st_mtime_ns for file in written]
    rows_of(corpus(voice / "set"))
    assert [file.stat().st_mtime_ns for file in sorted((voice / "cache/audio").rglob("*.wav"))] == times


def test_embedded_audio_is_not_cut_once_more(voice):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    sound = {"bytes": (voice / "wavs/a1.wav").read_bytes(), "path": "x.wav"}
    for name, start in (("seconds", {"start": [0.1]}), ("thousandths", {"start_ms": [100], "duration_ms": [200]})):
        table = arrow.table({"audio": [sound], "text": ["One."], "speaker_id": [4], **start})
        pyarrow.parquet.write_table(table, voice / f"{name}.parquet")
        _, report = rows_of(corpus(voice / f"{name}.parquet"))
        assert report.seconds == pytest.approx(0.4), name


def test_parquet_of_paths_and_parts(voice):
    """Each row is a part of the file whose path it has; times of words are none of its own."""
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = {"audio_path": ["wavs/b 2.wav"] * 2, "speaker": ["x"] * 2, "text": ["One.", "Two."]}
    times = {"start": [0.0, 0.2], "end": [0.2, 0.4]}
    for name, more in (("parts", times), ("words", {"start": [[0.0, 0.1], [0.2]]})):
        pyarrow.parquet.write_table(arrow.table({**columns, **more}), voice / f"{name}.parquet")
    rows, report = rows_of(corpus(voice / "parts.parquet"))
    assert sorted(rows.values()) == [("x", "One."), ("x", "Two.")]
    assert report.seconds == pytest.approx(0.4)
    _, report = rows_of(corpus(voice / "words.parquet"))
    assert report.seconds == pytest.approx(0.8), "the whole recording twice"


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl", "m.parquet"])
def test_columns_that_may_name_speakers_are_told(voice, name, caplog):
    rows = [{"audio_path": f"wavs/{one}.wav", "narrator": one, "text": one} for one in ("a1", "c3")]
    file = voice / name
    if name == "m.csv":
        file.write_text("\n".join(",".join(row) for row in [rows[0], *(row.values() for row in rows)]))
    elif name == "m.jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(sys.modules["pyarrow"].Table.from_pylist(rows), file)
    found, _ = rows_of(corpus(file))
    assert {speaker for speaker, _ in found.values()} == {"voice"}
    assert "are taken to be of one speaker, voice; if the column narrator has the speakers" in caplog.text


def test_which_of_several_texts_of_a_parquet_is_read_is_told(voice, caplog):
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"audio_path": "wavs/a1.wav", "sentence": "1 cup", "normalized_text": "one cup"}
    parquet.write_table(sys.modules["pyarrow"].Table.from_pylist([row]), voice / "m.parquet")
    rows_of(corpus(voice / "m.parquet"))
    assert "texts are read from normalized_text, not from sentence" in caplog.text


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_what_save_to_disk_writes(voice, kind):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(
        {
            "audio": [{"bytes": None, "path": str(voice / "wavs/a1.wav")}, {"bytes": None, "path": None}],
            "sentence": ["One.", "Two."],
        }
    )
    for split in ("train", "test"):
        folder = voice / "saved" / split
        folder.mkdir(parents=True)
        with getattr(arrow.ipc, f"new_{kind}")(folder / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table)
        (folder / "state.json").write_text("{}")
        (folder / "cache-1.arrow").write_bytes(b"not a part of the data")
    (voice / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    rows, report = rows_of(corpus(voice / "saved"))
    assert list(rows.values()) == [("saved", "One."), ("saved", "One.")]
    assert "a1" in rows
    assert report.reasons() == {"malformed row": 2}
    assert report.refused[0].place.endswith("data-00000-of-00001.arrow: row 1")


def test_shards_that_cannot_be_read(voice, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    shard = voice / "set/a.parquet"
    shard.parent.mkdir()
    shard.write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"a\.parquet: not readable"):
        check_corpus(corpus(voice / "set"))
    pyarrow.parquet.write_table(arrow.table({"text": ["x"]}), shard)
    with pytest.raises(DataError, match="`audio`"):
        check_corpus(corpus(voice / "set"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'phonate\[hf\]'"):
        check_corpus(corpus(voice / "set"))


def test_audiofolder(voice):
    (voice / "metadata.csv").write_text('file_name,text\nwavs/a1.wav,"One, two."\nwavs/b 2.wav,Two.\n')
    rows, report = rows_of(corpus(voice))
    assert (rows["wavs/a1"], report.format) == (("voice", "One, two."), "audiofolder")
    (voice / "metadata.csv").unlink()
    for split, name in (("train", "a1"), ("test", "b 2")):
        shutil.copytree(voice / "wavs", voice / split)
        line = json.dumps({"file_name": f"{name}.wav", "transcription": name})
        (voice / split / "metadata.jsonl").write_text(line + "\n")
    rows, report = rows_of(corpus(voice))
    assert report.format == "audiofolder"
    assert rows == {"train/a1": ("voice", "a1"), "test/b 2": ("voice", "b 2")}


def test_a_table_without_its_recordings_is_not_taken_for_a_list(folder):
    (folder / "ages.csv").write_text("ann,31\nbob,45\n")
    assert detect_format(folder) == "folder"


def test_real_tables_of_piper(recordings, tmp_path):
    source = recordings / "tts_de_kerstin"
    lines = (source / "metadata.csv").read_text(encoding="utf-8").splitlines()[:5]
    (tmp_path / "wav").symlink_to(source / "wavs")
    (tmp_path / "list.txt").write_text("".join(f"wav/{line.replace('|', '.flac|', 1)}\r\n" for line in lines))
    rows, report = rows_of(VoiceData(path=str(tmp_path)))
    assert report.usable == 5
    assert [text for _, text in rows.values()] == [line.partition("|")[2] for line in lines]


def test_speechbrain_lists_have_placeholders_ids_and_samples(tmp_path):
    for name in ("a", "b"):
        wav(tmp_path / f"clips/{name}.wav", 3.0)
    csv_file, json_file = tmp_path / "clips/train.csv", tmp_path / "clips/train.json"
    csv_file.write_text(
        "ID,duration,wav,spk_id,wrd\nu1,3.0,$data_root/a.wav,ann,HELLO THERE\nu2,3.0,$data_root/b.wav,bob,DAY\n"
    )
    expected = {"u1": ("ann", "HELLO THERE"), "u2": ("bob", "DAY")}
    assert rows_of(corpus(tmp_path / "clips"))[0] == expected
    csv_file.unlink()
    entries = {
        id: {"wav": f"{{data_root}}/{name}.wav", "length": 3.0, "spk_id": speaker, "words": words}
        for (id, (speaker, words)), name in zip(expected.items(), "ab", strict=True)
    }
    json_file.write_text(json.dumps(entries))
    assert rows_of(corpus(tmp_path / "clips"))[0] == expected
    assert rows_of(corpus(json_file))[0] == expected
    json_file.unlink()
    csv_file.write_text(
        "ID,duration,wav,start,stop,spk_id\nu1,3.0,/x/a.wav,0,16000,ann\nu2,3.0,/x/b.wav,8000,24000,bob\n"
    )
    checked, _ = check_corpus(corpus(csv_file))
    assert [(one.row.start, one.row.end) for one in checked] == [(0.0, 1.0), (0.5, 1.5)]
    csv_file.write_text("ID,wav,start,stop,spk_id\nu1,a.wav,0,1,ann\nu2,b.wav,0.5,2.5,bob\n")
    checked, _ = check_corpus(corpus(csv_file))
    assert [(one.row.start, one.row.end) for one in checked] == [(0.0, 1.0), (0.5, 2.5)]


@pytest.mark.parametrize("inside", ["data/train", "dump/raw/train", "train"])
def test_espnet_and_kaldi_recipes_are_found_from_their_folder(tmp_path, inside):
    wav(tmp_path / "clips/a.wav", 1.0)
    folder = tmp_path / inside
    folder.mkdir(parents=True)
    for name, line in (("wav.scp", "u1 clips/a.wav"), ("text", "u1 HELLO"), ("utt2spk", "u1 ann")):
        (folder / name).write_text(f"{line}\n")
    found, report = rows_of(corpus(tmp_path))
    assert (report.format, found) == ("kaldi", {f"{inside}/u1": ("ann", "HELLO")})
