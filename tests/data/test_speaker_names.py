"""Speakers that nothing but names may say: names of files, and folders that are hardly those of people."""

from __future__ import annotations

import logging

import pytest
from small_corpora import corpus, wav

from phonate.config.errors import DataError, InputError
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.names import speakers_in
from phonate.evaluation.held_out import clips_of
from phonate.tasks.conversion.settings import ConversionData
from phonate.tasks.recognition.settings import RecognitionData


def listed(folder, files, caplog, **options):
    """The speakers of a corpus of such files, by their names, and what is told of them."""
    for number, name in enumerate(files):
        wav(folder / name, hertz=200 + 10 * number)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        rows, _ = list_corpus(corpus(folder, **options))
    told = [record.message for record in caplog.records if "speaker" in record.message]
    return {row.path.name: row.speaker for row in rows}, told


THCHS = [f"data/{speaker}_{number}.wav" for speaker in ("A11", "B2", "D31") for number in range(4)]
ST_CMDS = [f"20170001P{person:05d}A{number:04d}.wav" for person in (1, 2) for number in range(4)]
CREMA = [f"{who}_{what}_{mood}_XX.wav" for who in (1001, 1002) for what in ("DFA", "IEO") for mood in ("ANG", "HAP")]
FSDD = [f"{digit}_{who}_{take}.wav" for digit in range(3) for who in ("jackson", "theo") for take in range(3)]


@pytest.mark.parametrize(
    ("files", "of"),
    [
        (THCHS, lambda name: name.partition("_")[0]),
        (ST_CMDS, lambda name: name[8:14]),
        (CREMA, lambda name: name[:4]),
        (FSDD, lambda name: name.split("_")[1]),
        ([f"ann_{n}.wav" for n in range(3)] + [f"bob_{n}.wav" for n in range(3)], lambda name: name[:3]),
    ],
    ids=["THCHS-30", "ST-CMDS", "CREMA-D", "FSDD", "names"],
)
def test_names_that_look_like_those_of_several_speakers_are_told_with_both_readings(files, of, tmp_path, caplog):
    found, told = listed(tmp_path / "voice", files, caplog)
    assert set(found.values()) == {"voice"}
    (line,) = told
    assert "one speaker: voice; if names of files hold the speaker" in line
    assert "data.speaker=voice" in line
    pattern = line.partition("data.speaker_in_name='")[2].partition("'")[0]
    found, told = listed(tmp_path / "voice", files, caplog, speaker_in_name=pattern)
    assert found == {name: of(name) for name in found}
    assert not told
    assert listed(tmp_path / "voice", files, caplog, speaker="voice") == (dict.fromkeys(found, "voice"), [])
    for number, name in enumerate(files):
        wav(tmp_path / "evaluated" / name, hertz=200 + 10 * number)
    caplog.clear()
    list(clips_of(corpus(tmp_path / "voice"), str(tmp_path / "evaluated")))  # no option can be set there
    assert "; if names of files hold the speaker" in caplog.text
    assert "give each speaker a folder" in caplog.text
    assert "data.speaker" not in caplog.text


@pytest.mark.parametrize(
    "files",
    [
        ["audioAnnaLee11234567890.wav", "audioBenSmith21234567890.wav"],
        ["ann-session-recording-2024-03-01.wav", "ben-session-recording-2024-03-01.wav"],
        ["1-ann_0.wav", "2-ben_0.wav", "3-carl_0.wav"],
    ],
)
def test_a_file_of_each_participant_is_told(files, tmp_path, caplog):
    found, told = listed(tmp_path / "voice", files, caplog)
    assert set(found.values()) == {"voice"}
    (line,) = told
    assert f"if each of its {len(files)} recordings is of another" in line
    assert "set data.speaker_in_name=.+, else data.speaker=voice" in line
    found, told = listed(tmp_path / "voice", files, caplog, speaker_in_name=".+")
    assert (len(set(found.values())), told) == (len(files), [])


