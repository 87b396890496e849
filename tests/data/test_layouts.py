"""Corpora as they are published: folders, lists and transcripts of many layouts, read by their form alone."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Callable

import pytest
from small_corpora import corpus, wav

from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Row, split_of_name

TEXTS = [
    "The boat left the harbour early.",
    "Nobody saw it leave.",
    "A light wind came from the west.",
    "Later the fog lifted, slowly.",
    "They sang until the evening.",
    "Then all was quiet again.",
    "Two gulls followed the boat.",
    "It never came back.",
]
CHINESE = ["今 jin1 天 tian1", "明 ming2 天 tian1", "好 hao3 儿 er2", "上 shang4 午 wu3"] * 2
KOREAN = "그는 괜찮은 척하려고 애쓰는 것 같았다"
APART = unicodedata.normalize("NFD", KOREAN)
SPEAKERS = ["p225", "p226"]


class Corpus:
    """A folder of eight recordings of two speakers, with what is written beside them."""

    def __init__(self, root):
        self.root = root

    def record(self, name: str) -> list[str]:
        """Recordings of a template, with s the speaker and i the number."""
        names = [name.format(s=SPEAKERS[i % 2], i=i) for i in range(8)]
        for i, one in enumerate(names):
            wav(self.root / one, hertz=200 + 20 * i)
        return names

    def write(self, name: str, *lines: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))

    def each(self, name: str, line: str) -> None:
        """Lines of a template, into a file of a template."""
        lines: dict[str, list[str]] = {}
        for i, text in enumerate(TEXTS):
            facts = {"s": SPEAKERS[i % 2], "i": i, "t": text, "z": CHINESE[i], "u": text.upper(), "n": 90_000 + 7 * i}
            lines.setdefault(name.format(**facts), []).append(line.format(**facts))
        for file, some in lines.items():
            self.write(file, *some)


def emilia(one: Corpus) -> None:
    one.record("B{i}_{s}/mp3/B{i}_{s}_W.wav")
    line = (
        '{{"id": "B{i}_{s}_W", "wav": "B{i}_{s}/mp3/B{i}_{s}_W.wav", "text": "{t}", "speaker": "{s}", "dnsmos": 3.3}}'
    )
    one.each("{s}.jsonl", line)


def emilia_of_languages(one: Corpus) -> None:
    one.record("EN/B{i}_{s}/mp3/B{i}_{s}_W.wav")
    one.each(
        "EN/B.jsonl", '{{"id": "B{i}_{s}_W", "wav": "B{i}_{s}/mp3/B{i}_{s}_W.wav", "text": "{t}", "speaker": "{s}"}}'
    )


def vctk(one: Corpus) -> None:
    one.record("wav48_silence_trimmed/{s}/{s}_00{i}_mic1.flac")
    one.each("txt/{s}/{s}_00{i}.txt", "{t}")
    one.write("speaker-info.txt", "ID  AGE  GENDER", "p225  23  F", "p226  22  M")


def l2_arctic(one: Corpus) -> None:
    for i, text in enumerate(TEXTS):  # each speaker says the same, in files of the same names
        speaker = SPEAKERS[i % 2]
        wav(one.root / f"{speaker}/wav/a{i // 2}.wav", hertz=200 + 20 * i)
        one.write(f"{speaker}/transcript/a{i // 2}.txt", text)


def jvs(one: Corpus) -> None:
    for i in range(8):
        name = f"{SPEAKERS[i % 2]}/wav24kHz16bit/V_{i // 2}.wav"
        wav(one.root / name, hertz=200 + 20 * i)
    for start in (0, 1):
        lines = [f"V_{i // 2}:{TEXTS[i]}" for i in range(start, 8, 2)]
        one.write(f"{SPEAKERS[start]}/transcripts_utf8.txt", *lines)


def arctic(one: Corpus) -> None:
    one.record("cmu_us/{s}/wav/a{i}.wav")
    one.each("cmu_us/{s}/etc/txt.done.data", '( a{i} "{t}" )')


def voxforge(one: Corpus) -> None:
    one.record("{s}/wav/a{i}.wav")
    one.each("{s}/etc/PROMPTS", "{s}/mfc/a{i} {t}")


def esd(one: Corpus) -> None:
    for i in range(8):
        speaker = SPEAKERS[i % 2]
        wav(one.root / f"{speaker}/{['Angry', 'Happy'][i // 4]}/{speaker}_00{i}.wav", hertz=200 + 20 * i)
    lines = [f"{SPEAKERS[i % 2]}_00{i}\t{text}\t{['Angry', 'Happy'][i // 4]}" for i, text in enumerate(TEXTS)]
    for start, speaker in enumerate(SPEAKERS):
        one.write(f"{speaker}/{speaker}.txt", *lines[start::2])


def mailabs(one: Corpus) -> None:
    one.record("en_US/by_book/female/{s}/emma{i}/wavs/emma_{i}.wav")
    one.each("en_US/by_book/female/{s}/emma{i}/metadata.csv", "emma_{i}|raw {t}|{t}")


def timit(one: Corpus) -> None:
    for i, text in enumerate(TEXTS):
        name = f"data/TRAIN/DR1/{SPEAKERS[i % 2]}/SA{i // 2}"
        wav(one.root / f"{name}.WAV", hertz=200 + 20 * i)
        one.write(f"{name}.TXT", f"0 46797 {text}")
        one.write(f"{name}.PHN", "0 3050 h#")


def common_voice(one: Corpus) -> None:
    one.record("clips/c{i}.wav")
    head = "client_id\tpath\tsentence\tup_votes\tlocale"
    lines = [f"{SPEAKERS[i % 2]}\tc{i}.wav\t{text}\t2\ten" for i, text in enumerate(TEXTS)]
    one.write("train.tsv", head, *lines[:6])
    one.write("dev.tsv", head, lines[6])
    one.write("test.tsv", head, lines[7])
    one.write("validated.tsv", head, *lines)
    one.write("clip_durations.tsv", "clip\tduration[ms]", *(f"c{i}.wav\t400" for i in range(8)))


def lists_of_splits(one: Corpus) -> None:
    one.record("audio/{s}/x{i}.wav")
    head = "wav_filename|wav_filesize|transcript|levenshtein|client_id"
    lines = [f"audio/{SPEAKERS[i % 2]}/x{i}.wav|1000|{text}|0.9|{SPEAKERS[i % 2]}" for i, text in enumerate(TEXTS)]
    for name, some in {"train": lines[:6], "dev": lines[6:7], "test": lines[7:]}.items():
        one.write(f"{name}.csv", head, *some)


def voxpopuli(one: Corpus) -> None:
    one.record("en/2009/2009-PLENARY-16-en_10:0{i}.wav")
    one.each("rows", "2009-PLENARY-16-en_10:0{i}\t{t}\t{t}\t{s}\tfemale")
    head = "id\traw_text\tnormalized_text\tspeaker_id\tgender"
    one.write("en/asr_train.tsv", head, *(one.root / "rows").read_text().splitlines())
    (one.root / "rows").unlink()


def sinhala(one: Corpus) -> None:
    one.record("asr/data/00/c{i}.flac")
    one.each("asr/utt_spk_text.tsv", "c{i}\t{s}\t{t}")


def primewords(one: Corpus) -> None:
    names = one.record("audio_files/0/0{i}/x{i}.wav")
    rows = [
        {"id": str(i), "file": f"x{i}.wav", "user_id": SPEAKERS[i % 2], "text": TEXTS[i]} for i in range(len(names))
    ]
    one.write("set1_transcript.json", json.dumps(rows))


def peoples_speech(one: Corpus) -> None:
    one.record("train/clean/{s}/x{i}.wav")
    data = {"duration_ms": [400] * 8, "label": TEXTS, "name": [f"{SPEAKERS[i % 2]}/x{i}.wav" for i in range(8)]}
    one.write("train/clean.json", json.dumps({"identifier": "x", "training_data": data}))


def json_beside(one: Corpus) -> None:
    names = one.record("{s}/x{i}.wav")
    for name, text in zip(names, TEXTS, strict=True):
        one.write(name.replace(".wav", ".json"), json.dumps({"text": text, "duration": 0.4}))


def names_and_texts(one: Corpus) -> None:
    one.record("{s}/x{i}.wav")
    one.write("transcripts.json", json.dumps({f"x{i}": text for i, text in enumerate(TEXTS)}))


def libri_light(one: Corpus) -> None:
    one.record("small/{s}/sea_{i}/x{i}.flac")
    for i, text in enumerate(TEXTS):
        one.write(f"small/{SPEAKERS[i % 2]}/sea_{i}/x{i}.json", json.dumps({"speaker": SPEAKERS[i % 2], "text": text}))


def behind_the_suffix(one: Corpus) -> None:
    names = one.record("{s}/x{i}.wav")
    for name, text in zip(names, TEXTS, strict=True):
        one.write(f"{name}.trn", text, "b l ah", "b l")


def gigaspeech(one: Corpus) -> None:
    wav(one.root / "audio/youtube/P0/Y0.wav", seconds=2.0)
    marked = [text.upper().replace(",", " <COMMA>").replace(".", " <PERIOD>") for text in TEXTS]
    segments = [
        {"sid": f"Y0_{i}", "speaker": SPEAKERS[i % 2], "begin_time": i / 4, "end_time": (i + 1) / 4, "text_tn": text}
        for i, text in enumerate(marked)
    ]
    audios = [{"aid": "Y0", "path": "audio/youtube/P0/Y0.wav", "speaker": "N/A", "segments": segments}]
    one.write("GigaSpeech.json", json.dumps({"dataset": "GigaSpeech", "audios": audios}))
    TEXTS_OF["gigaspeech"] = [text.upper() for text in TEXTS]


def tedlium(one: Corpus) -> None:
    for speaker in SPEAKERS:
        wav(one.root / f"legacy/train/sph/{speaker}.wav", seconds=2.0)
        lines = [
            f"{speaker} 1 {speaker} {i / 4} {(i + 1) / 4} <NA> {TEXTS[i]}"
            for i in range(8)
            if SPEAKERS[i % 2] == speaker
        ]
        one.write(f"legacy/train/stm/{speaker}.stm", *lines)


TEXTS_OF: dict[str, list[str]] = {}
LAYOUTS: list[Callable[[Corpus], None]] = [
    emilia, emilia_of_languages, vctk, l2_arctic, jvs, arctic, voxforge, esd, mailabs, timit, common_voice,
    lists_of_splits, voxpopuli, sinhala, primewords, peoples_speech, json_beside, names_and_texts,
    libri_light, behind_the_suffix, gigaspeech, tedlium,
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.__name__)
def test_recordings_texts_and_speakers_of_a_layout(layout, tmp_path):
    layout(Corpus(tmp_path / "voice"))
    rows, _ = list_corpus(corpus(tmp_path / "voice"))
    assert all(isinstance(row, Row) for row in rows), rows
    expected = TEXTS_OF.get(layout.__name__, TEXTS)
    assert sorted((row.text, row.speaker) for row in rows) == sorted(
        (text, SPEAKERS[i % 2]) for i, text in enumerate(expected)
    )


@pytest.mark.parametrize("layout", [common_voice, lists_of_splits], ids=lambda one: one.__name__)
def test_lists_of_official_splits_are_one_corpus(layout, tmp_path, caplog):
    layout(Corpus(tmp_path / "voice"))
    with caplog.at_level(logging.INFO):
        rows, _ = list_corpus(corpus(tmp_path / "voice"))
    assert sorted(row.split for row in rows) == ["test", *["train"] * 6, "validation"]
    assert ("not read: clip_durations.tsv, validated.tsv" in caplog.text) == (layout is common_voice)


def test_a_list_of_many_columns_without_a_header(tmp_path):
    """FLEURS: number of the sentence, file, text, text normalised, its letters, samples, gender."""
    one = Corpus(tmp_path / "voice")
    one.record("audio/train/{i}123.wav")
    lines = []
    for i in range(8):
        said = TEXTS[i // 2]
        small = "".join(letter for letter in said.lower() if letter.isalpha() or letter == " ")
        letters = " ".join("|".join(small.split()))
        lines.append(
            f"{100 + i // 2}\t{i}123.wav\t{said}\t{small}\t{letters} |\t{90_000 + i}\t{['MALE', 'FEMALE'][i % 2]}"
        )
    one.write("train.tsv", *lines)
    for path in (one.root, one.root / "train.tsv"):
        rows, _ = list_corpus(corpus(path))
        assert {row.speaker for row in rows} == {"voice"}
        assert sorted(row.text for row in rows) == sorted(2 * [line.split("\t")[3] for line in lines[::2]])


def test_syllables_between_characters_and_marks_of_prosody_are_no_text(tmp_path):
    one = Corpus(tmp_path / "voice")
    one.record("train/wav/{s}/{s}000{i}.wav")
    one.each("train/content.txt", "{s}000{i}.wav\t{z}")
    rows, _ = list_corpus(corpus(one.root))
    assert sorted(row.text for row in rows) == sorted(text.replace(" ", "")[0] + text.split()[2] for text in CHINESE)
    assert {row.speaker for row in rows} == set(SPEAKERS)
    assert {row.split for row in rows} == {"train"}
    baker = Corpus(tmp_path / "baker")
    baker.record("Wave/00000{i}.wav")
    lines = [line for i in range(8) for line in (f"00000{i}\t卡尔#2陪外孙{i}#1玩滑梯#4。", "\tka2 er2 pei2")]
    baker.write("ProsodyLabeling/000001-010000.txt", *lines)
    assert {row.text for row in list_corpus(corpus(baker.root))[0]} == {f"卡尔陪外孙{i}玩滑梯。" for i in range(8)}
    english = Corpus(tmp_path / "english")
    english.record("wavs/a{i}.wav")
    texts = [f"We are #1 in town {i}, in F#2." for i in range(8)]
    english.write("transcript.txt", *(f"a{i} {text}" for i, text in enumerate(texts)))
    assert {row.text for row in list_corpus(corpus(english.root))[0]} == {*texts}


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([f"x{i}|医者は{i}手術台の上から|isha wa {i} shujutsudai" for i in range(8)], "医者は0手術台の上から"),
        # as written, in letters taken apart, and in another language
        ([f"x{i}|{KOREAN}{i}.|{APART}{i}.|3.5|He seemed {i} to pretend." for i in range(8)], f"{KOREAN}0."),
    ],
)
def test_a_text_in_its_own_letters_comes_before_one_in_latin_letters(tmp_path, caplog, lines, text):
    one = Corpus(tmp_path / "voice")
    one.record("wavs/x{i}.wav")
    one.write("metadata.csv", *lines)
    rows, _ = list_corpus(corpus(one.root))
    assert rows[0].text == text
    assert "add that as the first line" in caplog.text


def test_a_text_of_another_speaker_is_no_ones_else(tmp_path):
    """A name alone does not tell whose text it is."""
    one = Corpus(tmp_path / "voice")
    wav(one.root / "wavs/bob/3.wav", hertz=300)
    wav(one.root / "wavs/ann/1.wav", hertz=400)
    one.write("txt/ann/3.txt", "Ann says so.")
    one.write("txt/ann/1.txt", "Ann says this.")
    rows, _ = list_corpus(corpus(one.root))
    assert {row.id: row.text for row in rows} == {"wavs/ann/1": "Ann says this.", "wavs/bob/3": None}


def test_the_folder_of_the_speakers_can_be_told(tmp_path, caplog):
    one = Corpus(tmp_path / "voice")
    one.record("wav/{s}/session{i}/0001.wav")
    rows, _ = list_corpus(corpus(one.root))
    assert {row.speaker for row in rows} == {f"session{i}" for i in range(8)}
    assert "set data.speaker_folder=2" in caplog.text
    rows, _ = list_corpus(corpus(one.root, speaker_folder=2))
    assert {row.speaker for row in rows} == set(SPEAKERS)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("metadata_train", "train"),
        ("92_manifest_clean_dev", "validation"),
        ("training-dev", None),
        ("validated", None),
        ("strain", None),
    ],
)
def test_splits_of_names_of_lists(name, split):
    assert split_of_name(name) == split


@pytest.mark.parametrize("written", ["{}", "0:00:0{}"])
def test_segments_that_name_their_session(tmp_path, written):
    """SegLST, of CHiME and MeetEval."""
    wav(tmp_path / "voice/S02.wav", seconds=2.0)
    parts = [
        {"session_id": "S02", "speaker": SPEAKERS[i % 2], "words": text}
        | {"start_time": written.format(i / 4), "end_time": written.format((i + 1) / 4)}
        for i, text in enumerate(TEXTS)
    ]
    (tmp_path / "voice/S02.json").write_text(json.dumps(parts))
    rows, _ = list_corpus(corpus(tmp_path / "voice"))
    assert [(row.text, row.speaker, row.start) for row in rows] == [
        (text, SPEAKERS[i % 2], i / 4) for i, text in enumerate(TEXTS)
    ]


def test_lists_of_splits_in_sub_folders_leave_out_the_others(tmp_path):
    """Common Voice, of several languages."""
    one = Corpus(tmp_path / "voice")
    one.record("en/clips/c{i}.wav")
    head = "client_id\tpath\tsentence"
    lines = [f"{SPEAKERS[i % 2]}\tc{i}.wav\t{text}" for i, text in enumerate(TEXTS)]
    for name, some in {"train": lines[:4], "dev": lines[4:5], "test": lines[5:6], "invalidated": lines[6:]}.items():
        one.write(f"en/{name}.tsv", head, *some)
    rows, _ = list_corpus(corpus(one.root))
    assert [row.text for row in rows] == [*TEXTS[:6], None, None]
    assert [row.split for row in rows] == ["train"] * 4 + ["validation", "test", None, None]


def test_lists_of_splits_beside_the_list_that_is_read_are_told(tmp_path, caplog):
    one = Corpus(tmp_path / "voice")
    one.record("wavs/x{i}.wav")
    one.each("metadata.csv", "x{i}|{t}")
    one.write("metadata_train.csv", f"x0|{TEXTS[0]}")
    with caplog.at_level(logging.INFO):
        assert len(list_corpus(corpus(one.root))[0]) == 8
    assert "not read: metadata_train.csv" in caplog.text


def test_lists_of_several_readers_without_a_name_are_told(tmp_path, caplog):
    """Hi-Fi TTS."""
    one = Corpus(tmp_path / "voice")
    one.record("audio/{s}_clean/7/x{i}.wav")
    lines = [{"audio_filepath": f"audio/{SPEAKERS[i % 2]}_clean/7/x{i}.wav", "text": t} for i, t in enumerate(TEXTS)]
    for first, reader in enumerate(("6097", "92")):
        some = [json.dumps(line) for line in lines[first::2]]
        one.write(f"{reader}_manifest_clean_train.json", *some[:3])
        one.write(f"{reader}_manifest_clean_dev.json", some[3])
    rows, _ = list_corpus(corpus(one.root))
    assert (len(rows), {row.split for row in rows}) == (8, {"train", "validation"})
    assert "no speakers are named in 6097_manifest_clean, 92_manifest_clean" in caplog.text
    (one.root / "92").mkdir()
    for split in ("train", "dev"):
        (one.root / f"92_manifest_clean_{split}.json").rename(one.root / f"92/manifest_{split}.json")
    rows, _ = list_corpus(corpus(one.root / "92"))
    assert [row.speaker for row in rows if row.path.is_file()] == ["92"] * 4
