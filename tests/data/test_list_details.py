"""Lists, texts and captions with what people's programs leave in them: headers of any words, takes, addresses."""

from __future__ import annotations

import json
import logging

import pytest
from small_corpora import corpus, wav

from phonate.config.errors import DataError, InputError
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Problem, Requirements, Row
from phonate.data.corpora.validation import validate
from phonate.tasks.recognition.settings import RecognitionData
from phonate.workflows.align import pairs_of

TEXTS = ["The boat left the harbour early.", "Nobody saw it leave.", "A light wind came up.", "Later the fog lifted."]
SPEAKERS = ["anna", "ben"] * 2


@pytest.fixture
def voice(tmp_path):
    """A folder with wavs/a0.wav to a3.wav."""
    for number in range(4):
        wav(tmp_path / f"voice/wavs/a{number}.wav", hertz=200 + 20 * number)
    return tmp_path / "voice"


def read(folder):
    """Path -> speaker and text."""
    rows, _ = list_corpus(corpus(folder))
    assert all(isinstance(row, Row) and row.path.is_file() for row in rows), rows
    return {row.path.name: (row.speaker, row.text) for row in rows}


def all_of(suffix="wav"):
    return {f"a{i}.{suffix}": (SPEAKERS[i], TEXTS[i]) for i in range(4)}


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("Datei;Sprecher;Satz\n", False),
        ("clip_file;talker_name;what is said\n", True),
        ("Archivo;Hablante;Frase\n", False),
        (" Audio Path ; Speaker-ID ; Text \n", False),
        ("sep=;\nfile;speaker;text\n", False),
        ("\nfile;speaker;text\n", False),
    ],
)
def test_headers_of_any_words(voice, caplog, head, said):
    lines = "".join(f'wavs/a{i}.wav;{SPEAKERS[i]};"{TEXTS[i]}"\n' for i in range(4))
    (voice / "liste.csv").write_text(head + lines)
    assert read(voice) == all_of()
    assert ("is taken for a header" in caplog.text) == said


def test_the_only_column_of_sentences_is_the_texts(voice, caplog):
    lines = (f'{i},wavs/a{i}.wav,"{TEXTS[i]}"\n' for i in range(4))
    (voice / "list.csv").write_text("No.,path,What I said\n" + "".join(lines))
    assert {text for _, text in read(voice).values()} == {*TEXTS}
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "texts are read from What I said, the only column of sentences"
    ]


def test_columns_that_may_be_texts_and_speakers_are_told_at_once_as_they_are_called(voice, caplog):
    lines = (f"wavs/a{i}.wav,{SPEAKERS[i]},{['yes', 'no'][i % 2]}\n" for i in range(4))
    (voice / "list.csv").write_text("path,Who it is,What I said\n" + "".join(lines))
    assert {text for _, text in read(voice).values()} == {None}
    assert (
        "all recordings are taken to be of one speaker, voice and no column is called as texts are; if one of the "
        "columns Who it is, What I said has the speakers, rename it speaker_id; if one of the columns Who it is, What "
        "I said has the texts, rename it text"
    ) in caplog.text


@pytest.mark.parametrize("head", ["Nr;Datei;Text\n", "Nr;Clip;Was ich sage\n", "No;File;Sentence\n", ""])
def test_numbers_of_rows_are_no_speakers(voice, caplog, head):
    lines = "".join(f'{i + 1};wavs/a{i}.wav;"{TEXTS[i]}"\n' for i in range(4))
    (voice / "list.csv").write_text(head + lines)
    assert read(voice) == {f"a{i}.wav": ("voice", TEXTS[i]) for i in range(4)}
    assert "speaker" not in caplog.text


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("", "read as unused;audio_path;text; if it is speaker_id;audio_path;text, add that as the first line"),
        (
            "Take;Clip;Was ich sage\n",
            "read as Take;audio_path;text; if it is speaker_id;audio_path;text, add that in place of the first line",
        ),
    ],
)
def test_ids_of_rows_are_no_speakers_and_told(voice, caplog, head, told):
    lines = "".join(f'take_{i + 1};wavs/a{i}.wav;"{TEXTS[i]}"\n' for i in range(4))
    (voice / "list.csv").write_text(head + lines)
    assert read(voice) == {f"a{i}.wav": ("voice", TEXTS[i]) for i in range(4)}
    assert told in caplog.text


@pytest.mark.parametrize("name", ["list.csv", "train.jsonl"])
def test_of_several_texts_the_normalised_one_is_read_and_told(voice, caplog, name):
    keys = ("path", "sentence", "normalized_text")
    rows = [(f"wavs/a{i}.wav", f"{text} 1", f"{text} one") for i, text in enumerate(TEXTS)]
    table = "".join("\t".join(row) + "\n" for row in (keys, *rows))
    objects = "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)
    (voice / name).write_text(table if name == "list.csv" else objects)
    assert {text for _, text in read(voice).values()} == {f"{text} one" for text in TEXTS}
    assert "texts are read from normalized_text, not from sentence; to read another, rename normalized" in caplog.text


def test_sources_and_targets_are_recordings_and_texts(voice):
    """FunASR's."""
    objects = [{"key": f"a{i}", "source": f"wavs/a{i}.wav", "target": text} for i, text in enumerate(TEXTS)]
    (voice / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in objects))
    assert read(voice) == {f"a{i}.wav": ("voice", text) for i, text in enumerate(TEXTS)}


def test_objects_in_a_list(voice):
    objects = [{"key": f"a{i}", "wav": f"wavs/a{i}.wav", "txt": TEXTS[i], "speaker": SPEAKERS[i]} for i in range(4)]
    (voice / "data.list").write_text("".join(json.dumps(one) + "\n" for one in objects))
    assert read(voice) == all_of()


def test_recordings_in_no_list_are_told(voice, caplog):
    (voice / "metadata.csv").write_text("".join(f"a{i}|{TEXTS[i]}\n" for i in range(3)))
    with caplog.at_level(logging.INFO):
        assert len(read(voice)) == 3
    assert "ignored, recordings in no list: 1, such as wavs/a3.wav" in caplog.text