def test_takes_and_recordings_of_numbers_are_of_no_participants(tmp_path, caplog):
    assert listed(tmp_path / "a", ["take_1.wav", "take_2.wav"], caplog)[1] == []
    assert listed(tmp_path / "b", ["happy.wav", "sad.wav"], caplog)[1] == []


@pytest.mark.parametrize(
    "stems",
    [
        [f"2024-0{month}-{day:02d}" for month in (1, 2) for day in range(1, 9)],
        [f"{day:02d}-0{month}-2024" for month in (1, 2) for day in range(1, 9)],
        [f"2024030{day}_1{hour}3012" for day in range(1, 4) for hour in range(4)],
        [f"PTT-2024030{day}-WA{number:04d}" for day in (1, 2) for number in range(8)],
        [f"{one}-{two}-{three}" for one in (1, 2) for two in (1, 2) for three in range(4)],
        [f"{sentence:04d}_take{take}" for sentence in range(8) for take in (1, 2)],
        [f"take{take}_{sentence:02d}" for take in (1, 2) for sentence in range(8)],
        [f"chapter_{chapter:02d}_{part:03d}" for chapter in (1, 2) for part in range(8)],
        [f"emma_{chapter:02d}_{part:03d}" for chapter in (1, 2) for part in range(8)],
        [f"arctic_{letter}{number:04d}" for letter in "ab" for number in range(8)],
        [f"{mood}_{number:03d}" for mood in ("angry", "happy") for number in range(8)],
        [f"{split}_{number:03d}" for split in ("train", "test") for number in range(8)],
        [f"{number:06d}" for number in range(8)],
        [f"New Recording {number}" for number in range(8)],
        ["hello", "world_1"],
        [],
    ],
    ids=lambda stems: stems[0] if stems else "none",
)
def test_days_sentences_chapters_and_takes_look_like_nobody(stems):
    assert speakers_in(stems) is None


def test_speakers_that_a_list_or_a_folder_names_are_not_doubted(tmp_path, caplog):
    names = [f"A{person}_{number}.wav" for person in (11, 12) for number in range(3)]
    lines = [f"{name}|ann|said {number}\n" for number, name in enumerate(names)]
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed/metadata.csv").write_text("path|speaker|text\n" + "".join(lines))
    assert set(listed(tmp_path / "listed", names, caplog)[0].values()) == {"ann"}
    assert not caplog.records
    assert not listed(tmp_path / "two", [f"{who}/{name}" for who in ("ann", "bob") for name in names], caplog)[1]


@pytest.mark.parametrize(
    ("folders", "kind", "number", "then"),
    [
        (["amused", "angry", "neutral"], "moods", 0, "voice"),
        (["session 1", "session 2"], "sessions or takes", 0, "voice"),
        (["take1", "take2"], "sessions or takes", 0, "voice"),
        (["ann/session_1", "ann/session_2"], "sessions or takes", 1, "ann"),
        (["wavs/Angry", "wavs/Happy"], "moods", 1, "wavs"),
        (["2019", "2020"], "years or days", 0, "voice"),
    ],
)
def test_folders_that_are_not_called_after_people_are_told(folders, kind, number, then, tmp_path, caplog):
    files = [f"{folder}/{n}.wav" for folder in folders for n in range(2)]
    _, told = listed(tmp_path / "voice", files, caplog)
    (line,) = told
    assert f"seem to be {kind}; if all are of one ({then}), set data.speaker_folder={number}" in line
    found, told = listed(tmp_path / "voice", files, caplog, speaker_folder=number)
    assert (set(found.values()), told) == ({then}, [])
    assert listed(tmp_path / "voice", files, caplog, speaker="ann")[1] == []


def test_folders_of_people_are_not_doubted(tmp_path, caplog):
    for folders in (["anna", "ben"], ["spk1", "spk2"], ["Joy", "Grace"], ["p225", "p226"], ["anna", "happy"]):
        files = [f"{folder}/{n}.wav" for folder in folders for n in range(2)]
        assert listed(tmp_path / folders[0], files, caplog)[1] == []


