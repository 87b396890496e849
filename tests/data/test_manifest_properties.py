"""Lists of recordings: whatever is written comes back, and whatever is read ends in rows or in one clear error."""

from __future__ import annotations

import csv
import json
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phonate.config.errors import DataError
from phonate.data.cache import Strings
from phonate.data.corpora.columns import _PHONES
from phonate.data.corpora.lists import COLUMNS, column_name
from phonate.data.corpora.manifest import check_corpus, detect_format
from phonate.data.corpora.objects import json_rows
from phonate.data.corpora.rows import Row, nfc
from phonate.data.corpora.tables import csv_rows, ljspeech_rows
from phonate.data.settings import VoiceData

SHARED = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])

NAMES = st.text(st.characters(categories=["L", "N"], max_codepoint=0x2FFF), min_size=1, max_size=12)
PEOPLE = NAMES.map(nfc)
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40).map(str.strip)
SAMPLES = st.lists(st.tuples(NAMES, PEOPLE, WORDS), min_size=1, max_size=8, unique_by=lambda sample: sample[0])


def found(rows):
    return [(row.id, row.speaker, row.text or "") for row in rows if isinstance(row, Row)]


@given(SAMPLES, st.permutations(["audio_path", "speaker_id", "text"]), st.sampled_from(",;"))
@SHARED
def test_csv_comes_back_in_any_order_of_columns(tmp_path, samples, columns, separator):
    path = tmp_path / "metadata.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        for name, speaker, text in samples:
            values = {"audio_path": f"wavs/{name}.wav", "speaker_id": speaker, "text": text}
            writer.writerow([values[column] for column in columns])
    assert found(csv_rows(path)) == [(f"wavs/{name}", speaker, text) for name, speaker, text in samples]


@given(SAMPLES, st.booleans())
@SHARED
def test_both_json_forms_come_back(tmp_path, samples, wrapped):
    path = tmp_path / "metadata.json"
    listed = [{"audio_path": f"{name}.wav", "speaker_id": speaker, "text": text} for name, speaker, text in samples]
    path.write_text(json.dumps({"samples": listed} if wrapped else listed), encoding="utf-8")
    assert found(json_rows(path)) == samples


PLAIN = WORDS.filter(lambda text: any(map(str.isalpha, text)) and not set('|"') & {*text} and not _PHONES.search(text))
SPEAKERS = st.sampled_from(["ann", "bob 2"])  # others may be texts as well


@given(st.lists(st.tuples(NAMES, SPEAKERS, PLAIN), min_size=1, max_size=8, unique_by=lambda sample: sample[0]))
@SHARED
def test_bars_without_a_header_come_back(tmp_path, samples):
    path = tmp_path / "metadata.csv"
    path.write_text("".join(f"{name}|{speaker}|{text}\n" for name, speaker, text in samples), encoding="utf-8")
    headings = {name for names in COLUMNS.values() for name in names}
    if not headings & {column_name(cell) for cell in samples[0]}:
        assert found(csv_rows(path)) == samples
    assert [text for _, _, text in found(ljspeech_rows(path))] == [text for _, _, text in samples]


CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.text(st.sampled_from('ab,;|\t"\n\r\0{}[]:\\/\u2028é'), max_size=200).map(str.encode),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["samples", "audio_path", "speaker_id", "text", "id"]), inner, max_size=4)
        ),
        max_leaves=12,
    ).map(lambda document: json.dumps(document).encode()),
)


@given(CONTENTS, st.sampled_from(["metadata.csv", "metadata.json", "list.jsonl"]))
@SHARED
def test_anything_at_all_ends_in_a_report_or_in_one_line(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)
    mistake = None
    try:
        check_corpus(VoiceData(path=str(path)))
    except DataError as error:
        mistake = str(error)
    assert mistake is None or (str(path) in mistake and "\n" not in mistake)


