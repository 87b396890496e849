"""RTTM, STM and Kaldi directories: recordings with segments, and what is wrong with them."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from small_corpora import RATE, corpus, tone, wav

from phonate.config.errors import DataError
from phonate.data.annotations import read_rttm
from phonate.data.corpora.manifest import check_corpus, detect_format, list_corpus
from phonate.data.corpora.rows import Requirements
from phonate.data.corpora.validation import validate
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData

ANY = Requirements()


class Any(VoiceData):
    """Settings of a task that takes recordings of several speakers and any length."""

    @property
    def requirements(self):
        return ANY


def conversations(path, **changes):
    return Any(**{**corpus(path).model_dump(), **changes})


def spans(segments):
    return [(round(one.start, 3), round(one.end, 3), one.speaker) for one in segments]


@pytest.fixture
def meetings(tmp_path):
    for number, name in enumerate(("m1", "m2.Mix-Headset", "m3")):
        wav(tmp_path / f"meetings/audio/{name}.wav", 3.0, 200 + 20 * number)
    (tmp_path / "meetings/train.rttm").write_text(
        "SPKR-INFO m1 1 <NA> <NA> <NA> unknown ann <NA>\n"
        "SPEAKER m1 1 1.0 1.5 <NA> <NA> bob <NA> <NA>\n"
        "SPEAKER m1 1 0.25 1.25 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER m1 1 2.0 0.0 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER m2 1 0.0 3.2 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER gone 1 0.0 1.0 <NA> <NA> ann <NA> <NA>\n"
    )
    return tmp_path / "meetings"


def test_rttm_beside_its_recordings(meetings):
    checked, report = check_corpus(conversations(meetings))
    assert report.format == "rttm"
    found = {one.row.id: (spans(one.segments), one.row.split) for one in checked}
    assert found == {
        "m1": ([(0.25, 1.5, "ann"), (1.0, 2.5, "bob")], "train"),
        "m2": ([(0.0, 3.0, "ann")], "train"),
    }
    assert report.reasons() == {"missing file": 1, "no annotation": 1}
    assert (report.speech_seconds, report.overlap_seconds) == (pytest.approx(5.25), pytest.approx(0.5))
    assert report.speakers == {"ann": 2, "bob": 1}


def test_a_recording_whose_name_is_mistyped_in_its_labels_is_counted_once(meetings):
    _, report = check_corpus(conversations(meetings))
    assert (report.listed, report.recordings) == (4, 3), "m1, m2, and m3, which may be the one called gone"
    (meetings / "audio/m3.wav").unlink()
    _, report = check_corpus(conversations(meetings))
    assert (report.listed, report.recordings) == (3, 3), "gone is missing"


def test_names_to_choose_from_are_listed_once(meetings):
    names = ("m1", "talk", "unlike", "m2.Mix-Header", "m2.Mix-Handset")
    lines = (f"SPEAKER {name} 1 0.0 1.0 <NA> <NA> ann <NA> <NA>\n" for name in names)
    (meetings / "train.rttm").write_text("".join(lines))
    _, report = check_corpus(conversations(meetings))
    told = [one.detail.partition("; ")[2] for one in report.refused if one.reason == "missing file"]
    meant = "did you mean m2.Mix-Headset?"
    assert told == [meant, meant, "choose from 'm1', 'm2', 'm2.Mix-Headset', 'm3'", ""]


@pytest.mark.parametrize("name", ["call (2)", "board meeting 1", "a  b", "take_1 b"])
def test_spaces_of_a_recordings_name_are_underscores_in_its_annotation(tmp_path, name):
    wav(tmp_path / f"calls/{name}.wav", 2.0)
    written = "_".join(name.split())  # as phonate diarize does
    (tmp_path / "calls/calls.rttm").write_text(f"SPEAKER {written} 1 0.5 1.0 <NA> <NA> ann <NA> <NA>\n")
    checked, report = check_corpus(conversations(tmp_path / "calls"))
    assert [spans(one.segments) for one in checked] == [[(0.5, 1.5, "ann")]]
    assert not report.refused


@pytest.mark.parametrize("fields", ["<NA> ann <NA> <NA>", "ann <NA> <NA>"])
def test_a_line_of_rttm_without_a_field_is_not_of_a_speaker_called_na(tmp_path, fields):
    wav(tmp_path / "calls/m.wav", 2.0)
    (tmp_path / "calls/m.rttm").write_text(f"SPEAKER m 1 0.5 1.0 {fields}\n")
    message = "the speaker, field 8, is <NA>; is a field before it missing"
    with pytest.raises(DataError, match=f"m.rttm:1: {message}"):
        read_rttm(tmp_path / "calls/m.rttm")
    with pytest.raises(DataError, match=message):
        check_corpus(conversations(tmp_path / "calls"))


@pytest.mark.parametrize("end", ["", " <NA>", " <NA> <NA>"])
def test_names_with_spaces_in_rttm_are_read_where_na_shows_where_they_end(tmp_path, end):
    wav(tmp_path / "calls/call (2).wav", 2.0)
    line = f"SPEAKER call (2) 1 0.5 1.0 <NA> <NA> ann lee{end}\n"
    (tmp_path / "calls/x.rttm").write_text(line)
    checked, report = check_corpus(conversations(tmp_path / "calls"))
    assert [spans(one.segments) for one in checked] == [[(0.5, 1.5, "ann lee")]]
    assert not report.refused
    (turn,) = read_rttm(tmp_path / "calls/x.rttm")["call (2)"]
    assert (turn.start, turn.end, turn.speaker) == (0.5, 1.5, "ann lee")
    (tmp_path / "calls/x.rttm").write_text(
        f"SPEAKER m 1 0.5 1.0 <NA> <NA> ann lee{end}\nSPEAKER m 1 2 1 a b ann 0.9 1\n"
    )
    assert [one.speaker for one in read_rttm(tmp_path / "calls/x.rttm")["m"]] == ["ann lee", "ann"]


def test_lines_of_rttm_with_too_many_fields_are_told_so(meetings):
    for name in ("x", "y"):
        (meetings / f"{name}.rttm").write_text(f"SPEAKER my call {name} 1 0.5 1.0 word lex ann <NA> <NA>\n")
    _, report = check_corpus(conversations(meetings))
    long = [problem for problem in report.refused if "12 fields, RTTM has 10" in problem.detail]
    assert [problem.place for problem in long] == [f"{meetings / name}.rttm:1" for name in ("x", "y")]
    assert "write _ for them" in long[0].detail
    assert report.usable == 2


def test_rttm_is_indexed_with_all_segments(meetings):
    index = prepare(conversations(meetings)).index
    first = index.id[:].index("m1")
    assert [(one.start, one.end, index.speakers[one.speaker]) for one in index.segments(first)] == [
        (0.25, 1.5, "ann"),
        (1.0, 2.5, "bob"),
    ]
    assert index.speaker.tolist() == [-1, 0]
    assert index.segment_first.tolist() == [0, 2, 3]


def test_uem_limits_recordings_to_its_regions(meetings):
    (meetings / "train.uem").write_text("m1 1 0.5 1.25\nm1 1 2.0 2.75\nm3 NA 0 3\n;; comment\nm3 1 5\n")
    checked, report = check_corpus(conversations(meetings))
    found = {one.row.id: (one.seconds, spans(one.segments)) for one in checked}
    assert found == {
        "m1-00000500": (0.75, [(0.0, 0.75, "ann"), (0.5, 0.75, "bob")]),
        "m1-00002000": (0.75, [(0.0, 0.5, "bob")]),
        "m2": (3.0, [(0.0, 3.0, "ann")]),
        "m3": (3.0, []),
    }
    assert report.reasons() == {"malformed row": 1, "missing file": 1}
    prepared = prepare(conversations(meetings))
    assert prepared.index.recording.tolist() == [0, 0, 1, 2]


def test_regions_of_other_recordings_are_none_of_one_rttm_file(meetings):
    """m3 is in a list of all regions, and of the other file's recordings: speech there is not silence here."""
    (meetings / "test.rttm").write_text("SPEAKER m3 1 0.5 1.0 <NA> <NA> bob <NA> <NA>\n")
    (meetings / "regions").mkdir()
    (meetings / "regions/all.UEM").write_text("m1 1 0.5 1.25\nm2 1 0 1\nm3 1 0 2\n")
    checked, _ = check_corpus(conversations(meetings / "train.rttm"))
    assert {one.row.id: one.seconds for one in checked} == {"m1": 0.75, "m2": 1.0}
    checked, _ = check_corpus(conversations(meetings))
    assert {one.row.id: one.seconds for one in checked} == {"m1": 0.75, "m2": 1.0, "m3": 2.0}
    (meetings / "train.uem").write_text("m1 1 0.5 1.25\nm3 1 0 1\n")
    (meetings / "test.rttm").unlink()
    checked, _ = check_corpus(conversations(meetings / "train.rttm"))
    silent = next(one.row for one in checked if one.row.path.stem == "m3")
    assert (silent.segments, silent.split) == ((), "train")