def test_names_written_as_addresses_and_as_numbers(tmp_path):
    for i in range(4):
        wav(tmp_path / f"voice/my wavs/take {i}.wav", hertz=200 + 20 * i)
        wav(tmp_path / f"numbers/000{i}.wav", hertz=200 + 20 * i)
    (tmp_path / "voice/list.csv").write_text(
        "path,text\n" + "".join(f'my%20wavs/take%20{i}.wav,"{text}"\n' for i, text in enumerate(TEXTS))
    )
    (tmp_path / "numbers/script.txt").write_text("".join(f"{i}. {text}\n" for i, text in enumerate(TEXTS)))
    assert read(tmp_path / "voice") == {f"take {i}.wav": ("voice", text) for i, text in enumerate(TEXTS)}
    assert read(tmp_path / "numbers") == {f"000{i}.wav": ("numbers", text) for i, text in enumerate(TEXTS)}


@pytest.mark.parametrize("beside", ["{}.wav.txt", "{}.transcription.txt", "{}.TXT"])
def test_other_ends_of_texts_beside_recordings(voice, beside):
    for i, text in enumerate(TEXTS):
        (voice / "wavs" / beside.format(f"a{i}")).write_text(text)
    assert read(voice) == {f"a{i}.wav": ("voice", text) for i, text in enumerate(TEXTS)}


def test_the_text_of_a_recording_is_no_list(voice):
    (voice / "wavs/a0.txt").write_text("Hello, said the author, and left.")
    with pytest.raises(DataError, match=r"a0\.txt: the text of a0\.wav beside it; give the folder, .*/wavs$"):
        list_corpus(corpus(voice / "wavs/a0.txt"))


def test_takes_of_one_text(tmp_path):
    for i, text in enumerate(TEXTS):
        for take in (1, 2):
            wav(tmp_path / f"voice/{i:03d}_take{take}.wav", hertz=200 + 20 * i + 5 * take)
        (tmp_path / f"voice/{i:03d}.txt").write_text(text)
    assert sorted(text for _, text in read(tmp_path / "voice").values()) == sorted(2 * TEXTS)