@given(st.lists(st.text()))
def test_strings_of_the_index_come_back(values):
    strings = Strings.of(values)
    assert list(strings) == values
    assert strings[:] == values


def test_an_open_quote_does_not_swallow_rows_in_silence(tmp_path):
    path = tmp_path / "metadata.csv"
    path.write_text('audio_path,speaker_id,text\na.wav,s1,"never closed\nb.wav,s2,hi\n')
    (problem,) = csv_rows(path)
    assert (problem.reason, problem.place) == ("malformed row", f"{path}:2"), "where it is left open"
    assert "quote" in problem.detail
    assert "2 rows" in problem.detail

    with path.open(encoding="utf-8") as file:  # what csv does by itself: two rows become one
        assert len(list(csv.DictReader(file))) == 1


@pytest.mark.parametrize(
    ("separator", "mend"),
    [
        (",", "put quotes around a text that holds a comma"),
        (";", "put quotes around a text that holds a semicolon"),
        ("\t", "take the tab out of the text"),
        ("|", "take the bar out of the text"),
    ],
)
def test_a_separator_in_the_text_does_not_cut_it_in_silence(tmp_path, separator, mend):
    path = tmp_path / "metadata.csv"
    rows = [["audio_path", "text", "speaker_id"], ["x.wav", "Hi", "anna"], ["y.wav", "Hello", " dear world", "anna"]]
    path.write_text("".join(separator.join(row) + "\n" for row in rows))
    row, problem = csv_rows(path)
    assert row.text == "Hi"
    assert (problem.reason, problem.place) == ("malformed row", f"{path}:3")
    assert problem.detail == f"4 columns, the header has 3; {mend}"


def test_quotes_between_tabs_belong_to_the_text(tmp_path):
    path = tmp_path / "validated.tsv"
    path.write_text('client_id\tpath\tsentence\n7f\tclip.mp3\t"No," she said.\n')
    (row,) = csv_rows(path)
    assert (row.id, row.speaker, row.text) == ("clip", "7f", '"No," she said.')


def test_a_name_that_is_too_long_is_a_missing_file(tmp_path):
    path = tmp_path / "metadata.csv"
    path.write_text(f"audio_path,speaker_id\n{'x' * 5000}.wav,s1\n")
    with pytest.raises(DataError, match=r"1 missing file|1 unreadable"):
        check_corpus(VoiceData(path=str(path)))


def test_a_folder_that_is_called_like_a_recording_is_a_folder(tone_corpus, tmp_path):
    (tmp_path / "session.wav").mkdir()
    shutil.copy(tone_corpus / "anna/00.wav", tmp_path / "session.wav/take1.wav")
    assert detect_format(tmp_path) == "folder"
    _, report = check_corpus(VoiceData(path=str(tmp_path)))
    assert report.speakers == {"session.wav": 1}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_can_not_be_read_is_named(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    with pytest.raises(DataError, match="locked: "):
        check_corpus(VoiceData(path=str(tmp_path), format="folder"))


def test_one_recording_a_speaker_leaves_none_for_validation_and_says_so(tone_corpus, tmp_path, caplog):
    from phonate.data.prepared import prepare

    for speaker in ("anna", "ben"):
        (tmp_path / "corpus" / speaker).mkdir(parents=True)
        shutil.copy(tone_corpus / speaker / "00.wav", tmp_path / "corpus" / speaker)
    prepared = prepare(VoiceData(path=str(tmp_path / "corpus"), cache_dir=str(tmp_path / "cache")))
    assert (len(prepared.train), len(prepared.validation)) == (2, 0)
    assert "held out for validation: each recording has a speaker who is in no other" in caplog.text
    caplog.clear()
    shutil.rmtree(tmp_path / "corpus" / "ben")
    prepare(VoiceData(path=str(tmp_path / "corpus"), cache_dir=str(tmp_path / "cache")))
    assert "held out for validation: there is a single one" in caplog.text