def test_a_task_of_one_speaker_takes_segments_that_nobody_else_speaks_in(meetings):
    _, report = check_corpus(corpus(meetings))
    assert report.reasons() == {"several speakers": 1, "missing file": 1, "no annotation": 1}
    texts = replace(corpus(meetings).requirements, text=True)
    rows, report = list_corpus(corpus(meetings))
    validate(rows, texts, report)
    (several,) = (one.detail for one in report.refused if one.reason == "several speakers")
    assert "data.unit: segment" in several
    assert "data.transcribe=true" in several  # as segments have no texts either
    (meetings / "train.rttm").write_text(
        "SPEAKER m1 1 0.5 0.5 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER m1 1 1.25 0.5 <NA> <NA> bob <NA> <NA>\n"
        "SPEAKER m1 1 2.0 0.75 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER m1 1 2.25 0.25 <NA> <NA> bob <NA> <NA>\n"
    )
    checked, report = check_corpus(corpus(meetings, unit="segment"))
    found = {one.row.id: (one.seconds, one.row.speaker) for one in checked}
    assert found == {"m1-00000500": (0.5, "ann"), "m1-00001250": (0.5, "bob")}
    assert report.reasons()["overlapped speech"] == 2


BAD_RTTM = {
    "a line without a speaker": ("SPEAKER m1 1 0.0 1.0\n", "malformed row"),
    "no time": ("SPEAKER m1 1 nan 1.0 <NA> <NA> ann <NA> <NA>\n", "malformed row"),
    "a comma in a time": ("SPEAKER m1 1 0,5 1,0 <NA> <NA> ann <NA> <NA>\n", "malformed row"),
    "behind the end": ("SPEAKER m1 1 2.5 9.0 <NA> <NA> ann <NA> <NA>\n", "bad segment"),
    "two channels": (
        "SPEAKER m1 1 0 1 <NA> <NA> ann <NA> <NA>\nSPEAKER m1 2 1 1 <NA> <NA> bob <NA> <NA>\n",
        "several channels",
    ),
}