@pytest.mark.parametrize("name", ["{s}/2024-03-0{n}/take {i}.wav", "{s}/wav48/{i}.wav", "{s}/{split}/{i}.wav"])
def test_days_kinds_and_splits_in_the_folder_of_a_speaker_name_none(tmp_path, name):
    for i in range(4):
        split = ["train", "train", "dev", "test"][i]
        wav(tmp_path / "voice" / name.format(s=SPEAKERS[i], n=1 + i // 2, i=i, split=split), hertz=200 + 20 * i)
    rows, _ = list_corpus(corpus(tmp_path / "voice"))
    assert sorted({row.speaker for row in rows}) == ["anna", "ben"]
    assert {row.split for row in rows} == ({"train", "dev", "test"} if "split" in name else {None})


def test_a_list_of_names_in_each_folder_of_a_speaker(tmp_path):
    for i in range(4):
        wav(tmp_path / f"voice/{SPEAKERS[i]}/a{i}.wav", hertz=200 + 20 * i)
    for first in (0, 1):
        lines = [f'a{i}.wav,"{TEXTS[i]}"\n' for i in range(first, 4, 2)]
        (tmp_path / f"voice/{SPEAKERS[first]}/metadata.csv").write_text("file_name,text\n" + "".join(lines))
    assert read(tmp_path / "voice") == all_of()


def test_captions_with_a_language_in_their_name(voice):
    for i, text in enumerate(TEXTS):
        (voice / f"wavs/a{i}.en.vtt").write_text(f"WEBVTT\n\n00:00:00.000 --> 00:00:00.400\n{text}\n")
    assert {name: text for name, (_, text) in read(voice).items()} == {f"a{i}.wav": t for i, t in enumerate(TEXTS)}
    for i in range(4):
        (voice / f"wavs/a{i}.de.vtt").write_text("WEBVTT\n\n00:00:00.000 --> 00:00:00.400\nGuten Tag.\n")
    rows, _ = list_corpus(corpus(voice))
    assert {row.reason for row in rows if isinstance(row, Problem)} == {"several files"}
    assert not [row for row in rows if isinstance(row, Row)]


def test_a_folder_that_may_be_read_in_two_formats_says_so(voice, caplog):
    (voice / "all.rttm").write_text("SPEAKER a0 1 0 0.4 <NA> <NA> ann <NA> <NA>\n")
    (voice / "all.stm").write_text("a0 1 ann 0 0.4 <o> The boat left.\n")
    _, report = list_corpus(corpus(voice))
    assert report.format == "rttm"
    assert "data.format=stm reads what else is there" in caplog.text


@pytest.mark.parametrize("name", ["list.jsonl", "list.csv"])
def test_a_list_of_another_language_is_told(voice, caplog, name):
    lines = [json.dumps({"audio_path": f"wavs/a{i}.wav", "text": t, "language": "de"}) for i, t in enumerate(TEXTS)]
    if name.endswith("csv"):
        lines = ["path,sentence,locale", *(f'wavs/a{i}.wav,"{text}",de' for i, text in enumerate(TEXTS))]
    (voice / name).write_text("\n".join(lines) + "\n")
    list_corpus(RecognitionData(path=str(voice), language="de-de"))
    assert "data.language" not in caplog.text
    list_corpus(RecognitionData(path=str(voice)))
    assert "texts are in de, but data.language is en-us; set data.language=de" in caplog.text


def test_a_text_of_two_lines_in_a_cell_keeps_its_words_apart(tmp_path):
    for name in ("a", "b"):
        wav(tmp_path / f"{name}.wav")
    (tmp_path / "export.csv").write_text('"Audio","Transcript"\n"a.wav","Good\nmorning"\n"b.wav","He said ""hi"""\n')
    rows, _ = list_corpus(corpus(tmp_path))
    assert [row.text for row in rows] == ["Good morning", 'He said "hi"']


@pytest.mark.parametrize(
    ("end", "texts"), [("wrd", "GOOD DAY\nYES\n"), ("ltr", "G O O D | D A Y |\nY E S |\n"), ("x", "")]
)
def test_manifests_of_fairseq_have_texts_beside_them(end, texts, tmp_path, caplog):
    for name in ("a", "b"):
        wav(tmp_path / f"clips/{name}.wav")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/train.tsv").write_text(f"{tmp_path / 'clips'}\na.wav\t6400\nb.wav\t6400\n")
    (tmp_path / f"lists/train.{end}").write_text(texts)
    with caplog.at_level(logging.WARNING):
        rows, _ = list_corpus(corpus(tmp_path / "lists/train.tsv"))
    expected = ["GOOD DAY", "YES"] if texts else [None, None]
    assert [(row.path.name, row.text) for row in rows] == [*zip(("a.wav", "b.wav"), expected, strict=True)]
    assert ("no texts in train.wrd" in caplog.text) == (not texts)
    (tmp_path / "lists/train.wrd").write_text("ONE\n")
    with pytest.raises(DataError, match=r"1 texts, train\.tsv lists 2 recordings"):
        list_corpus(corpus(tmp_path / "lists/train.tsv"))


@pytest.mark.parametrize("texts", ["ONE\n\nTHREE\n", "ONE\n\n\n", "\nTWO\nTHREE\n\n\n"])
def test_an_empty_line_beside_a_manifest_of_fairseq_is_of_silence(texts, tmp_path):
    for name in "abc":
        wav(tmp_path / f"clips/{name}.wav")
    (tmp_path / "train.tsv").write_text(f"{tmp_path / 'clips'}\n" + "".join(f"{name}.wav\t6400\n" for name in "abc"))
    (tmp_path / "train.wrd").write_text(texts)
    rows, _ = list_corpus(corpus(tmp_path / "train.tsv"))
    assert [row.text for row in rows] == [line or None for line in texts.split("\n")[:3]]


def test_folders_name_the_speakers_of_a_manifest_of_fairseq(tmp_path, caplog):
    names = ["103/1240/103-1240-0000.wav", "103/1241/103-1241-0000.wav", "84/121/84-121-0001.wav"]
    for name in names:
        wav(tmp_path / "librispeech" / name)
    (tmp_path / "lists").mkdir()
    for split, listed in (("train", names), ("valid", ["valid/x.wav", "valid/y.wav"])):
        lines = "".join(f"{name}\t6400\n" for name in listed)
        (tmp_path / f"lists/{split}.tsv").write_text(f"{tmp_path / 'librispeech'}\n{lines}")
    with caplog.at_level(logging.WARNING):
        rows, _ = list_corpus(corpus(tmp_path / "lists/train.tsv"))
    assert [row.speaker for row in rows] == ["103", "103", "84"]
    assert "the folders of its recordings name their speakers (103, 84)" in caplog.text
    rows, _ = list_corpus(corpus(tmp_path / "lists/valid.tsv"))
    assert {row.speaker for row in rows} == {"lists"}, "a split is no speaker"


def test_columns_of_milliseconds_are_parts(tmp_path):
    wav(tmp_path / "a.wav", 3.0)
    (tmp_path / "list.csv").write_text("path,start_ms,end_ms,text\na.wav,500,1500,good morning\n")
    (row,), _ = list_corpus(corpus(tmp_path))
    assert (row.start, row.end, row.text) == (0.5, 1.5, "good morning")


@pytest.mark.parametrize("duration", ["3,2", "n/a", "3.2 s"])
def test_a_duration_that_is_no_number_leaves_a_whole_recording_as_it_is(duration, tmp_path):
    wav(tmp_path / "a.wav", 3.0)
    (tmp_path / "list.tsv").write_text(f"path\ttext\tduration\na.wav\tgood morning\t{duration}\n")
    (row,), _ = list_corpus(corpus(tmp_path))
    assert (row.start, row.end, row.text) == (0.0, None, "good morning")


def test_a_duration_in_milliseconds_alone_is_that_of_the_file(tmp_path):
    wav(tmp_path / "a.wav", 3.0)
    (tmp_path / "list.csv").write_text("path,duration_ms,text\na.wav,2000,good morning\n")
    (row,), _ = list_corpus(corpus(tmp_path))
    assert row.of_file(3.0).end == 2.0


def test_times_in_the_wrong_order_are_told_by_their_columns(tmp_path):
    wav(tmp_path / "a.wav", 3.0)
    (tmp_path / "list.csv").write_text("path,start_ms,end_ms,text\na.wav,5,2,good morning\n")
    (problem,), _ = list_corpus(corpus(tmp_path))
    assert "start_ms '5', end_ms '2': must be seconds" in problem.detail


@pytest.mark.parametrize("head", ["path,start,end,text", "path,start_ms,end_ms,text"])
def test_texts_of_parts_in_a_folder_of_texts_are_not_those_of_whole_recordings(head, voice):
    rows = "".join(f"a{i}.wav,{i},{i + 1},{text}\n" for i, text in enumerate(TEXTS))
    (voice / "texts").mkdir()
    (voice / "texts/list.csv").write_text(f"{head}\n{rows}")
    assert {text for _, text in read(voice).values()} == {None}


def test_labels_of_phones_beside_recordings_are_told(tmp_path, caplog):
    wav(tmp_path / "a.wav")
    (tmp_path / "a.lab").write_text("0 2500000 sil\n2500000 3000000 ao\n")
    with caplog.at_level(logging.WARNING):
        (row,), _ = list_corpus(corpus(tmp_path))
    assert row.text is None
    assert "ignored, not recordings: 1 .lab" in caplog.text


@pytest.mark.parametrize(
    ("head", "times"),
    [
        ("file;start;end;text", "0,5;1,5"),
        ("file;Start Time (s);End Time (s);text", "00:00:00,500;00:00:01,500"),
        ("file;start_sec;end_sec;text", "0.5;1.5"),
        ("file;startTime;endTime;text", "0.5;1.5"),
        ("file;onset;offset;text", "0.5;1.5"),
        ("file;from;to;text", "0.5;1.5"),
        ("file;Start (ms);End (ms);text", "500;1500"),
    ],
)
def test_times_of_parts_as_other_programs_call_and_write_them(head, times, tmp_path):
    wav(tmp_path / "a.wav", 3.0)
    (tmp_path / "list.csv").write_text(f"{head}\na.wav;{times};good morning\n")
    (row,), _ = list_corpus(corpus(tmp_path))
    assert (row.start, row.end, row.text) == (0.5, 1.5, "good morning")


def usable(folder, text):
    """The ids of recordings that a task can use which needs texts, or none; and why it can't use others."""
    rows, report = list_corpus(corpus(folder))
    checked = validate(rows, Requirements(text=text), report)
    return [one.row.id for one in checked], [f"{one.reason}: {one.detail}" for one in report.refused]


def test_several_texts_of_a_whole_recording_are_left_out(tmp_path, caplog):
    for name in "ab":
        wav(tmp_path / f"{name}.wav", 3.0)
    lines = ["1,a.wav,0,good morning", "2,a.wav,1,good night", "3,b.wav,0,good day"]
    (tmp_path / "list.csv").write_text("\n".join(["id,path,beginn,text", *lines]))
    assert usable(tmp_path, text=False) == (["1", "2", "3"], [])
    ids, refused = usable(tmp_path, text=True)
    assert ids == ["3"]
    where = f"{tmp_path}/list.csv"
    why = f"{where}:2 and {where}:3 differ; keep one of them, or give those of parts a start and an end"
    assert refused == 2 * [f"no text: its text is left out: {why}"]
    assert caplog.text.count(f"1 text is left out, such as a.wav: {why}") == 1


@pytest.mark.parametrize("head", ["", "path,speaker,text\n"])
def test_empty_cells_behind_the_last_column(head, voice):
    rows = "".join(f'wavs/a{i}.wav,{SPEAKERS[i]},"{TEXTS[i]}"{"," * i}\n' for i in range(4))
    (voice / "list.csv").write_text(head + rows)
    assert read(voice) == all_of()


@pytest.mark.parametrize("separator", ["\t", "|"])
def test_quotes_around_all_of_a_cell(separator, voice):
    (voice / "list.tsv").write_text(
        separator.join(("path", "text"))
        + "\n"
        + separator.join(('"wavs/a0.wav"', '"say ""yes"" now"\n'))
        + separator.join(("wavs/a1.wav", '"Yes," she said. "Go."\n'))
    )
    assert {text for _, text in read(voice).values()} == {'say "yes" now', '"Yes," she said. "Go."'}


@pytest.fixture
def many(tmp_path):
    """A folder with wavs/a0.wav to a11.wav."""
    for number in range(12):
        wav(tmp_path / f"voice/wavs/a{number}.wav", hertz=200 + 20 * number)
    return tmp_path / "voice"


MANY = [f"Nobody saw number {number}." for number in range(12)]


@pytest.mark.parametrize("share", [1, 4, 9])
@pytest.mark.parametrize("speakers", [None, ["ann", "ben"]])
def test_commas_in_texts_without_quotes_end_no_text(share, speakers, many, caplog):
    texts = [
        f"Number {i} left, 1,{i}00 saw it, and {i} {', too' * (i % 2)}." if i < share else MANY[i] for i in range(12)
    ]
    heads = [f"a{i},{speakers[i // 6]}" if speakers else f"a{i}" for i in range(12)]
    (many / "list.csv").write_text("".join(f"{head},{text}\n" for head, text in zip(heads, texts, strict=True)))
    rows, _ = list_corpus(corpus(many))
    assert [(row.speaker, row.text) for row in rows] == [
        (speakers[i // 6] if speakers else "voice", texts[i]) for i in range(12)
    ]
    assert caplog.text.count(f"commas behind column {2 if speakers else 1} are taken for those of the texts") == 1


@pytest.mark.parametrize("head", ["path{}text", "path{}speaker{}text", None], ids=["two", "three", "none"])
@pytest.mark.parametrize("sign", [",", ";"])
def test_texts_of_which_each_has_commas_are_whole(head, sign, many, caplog):
    texts = [f"Number {i}{sign} he said{f'{sign} no' * (i % 3)}{sign} left." for i in range(12)]
    columns = 3 if head == "path{}speaker{}text" else 2
    starts = [sign.join([f"a{i}.wav", "ann"][: columns - 1]) for i in range(12)]
    first = [] if head is None else [head.format(sign, sign)]
    lines = [*first, *(f"{start}{sign}{text}" for start, text in zip(starts, texts, strict=True))]
    (many / "list.csv").write_text("\n".join(lines))
    rows, _ = list_corpus(corpus(many))
    assert [row.text for row in rows] == texts
    assert {row.speaker for row in rows} == {"ann" if columns == 3 else "voice"}
    name = "comma" if sign == "," else "semicolon"
    assert caplog.text.count(f"{name}s behind column {columns - 1} are taken for those of the texts") == 1


FIRST = ["hello", "well", "good morning", "come", "oh dear", "tomorrow", "see", "at last", "sit", "no", "yes", "now"]
REPEATED = ["yes", "no"] * 6
REST = [f"they saw {number}" for number in range(12)]
COMMA = [f"{first}, {rest}" for first, rest in zip(FIRST, REST, strict=True)]


@pytest.mark.parametrize("sign", [",", ";"])
@pytest.mark.parametrize(
    ("texts", "speakers"),
    [
        (COMMA, None),
        ([f"{text}, so" for text in COMMA], None),
        ([f"{text[:-1]}, {rest}" for text, rest in zip(MANY, REST, strict=True)], None),
        ([f"{text[:-1]}, {first}" for text, first in zip(MANY, FIRST, strict=True)], None),
        (COMMA, ["ann", "ben"] * 6),
    ],
    ids=["short", "two each", "sentences", "a word behind", "behind speakers"],
)
def test_as_many_commas_in_each_text_end_none(texts, speakers, sign, many, caplog):
    texts = [text.replace(",", sign) for text in texts]
    heads = [f"a{i}{sign}{speakers[i]}" if speakers else f"a{i}" for i in range(12)]
    (many / "list.csv").write_text("".join(f"{head}{sign}{text}\n" for head, text in zip(heads, texts, strict=True)))
    expected = [(speakers[i] if speakers else "voice", texts[i]) for i in range(12)]
    assert [(row.speaker, row.text) for row in list_corpus(corpus(many))[0]] == expected
    assert f"s behind column {2 if speakers else 1} are taken for those of the texts" in caplog.text


@pytest.mark.parametrize(
    ("lines", "column"),
    [
        ([f"{first}, {rest}" for first, rest in zip(REPEATED, REST, strict=True)], 2),
        ([f"{first}, {rest}, so" for first, rest in zip(REPEATED, REST, strict=True)], 2),
        (COMMA[:3], 2),
        ([text.replace(", ", ",") for text in COMMA], 2),
        ([f" {text}" for text in COMMA], 2),
        ([f"{text} {first}" for text, first in zip(MANY, REPEATED, strict=True)], 3),
    ],
    ids=["repeated", "two each", "few", "no spaces", "spaces everywhere", "behind"],
)
def test_speakers_that_may_be_parts_of_texts_are_asked_about(lines, column, many):
    lines = [line.replace(". ", "., ") for line in lines]
    (many / "list.csv").write_text("".join(f"a{i},{line}\n" for i, line in enumerate(lines)))
    columns = ("audio_path,speaker_id,text", "audio_path,text,speaker_id")
    message = f"column {column}, such as .*; write {columns[column - 2]} as the first line, or audio_path,text"
    with pytest.raises(DataError, match=message):
        list_corpus(corpus(many))
    for header in ("audio_path,text", columns[column - 2]):
        (many / "list.csv").write_text(header + "".join(f"\na{i},{line}" for i, line in enumerate(lines)))
        rows, _ = list_corpus(corpus(many))
        assert all(isinstance(row, Row) for row in rows)
        assert ("," in rows[0].text) == (header == "audio_path,text" or len(lines[0].split(",")) > 2)


def test_labels_that_a_header_lacks_are_no_part_of_texts(many):
    lines = [f"a{i},{['ann', 'ben'][i % 2]},{MANY[i]}" for i in range(12)]
    (many / "list.csv").write_text("\n".join(["path,text", *lines]))
    rows, _ = list_corpus(corpus(many))
    assert {row.detail for row in rows} == {"3 columns, the header has 2; put quotes around a text that holds a comma"}


def test_empty_columns_behind_those_of_the_header_are_none(many):
    lines = ["path,text", "a0,Nobody saw it,,", "a1,Well, they left,,", 'a2,"One, two",']
    (many / "list.csv").write_text("\n".join(lines))
    rows, _ = list_corpus(corpus(many))
    assert [row.text.rstrip(",") for row in rows] == ["Nobody saw it", "Well, they left", "One, two"]


@pytest.mark.parametrize("head", ["path,speaker,text", "path,speaker"])
def test_a_recording_of_two_speakers_is_asked_about(head, many):
    lines = [f"a{i},{who},{MANY[i]}" for i, who in [(0, "ann"), (1, "ann"), (0, "ben"), (2, "ben")]]
    lines = lines if head.endswith("text") else [line.rpartition(",")[0] for line in lines]
    (many / "list.csv").write_text("\n".join([head, *lines]))
    rows, _ = list_corpus(corpus(many))
    assert [row.id for row in rows if isinstance(row, Row)] == ["a1", "a2"]
    problems = [row for row in rows if isinstance(row, Problem)]
    assert [one.place for one in problems] == [f"{many}/list.csv:2", f"{many}/list.csv:4"]
    both = f"ann ({many}/list.csv:2) and to ben ({many}/list.csv:4)"
    detail = f"the recording is given to {both}; keep one of them, or give parts of it a start and an end"
    assert {(one.reason, one.detail) for one in problems} == {("several speakers", detail)}


@pytest.mark.parametrize("mean", [0, 3])
def test_where_speakers_are_behind_texts_only_lines_with_more_commas_are_refused(mean, many):
    texts = [f"Well, they left {i}." if i <= mean else MANY[i] for i in range(12)]
    (many / "list.csv").write_text("".join(f"a{i},{text},{['ann', 'ben'][i % 2]}\n" for i, text in enumerate(texts)))
    rows, _ = list_corpus(corpus(many))
    assert [row.text for row in rows if isinstance(row, Row)] == texts[mean + 1 :]
    assert [row.detail for row in rows if isinstance(row, Problem)] == (mean + 1) * ["4 columns; most lines have 3"]


@pytest.mark.parametrize(
    ("line", "share", "texts"),
    [("{name},{text},ann", 4, MANY[4:]), ("{name},{text},ann", 8, MANY[:8]), ("{name},1.{i},{text}", 4, MANY[4:])],
)
def test_lines_with_another_column_are_told_from_those_with_commas(line, share, texts, many):
    lines = [(line if i < share else "{name},{text}").format(name=f"a{i}", text=MANY[i], i=i) for i in range(12)]
    (many / "list.csv").write_text("\n".join(lines))
    rows, _ = list_corpus(corpus(many))
    assert [row.text for row in rows if isinstance(row, Row)] == texts


def test_a_table_in_which_a_quote_is_left_open_has_no_rows(many):
    (many / "list.csv").write_text('a0,"Nobody saw it\na1,and more\n')
    rows, _ = list_corpus(corpus(many / "list.csv", format="csv"))
    assert [row.reason for row in rows] == ["malformed row"]


def test_commas_of_which_no_reading_is_certain_are_named(many):
    lines = (f"{text}, yes {i}{', no' * (i % 3)},a{i}\n" for i, text in enumerate(MANY))
    (many / "list.csv").write_text("".join(lines))
    with pytest.raises(DataError, match="its lines have 3 to 5 columns; put quotes around texts that hold a comma"):
        list_corpus(corpus(many, format="csv"))


def test_no_text_ends_at_a_bar_within(many):
    texts = [*MANY[:11], "Well| they left."]
    (many / "list.csv").write_text("".join(f"a{i}|{text}\n" for i, text in enumerate(texts)))
    rows, _ = list_corpus(corpus(many))
    assert [row.text for row in rows[:11]] == texts[:11]
    assert rows[11].detail == "3 columns, most lines have 2; is there a separator in a text?"


@pytest.mark.parametrize("normalised", [3, 9])
def test_a_normalised_text_in_some_rows(normalised, many, caplog):
    lines = [f"a{i}|{text}{f'|{text.lower()}' if i < normalised else ''}" for i, text in enumerate(MANY)]
    (many / "metadata.csv").write_text("\n".join(lines))
    lowered = normalised if normalised > 6 else 0
    assert list(read(many).values()) == [
        ("voice", text.lower() if i < lowered else text) for i, text in enumerate(MANY)
    ]
    told = "most lines have 2 columns; of those with a normalised text, too, the second is read"
    assert caplog.text.count(told) == (normalised < 6)


def test_a_second_column_whose_values_return_may_be_speakers(voice, caplog):
    (voice / "list.csv").write_text("".join(f"wavs/a{i}.wav,{SPEAKERS[i]}\n" for i in range(4)))
    assert {text for _, text in read(voice).values()} == {"anna", "ben"}
    assert "read as audio_path,text; if it is audio_path,speaker_id, add that as the first line" in caplog.text


def test_folders_that_may_name_the_speakers_of_a_list_are_told(tmp_path, caplog):
    for speaker in ("anna", "ben"):
        wav(tmp_path / f"voice/{speaker}/{speaker}1.wav", hertz=200 + len(speaker))
    (tmp_path / "voice/metadata.csv").write_text("anna/anna1.wav|Good morning to you.\nben/ben1.wav|Nobody saw it.\n")
    assert {speaker for speaker, _ in read(tmp_path / "voice").values()} == {"voice"}
    assert "name them (anna, ben: 2), set data.format=folder, else data.speaker=voice" in caplog.text
    rows, _ = list_corpus(corpus(tmp_path / "voice", format="folder"))
    assert [(row.speaker, row.text) for row in rows] == [("anna", "Good morning to you."), ("ben", "Nobody saw it.")]


def test_files_beside_a_list_and_labels_are_counted(voice, caplog):
    (voice / "metadata.csv").write_text("".join(f"a{i}|{text}\n" for i, text in enumerate(TEXTS)))
    (voice / "wavs/a0.txt").write_text("another text")
    (voice / "notes.pdf").write_text("x")
    (voice / "report.json").write_text("{}")  # as `data prepare --split` leaves it
    with caplog.at_level(logging.INFO):
        read(voice)
    assert "read as ljspeech; also there, and ignored unless it names them: 1 .pdf, 1 .txt" in caplog.text


def test_objects_with_keys_in_capitals_and_segments_in_milliseconds(tmp_path):
    wav(tmp_path / "a.wav", 3.0)
    part = {"startMs": 500, "endMs": 1500, "Text": "good morning", "speakerId": "anna"}
    (tmp_path / "list.json").write_text(json.dumps([{"audioPath": "a.wav", "segments": [part]}]))
    (row,), _ = list_corpus(corpus(tmp_path))
    assert (row.start, row.end, row.speaker, row.text) == (0.5, 1.5, "anna", "good morning")
    part["endMs"] = 100
    (tmp_path / "list.json").write_text(json.dumps([{"audioPath": "a.wav", "segments": [part]}]))
    (problem,), _ = list_corpus(corpus(tmp_path))
    assert "its segments can't be read (start_ms 500, end_ms 100)" in problem.detail


@pytest.mark.parametrize("labels", [["de", "en"], ["happy", "sad"], ["m", "f"], ["ZH", "JP"]])
def test_languages_moods_and_genders_are_no_speakers_and_told(labels, voice, caplog):
    (voice / "list.txt").write_text("".join(f"wavs/a{i}.wav|{TEXTS[i]}|{labels[i % 2]}\n" for i in range(4)))
    assert {speaker for speaker, _ in read(voice).values()} == {"voice"}
    assert "read as audio_path|text; if it is audio_path|text|speaker_id, add that as the first line" in caplog.text


def test_a_mood_beside_speakers_of_three_letters_does_not_take_their_place(voice):
    rows = (f"wavs/a{i}.wav|{['SLT', 'BDL'][i % 2]}|{['happy', 'sad', 'sad'][i % 3]}|{TEXTS[i]}\n" for i in range(4))
    (voice / "list.txt").write_text("".join(rows))
    assert [read(voice)[f"a{i}.wav"] for i in range(2)] == [("SLT", TEXTS[0]), ("BDL", TEXTS[1])]


def test_spellings_of_one_speaker(voice, caplog):
    names = ["Jos\u00e9", "Jose\u0301", "Ann", "ann"]
    (voice / "list.txt").write_text("".join(f"wavs/a{i}.wav|{names[i]}|{TEXTS[i]}\n" for i in range(4)))
    assert {speaker for speaker, _ in read(voice).values()} == {"Jos\u00e9", "Ann", "ann"}
    assert "Ann and ann are taken for different speakers; if they are one, write the name alike" in caplog.text


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ({"text": ["good", "morning"]}, "list"),
        ({"words": ["good", "morning"]}, "list"),
        ({"text": {"en": "good"}}, "object"),
    ],
)
def test_texts_of_objects_that_are_none_are_told(sample, what, voice, caplog):
    (voice / "list.json").write_text(json.dumps([{"audio": "wavs/a0.wav"} | sample]))
    assert read(voice) == {"a0.wav": ("voice", None)}
    assert f"texts that are a JSON {what} are not read; give texts" in caplog.text
    (voice / "list.json").write_text(json.dumps([{"audio": "wavs/a0.wav", "raw_text": "Good morning."} | sample]))
    assert read(voice) == {"a0.wav": ("voice", "Good morning.")}


def test_an_object_is_no_speaker(voice):
    (voice / "list.json").write_text(json.dumps([{"audio": "wavs/a0.wav", "text": "good", "speaker": {"id": 7}}]))
    (problem,), _ = list_corpus(corpus(voice))
    assert problem.detail == "its speaker is a JSON object; give a text"


@pytest.mark.parametrize(
    ("language", "speakers"),
    [
        (["eng"] * 2, ["anna", "ben"]),
        (["eng", "deu"], ["anna", "ben"]),
        (["eng_Latn"] * 2, ["ben", "dan"]),
        (["en"] * 2, ["am", "bo"]),
        (["happy", "sad"], ["ben", "dan"]),
    ],
)
def test_languages_beside_speakers(language, speakers, voice):
    rows = (f"wavs/a{i}.wav|{speakers[i % 2]}|{language[i % 2]}|{TEXTS[i]}\n" for i in range(4))
    (voice / "list.txt").write_text("".join(rows))
    assert read(voice) == {f"a{i}.wav": (speakers[i % 2], TEXTS[i]) for i in range(4)}


def test_languages_from_and_to_are_no_times(voice):
    rows = "".join(f"wavs/a{i}.wav;{SPEAKERS[i]};en;de;{TEXTS[i]}\n" for i in range(4))
    (voice / "list.csv").write_text(f"file;speaker;from;to;text\n{rows}")
    assert read(voice) == all_of()


@pytest.mark.parametrize(
    "beside",
    [
        {"speakers": [{"speaker": "A", "start": 0, "end": 2}]},
        {"topics": [{"start": 0, "end": 2, "text": "a boat"}]},
        {"words": [{"start": 0.1 * i, "end": 0.1 * i + 0.1, "text": "so"} for i in range(9)]},
    ],
)
def test_of_several_lists_of_times_the_segments_are_read(beside, tmp_path):
    wav(tmp_path / "a.wav", 3.0)
    parts = [{"start": 0, "end": 1, "text": "good"}, {"start": 1, "end": 2, "text": "morning"}, {"start": 2, "end": 3}]
    for sample in ({"segments": parts} | beside, beside | {"segments": parts}):
        (tmp_path / "list.json").write_text(json.dumps([{"audio": "a.wav"} | sample]))
        (row,), _ = list_corpus(corpus(tmp_path, unit="recording"))
        assert [one.text for one in row.segments] == ["good", "morning", None]


def test_kaldis_texts_that_are_lost(tmp_path, caplog):
    wav(tmp_path / "a.wav", 3.0)
    files = {"wav.scp": "u1 a.wav\n", "utt2spk": "u1 ann\n", "text": "u1 good morning\nu2 good night\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (row,), _ = list_corpus(corpus(tmp_path))
    assert row.text == "good morning"
    assert "left out: 1 text of utterances that are not listed, such as u2" in caplog.text


@pytest.mark.parametrize(
    ("name", "line"), [("text", "u1 good night"), ("utt2spk", "u1 ben"), ("wav.scp", "u1 u2.wav"), ("text", "u1")]
)
@pytest.mark.parametrize("segments", [False, True])
def test_of_a_key_twice_in_kaldis_files_only_its_recording_is_refused(name, line, segments, tmp_path, caplog):
    for id in ("u1", "u2"):
        wav(tmp_path / f"{id}.wav", 1.0)
    for file, value in (("wav.scp", "{}.wav"), ("utt2spk", "ann"), ("text", "good morning"), ("segments", "{} 0 1")):
        if file != "segments" or segments:
            lines = [f"{id} {value.format(id)}\n" for id in ("u1", "u2")]
            (tmp_path / file).write_text("".join(lines) + (f"{line}\n" if file == name else ""))
    where = f"lines 1 and 3 of {tmp_path / name} differ; keep one of them"
    ids, refused = usable(tmp_path, text=True)
    assert ids == ["u2"]
    assert refused == [f"no text: its text is left out: {where}" if name == "text" else f"several lines: u1: {where}"]
    assert usable(tmp_path, text=False)[0] == (["u1", "u2"] if name == "text" else ["u2"])
    assert (f"1 text is left out, such as u1: {where}" in caplog.text) == (name == "text")


@pytest.mark.parametrize("line", ["u1 u1 0 1", "u1 u1 0.5 1", "u1 u2 0 1"])
def test_an_utterance_of_kaldi_is_in_one_place(line, tmp_path):
    for id in ("u1", "u2", "u3"):
        wav(tmp_path / f"{id}.wav", 1.0)
    for file, value in (("wav.scp", "{}.wav"), ("utt2spk", "ann"), ("text", "good  morning"), ("segments", "{} 0 1")):
        lines = [f"{id} {value.format(id)}\n" for id in ("u1", "u2", "u3")]
        again = {"segments": f"{line}\n", "text": "u3 good morning\n"}.get(file, "")
        (tmp_path / file).write_text("".join(lines) + again)
    ids, refused = usable(tmp_path, text=True)
    doubt = f"several lines: u1: lines 1 and 4 of {tmp_path / 'segments'} differ; keep one of them"
    in_doubt = {"u1 u1 0 1": [], "u1 u1 0.5 1": ["u1"], "u1 u2 0 1": ["u1", "u2"]}[line]
    assert ids == [id for id in ("u1", "u2", "u3") if id not in in_doubt]
    assert refused == len(in_doubt) * [doubt]


@pytest.mark.parametrize("name", ["84-1-{}.wav", "take {}.wav"])
def test_a_line_that_is_twice_in_a_transcript_with_another_text_has_none(name, tmp_path, caplog):
    names = [name.format(f"000{i}") for i in range(4)]
    for one in names:
        wav(tmp_path / "84/1" / one)
    file = tmp_path / "84/1" / ("84-1.trans.txt" if name.startswith("84") else "transcript.tsv")
    lines = [f"{one.removesuffix('.wav')} {TEXTS[i]}" for i, one in enumerate(names)]
    if name.startswith("take"):
        lines = [line.replace(f"000{i} ", f"000{i}\t") for i, line in enumerate(lines)]
    file.write_text("\n".join([*lines, lines[0], f"{lines[1]} Or so."]) + "\n")
    ids, refused = usable(tmp_path, text=True)
    assert [id.rpartition("/")[2] for id in ids] == [one.removesuffix(".wav") for i, one in enumerate(names) if i != 1]
    (why,) = refused
    assert why.startswith("no text: its text is left out: ")
    assert str(file) in why
    assert (
        caplog.text.count(f"1 text is left out, such as {'84-1-0001' if name.startswith('84') else '84/1/take'}") == 1
    )


def test_lines_of_transcripts_without_a_recording_are_counted(tmp_path, caplog):
    wav(tmp_path / "a/1.wav")
    (tmp_path / "a/all.txt").write_text("1.wav Good morning to you.\n2.wav Nobody saw it.\n")
    for number in (0, 1):
        wav(tmp_path / f"b/84/121/84-121-000{number}.wav", hertz=200 + 20 * number)
    (tmp_path / "b/84/121/84-121.trans.txt").write_text("84-121-0000 GOOD\n84-121-0001 MORNING\n84-121-0002 LOST\n")
    with caplog.at_level(logging.INFO):
        list_corpus(corpus(tmp_path / "a"))
        list_corpus(corpus(tmp_path / "b"))
    assert "the texts of 1 recording are those of all.txt; 1 there are of no recording" in caplog.text
    assert "left alone: 1 line of .trans.txt for which there is no recording" in caplog.text


def test_two_transcripts_that_differ_are_told(tmp_path, caplog):
    for number in (1, 2):
        wav(tmp_path / f"{number}.wav", hertz=200 + 20 * number)
    (tmp_path / "a.txt").write_text("1.wav Good morning to you.\n2.wav Nobody saw it.\n")
    (tmp_path / "b.txt").write_text("1.wav Good evening to you.\n2.wav Nobody saw it.\n")
    rows, _ = list_corpus(corpus(tmp_path))
    assert [row.text for row in rows] == ["Good morning to you.", "Nobody saw it."]
    assert "b.txt is left alone, for it has another text of 1.wav than other files; keep one of them" in caplog.text


def test_second_texts_of_a_recording_are_counted(tmp_path, caplog):
    for name in ("a", "b"):
        wav(tmp_path / f"{name}.wav", hertz=200 + 20 * ord(name))
        (tmp_path / f"{name}.txt").write_text("Good morning.")
    (tmp_path / "a.lab").write_text("GOOD NIGHT")
    (tmp_path / "b.json").write_text(json.dumps({"text": "Good night.", "speaker": "anna"}))
    with caplog.at_level(logging.INFO):
        rows, _ = list_corpus(corpus(tmp_path))
    assert [(row.speaker, row.text) for row in rows][1] == ("anna", "Good morning.")
    assert "ignored, not recordings: 1 .lab, 1 .json" in caplog.text or "1 .json, 1 .lab" in caplog.text


def test_an_object_with_a_list_of_each_split(voice):
    samples = [{"audio": f"wavs/a{i}.wav", "speaker": SPEAKERS[i], "text": TEXTS[i]} for i in range(4)]
    (voice / "list.json").write_text(json.dumps({"train": samples[:3], "test": samples[3:]}))
    assert read(voice) == all_of()
    assert [row.split for row in list_corpus(corpus(voice))[0]] == ["train"] * 3 + ["test"]


def test_a_row_of_a_table_above_recordings_that_names_none(tmp_path):
    for i in range(4):
        wav(tmp_path / f"{SPEAKERS[i]}/a{i}.wav")
    rows = "".join(f'a{i}.wav,"{TEXTS[i]}"\n' for i in range(4))
    (tmp_path / "texts.csv").write_text(f"file,text\n{rows},nobody said this\n")
    assert read(tmp_path) == all_of()


GERMAN = ["Das Schiff lief früh aus.", "Niemand hörte es.", "Die Straße war leer.", "Später kam Wind auf."]


@pytest.mark.parametrize(
    ("texts", "language", "told"),
    [(GERMAN, "en-us", True), (GERMAN, "de", False), (TEXTS, "en-us", False), ([*TEXTS[:3], GERMAN[0]], "en", False)],
)
def test_texts_with_letters_that_english_lacks_are_told(voice, caplog, texts, language, told):
    (voice / "list.csv").write_text("path,text\n" + "".join(f'wavs/a{i}.wav,"{texts[i]}"\n' for i in range(4)))
    list_corpus(RecognitionData(path=str(voice), language=language))
    warning = "4 of the first 4 texts have letters that English lacks (ß, ä, ö, ü), but training reads them as English"
    assert (warning in caplog.text) == told
    assert ("English" in caplog.text) == told


@pytest.mark.parametrize(("language", "told"), [("en-us", "German"), ("de", None), ("fr", "German"), ("cs", None)])
def test_texts_in_another_language_are_told_by_their_words(voice, caplog, language, told):
    texts = ["Wie geht es Ihnen heute?", "Ich habe keine Zeit.", "Das ist nicht gut.", "Wir sind hier."]
    (voice / "list.csv").write_text("path,text\n" + "".join(f'wavs/a{i}.wav,"{texts[i]}"\n' for i in range(4)))
    list_corpus(RecognitionData(path=str(voice), language=language))
    assert (f"of the first 4 texts seem to be {told}, but training reads them as" in caplog.text) == (told is not None)
    assert ("train with data.language=de" in caplog.text) == (told is not None)


def test_texts_that_are_called_otherwise_than_txt_are_to_be_renamed(voice, caplog):
    (voice / "wavs" / "a0.text").write_text("Good morning.")
    list_corpus(corpus(voice))
    assert (
        "(such as wavs/a0.text); no recording has a text: if these files hold the texts, rename them to .txt"
        in caplog.text
    )
    (voice / "wavs" / "a0.text").rename(voice / "wavs" / "all.text")
    list_corpus(corpus(voice))
    assert (
        "(such as wavs/all.text); no recording has a text: if these files hold the texts, give the list" in caplog.text
    )


@pytest.mark.parametrize("name", ["texts.xlsx", "texts.ods", "texts.numbers", "texts.xls"])
def test_a_workbook_is_to_be_saved_as_csv(voice, caplog, name):
    begin = b"\xd0\xcf\x11\xe0" if name.endswith(".xls") else b"PK\x03\x04"
    (voice / name).write_bytes(begin + bytes(600))
    list_corpus(corpus(voice))
    mend = "save it as CSV UTF-8, and give that"
    assert f"no recording has a text: if these files hold the texts, {mend} as data.path" in caplog.text
    with pytest.raises(DataError, match=f"{name}: a workbook; {mend} as data.path$"):
        list_corpus(corpus(voice / name))
    with pytest.raises(InputError, match=f"{name}: a workbook; {mend}$"):
        pairs_of(voice, voice / name)
    (voice / name).rename(voice / "metadata.csv")
    with pytest.raises(DataError, match=r"metadata.csv: a workbook, not text; save it as CSV UTF-8$"):
        list_corpus(corpus(voice))


@pytest.mark.parametrize("encoding", ["cp1252", "mac-roman", "cp1251", "cp1250"])
def test_a_list_that_is_not_utf_8_is_windows_1252_or_refused_at_once(voice, caplog, encoding):
    german = ["Er läuft über die Straße.", "Köln ist schön.", "Café „Müller“ – heute zu.", "Das ist es."]
    texts = {"cp1251": ["Он идёт домой."] * 4, "cp1250": ["Wczoraj była zła pogoda."] * 4}.get(encoding, german)
    rows = "".join(f'wavs/a{i}.wav;"{text}"\n' for i, text in enumerate(texts))
    (voice / "list.csv").write_bytes(f"Datei;Text\n{rows}".encode(encoding))
    if encoding == "cp1252":
        assert read(voice) == {f"a{i}.wav": ("voice", text) for i, text in enumerate(texts)}
        assert "list.csv: not UTF-8, so read as Windows-1252 (läuft); if that is wrong, save it" in caplog.text
    else:
        with pytest.raises(DataError, match=r"list.csv: .* Windows-1252; save it as CSV UTF-8$"):
            list_corpus(corpus(voice))


def test_what_pandas_makes_of_missing_values_and_of_the_numbers_beside_them(voice):
    """A column of 7, 7, 8 and nothing is 7.0, 7.0, 8.0 and NaN, in its records and in the JSON of them."""
    records = [(7.0, "one"), (7.0, float("nan")), (8.0, 12.0), (float("nan"), 1.5)]
    lines = [{"file": f"wavs/a{i}.wav", "speaker": who, "text": text} for i, (who, text) in enumerate(records)]
    (voice / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(read(voice).values()) == [("7", "one"), ("7", None), ("8", "12"), (None, "1.5")]