@pytest.mark.parametrize("day", ["2024-03-0{}", "2024/03/0{}", "2024/0{}", "2024_03_0{}/wav"])
def test_days_are_nobody_and_that_is_told(day, tmp_path, caplog):
    files = [f"{day.format(n)}/{k}.wav" for n in (1, 2) for k in range(2)]
    found, told = listed(tmp_path / "voice", files, caplog)
    assert set(found.values()) == {"voice"}
    assert len(told) == 1
    assert "seem to be days, so all is of one speaker (voice)" in told[0]


def test_the_numbers_of_speakers_that_could_be_years(tmp_path, caplog):
    chapters = (15444, 147956, 1826)  # of which 1998-147956 and 1998-1826 could be times
    files = [f"1998/{chapter}/1998_{chapter}_{n}.wav" for chapter in chapters for n in range(2)]
    found, _ = listed(tmp_path / "voice", files, caplog)
    assert set(found.values()) == {"1998"}


@pytest.mark.parametrize(("by", "told"), [("recording", False), ("speaker", True)])
def test_recognition_is_told_of_doubtful_speakers_where_it_holds_them_out(by, told, tmp_path, caplog):
    for number, name in enumerate(THCHS):
        wav(tmp_path / "voice" / name, hertz=200 + 10 * number)
    list_corpus(RecognitionData(path=str(tmp_path / "voice"), validation_by=by))
    assert ("if names of files hold the speaker" in caplog.text) == told


@pytest.mark.parametrize(
    ("folders", "speakers"),
    [
        (["train/1988", "dev/1988"], ["1988"]),
        (["train-clean-100/1988", "train-clean-100/2004"], ["1988", "2004"]),
        (["LibriX/1988", "LibriX/103"], ["103", "1988"]),
        (["ann/1988", "ann/2004"], ["ann"]),
        (["train/ann/1988", "train/ben/2004"], ["ann", "ben"]),
        (["wav/id10001/1zcIwhmdeo4", "wav/id10002/0_laIeN-Q44"], ["id10001", "id10002"]),
    ],
)
def test_the_folders_of_speakers_whose_names_or_folders_look_like_others(folders, speakers, tmp_path, caplog):
    files = [f"{folder}/{folder[-4:]}_{at}{n}.wav" for at, folder in enumerate(folders) for n in range(2)]
    found, _ = listed(tmp_path / "voice", files, caplog)
    assert sorted(set(found.values())) == speakers


@pytest.mark.parametrize(("names", "told"), [(("spk00", "SPEAKER_01", "7"), True), (("anna", "p225"), False)])
def test_speakers_whom_each_recording_numbers_anew_are_told_to_who_trains_on_voices(names, told, tmp_path, caplog):
    for call in ("a", "b"):
        wav(tmp_path / f"calls/{call}.wav", 4.0, 200 if call == "a" else 300)
        lines = [f"SPEAKER {call} 1 {2 * n} 1.5 <NA> <NA> {name} <NA> <NA>\n" for n, name in enumerate(names)]
        (tmp_path / f"calls/{call}.rttm").write_text("".join(lines))
    data = ConversionData(path=str(tmp_path / "calls"), unit="segment")
    rows, _ = list_corpus(data)
    assert {row.speaker for row in rows} == set(names)
    assert ("recordings of several people, each taken for one person: 7, SPEAKER_01, spk00; " in caplog.text) == told
    caplog.clear()
    list_corpus(corpus(tmp_path / "calls"))
    assert not caplog.records


def test_a_pattern_that_is_wrong_is_one_line(tmp_path, caplog):
    with pytest.raises(InputError, match="is no regular expression"):
        corpus(tmp_path / "voice", speaker_in_name="(")
    with pytest.raises(InputError, match="both name the speakers"):
        corpus(tmp_path / "voice", speaker_in_name="x", speaker_folder=1)
    with pytest.raises(DataError, match=r"data\.speaker_in_name=x: finds nothing in .*a\.wav; correct it"):
        listed(tmp_path / "voice", ["a.wav"], caplog, speaker_in_name="x")