@pytest.mark.parametrize("name", BAD_RTTM)
def test_a_recording_with_a_bad_annotation_is_refused_and_the_others_are_used(meetings, name):
    content, reason = BAD_RTTM[name]
    good = "SPEAKER m1 1 0.25 1.25 <NA> <NA> ann <NA> <NA>\nSPEAKER m3 1 0.0 3.0 <NA> <NA> ann <NA> <NA>\n"
    (meetings / "train.rttm").write_text(good + content)
    checked, report = check_corpus(conversations(meetings))
    assert [one.row.id for one in checked] == ["m3"]
    assert report.reasons()[reason] == 1
    refused = next(problem for problem in report.refused if problem.reason == reason)
    assert refused.id == "m1"
    if reason in {"malformed row", "bad segment"}:  # at their line, which is the third
        assert refused.place == str(meetings / "train.rttm:3")
    if reason == "malformed row":
        assert refused.detail.endswith("; correct it: because of this line all of m1 is left out")
    if "," in content:
        assert refused.detail.startswith("start 0,5, duration 1,0: expected seconds of 0 or more, such as 3.20;")


def test_a_recording_that_lines_call_with_and_without_its_suffix_is_one(meetings):
    content = "SPEAKER m1 1 0.25 1 <NA> <NA> ann <NA> <NA>\nSPEAKER m1.wav 1 1.5 1 <NA> <NA> bob <NA> <NA>\n"
    (meetings / "train.rttm").write_text(content)
    (meetings / "train.uem").write_text("m1.wav 1 0 2\n")
    (one,), _ = check_corpus(conversations(meetings))
    assert (one.row.id, spans(one.segments)) == ("m1", [(0.25, 1.25, "ann"), (1.5, 2.0, "bob")])


