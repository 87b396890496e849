"""Corpora of every format, good and bad, down to prepared features."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phonate.audio.decoding import write_audio
from phonate.audio.settings import AudioConfig
from phonate.config.errors import DataError, InputError
from phonate.data.manifest import check_corpus, read_corpus
from phonate.data.prepared import prepare, split
from phonate.data.settings import VoiceData

RATE = 16000


def tone(seconds=0.4, hertz=220.0):
    time = np.arange(int(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def wav(path, seconds=0.4, hertz=220.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_audio(path, tone(seconds, hertz), RATE)
    return path


def corpus(path, **changes) -> VoiceData:
    audio = AudioConfig(sample_rate=RATE, min_seconds=0.1, max_seconds=5.0)
    return VoiceData(path=str(path), audio=audio, cache_dir=str(path.parent / "cache"), **changes)


@pytest.fixture
def folder(tmp_path):
    for speaker in ("ann", "bob"):
        for number in range(3):
            wav(tmp_path / "corpus" / speaker / f"{number}.wav", hertz=200 + 10 * number)
    return tmp_path / "corpus"


def rows_of(data):
    cuts, report = read_corpus(data)
    return {cut.id: (cut.supervisions[0].speaker, cut.supervisions[0].text) for cut in cuts}, report


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


def test_lhotse_manifest_comes_back_as_it_was(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    rows, report = rows_of(corpus(tmp_path / "cuts.jsonl.gz"))
    assert report.format == "cutset"
    assert sorted(rows) == sorted(cut.id for cut in cuts)


def test_a_manifest_that_runs_a_command_is_refused(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    marker = tmp_path / "ran"
    lines = [json.dumps(cut.to_dict()) for cut in cuts]
    document = json.loads(lines[0])
    document["recording"]["sources"][0] = {"type": "command", "channels": [0], "source": f"touch {marker}; cat x"}
    (tmp_path / "bad.jsonl").write_text(json.dumps(document) + "\n")
    with pytest.raises(DataError, match=r"^\S*bad\.jsonl:1: its audio is a command"):
        read_corpus(corpus(tmp_path / "bad.jsonl"))
    assert not marker.exists()


def test_a_path_that_runs_a_command_is_refused(tmp_path, monkeypatch):
    """Lhotse opens `pipe:...` with a shell."""
    import lhotse

    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_corpus(VoiceData(path="pipe:touch ran.jsonl", format="cutset"))
    assert not (tmp_path / "ran.jsonl").exists()
    list(lhotse.CutSet.from_jsonl_lazy("pipe:touch ran.jsonl"))
    assert (tmp_path / "ran.jsonl").exists(), "Lhotse no longer does so: the guard can go"


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


def test_a_part_of_a_recording_is_refused_and_the_others_are_used(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    documents = [cut.to_dict() for cut in cuts]
    documents[0]["duration"] /= 2
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    _, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert (report.usable, report.reasons()) == (5, {"malformed row": 1})


def test_cuts_of_single_channels_of_a_file_are_refused(folder, tmp_path):
    """Read whole, each would be the same mix of all channels."""
    import soundfile

    stereo = np.stack([tone(hertz=200.0), tone(hertz=300.0)], axis=1)
    soundfile.write(folder / "ann/stereo.wav", stereo, RATE)
    cuts, _ = read_corpus(corpus(folder))
    documents = [cut.to_dict() for cut in cuts]
    (both,) = (document for document in documents if document["id"] == "ann/stereo")
    assert both["type"] == "MultiCut"
    for channel in (0, 1):
        single = {**both, "id": f"channel {channel}", "type": "MonoCut", "channel": channel}
        documents.append(json.loads(json.dumps(single)))
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    checked, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert "ann/stereo" in {one.row.id for one in checked}
    assert (report.usable, report.reasons()) == (7, {"malformed row": 2})
    assert all("save the channels as files of their own" in problem.detail for problem in report.refused)


def test_cuts_that_lhotse_would_transform_are_refused(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    fast = [cut.perturb_volume(0.5).to_dict() for cut in cuts][:1]
    plain = [cut.to_dict() for cut in cuts][1:]
    plain[0]["recording"]["transforms"] = []
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, fast + plain)))
    _, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert (report.usable, report.reasons()) == (5, {"malformed row": 1})
    assert "save the cut as a file of its own" in report.refused[0].detail


@pytest.mark.parametrize(
    "bad",
    [
        {"recording": 5},
        {"type": "MonoCut", "recording": 5},
        {"type": "MonoCut", "id": "x", "start": 0, "duration": 0.4, "channel": 0, "supervisions": [5]},
        {"type": "Kut"},
        5,
    ],
    ids=json.dumps,
)
def test_a_line_that_is_no_cut_is_refused_and_the_others_are_used(folder, tmp_path, bad):
    cuts, _ = read_corpus(corpus(folder))
    documents = [*(cut.to_dict() for cut in cuts)]
    documents.insert(2, bad)
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    _, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert (report.usable, report.reasons()) == (6, {"malformed row": 1})
    assert report.refused[0].place.endswith("cuts.jsonl:3")


def test_a_manifest_that_is_cut_short_is_one_clear_error(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    whole = (tmp_path / "cuts.jsonl.gz").read_bytes()
    (tmp_path / "cuts.jsonl.gz").write_bytes(whole[:-40])
    with pytest.raises(DataError, match=r"cuts\.jsonl\.gz: not a CutSet manifest"):
        check_corpus(corpus(tmp_path / "cuts.jsonl.gz"))


def test_librispeech_names_hold_the_speaker(tmp_path):
    for name in ("x/84-1-0000", "x/84-2-0001", "y/19-3-0002"):
        wav(tmp_path / "books" / f"{name}.wav")
    (tmp_path / "books/x/84-2.trans.txt").write_text("84-2-0001 HE SAID\n")
    rows, report = rows_of(corpus(tmp_path / "books"))
    assert report.format == "librispeech"
    assert rows == {"84-1-0000": ("84", None), "84-2-0001": ("84", "HE SAID"), "19-3-0002": ("19", None)}
    wav(tmp_path / "books/y/other.wav")
    assert check_corpus(corpus(tmp_path / "books"))[1].format == "folder"
    assert check_corpus(corpus(tmp_path / "books", format="librispeech"))[1].reasons() == {"malformed row": 1}


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
    with pytest.raises(DataError, match=r"none of 1 recordings.*a\.wav"):
        check_corpus(corpus(tmp_path / "corpus"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"no audio files.*found: nothing"):
        check_corpus(corpus(tmp_path / "nothing"))
    with pytest.raises(DataError, match="no such file or folder"):
        check_corpus(corpus(tmp_path / "gone"))
    with pytest.raises(InputError, match="did you mean ljspeech"):
        check_corpus(corpus(tmp_path / "corpus", format="ljspeach"))


def test_broken_metadata_names_file_and_line(folder):
    (folder / "metadata.json").write_text('{"samples": 3}')
    with pytest.raises(DataError, match=r"metadata\.json.*list"):
        check_corpus(corpus(folder))
    (folder / "metadata.json").write_text('[{"text": "x"}]')
    with pytest.raises(DataError, match=r"none of 1 recordings.*sample 1: no audio_path"):
        check_corpus(corpus(folder))
    (folder / "metadata.json").unlink()
    (folder / "metadata.csv").write_bytes(b"audio_path,speaker_id\n\xff\xfe,x\n")
    with pytest.raises(DataError, match="not UTF-8"):
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
    assert "write it in UTF-8" in refused["detail"]


def test_a_manifest_that_spells_no_utf8_is_refused_but_for_names_of_files(folder, tmp_path):
    os.rename(folder / "bob/0.wav", os.fsencode(folder / "bob") + b"/\xff.wav")
    cuts, _ = read_corpus(corpus(folder))
    documents = [cut.to_dict() for cut in cuts]
    documents[0]["id"] = "\ud83d"
    documents[1]["supervisions"][0]["text"] = "hi \ud83d"
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    prepared = prepare(corpus(tmp_path / "cuts.jsonl"))
    assert {"\\ud83d", "bob/\\udcff"} < set(prepared.index.id)
    (refused,) = prepared.report["refused"]
    assert "the text holds half a character" in refused["detail"]


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


def test_prepared_once_reused_and_made_anew_when_something_changed(folder):
    calls = []
    data = corpus(folder)
    first = prepare(data, lambda *args: calls.append(args))
    assert calls
    calls.clear()
    second = prepare(data, lambda *args: calls.append(args))
    assert not calls
    assert second.folder == first.folder
    wav(folder / "ann/0.wav", 0.8)
    third = prepare(data)
    assert third.fingerprint != first.fingerprint
    other = data.model_copy(update={"audio": AudioConfig(sample_rate=RATE, n_mels=40, min_seconds=0.1)})
    assert prepare(other).cache.features(0).shape[1] == 40


def test_cached_features_are_those_of_the_processor(folder):
    from phonate.audio.processor import AudioProcessor

    data = corpus(folder)
    prepared = prepare(data)
    processor = AudioProcessor(data.audio)
    for position in range(len(prepared.index)):
        waveform = processor.load(prepared.index.path[position])
        assert np.array_equal(prepared.cache.features(position), processor.mel(waveform))
        assert np.abs(prepared.cache.waveform(position) - waveform).max() <= 0.5 / 32767 + 1e-7
        speaker = prepared.speakers[prepared.index.speaker[position]]
        assert prepared.index.id[position].startswith(speaker)
    part = prepared.cache.features(2, 3, 9)
    assert np.array_equal(part, prepared.cache.features(2)[3:9])


def test_a_cache_that_cannot_be_written_is_one_clear_error(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    data = corpus(folder).model_copy(update={"cache_dir": str(tmp_path / "file/cache")})
    with pytest.raises(DataError, match=r"can't write the cache.*data\.cache_dir"):
        prepare(data)


@pytest.mark.parametrize("name", ["audio.int16", "features.float32", "speaker.npy"])
def test_a_damaged_cache_is_never_read(folder, name):
    prepared = prepare(corpus(folder))
    damaged = prepared.folder / name
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"damaged.*delete this folder"):
        prepare(corpus(folder))


def test_a_cache_with_files_of_no_length_is_never_read(folder):
    """What a power cut can leave of files that were not synced."""
    prepared = prepare(corpus(folder))
    for file in prepared.folder.iterdir():
        if file.name == "cuts.jsonl.gz":  # for people, not for training
            continue
        content = file.read_bytes()
        file.write_bytes(b"")
        with pytest.raises(DataError, match=r"damaged.*delete this folder"):
            prepare(corpus(folder))
        file.write_bytes(content)
    assert len(prepare(corpus(folder)).index) == 6


def test_the_disk_has_all_files_before_the_folder_has_its_name(folder, monkeypatch):
    synced, fsync = set(), os.fsync
    data = corpus(folder)

    def noting(descriptor):
        assert all(entry.startswith(".") for entry in os.listdir(data.cache_dir))
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    prepared = prepare(data)
    assert {file.stat().st_ino for file in prepared.folder.iterdir()} <= synced


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(folder, monkeypatch):
    import errno

    from phonate.data.cache import CacheWriter

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(CacheWriter, "add", full)
    data = corpus(folder)
    with pytest.raises(DataError, match=r"disk is full.*data\.cache_dir"):
        prepare(data)
    assert not os.listdir(data.cache_dir)


def test_a_killed_preparation_leaves_nothing_that_counts(folder, monkeypatch):
    from phonate.data import prepared as module

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "to_cuts", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus(folder))
    monkeypatch.undo()
    assert len(prepare(corpus(folder)).index) == 6


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.floats(0.0, 0.6),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_split_keeps_every_speaker_in_training(speakers, share):
    numbers = np.unique(speakers, return_inverse=True)[1]
    ids = [f"clip-{i}" for i in range(len(numbers))]
    train, validation = split(ids, numbers, share)
    assert sorted([*train, *validation]) == list(range(len(ids)))
    assert set(numbers[train]) == set(numbers)
    if share == 0:
        assert len(validation) == 0
    again = split(ids, numbers, share)
    assert np.array_equal(again[1], validation)


def test_speaker_numbers_do_not_depend_on_the_process(folder):
    """Salted string hashes are the usual fault: another number in each process, and collisions."""
    import subprocess
    import sys

    code = (
        "from phonate.data.prepared import prepare; from phonate.data.settings import VoiceData;"
        f"p = prepare(VoiceData(path={str(folder)!r}, cache_dir={str(folder.parent / 'elsewhere')!r}));"
        "print(p.speakers, p.index.speaker.tolist(), hash('ann'))"
    )
    data = VoiceData(path=str(folder), cache_dir=str(folder.parent / "cache"))
    here = prepare(data)
    # This process drew its own salt; the other one has the one that is given here.
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    ).stdout.strip()
    ours, salted = there.rsplit(" ", 1)
    assert ours == f"{here.speakers} {here.index.speaker.tolist()}" == "['ann', 'bob'] [0, 0, 0, 1, 1, 1]"
    assert int(salted) != hash("ann")


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