def test_pauses_between_labels_are_no_fault_and_one_of_the_sound_names_its_file(meetings):
    """Both recordings are mostly silent; the second is clipped."""
    for name, level in {"m1": 0.3, "m3": 3.0}.items():
        sound = np.zeros(3 * RATE)
        sound[:RATE] = np.clip(level * np.sin(np.arange(RATE)), -1.0, 1.0)
        soundfile.write(meetings / f"audio/{name}.wav", sound, RATE)
    content = "SPEAKER m1 1 0 1 <NA> <NA> ann <NA> <NA>\nSPEAKER m3 1 0 1 <NA> <NA> bob <NA> <NA>\n"
    (meetings / "train.rttm").write_text(content)
    _, report = check_corpus(conversations(meetings))
    places = [(one.reason, one.place) for one in report.warnings]
    assert places == [("clipping", str(meetings / "audio/m3.wav"))]


@pytest.mark.parametrize(
    ("name", "told"), [("m10", "did you mean m1?"), ("talk", "choose from 'm1', 'm2', 'm2.Mix-Headset', 'm3'")]
)
def test_annotations_of_no_recording_say_which_there_are(meetings, name, told, monkeypatch):
    (meetings / "train.rttm").write_text(f"SPEAKER {name} 1 0.25 1.25 <NA> <NA> ann <NA> <NA>\n")
    with pytest.raises(DataError) as refused:
        check_corpus(conversations(meetings))
    assert str(refused.value).endswith(f"no recording {name!r} under {meetings}; {told}")
    monkeypatch.setattr("phonate.data.corpora.annotation_files._MOST_COMPARED", 2)
    with pytest.raises(DataError, match=f"no recording {name!r} under {meetings}$"):
        check_corpus(conversations(meetings))


def test_files_and_lines_that_are_not_rttm_are_told_with_what_is_expected(meetings):
    (meetings / "sound.rttm").write_bytes(b"RIFF\xff\xfe\x00 \x01\n\x02 \x03\n")
    wide = "SPEAKER m9 1 0.0 1.0 <NA> <NA> ann <NA> <NA>\n"
    (meetings / "wide.rttm").write_bytes(wide.encode("utf-16"))  # as PowerShell's > writes
    with (meetings / "train.rttm").open("a") as file:
        file.write("m3 0.0 1.0 ann\n")
    _, report = check_corpus(conversations(meetings))
    told = [one for one in report.refused if one.reason in {"unreadable", "malformed row"}]
    assert ("m9", "missing file") in {(one.id, one.reason) for one in report.refused}
    assert [(one.place.rpartition("/")[2], one.reason) for one in told] == [
        ("sound.rttm", "unreadable"),
        ("train.rttm:7", "malformed row"),
    ]
    assert all("SPEAKER recording 1 start duration" in one.detail for one in told)
    assert all("correct or remove" in one.detail for one in told)


def test_manifests_that_lhotse_makes_of_rttm_keep_their_segments(meetings, tmp_path):
    """Lhotse counts channels from 0, but keeps the 1 of RTTM for supervisions; its own data sets refuse the two."""
    from lhotse import Recording, RecordingSet, SupervisionSet

    lines = ["SPEAKER m1 1 0.25 1.25 <NA> <NA> ann <NA> <NA>", "SPEAKER m1 1 1.0 1.5 <NA> <NA> bob <NA> <NA>"]
    (tmp_path / "one.rttm").write_text("\n".join(lines) + "\n")
    folder = tmp_path / "manifests"
    folder.mkdir()
    RecordingSet.from_recordings([Recording.from_file(meetings / "audio/m1.wav")]).to_file(folder / "recordings.jsonl")
    supervisions = SupervisionSet.from_rttm(tmp_path / "one.rttm")
    assert {one.channel for one in supervisions} == {1}
    supervisions.to_file(folder / "supervisions.jsonl")
    checked, _ = check_corpus(conversations(folder))
    (row,) = (one.row for one in checked)
    assert spans(row.segments) == [(0.25, 1.5, "ann"), (1.0, 2.5, "bob")]


def test_annotations_of_one_recording_in_two_files_are_one_clear_error(meetings):
    (meetings / "system.rttm").write_text("SPEAKER m1 1 0.0 1.0 <NA> <NA> 1 <NA> <NA>\n")
    with pytest.raises(DataError, match=r"m1 .*system\.rttm"):
        list_corpus(conversations(meetings))
    assert check_corpus(conversations(meetings / "train.rttm"))[1].usable == 2


def test_a_name_that_is_not_utf8_refuses_its_recording_only(meetings):
    (meetings / "other.rttm").write_bytes(b"SPEAKER m3 1 0.0 3.0 <NA> <NA> a\xff <NA> <NA>\n")
    _, report = check_corpus(conversations(meetings))
    assert (report.usable, report.reasons()["malformed row"]) == (2, 1)
    assert any("the speaker 'a" in problem.detail for problem in report.refused)


def test_real_meetings(recordings):
    checked, report = check_corpus(Any(path=str(recordings / "diar_en_ami")))
    assert (report.format, report.usable, report.segments, len(report.speakers)) == ("rttm", 10, 77, 21)
    assert (round(report.speech_seconds, 1), round(report.overlap_seconds, 1)) == (177.5, 40.3)
    lines = (recordings / "diar_en_ami/ref.rttm").read_text(encoding="utf-8").split("\n")
    for one in checked:
        listed = sorted(float(line.split()[3]) for line in lines if line.startswith(f"SPEAKER {one.row.id} "))
        assert [segment.start for segment in one.segments] == pytest.approx(listed)


@pytest.fixture
def talks(tmp_path):
    wav(tmp_path / "talks/sph/talk.wav", 4.0)
    stereo = np.stack([tone(2.0, 200.0), tone(2.0, 300.0)], axis=1)
    soundfile.write(tmp_path / "talks/sph/call.wav", stereo, RATE)
    (tmp_path / "talks/stm").mkdir()
    (tmp_path / "talks/stm/dev.stm").write_text(
        ";; a comment\n"
        "talk 1 ann 0.5 1.5 <o,f0,female> good morning\n"
        "talk 1 inter_segment_gap 1.5 2.0 <o,,unknown> ignore_time_segment_in_scoring\n"
        "talk 1 ann 2.0 3.5 <o,f0,female> how are you\n"
        "call A bob 0.0 1.0 hello\n"
        "call B eve 1.0 2.0 <o> yes\n"
    )
    return tmp_path / "talks"


def test_stm_lines_are_utterances(talks):
    checked, report = check_corpus(corpus(talks))
    assert report.format == "stm"
    found = {one.row.id: (one.row.speaker, one.row.text, one.seconds, one.row.channel) for one in checked}
    assert found == {
        "talk-00000500": ("ann", "good morning", 1.0, None),
        "talk-00002000": ("ann", "how are you", 1.5, None),
        "call/a-00000000": ("bob", "hello", 1.0, 0),
        "call/b-00001000": ("eve", "yes", 1.0, 1),
    }
    assert report.reasons() == {}
    prepared = prepare(corpus(talks))
    position = prepared.index.id[:].index("call/b-00001000")
    assert np.abs(prepared.cache.waveform(position) - tone(1.0, 300.0) / 0.3).max() < 1e-3
    whole = conversations(talks, unit="recording")
    assert sorted(one.row.id for one in check_corpus(whole)[0]) == ["call/a", "call/b", "talk"]


def test_stm_numbers_of_channels_and_one_channel_alone(talks):
    (talks / "stm/dev.stm").write_text("call 1 bob 0.0 1.0 hello\ncall 2 eve 1.0 2.0 yes\n")
    checked, _ = check_corpus(corpus(talks))
    assert {one.row.id: one.row.channel for one in checked} == {"call/1-00000000": 0, "call/2-00001000": 1}
    (talks / "stm/dev.stm").write_text("call B eve 1.0 2.0 yes\ntalk A ann 0.5 1.5 good morning\n")
    checked, _ = check_corpus(corpus(talks))
    assert {one.row.id: one.row.channel for one in checked} == {"call-00001000": 1, "talk-00000500": None}


def test_alternatives_and_marks_of_stm_are_no_words(talks, caplog):
    line = "talk 1 ann 0.5 1.5 <o,f0,male> i { wanna / want to / @ } go (%hesitation) home <unk> {SMOKE} %uh 5 %\n"
    (talks / "stm/dev.stm").write_text(
        line + "talk 1 ann 2 2.5 { @ / uh } yes  indeed\ntalk 1 ann 2.5 3 a  plain text\n"
    )
    checked, _ = check_corpus(corpus(talks))
    assert [one.row.text for one in checked] == ["i wanna go home 5 %", "yes indeed", "a  plain text"]
    assert "2 texts hold alternatives" in caplog.text


def test_a_recording_with_a_bad_line_of_stm_is_refused(talks):
    with (talks / "stm/dev.stm").open("a") as file:
        file.write("call A bob 1.0 0.5 wrong\n")
    _, report = check_corpus(corpus(talks))
    assert (report.usable, report.reasons()) == (2, {"malformed row": 1})


@pytest.fixture
def kaldi(tmp_path):
    wav(tmp_path / "egs/wavs/a.wav", 3.0, 200)
    wav(tmp_path / "egs/wavs/b.wav", 2.0, 250)
    folder = tmp_path / "egs/data/train"
    folder.mkdir(parents=True)
    (folder / "wav.scp").write_text(
        f"a wavs/a.wav\nb {tmp_path / 'egs/wavs/b.wav'}\npiped wav-reverberate x.sph - |\nlost wavs/lost.wav\nbad\n"
    )
    (folder / "segments").write_text(
        "ann-1 a 0.5 1.5\nbob-1 a 1.25 2.5\nann-2 b 0 2.0\nx piped 0 1\ny lost 0 1\nz nowhere 0 1\n"
    )
    (folder / "utt2spk").write_text("ann-1 ann\nbob-1 bob\nann-2 ann\nx x\ny y\nz z\n")
    (folder / "text").write_text("ann-1 good morning\nbob-1 hello\nann-2 yes\n")
    return folder


def test_kaldi_utterances(kaldi):
    rows, _ = list_corpus(conversations(kaldi, unit="recording"))
    assert sum(hasattr(row, "segments") for row in rows) == 3
    checked, report = check_corpus(conversations(kaldi))
    assert report.format == "kaldi"
    found = {one.row.id: (one.row.speaker, one.row.text, one.seconds, one.row.split) for one in checked}
    assert found == {
        "ann-1": ("ann", "good morning", 1.0, "train"),
        "bob-1": ("bob", "hello", 1.25, "train"),
        "ann-2": ("ann", "yes", 2.0, "train"),
    }
    assert report.reasons() == {"missing file": 2, "command": 1, "malformed row": 1}
    assert "wav-reverberate" in next(problem.detail for problem in report.refused if problem.reason == "command")


def test_kaldi_names_in_another_unicode_form(kaldi):
    folder = kaldi.parents[1]
    (folder / "wavs/a.wav").rename(folder / "wavs" / unicodedata.normalize("NFD", "größe.wav"))
    (kaldi / "wav.scp").write_text("a wavs/größe.wav\n")
    (kaldi / "segments").write_text("ann-1 a 0.5 1.5\n")
    checked, report = check_corpus(conversations(kaldi))
    assert [one.seconds for one in checked] == [1.0], report.refused


def test_kaldi_segments_to_the_end_and_segments_of_parts(kaldi):
    (kaldi / "segments").write_text("ann-1 a 0.5 1.5\nbob-1 a 2.0 -1\n")
    checked, _ = check_corpus(corpus(kaldi))
    assert {one.row.id: one.seconds for one in checked} == {"ann-1": 1.0, "bob-1": 1.0}
    import json

    part = {"audio_filepath": "../../wavs/a.wav", "offset": 0.5, "duration": 1.0, "text": "hello", "speaker": "ann"}
    (kaldi / "nemo.jsonl").write_text(json.dumps(part))
    checked, _ = check_corpus(corpus(kaldi / "nemo.jsonl", unit="segment"))
    assert [(one.row.start, one.row.end, one.seconds) for one in checked] == [(0.5, 1.5, 1.0)]


def one_file_of_two_sides(kaldi, sides):
    """Without segments: recordings call-A and call-B, of which `sides` are listed."""
    stereo = np.stack([tone(2.0, 200.0), tone(2.0, 300.0)], axis=1)
    soundfile.write(kaldi / "call.wav", stereo, RATE)
    (kaldi / "segments").unlink()
    for name, line in {
        "wav.scp": "call-{} call.wav\n",
        "reco2file_and_channel": "call-{0} call {0}\n",
        "utt2spk": "call-{0} speaker-{0}\n",
    }.items():
        (kaldi / name).write_text("".join(line.format(side) for side in sides))


def test_kaldi_without_segments_and_with_channels(kaldi):
    one_file_of_two_sides(kaldi, "AB")
    prepared = prepare(corpus(kaldi.parent))
    assert prepared.index.id[:] == ["train/call-A", "train/call-B"]
    assert np.abs(prepared.cache.waveform(1) - tone(2.0, 300.0) / 0.3).max() < 1e-3


def test_kaldi_with_one_channel_of_a_stereo_file(kaldi):
    """Its other side is in another folder, or in none."""
    one_file_of_two_sides(kaldi, "B")
    prepared = prepare(corpus(kaldi))
    assert np.abs(prepared.cache.waveform(0) - tone(2.0, 300.0) / 0.3).max() < 1e-3


def test_kaldi_channels_that_are_files_of_their_own(kaldi):
    (kaldi / "segments").unlink()
    (kaldi / "wav.scp").write_text("call-A wavs/a.wav\ncall-B wavs/b.wav\n")
    (kaldi / "reco2file_and_channel").write_text("call-A call A\ncall-B call B\n")
    (kaldi / "utt2spk").write_text("call-A ann\ncall-B bob\n")
    checked, report = check_corpus(corpus(kaldi))
    assert not report.refused
    assert [(one.row.id, one.row.channel, one.seconds) for one in checked] == [
        ("call-A", None, 3.0),
        ("call-B", None, 2.0),
    ]


def test_a_format_of_a_plug_in_recognises_its_corpora(tmp_path):
    from phonate.config.registry import load_plugin
    from phonate.data.settings import CORPORA

    wav(tmp_path / "odd/a.wav")
    (tmp_path / "odd/corpus.odd").write_text("a.wav ann\n")
    plugin = tmp_path / "odd_format.py"
    plugin.write_text(
        "from phonate.data.corpora.rows import Row\n"
        "from phonate.data.settings import CORPORA\n"
        "def recognises(path):\n"
        "    return (path / 'corpus.odd').is_file()\n"
        "def odd_rows(path):\n"
        "    for line in (path / 'corpus.odd').read_text().splitlines():\n"
        "        name, speaker = line.split()\n"
        "        yield Row.clip(name, path / name, speaker, None, 'corpus.odd:1')\n"
        "CORPORA.register('odd', odd_rows)\n"
    )
    assert detect_format(tmp_path / "odd") == "folder"
    try:
        load_plugin(plugin)
        assert detect_format(tmp_path / "odd") == "odd"
        assert check_corpus(corpus(tmp_path / "odd"))[1].speakers == {"ann": 1}
    finally:
        CORPORA._registered.pop("odd", None)


def test_data_check_counts_segments_and_overlap(recordings, capfd):
    from phonate.cli import main

    assert main(["data", "check", str(recordings / "diar_en_ami")]) == 0
    printed = capfd.readouterr().out
    assert "(rttm): 10 of 10 recordings can be used, 5.0 min, 21 speakers" in printed
    assert "77 segments: 3.0 min of speech (59 % of the time), 40 s of it (23 %) with several speakers" in printed
    assert "mostly silent" not in printed


def test_nemo_manifests_for_diarization_are_the_rttm_and_uem_that_they_name(tmp_path):
    for name in ("a", "b", "c"):
        wav(tmp_path / f"wavs/{name}.wav", 3.0)
    labels = tmp_path / "labels"
    labels.mkdir()
    (labels / "all.rttm").write_text(
        "SPEAKER a 1 0.5 1 <NA> <NA> ann <NA> <NA>\nSPEAKER a 1 1 1 <NA> <NA> bob <NA> <NA>\n"
        "SPEAKER b 1 0 1 <NA> <NA> ann <NA> <NA>\nSPEAKER b 1 2 1 <NA> <NA> eve <NA> <NA>\n"
    )
    (labels / "b.uem").write_text("b 1 1.5 3\n")
    common = {"offset": 0, "duration": None, "label": "infer", "text": "-", "num_speakers": 2}
    lines = [
        {**common, "audio_filepath": "../wavs/a.wav", "rttm_filepath": "all.rttm", "uem_filepath": None},
        {**common, "audio_filepath": "../wavs/b.wav", "rttm_filepath": "all.rttm", "uem_filepath": "b.uem"},
        {**common, "audio_filepath": "../wavs/c.wav", "rttm_filepath": None},
        {**common, "audio_filepath": "../wavs/a.wav", "rttm_filepath": "all.rttm", "offset": 1.6, "duration": 1.0},
    ]
    (labels / "manifest.json").write_text("\n".join(map(json.dumps, lines)))
    rows, report = list_corpus(conversations(labels / "manifest.json"))
    assert report.format == "nemo"
    assert [problem.reason for problem in rows if not hasattr(problem, "segments")] == ["no annotation"]
    found = {one.id: (one.start, one.end, one.speakers) for one in rows if hasattr(one, "segments")}
    assert found == {
        "a": (0.0, None, ("ann", "bob")),
        "b": (1.5, 3.0, ("eve",)),
        "a-00001600": (1.6, 2.6, ("bob",)),
    }
