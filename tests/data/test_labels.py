"""Labels of other programs: what their files say is read, as turns, as a corpus, and written as they read it."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from small_corpora import corpus, wav

from phonate.config.errors import DataError, InputError
from phonate.data.annotations import SpeakerTurn
from phonate.data.corpora.manifest import CORPORA, detect_format, list_corpus
from phonate.data.corpora.rows import Problem, Requirements, Row, Segment
from phonate.data.corpora.validation import check
from phonate.data.label_documents import Tier, write_tiers
from phonate.data.label_texts import chat_words
from phonate.data.labels import LABEL_FORMATS, label_format, read_pair, read_texts, read_turns, write_turns
from phonate.data.transcripts import TimedWord, Transcription, write_transcription

FILES = Path(__file__).with_name("labels")
PRAAT = [(0.5, 2.25, "Ann", 'she said "hello" twice'), (2.0, 3.5, "Bob", "grüß Gott")]
WRITTEN = {
    "long.TextGrid": PRAAT,
    "short.TextGrid": PRAAT,
    "binary.TextGrid": PRAAT,
    "utf16.TextGrid": PRAAT,
    "pympi.eaf": [
        (0.5, 2.25, "Ann", "hello there"),  # of the tier that refers to it
        (2.0, 3.5, "Bob", "grüß Gott"),
        (4.0, 5.0, "Ann", "well"),
    ],
    "webvtt.vtt": [(0.5, 2.25, "Ann Lee", "hello & welcome"), (2.0, 3.5, "Bob", "good day")],
    "srt.srt": [(0.5, 2.25, "SPEAKER_00", "hello and welcome"), (2.0, 3.5, "SPEAKER_01", "good day")],
}


def segments(file):
    (one,) = label_format(file).read(file)
    return [(segment.start, segment.end, segment.speaker, segment.text) for segment in one.segments]


def text(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path / name


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_owners_of_the_formats_wrote(name, tmp_path):
    assert segments(FILES / name) == WRITTEN[name]
    folder = tmp_path / "talk"
    wav(folder / "call.wav", 5.0)
    shutil.copy(FILES / name, folder / f"call{Path(name).suffix}")
    assert detect_format(folder) == "labels"
    (row,) = CORPORA.get("labels")(folder)
    assert (row.id, row.path.name) == ("call", "call.wav")
    assert [(one.start, one.end, one.speaker, one.text) for one in row.segments] == WRITTEN[name]
    (again,) = CORPORA.get(detect_format(folder / f"call{Path(name).suffix}"))(folder / f"call{Path(name).suffix}")
    assert again.segments == row.segments


@pytest.mark.parametrize("suffix", [".rttm", ".TextGrid", ".eaf", ".vtt", ".srt", ".txt"])
def test_turns_come_back_as_they_were_written(suffix, tmp_path):
    turns = [SpeakerTurn(0.25, 2.5, 'ann"x'), SpeakerTurn(2.0, 3.125, "bob"), SpeakerTurn(4.0, 4.5, 'ann"x')]
    write_turns(tmp_path / f"call{suffix}", "call", turns, 6.0)
    assert read_turns(tmp_path / f"call{suffix}") == {"call": turns}


def test_other_readers_read_what_is_written(tmp_path):
    """Praat's grammar is praatio's here."""
    from praatio.textgrid import openTextgrid
    from pympi import Eaf

    turns = [SpeakerTurn(0.25, 2.5, "ann"), SpeakerTurn(2.0, 3.125, "bob")]
    write_turns(tmp_path / "x.TextGrid", "x", turns, 6.0)
    grid = openTextgrid(str(tmp_path / "x.TextGrid"), includeEmptyIntervals=False)
    found = {name: [tuple(entry) for entry in grid.getTier(name).entries] for name in grid.tierNames}
    assert found == {"ann": [(0.25, 2.5, "ann")], "bob": [(2.0, 3.125, "bob")]}
    assert grid.maxTimestamp == 6.0
    write_turns(tmp_path / "x.eaf", "x", turns)
    elan = Eaf(str(tmp_path / "x.eaf"))
    assert elan.get_annotation_data_for_tier("bob") == [(2000, 3125, "bob")]


@pytest.mark.parametrize("name", ["x.json", "x.stm", "x.docx"])
def test_turns_are_written_in_formats_that_hold_them(name, tmp_path):
    with pytest.raises(InputError, match=r"\.rttm, \.TextGrid, \.eaf"):
        write_turns(tmp_path / name, "x", [SpeakerTurn(0.0, 1.0, "ann")])


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        (
            "x.TextGrid",
            'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n1\n<exists>\n1\n"IntervalTier"',
            "early",
        ),
        ("x.TextGrid", "hello", "TextGrid"),
        (
            "x.TextGrid",
            '"ooTextFile"\n"TextGrid"\n0\n1\n<exists>\n1\n"IntervalTier"\n"phones"\n0\n1\n0\n',
            "parts of words",
        ),
        ("x.eaf", "<ANNOTATION", "XML"),
        ("x.vtt", "1\n00:00 --> 00:01\nhi", "WEBVTT"),
        ("x.srt", "no times at all\n", "caption"),
        ("x.ctm", "rec 1 0.1 x word\n", "x.ctm:1: "),
        ("x.cha", "@Begin\n*CHI:\thello .\n@End\n", "bullets"),
        ("x.txt", "0.1\t0.2\tann\nnonsense\n", "x.txt:2: "),
        ("x.words.xml", "<a/>", "MEETING"),
    ],
)
def test_what_is_no_such_file_is_one_line(name, content, place, tmp_path):
    file = text(tmp_path, name, content)
    with pytest.raises(DataError, match=place):
        label_format(file).read(file)


def test_a_text_without_labels_is_not_blamed_on_its_name(tmp_path):
    with pytest.raises(DataError, match=r"notes\.txt:1: neither Audacity labels nor RTTM"):
        read_turns(text(tmp_path, "notes.txt", "we met at noon\n"))
    with pytest.raises(DataError, match=r"notes\.md: .*by its name"):
        read_turns(text(tmp_path, "notes.md", "we met at noon\n"))


def test_several_objects_of_praat_in_a_file_are_no_textgrid(tmp_path):
    """As Praat saves a selection, or a chronological TextGrid."""
    for head in (
        'File type = "ooTextFile"\nObject class = "Collection"\n',
        '"Praat chronological TextGrid text file"\n"x"\n',
    ):
        with pytest.raises(DataError, match="save it alone in Praat, as text file"):
            read_turns(text(tmp_path, "x.TextGrid", head + "\nsize = 2\n"))


def test_a_damaged_binary_textgrid_is_one_line(tmp_path):
    whole = (FILES / "binary.TextGrid").read_bytes()
    for length in range(30, len(whole) - 1, 11):
        (tmp_path / "x.TextGrid").write_bytes(whole[:length])
        with pytest.raises(DataError, match="not a readable TextGrid"):
            read_turns(tmp_path / "x.TextGrid")


def test_tiers_of_aligners_are_words_of_speakers_and_phones_are_left_out(tmp_path):
    tiers = [("ann - words", [(0, 0.4, "good"), (0.5, 1, "day"), (2, 3, "bye")]), ("ann - phones", [(0, 0.1, "g")])]
    lines = ['"ooTextFile"', '"TextGrid"', "0", "3", "<exists>", str(len(tiers))]
    for name, entries in tiers:
        lines += ['"IntervalTier"', f'"{name}"', "0", "3", str(len(entries))]
        lines += [f'{start}\n{end}\n"{label}"' for start, end, label in entries]
    file = text(tmp_path, "x.TextGrid", "\n".join(lines))
    assert segments(file) == [(0.0, 1.0, "ann", "good day"), (2.0, 3.0, "ann", "bye")]
    wav(tmp_path / "x.wav", 3.0)
    assert detect_format(tmp_path) == "folder"  # durations belong to texts, not to this


def test_elan_slots_without_a_time_lie_evenly_between_their_neighbours(tmp_path):
    slots = [("ts1", 1000), ("ts2", None), ("ts3", None), ("ts4", 4000)]
    order = "".join(
        f'<TIME_SLOT TIME_SLOT_ID="{id}"' + ("" if value is None else f' TIME_VALUE="{value}"') + "/>"
        for id, value in slots
    )
    annotations = "".join(
        f'<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a{n}" TIME_SLOT_REF1="ts{n}" TIME_SLOT_REF2="ts{n + 1}">'
        f"<ANNOTATION_VALUE>w{n}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION>"
        for n in (1, 2, 3)
    )
    file = text(
        tmp_path,
        "x.eaf",
        f"<ANNOTATION_DOCUMENT><TIME_ORDER>{order}</TIME_ORDER>"
        f'<TIER TIER_ID="ann">{annotations}</TIER></ANNOTATION_DOCUMENT>',
    )
    assert segments(file) == [(1.0, 2.0, "ann", "w1"), (2.0, 3.0, "ann", "w2"), (3.0, 4.0, "ann", "w3")]


def test_captions_with_notes_styles_several_voices_and_speakers_who_go_on(tmp_path):
    file = text(
        tmp_path,
        "x.vtt",
        "WEBVTT - a title\n\nSTYLE\n::cue { color: red }\n\nNOTE not said\n\nintro\n"
        "00:01.000 --> 00:02.500 align:start\n"
        "<v.loud Ann Lee>one <c.red>two</c></v>\n<v Bob>three\n\n01:00:03.000 --> 01:00:04.000\n<v Ann Lee>&lt;four\n",
    )
    assert segments(file) == [
        (1.0, 2.5, "Ann Lee", "one two"),
        (1.0, 2.5, "Bob", "three"),
        (3603.0, 3604.0, "Ann Lee", "<four"),
    ]
    file = text(
        tmp_path,
        "zoom.vtt",
        "WEBVTT\r\n\r\n1\r\n00:00:01.000 --> 00:00:02.000\r\nAnn Lee: hello\r\n\r\n2\r\n"
        "00:00:02.000 --> 00:00:03.000\r\n"
        "how are you\r\n\r\n3\r\n00:00:03.000 --> 00:00:04.000\r\nBob: fine\r\n",
    )
    assert [one[2:] for one in segments(file)] == [("Ann Lee", "hello"), ("Ann Lee", "how are you"), ("Bob", "fine")]
    file = text(tmp_path, "time.srt", "1\n00:00:01,000 --> 00:00:02,000\nplain words\n\n")
    assert segments(file) == [(1.0, 2.0, None, "plain words")]
    with pytest.raises(DataError, match="name no speaker"):
        read_turns(file)


def test_captions_that_roll_say_each_line_once(tmp_path):
    cues = [
        ("00:04:46.070 --> 00:04:46.470", " \nyeah<00:04:46.200><c> what</c>"),
        ("00:04:46.470 --> 00:04:46.480", "yeah what\n "),
        ("00:04:46.480 --> 00:04:48.000", "yeah what\nthis will<00:04:47.000><c> happen</c>"),
    ]
    lines = ["WEBVTT", "Kind: captions", ""]
    for times, said in cues:
        lines += [f"{times} align:start position:0%", said, ""]
    file = text(tmp_path, "x.vtt", "\n".join(lines))
    assert [one[3] for one in segments(file)] == ["yeah what", "this will happen"]


def test_audacity_labels_are_speakers_or_texts_by_their_values(tmp_path):
    speakers = text(tmp_path, "a.txt", "0,5\t1,0\tann\n\\\t100\t200\n1.0\t1.5\tbob\n1.2\t1.2\tclick\n")
    assert segments(speakers) == [(0.5, 1.0, "ann", None), (1.0, 1.5, "bob", None)]
    texts = text(tmp_path, "b.txt", "0.5\t1.0\tgood morning\n1.0\t1.5\thow are you\n")
    assert [one[2:] for one in segments(texts)] == [(None, "good morning"), (None, "how are you")]
    assert label_format(text(tmp_path, "c.txt", "just a text\n")) is None


def test_ctm_takes_first_alternatives_and_no_marks(tmp_path):
    lines = [
        ";; comment", "rec 1 0.1 0.2 hello 0.9", "rec 1 0.35 0.3 there",
        "rec 1 * * <ALT_BEGIN>", "rec 1 1.5 0.2 gonna",
        "rec 1 * * <ALT>", "rec 1 1.5 0.1 going", "rec 1 1.6 0.1 to", "rec 1 * * <ALT_END>",
        "rec 1 1.8 0.1 %hesitation",
        "rec 1 2.0 0.1 @", "rec 1 2.0 0.1 <sil>",
    ]  # fmt: skip
    file = text(tmp_path, "x.ctm", "\n".join(lines))
    (one,) = label_format(file).read(file)
    assert [(round(each.start, 3), round(each.end, 3), each.text) for each in one.segments] == [
        (0.1, 0.65, "hello there"),
        (1.5, 1.7, "gonna"),
    ]
    assert one.left_out["marks and alternatives"] == 5
    wav(tmp_path / "rec.wav", 3.0)
    (row,) = CORPORA.get("ctm")(tmp_path)
    assert (row.id, row.text) == ("rec", "hello there gonna")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("what's that ?", "what's that?"),
        ("&=laughs xxx cookie@f .", "cookie."),
        ("<I want> [//] (be)cause &-uh &+fr no: +/.", "I want because uh no"),
        (
            "0is he (.) going [= where] ice_cream ice+cream bonjour@s:fra (1.5) +...",
            "he going ice cream icecream bonjour",
        ),
        ("+< yes ‡ sir !", "yes sir!"),
        ("xxx .", ""),
    ],
)
def test_words_of_chat(line, words):
    assert chat_words(line) == words


def test_chat_turns_have_the_times_of_their_bullets(tmp_path):
    file = text(
        tmp_path,
        "x.cha",
        "@Begin\n@Participants:\tCHI Target_Child, MOT Mother\n*CHI:\tmore cookie . \x15500_1500\x15\n"
        "%mor:\tqn|more n|cookie .\n"
        "*MOT:\tyou want\n\tmore ? \x151500_2750\x15\n*MOT:\tno time .\n@End\n",
    )
    assert segments(file) == [(0.5, 1.5, "CHI", "more cookie."), (1.5, 2.75, "MOT", "you want more?")]
    assert label_format(file).read(file)[0].left_out["utterances without times"] == 1


def test_ami_words_in_the_segments_of_the_transcriber(tmp_path):
    nite = 'xmlns:nite="http://nite.sourceforge.net/"'
    for folder in ("words", "segments", "corpusResources", "audio"):
        (tmp_path / folder).mkdir()
    words = (
        '<w nite:id="ES2002a.A.words0" starttime="0.50" endtime="0.80">caf&#xE9;</w>'
        '<w nite:id="ES2002a.A.words1" starttime="0.80" endtime="0.80" punc="true">.</w>'
        '<vocalsound nite:id="ES2002a.A.words2" starttime="0.9" endtime="1.2" type="laugh"/>'
        '<w nite:id="ES2002a.A.words3" starttime="2.00" endtime="2.40">P_C_\'s</w>'
    )
    head = '<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?>\n'
    (tmp_path / "words/ES2002a.A.words.xml").write_text(f"{head}<nite:root {nite}>{words}</nite:root>", "latin-1")
    other = words.replace(".A.", ".B.").replace("2.00", "1.00").replace("2.40", "1.40")
    (tmp_path / "words/ES2002a.B.words.xml").write_text(f"{head}<nite:root {nite}>{other}</nite:root>", "latin-1")
    listed = (
        '<segment nite:id="s1" transcriber_start="0.4" transcriber_end="1.3">'
        '<nite:child href="ES2002a.A.words.xml#id(ES2002a.A.words0)..id(ES2002a.A.words2)"/></segment>'
        '<segment nite:id="s2" transcriber_start="1.9" transcriber_end="2.5">'
        '<nite:child href="ES2002a.A.words.xml#id(ES2002a.A.words3)"/></segment>'
    )
    (tmp_path / "segments/ES2002a.A.segments.xml").write_text(f"{head}<nite:root {nite}>{listed}</nite:root>")
    people = '<meeting observation="ES2002a"><speaker nxt_agent="A" global_name="MEE006"/></meeting>'
    (tmp_path / "corpusResources/meetings.xml").write_text(f"<root>{people}</root>")
    wav(tmp_path / "audio/ES2002a.Mix-Headset.wav", 3.0)
    (row,) = CORPORA.get(detect_format(tmp_path))(tmp_path)
    assert [(one.start, one.end, one.speaker, one.text) for one in row.segments] == [
        (0.4, 1.3, "MEE006", "café."),
        (0.5, 1.4, "ES2002B", "café. P C's"),
        (1.9, 2.5, "MEE006", "P C's"),
    ]
    assert set(read_turns(tmp_path)) == {"ES2002a"}


def test_labels_without_texts_are_of_recordings_and_those_with_texts_of_segments(tmp_path):
    for name in ("a", "b"):
        wav(tmp_path / name / "call.wav", 6.0)
    write_turns(tmp_path / "a/call.eaf", "call", [SpeakerTurn(0.0, 1.0, "ann"), SpeakerTurn(0.5, 1.5, "bob")])
    (tmp_path / "b/call.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nann: hello\n\n")
    rows, _ = list_corpus(corpus(tmp_path / "a"))
    assert [(row.id, len(row.segments)) for row in rows] == [("call", 2)]
    (row,), _ = list_corpus(corpus(tmp_path / "b"))
    assert (row.start, row.end, row.text) == (0.0, 1.0, "hello")


def test_two_kinds_of_labels_are_asked_about(tmp_path):
    wav(tmp_path / "call.wav", 5.0)
    shutil.copy(FILES / "srt.srt", tmp_path / "call.srt")
    shutil.copy(FILES / "webvtt.vtt", tmp_path / "call.vtt")
    with pytest.raises(DataError, match=r"data\.format to one of srt, webvtt, or to folder"):
        detect_format(tmp_path)
    (row,) = CORPORA.get("webvtt")(tmp_path)
    assert row.speakers == ("Ann Lee", "Bob")
    assert set(CORPORA.names()) >= set(LABEL_FORMATS)


def test_a_recording_without_labels_and_labels_without_a_recording_are_reported(tmp_path):
    for name in ("a", "b"):
        wav(tmp_path / f"{name}.wav", 5.0)
    shutil.copy(FILES / "srt.srt", tmp_path / "a.srt")
    shutil.copy(FILES / "srt.srt", tmp_path / "lost.srt")
    rows = list(CORPORA.get(detect_format(tmp_path))(tmp_path))
    assert [(one.id, one.reason) for one in rows if isinstance(one, Problem)] == [
        ("lost", "missing file"),
        ("b", "no annotation"),
    ]


@pytest.mark.parametrize("first", ["monday.rttm", "monday.stm"])
def test_labels_of_another_kind_serve_the_recordings_that_have_none_of_the_first(tmp_path, first, caplog):
    """Where they say who speaks; of what has both, the first are read."""
    for name in ("monday", "tuesday", "wednesday", "thursday"):
        wav(tmp_path / f"{name}.wav", 5.0)
    turns = [SpeakerTurn(0.5, 2.0, "ann"), SpeakerTurn(1.5, 3.0, "bob")]
    if first.endswith(".stm"):
        text(tmp_path, first, "".join(f"monday 1 {one.speaker} {one.start} {one.end} hello\n" for one in turns))
    else:
        write_turns(tmp_path / first, "monday", turns, 5.0)
    write_turns(tmp_path / "monday.txt", "monday", turns[:1])
    write_turns(tmp_path / "tuesday.txt", "tuesday", turns)
    text(tmp_path, "wednesday.txt", "0.5\t2.0\tgood morning everybody\n")
    for name in ("friday", "saturday", "sunday"):
        wav(tmp_path / f"{name}.wav", 5.0)
    text(tmp_path, "friday.txt", "0.5\t2.0\tann\nwho is next?\n")
    tiers = [Tier("ann - words", [(0.0, 1.0, "good")]), Tier("ann - phones", [(0.0, 1.0, "G")])]
    write_tiers(tmp_path / "saturday.TextGrid", tiers, 5.0)
    write_turns(tmp_path / "sunday.txt", "sunday", turns)
    write_turns(tmp_path / "sunday.TextGrid", "sunday", turns[:1], 5.0)
    with caplog.at_level(logging.INFO):
        rows = list(CORPORA.get(detect_format(tmp_path))(tmp_path))
    assert f"{tmp_path}: read as well, for recordings without other labels: tuesday.txt" in caplog.text
    assert {(row.id, row.speakers) for row in rows if isinstance(row, Row)} == {
        ("monday", ("ann", "bob")),
        ("tuesday", ("ann", "bob")),
    }
    assert sorted((one.id, one.reason) for one in rows if isinstance(one, Problem)) == [
        ("friday", "malformed labels"),
        ("saturday", "no annotation"),
        ("sunday", "several files"),
        ("sunday", "several files"),
        ("thursday", "no annotation"),
        ("wednesday", "no annotation"),
    ]


def test_labels_of_speakers_are_not_mixed_with_captions_of_nobody(tmp_path):
    for name in ("monday", "tuesday"):
        wav(tmp_path / f"{name}.wav", 5.0)
    text(tmp_path, "monday.vtt", "WEBVTT\n\n00:00.500 --> 00:02.000\ngood morning\n")
    write_turns(tmp_path / "tuesday.txt", "tuesday", [SpeakerTurn(0.5, 2.0, "ann"), SpeakerTurn(1.5, 3.0, "bob")])
    monday, tuesday = CORPORA.get("webvtt")(tmp_path)
    assert (monday.id, tuesday.id, tuesday.reason) == ("monday", "tuesday", "no annotation")


def test_a_label_track_among_many_recordings_is_no_text_and_how_it_is_read_is_said(tmp_path, caplog):
    for name in "abc":
        wav(tmp_path / f"{name}.wav", 5.0)
    write_turns(tmp_path / "a.txt", "a", [SpeakerTurn(0.5, 2.0, "ann"), SpeakerTurn(1.5, 3.0, "bob")])
    assert [row.text for row in list_corpus(corpus(tmp_path))[0]] == [None] * 3
    assert "a.txt: a transcript with times; save the words alone" in caplog.text
    assert "or read it as labels with data.format=labels" in caplog.text
    rows, _ = list_corpus(corpus(tmp_path, format="labels"))
    assert {row.id: getattr(row, "speakers", ()) for row in rows} == {"a": ("ann", "bob"), "b": (), "c": ()}


def test_labels_of_two_kinds_beside_different_recordings_are_all_read(tmp_path):
    for name, end in (("monday", ".TextGrid"), ("tuesday", ".txt")):
        wav(tmp_path / f"{name}.wav", 5.0)
        write_turns(tmp_path / f"{name}{end}", name, [SpeakerTurn(0.5, 2.0, "ann"), SpeakerTurn(1.5, 3.0, "bob")], 5.0)
    rows, _ = list_corpus(corpus(tmp_path))
    assert {(row.path.stem, row.speakers) for row in rows} == {
        ("monday", ("ann", "bob")),
        ("tuesday", ("ann", "bob")),
    }


def test_a_pair_of_files_of_which_one_names_no_recording_is_of_one_recording(tmp_path):
    write_turns(tmp_path / "ref.TextGrid", "", [SpeakerTurn(0.0, 1.0, "ann")], 2.0)
    write_turns(tmp_path / "hyp.rttm", "call_2", [SpeakerTurn(0.0, 1.0, "a")])
    reference, hypothesis = read_pair(read_turns, tmp_path / "ref.TextGrid", tmp_path / "hyp.rttm")
    assert reference.keys() == hypothesis.keys()


SAID = [(0.0, 1.5, "SPEAKER_00", "Good morning."), (1.6, 2.9, "SPEAKER_01", "And to you.")]


def whisperx(speakers=True, whole=False):
    """As WhisperX writes it; `whole`: with the text of all, as Whisper does."""
    segments = [
        {"start": start, "end": end, "text": f" {said}", "words": [{"word": "x", "score": 0.9}]}
        | ({"speaker": speaker} if speakers else {})
        for start, end, speaker, said in SAID
    ]
    return ({"text": "Good morning. And to you."} if whole else {}) | {"segments": segments, "language": "en"}


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (whisperx(), "labels"),
        (whisperx(speakers=False), "labels"),
        (whisperx(whole=True), "labels"),
        (whisperx(speakers=False, whole=True), "folder"),
    ],
)
def test_transcripts_in_json_are_labels_where_they_name_speakers_or_no_text_of_all(document, kind, tmp_path):
    for name in ("a", "b"):
        wav(tmp_path / f"calls/{name}.wav", 3.0)
        (tmp_path / f"calls/{name}.json").write_text(json.dumps(document))
    assert detect_format(tmp_path / "calls") == kind
    rows, _ = list_corpus(corpus(tmp_path / "calls"))
    if kind == "folder":
        assert {row.text for row in rows} == {"Good morning. And to you."}
        rows, _ = list_corpus(corpus(tmp_path / "calls", format="transcript"))
    speakers = "speaker" in document["segments"][0]
    expected = [(start, end, speaker if speakers else None, said) for start, end, speaker, said in SAID]
    assert [(row.start, row.end, row.speaker, row.text) for row in rows] == 2 * expected


def test_what_transcribe_writes_as_json_is_read_back(tmp_path):
    wav(tmp_path / "call.wav", 3.0)
    words = [TimedWord("Good", 0.1, 0.5, 0.9, "ann"), TimedWord("morning.", 0.5, 1.0, 0.9, "ann")]
    words.append(TimedWord("Hello.", 1.1, 1.9, 0.9, "bob"))
    write_transcription(tmp_path / "call.json", Transcription(words, 3.0), "call")
    rows, _ = list_corpus(corpus(tmp_path))
    assert [(row.speaker, row.text) for row in rows] == [("ann", "Good morning."), ("bob", "Hello.")]
    assert read_turns(tmp_path / "call.json") == {"call": [SpeakerTurn(0.1, 1.0, "ann"), SpeakerTurn(1.1, 1.9, "bob")]}


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.52), (0.0, 1.0), (2.0, 2.3)])
def test_a_transcript_of_one_word_is_read_back(start, end, tmp_path):
    write_transcription(tmp_path / "x.json", Transcription([TimedWord("Yes.", start, end, 0.9, "ann")], 3.0), "x")
    assert read_turns(tmp_path / "x.json") == {"x": [SpeakerTurn(start, end, "ann")]}


TURNS = [{"start": 0.25, "end": 1.5, "text": "good morning", "speaker": "A"}]
TURNS.append({"start": 2.0, "end": 2.75, "text": "bye", "speaker": "B"})


def renamed(**names):
    return [{names.get(key, key): value for key, value in turn.items()} for turn in TURNS]


def in_ms(name):
    return [
        {name.format(key): int(1000 * turn[key]) for key in ("start", "end")}
        | {"text": turn["text"], "speaker": turn["speaker"]}
        for turn in TURNS
    ]


@pytest.mark.parametrize(
    "document",
    [
        TURNS,
        {"segments": renamed(start="startTime", end="endTime", text="body")},
        {"segments": renamed(start="begin_time", end="end_time")},
        {"segments": [turn | {"start": str(turn["start"]), "end": str(turn["end"])} for turn in TURNS]},
        {"text": "all", "chunks": [{"timestamp": [0, 3], "text": "all"}]}
        | {"speakers": [{"timestamp": [one.pop("start"), one.pop("end")]} | one for one in renamed()]},
        {"metadata": {}, "results": {"utterances": renamed(text="transcript"), "channels": []}},
        # AssemblyAI counts milliseconds.
        {
            "text": "all",
            "words": [{"start": 250, "end": 650, "text": "good", "speaker": "A"}],
            "utterances": in_ms("{}"),
        },
        {"segments": in_ms("{}_ms")},
    ],
)
def test_transcripts_in_json_of_other_recognisers(document, tmp_path):
    wav(tmp_path / "x.wav", 4.0)
    file = text(tmp_path, "x.json", json.dumps(document))
    assert segments(file) == [(0.25, 1.5, "A", "good morning"), (2.0, 2.75, "B", "bye")]
    assert detect_format(tmp_path) == "labels"


def test_json_of_several_channels_or_of_recordings_is_no_transcript(tmp_path):
    channels = [turn | {"channel": number} for number, turn in enumerate(TURNS)]
    assert label_format(text(tmp_path, "x.json", json.dumps({"utterances": channels}))) is None
    assert label_format(text(tmp_path, "y.json", json.dumps([turn | {"audio": "a.wav"} for turn in TURNS]))) is None
    assert label_format(text(tmp_path, "v.json", '{"samples": {"": null}}')) is None
    assert label_format(text(tmp_path, "z.json", json.dumps([turn | {"session_id": "a"} for turn in TURNS]))) is None


@pytest.mark.parametrize("suffix", [".srt", ".vtt", ".eaf", ".TextGrid"])
@pytest.mark.parametrize("speakers", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_transcripts_in_json_beside_other_labels_are_passed_over(suffix, speakers, whole, tmp_path):
    folder = tmp_path / "calls"
    for name in ("a", "b"):
        wav(folder / f"{name}.wav", 3.0)
        write_turns(folder / f"{name}{suffix}", name, [SpeakerTurn(0.5, 1.5, "ann")], 3.0)
        (folder / f"{name}.json").write_text(json.dumps(whisperx(speakers, whole)))
    assert detect_format(folder) == "labels"
    assert [(one.start, one.end, one.speaker) for row in CORPORA.get("labels")(folder) for one in row.segments] == [
        (0.5, 1.5, "ann")
    ] * 2


def test_turns_of_one_format_and_texts_of_another_lie_in_one_folder(tmp_path):
    write_turns(tmp_path / "m1.rttm", "m1", [SpeakerTurn(0.5, 1.5, "ann")])
    (tmp_path / "m1.json").write_text(json.dumps(whisperx(speakers=False, whole=True)))
    assert read_turns(tmp_path) == {"m1": [SpeakerTurn(0.5, 1.5, "ann")]}
    assert [one.text for one in read_texts(tmp_path)["m1"].segments] == ["Good morning.", "And to you."]


def test_a_silent_recording_first_leaves_the_others_labels(tmp_path):
    for name in ("a", "b"):
        wav(tmp_path / f"calls/{name}.wav", 3.0)
    text(tmp_path / "calls", "a.json", json.dumps({"text": "", "segments": []}))
    text(tmp_path / "calls", "b.json", json.dumps(whisperx(whole=True)))
    assert detect_format(tmp_path / "calls") == "labels"
    rows = {row.id: row.segments for row in CORPORA.get("labels")(tmp_path / "calls")}
    assert (len(rows["a"]), len(rows["b"])) == (0, 2)
    assert read_turns(tmp_path / "calls")["a"] == []


def test_a_transcript_that_changes_is_looked_at_again(tmp_path, monkeypatch):
    parsed = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    file = text(tmp_path, "a.json", json.dumps(whisperx()))
    assert label_format(file) is label_format(file) is LABEL_FORMATS["transcript"]
    assert len(parsed) == 1
    file.write_text(json.dumps({"events": []}))
    assert label_format(file) is None


def test_segments_of_speakers_need_no_text(tmp_path):
    segments = [{"start": 0, "end": 1.5, "speaker": "ann"}]
    file = text(tmp_path, "x.json", json.dumps({"segments": segments}))
    assert read_turns(file) == {"x": [SpeakerTurn(0.0, 1.5, "ann")]}
    assert label_format(text(tmp_path, "y.json", json.dumps({"segments": [{"start": 0, "end": 1.5}]}))) is None


def test_segments_in_which_whisperx_heard_nobody_are_left_out(tmp_path, caplog):
    document = whisperx()
    del document["segments"][0]["speaker"]
    wav(tmp_path / "calls/a.wav", 3.0)
    file = text(tmp_path / "calls", "a.json", json.dumps(document))
    with caplog.at_level(logging.WARNING):
        assert read_turns(file) == {"a": [SpeakerTurn(1.6, 2.9, "SPEAKER_01")]}
        (row,) = CORPORA.get("labels")(tmp_path / "calls")
    assert [one.speaker for one in row.segments] == ["SPEAKER_01"]
    assert caplog.text.count("left out: 1 segments without a speaker") == 2
    assert len(read_texts(file)["a"].segments) == 2, "scores of words are of all of them"


def test_json_that_says_nothing_of_a_recording_is_told(tmp_path, caplog):
    wav(tmp_path / "call.wav", 3.0)
    (tmp_path / "call.json").write_text(json.dumps({"events": [{"tStartMs": 0, "segs": [{"utf8": "hello"}]}]}))
    with caplog.at_level(logging.WARNING):
        (row,), _ = list_corpus(corpus(tmp_path))
    assert row.text is None
    assert "ignored, not recordings: 1 .json (such as call.json); no recording has a text" in caplog.text


def test_json_that_describes_a_recording_is_no_text_that_is_missed(tmp_path, caplog):
    wav(tmp_path / "call.wav", 3.0)
    (tmp_path / "call.json").write_text(json.dumps({"device": "Zoom H4", "events": [{"room": "kitchen", "text": ""}]}))
    with caplog.at_level(logging.INFO):
        list_corpus(corpus(tmp_path))
    assert caplog.messages == [f"{tmp_path}: ignored, not recordings: 1 .json"]


def test_the_report_of_a_data_set_is_not_told_as_ignored(tmp_path, caplog):
    wav(tmp_path / "call.wav", 3.0)
    (tmp_path / "report.json").write_text(json.dumps({"pieces": 1}))
    with caplog.at_level(logging.INFO):
        list_corpus(corpus(tmp_path))
    assert caplog.messages == []


def test_reading_an_alignment_of_words_and_phones_as_labels_is_not_advised(tmp_path, caplog):
    for name in ("a", "b"):
        wav(tmp_path / f"{name}.wav", 3.0)
        tiers = [Tier("words", [(0.0, 1.0, "good")]), Tier("phones", [(0.0, 1.0, "G")])]
        write_tiers(tmp_path / f"{name}.TextGrid", tiers, 3.0)
    with caplog.at_level(logging.WARNING):
        list_corpus(corpus(tmp_path))
    assert "2 .textgrid (such as" in caplog.text
    assert "data.format=textgrid" not in caplog.text


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("Ann Lee  0:00  \nGood morning.\n\nBob  0:04\nAnd to you.\n\nTranscribed by https://otter.ai\n", "times"),
        ("[00:00:01] Ann: Good morning.\n\n[00:00:04] Bob: And to you.\n", "times"),
        ("Speaker 1 (00:00:01):\nGood morning.\nSpeaker 2 (00:00:04):\nAnd to you.\n", "times"),
        ("1\n00:00:01,000 --> 00:00:02,000\nGood morning.\n\n2\n00:00:03,000 --> 00:00:04,000\nYes.\n", "times"),
        ("ANN: Good morning.\nBOB: And to you.\nANN: Thank you.\nBOB: Bye.\n", "names of speakers (ANN, BOB)"),
        ("start\tend\ttext\n0\t1500\tGood morning.\n", "times"),
        ("Ann: [00:00:01] Good morning.\n\nBob: [00:00:04] And to you.\n", "times"),
        ("[00:00.000 --> 00:02.000]  Good morning.\n[00:02.000 --> 00:04.000]  Yes.\n", "times"),
        ("The train leaves at 10:30\n", None),
        ("Note: the door\nis open.\n", None),
        ("Good morning.\nAnd to you: hello.\n", None),
    ],
)
def test_transcripts_of_conversations_are_no_texts(said, what, tmp_path, caplog):
    wav(tmp_path / "call.wav", 3.0)
    text(tmp_path, "call.txt", said)
    with caplog.at_level(logging.WARNING):
        (row,), _ = list_corpus(corpus(tmp_path))
    assert row.text == (" ".join(said.split()) if what is None else None)
    assert (f"call.txt: a transcript with {what}; save the words alone" in caplog.text) == (what is not None)
    labels = what is not None and label_format(tmp_path / "call.txt") is not None
    assert ("read it as labels with data.format=labels" in caplog.text) == labels
    if what is not None:
        _, (problem,), _ = check(row, Requirements(text=True))
        assert f"its text is left out: a transcript with {what}" in problem.detail


@pytest.mark.parametrize(
    "said",
    [
        "The first train leaves at 10:30\nthe second leaves at 11:45\n",
        "7:30 we get up\n8:15 we eat\n",
        "3:16 For God so loved\n3:17 For God sent\n",
        "John 3:16\nFor God so loved\nJohn 3:17\nFor God sent\n",
        "Question: Who?\nAnswer: I.\nQuestion: When?\nAnswer: Now.\n",
        "ANN: Good morning.\nBOB: And to you.\nANN: Thank you.\n",
        "ANN: Good morning.\nBOB: And to you.\n",
        "Romeo: But soft, what light. Juliet: Ay me. Romeo: She speaks.\n",
    ],
)
def test_texts_with_times_or_names_that_one_voice_may_read_are_kept_and_told(said, tmp_path, caplog):
    wav(tmp_path / "a/84-121123-0000.wav", 3.0)
    text(tmp_path / "a", "84-121123-0000.txt", said)
    for name in ("folder", "librispeech"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            (row,), _ = list_corpus(corpus(tmp_path, format=name))
        assert row.text == " ".join(said.split())
    wav(tmp_path / "b.wav", 3.0)
    text(tmp_path, "b.txt", said)
    caplog.clear()
    list_corpus(corpus(tmp_path, format="folder"))
    assert "2 texts look like a conversation's transcript, such as a/84-121123-0000.txt" in caplog.text


@pytest.mark.parametrize("said", ["He said: good. She said: bye. He said: go.\n", "Note: it rains. Yes: it does.\n"])
def test_texts_with_colons_that_name_nobody_are_not_told(said, tmp_path, caplog):
    wav(tmp_path / "b.wav", 3.0)
    text(tmp_path, "b.txt", said)
    assert [row.text for row in list_corpus(corpus(tmp_path))[0]] == [said.strip()]
    assert "transcript" not in caplog.text


def test_a_part_without_a_text_is_mended_where_it_is_listed(tmp_path):
    wav(tmp_path / "call.wav", 3.0)
    part = Row("call", tmp_path / "call.wav", (Segment(0.0, 1.0, "ann"),), "list.csv:12", start=0.5, end=2.0)
    _, (problem,), _ = check(part, Requirements(text=True))
    assert "write it into list.csv:12, or set" in problem.detail
    assert "call.txt" not in problem.detail


def test_a_recording_of_librispeech_beside_a_conversation_is_kept(tmp_path, caplog):
    wav(tmp_path / "84-121123-0000.wav", 3.0)
    text(tmp_path, "84-121123-0000.txt", "Ann  0:00\nGood morning.\nBob  0:04\nAnd to you.\n")
    (row,), report = list_corpus(corpus(tmp_path, format="librispeech"))
    assert row.text is None
    assert not report.refused
    assert "1 text is left out, such as 84-121123-0000.txt: a transcript with times" in caplog.text


def test_tiers_of_webmaus_are_words_and_what_is_less(tmp_path):
    tiers = [
        Tier("ORT-MAU", [(0.1, 0.5, "Good"), (0.5, 1.0, "morning")]),
        Tier("KAN-MAU", [(0.1, 0.5, "gUd"), (0.5, 1.0, "mO:nIN")]),
        Tier("MAU", [(0.1, 0.3, "g"), (0.3, 0.5, "U")]),
    ]
    write_tiers(tmp_path / "call.TextGrid", tiers, 3.0)
    (one,) = label_format(tmp_path / "call.TextGrid").read(tmp_path / "call.TextGrid")
    assert [(segment.speaker, segment.text) for segment in one.segments] == [(None, "Good morning")]


def test_what_captions_say_of_sounds_is_not_said(tmp_path, caplog):
    wav(tmp_path / "talk.wav", 9.0)
    cues = [
        "<i>[door closes]</i>",
        "- Good morning.\n- And to you.",
        "♪ la la ♪",
        "(LAUGHS)",
        "[sighs] Well – if so (yes).",
    ]
    text(
        tmp_path,
        "talk.srt",
        "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n{cue}\n\n" for n, cue in enumerate(cues)),
    )
    with caplog.at_level(logging.WARNING):
        rows, _ = list_corpus(corpus(tmp_path))
    assert [row.text for row in rows] == ["Good morning. And to you.", "Well – if so (yes)."]
    assert "left out: 3 captions of sounds" in caplog.text


def captions_of(folder, *cues):
    """SubRip beside a recording with these captions, one a second."""
    wav(folder / "talk.wav", 12.0)
    times = [f"00:00:{n:02},000 --> 00:00:{n:02},900" for n in range(len(cues))]
    text(folder, "talk.srt", "".join(f"{n}\n{times[n]}\n{cue}\n\n" for n, cue in enumerate(cues)))
    return folder / "talk.srt"


def test_brackets_in_captions_that_are_no_sounds_are_kept(tmp_path, caplog):
    said = ["[Ann] hello there", "[he] went home", "- 5 degrees", "so ♪ they sang", "♪ la la\nHello.", "[MUSIC] Yes."]
    (one,) = label_format(captions_of(tmp_path, *said)).read(tmp_path / "talk.srt")
    kept = ["[Ann] hello there", "[he] went home", "- 5 degrees", "so ♪ they sang", "Hello.", "Yes."]
    assert [segment.text for segment in one.segments] == kept
    assert one.left_out == {"sounds within captions": 2}


def test_captions_with_words_that_nobody_understood_are_left_out(tmp_path):
    said = ["[he] went [inaudible] home", "Good morning.", "[unintelligible 00:00:02]", "[crosstalk]\nYes."]
    (one,) = label_format(captions_of(tmp_path, *said)).read(tmp_path / "talk.srt")
    assert [segment.text for segment in one.segments] == ["Good morning."]
    assert one.left_out == {"captions with words that were not understood": 3}


def test_a_turn_whose_words_nobody_understood_remains_its_speakers(tmp_path):
    said = ["Ann: Hello.", "Bob: [inaudible] home", "Good morning.", "Ann: Yes."]
    (one,) = label_format(captions_of(tmp_path, *said)).read(tmp_path / "talk.srt")
    assert [(segment.speaker, segment.text) for segment in one.segments] == [
        *(("Ann", "Hello."), ("Bob", None), ("Bob", "Good morning."), ("Ann", "Yes."))
    ]


def test_a_line_that_rolled_is_no_caption_of_sounds(tmp_path):
    cues = ["00:00:00.000 --> 00:00:01.000\n \ngood<00:00:00.500><c> morning</c>"]
    cues += ["00:00:01.000 --> 00:00:01.010\ngood morning\n "]
    cues += ["00:00:01.010 --> 00:00:02.000\ngood morning\nand<00:00:01.500><c> you</c>"]
    file = text(tmp_path, "talk.vtt", "WEBVTT\n\n" + "\n\n".join(cues) + "\n") or tmp_path / "talk.vtt"
    (one,) = label_format(file).read(file)
    assert [segment.text for segment in one.segments] == ["good morning", "and you"]
    assert not +one.left_out


def srt(*captions):
    """SubRip of captions, each of two seconds."""
    times = [f"00:00:{2 * at:02},000 --> 00:00:{2 * at + 2:02},000" for at in range(len(captions))]
    return "\n".join(f"{at + 1}\n{times[at]}\n{said}\n" for at, said in enumerate(captions))


@pytest.mark.parametrize(
    ("captions", "said"),
    [
        (["[Ann]\nhello there", "[Ben]\nhi", "[Ann]\nfine"], ["Ann: hello there", "Ben: hi", "Ann: fine"]),
        (["[Ann] hello there", "[wind]", "[Ann] fine", "so am I"], ["Ann: hello there", "Ann: fine", "Ann: so am I"]),
        (["(Ann) hello there", "(Ben) hi", "(Ann) fine"], ["Ann: hello there", "Ben: hi", "Ann: fine"]),
        (["(softly) hello", "(softly) hi", "no"], ["None: (softly) hello", "None: (softly) hi", "None: no"]),
        (["[laughs] hello", "[laughs] hi", "[laughs] you"], ["None: hello", "None: hi", "None: you"]),
        (["[he] went", "(who) knows", "home"], ["None: [he] went", "None: (who) knows", "None: home"]),
        (["ANN: Hello.\nBEN: Hi.", "ANN: Good."], ["ANN: Hello.", "BEN: Hi.", "ANN: Good."]),
        (["Ann de Vries: hello", "speaker 2: hi"], ["Ann de Vries: hello", "speaker 2: hi"]),
        (["Mae van der Berg: hello"], ["Mae van der Berg: hello"]),
        (["Note: fine", "He said: do it", "Go"], ["None: Note: fine", "None: He said: do it", "None: Go"]),
        (["ANN: where?", "here", "there", "or not"], ["None: where?", "None: here", "None: there", "None: or not"]),
        ([">> Hello.\n>> Hi.", ">> Good."], ["None: Hello. Hi.", "None: Good."]),
        (["# happy birthday #", "thanks"], ["None: thanks"]),
        (["王：你好", "李：好的", "王：再见"], ["王: 你好", "李: 好的", "王: 再见"]),
        (["（笑い）", "（田中）おはよう", "（田中）はい"], ["田中: おはよう", "田中: はい"]),
        (["【王】你好", "【李】好的", "【王】再见"], ["王: 你好", "李: 好的", "王: 再见"]),
    ],
)  # fmt: skip
def test_who_speaks_in_captions(captions, said, tmp_path):
    found = segments(text(tmp_path, "x.srt", srt(*captions)))
    assert [f"{speaker}: {words}" for _, _, speaker, words in found] == said


def test_speakers_of_captions_of_whom_none_returns_are_asked_about(tmp_path, caplog):
    said = [f"P{number}: one" for number in range(5)]
    assert [one[3] for one in segments(text(tmp_path, "x.srt", srt(*said)))] == said
    assert "texts begin with words before a colon (P0), which are taken for spoken" in caplog.text


def test_empty_lines_numbers_and_times_that_cant_be_read_in_subrip(tmp_path):
    file = text(
        tmp_path,
        "x.srt",
        "1\n00:00:01,000 --> 00:00:02,000\none\n\ntwo\n2\n00:00:02,000 --> 00:00:03,000\n1984\n\n"
        "3\n00:00:04:500 --> 00:00:05:000\nlost\n\n4\n00:00:06,000 --> 00:00:06,000\nshort\n",
    )
    (one,) = label_format(file).read(file)
    assert [segment.text for segment in one.segments] == ["one two", "1984"]
    assert one.left_out == {"captions whose times can't be read": 1, "segments without a length": 1}
    file = text(tmp_path, "y.srt", "00:00:01 --> 00:00:02\n42\n\n00:00:02 --> 00:00:03\nok\n")
    assert [one[3] for one in segments(file)] == ["42", "ok"]


def test_captions_that_roll_without_times_of_words(tmp_path):
    file = text(
        tmp_path,
        "x.srt",
        "1\n00:00:00,000 --> 00:00:04,000\nhello my\n\n2\n00:00:02,000 --> 00:00:06,000\nhello my\nfriends and\n\n"
        "3\n00:00:04,000 --> 00:00:08,000\nfriends and\nothers\n",
    )
    assert segments(file) == [(0.0, 2.0, None, "hello my"), (2.0, 4.0, None, "friends and"), (4.0, 8.0, None, "others")]
    (one,) = label_format(file).read(file)
    assert +one.left_out == {"lines that the caption before has": 2}
    again = text(tmp_path, "y.srt", srt("yes", "yes", "yes", "no"))
    assert [one[3] for one in segments(again)] == ["yes", "yes", "yes", "no"]


def test_dialogue_of_substation_alpha(tmp_path, monkeypatch):
    head = "[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name\nStyle: Default\n\n[Events]\n"
    head += "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
    line = "{}: 0,0:00:0{},0:00:0{},Default,{},0,0,0,,{}\n"
    lines = [
        line.format("Dialogue", "1.00", "3.50", "Ann & Co", r"{\i1}hello{\i0}\Nyou, there"),
        line.format("Comment", "1.00", "3.00", "Ann & Co", "not said"),
        line.format("Dialogue", "4.00", "5.00", "", "bye"),
    ]
    file = text(tmp_path, "x.ass", head + "".join(lines))
    expected = [(1.0, 3.5, "Ann & Co", "hello you, there"), (4.0, 5.0, None, "bye")]
    assert segments(file) == expected
    if os.name != "nt":  # Windows has no such names
        monkeypatch.chdir(tmp_path)
        assert segments(file.rename("10:30:00.ass")) == expected
    with pytest.raises(DataError, match=r"y\.ass: no dialogue of Advanced SubStation Alpha"):
        segments(text(tmp_path, "y.ass", "\x00\x01 no such thing"))
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "z.ass").write_text((head + "".join(lines)).replace("hello", "größe"), encoding=encoding)
        assert segments(tmp_path / "z.ass")[0][3] == "größe you, there"
    (tmp_path / "z.ass").write_text((head + "".join(lines)).replace("hello", "größe"), encoding="latin-1")
    with pytest.raises(DataError, match=r"z\.ass: not readable as Advanced SubStation Alpha"):
        segments(tmp_path / "z.ass")


OTHER_CAPTIONS = {
    "a.tsv": "start\tend\ttext\n500\t1500\tHello, is 1 < 2?\n3000\t4000\tYes\n",  # whisper 20250625
    "a.sbv": "0:00:00.500,0:00:01.500\nHello,\nis 1 &lt; 2?\n\n0:00:03.000,0:00:04.000\nYes\n",
    "a.lrc": "[ti:x]\n[offset:500]\n[00:01.00]Hello, is 1 &lt; 2?\n[00:02.00]\n[00:03.50]Yes\n[length:0:04]\n",
    "a.json3": json.dumps(
        {
            "events": [
                {"tStartMs": 0, "dDurationMs": 9000, "id": 1},
                {
                    "tStartMs": 500,
                    "dDurationMs": 1000,
                    "segs": [{"utf8": "Hello,"}, {"utf8": " is 1 < 2?", "tOffsetMs": 300}],
                },
                {"tStartMs": 1400, "aAppend": 1, "segs": [{"utf8": "\n"}]},
                {"tStartMs": 3000, "dDurationMs": 1000, "segs": [{"utf8": "Yes"}]},
            ]
        }
    ),
    # pysubs2 1.8.1, and times as TTML2 has them, too
    "a.ttml": """<tt xmlns="http://www.w3.org/ns/ttml" xmlns:p="http://www.w3.org/ns/ttml#parameter" p:frameRate="25">
      <body><div>
      <p begin="00:00:00.500" end="00:00:01.500" style="Default">Hello,<br />is
        1 &lt; 2?</p>
      <p begin="75f" dur="1000ms"><span>Yes</span></p>
      </div></body></tt>""",
    "b.ttml": """<tt xmlns="http://www.w3.org/ns/ttml"><body><div>
      <p begin="0.5s" end="00:00:01:15">Hello, is 1 &lt; 2?</p>
      <p begin="00:00:03:00" end="4s">Yes</p></div></body></tt>""",
}


TTML = '<tt xmlns="http://www.w3.org/ns/ttml" xmlns:m="http://www.w3.org/ns/ttml#metadata" '
RARER_CAPTIONS = {
    # each word with its time in brackets, hours, centiseconds behind a colon
    "words.lrc": "[00:01.00]Hello [00:01.50]there <00:01.80>you\n[00:02:50]\n[1:00:00.00]Bye\n[1:00:01.00]\n",
    # times within those of a division, of spans, of frames at 29.97 Hz
    "nested.ttml": f"""{TTML} xmlns:p="http://www.w3.org/ns/ttml#parameter" p:frameRate="30"
      p:frameRateMultiplier="999 1000">
      <body><div begin="1s"><p begin="0s" end="1.5s"><metadata m:x="1">cc</metadata>Hello there you</p></div>
      <div><p><span begin="107892f" end="3601s">Bye</span></p></div></body></tt>""",
    "lyrics.ttml": f"""{TTML} xmlns:i="http://music.apple.com/lyric-ttml-internal" i:timing="Word">
      <body><div begin="1.0"><p begin="1.0" end="2.5"><span begin="1.0" end="1.5">Hello</span> there you</p>
      <p begin="1:00:00.000" end="1:00:01.000">Bye</p></div></body></tt>""",
    "utf16.ttml": f"""<?xml version="1.0" encoding="UTF-16"?>{TTML}><body><div>
      <p begin="1s" end="2.5s">Hello there you</p><p begin="1h" end="3601s">Bye</p></div></body></tt>""",
}


@pytest.mark.parametrize("name", RARER_CAPTIONS)
def test_rarer_forms_of_captions(name, tmp_path):
    file = tmp_path / name
    file.write_text(RARER_CAPTIONS[name], encoding="utf-16" if name.startswith("utf16") else "utf-8")
    said = [(round(start, 3), round(end, 3), words) for start, end, _, words in segments(file)]
    assert said == [(1.0, 2.5, "Hello there you"), (3600.0, 3601.0, "Bye")]


def test_speakers_of_ttml(tmp_path):
    agents = '<m:agent xml:id="a"><m:name>Ann Lee</m:name></m:agent><m:agent xml:id="v1"/>'
    paragraphs = '<p begin="1s" end="2s" m:agent="a">Hi</p><p begin="2s" end="3s" m:agent="v1">Ho</p>'
    content = f"{TTML}><head><metadata>{agents}</metadata></head><body><div>{paragraphs}</div></body></tt>"
    assert segments(text(tmp_path, "a.ttml", content)) == [(1.0, 2.0, "Ann Lee", "Hi"), (2.0, 3.0, None, "Ho")]


def test_lyrics_with_odd_times_are_counted(tmp_path):
    (labels,) = LABEL_FORMATS["captions"].read(text(tmp_path, "a.lrc", "[00:01.00]Hi\n[00:2]Ho\n[00:03.00]\n"))
    assert labels.left_out["captions whose times can't be read"] == 1


def test_of_what_whisper_writes_each_sentence_is_read_once(tmp_path):
    wav(tmp_path / "a.wav", 5.0)
    said = [(0.0, 1.2, "Hello there."), (1.2, 2.0, "How is it?")]
    times = [(f"00:00:0{start:.3f}", f"00:00:0{end:.3f}", words) for start, end, words in said]
    text(tmp_path, "a.srt", "\n".join(f"{i}\n{s} --> {e}\n{w}\n" for i, (s, e, w) in enumerate(times)))
    text(tmp_path, "a.vtt", "WEBVTT\n\n" + "\n".join(f"{s} --> {e}\n{w}\n" for s, e, w in times))
    lines = "".join(f"{start * 1000:.0f}\t{end * 1000:.0f}\t{words}\n" for start, end, words in said)
    text(tmp_path, "a.tsv", f"start\tend\ttext\n{lines}")
    whole = [{"start": start, "end": end, "text": words} for start, end, words in said]
    text(tmp_path, "a.json", json.dumps({"text": "Hello there. How is it?", "segments": whole, "language": "en"}))
    rows, _ = list_corpus(corpus(tmp_path))
    assert [row.start for row in rows] == [0.0, 1.2]
    text(tmp_path, "a.txt", "Hello there.\nHow is it?\n")
    rows, _ = list_corpus(corpus(tmp_path))
    assert [row.text for row in rows] == ["Hello there. How is it?"]


@pytest.mark.parametrize("name", OTHER_CAPTIONS)
def test_captions_of_other_programs(name, tmp_path):
    file = text(tmp_path, name, OTHER_CAPTIONS[name])
    assert [one[:2] + one[3:] for one in segments(file)] == [(0.5, 1.5, "Hello, is 1 < 2?"), (3.0, 4.0, "Yes")]
    wav(tmp_path / f"{file.stem}.wav", 5.0)
    rows, _ = list_corpus(corpus(tmp_path))
    assert [(row.start, row.end, row.text) for row in rows] == [(0.5, 1.5, "Hello, is 1 < 2?"), (3.0, 4.0, "Yes")]


@pytest.mark.parametrize("name", OTHER_CAPTIONS)
@pytest.mark.parametrize(
    "content", ["", "start\tend\ttext\n", "[]", '{"events": 1}', '{"events": [{"segs": [3]}]}', "<tt", "<tt/>"]
)
def test_what_holds_no_captions_is_a_line(name, content, tmp_path):
    file = text(tmp_path, name, content)
    with pytest.raises(DataError, match=rf"{name}: (no captions with times|not readable as captions)"):
        LABEL_FORMATS["captions"].read(file)


def test_a_line_of_lyrics_without_an_end_is_counted(tmp_path):
    (labels,) = LABEL_FORMATS["captions"].read(text(tmp_path, "a.lrc", "[00:01.00][00:03.00]Once, and again\n"))
    assert [(one.start, one.end) for one in labels.segments] == [(1.0, 3.0)]
    assert labels.left_out["captions without an end"] == 1


def test_other_tables_are_no_captions(tmp_path):
    assert label_format(text(tmp_path, "a.tsv", "start\tend\ttext\tpath\n")) is None


def test_of_captions_that_say_the_same_one_kind_is_read(tmp_path, caplog):
    wav(tmp_path / "x.wav", 5.0)
    text(tmp_path, "x.srt", srt("ann: hello", "ben: hi", "ann: good"))
    text(tmp_path, "x.vtt", "WEBVTT\n\n" + srt("ann: hello", "ben: hi", "ann: good").replace(",", "."))
    with caplog.at_level(logging.INFO, "phonate"):
        rows, _ = list_corpus(corpus(tmp_path))
    assert [row.text for row in rows] == ["hello", "hi", "good"]
    assert f"{tmp_path}: SubRip is read; WebVTT there says the same" in caplog.text
    text(tmp_path, "x.vtt", "WEBVTT\n\n" + srt("ann: hello", "ben: hi", "ann: no").replace(",", "."))
    with pytest.raises(DataError, match="labels of several kinds, SubRip and WebVTT"):
        detect_format(tmp_path)


def test_labels_beside_recordings_of_one_name_in_several_folders(tmp_path):
    for folder in ("a", "b", "c"):
        wav(tmp_path / f"audio/{folder}/call.wav", 5.0)
    for folder in ("a", "b"):
        (tmp_path / f"labels/{folder}").mkdir(parents=True)
        text(tmp_path / f"labels/{folder}", "call.srt", srt(f"hello {folder}"))
    rows, _ = list_corpus(corpus(tmp_path, format="srt"))
    assert [(row.id, row.text) for row in rows if isinstance(row, Row)] == [
        ("audio/a/call-00000000", "hello a"),
        ("audio/b/call-00000000", "hello b"),
    ]
    assert [(row.place, row.reason) for row in rows if isinstance(row, Problem)] == [
        (str(tmp_path / "audio/c/call.wav"), "no annotation")
    ]


def test_names_of_captions_by_video_sites_and_meetings(tmp_path, caplog):
    for name in ("talk", "call"):
        wav(tmp_path / f"{name}.wav", 5.0)
    said = "WEBVTT\n\n00:00:01.000 --> 00:00:02.000\nAnn: hello\n"
    text(tmp_path, "call.transcript.vtt", said)
    for language in ("en", "en-orig"):
        text(tmp_path, f"talk.{language}.vtt", said)
    with caplog.at_level(logging.INFO, "phonate"):
        rows, _ = list_corpus(corpus(tmp_path))
    assert [(row.path.name, row.speaker, row.text) for row in rows] == [
        ("call.wav", "Ann", "hello"),
        ("talk.wav", "Ann", "hello"),
    ]
    assert "talk.wav: talk.en-orig.vtt is read; talk.en.vtt there says the same" in caplog.text


@pytest.mark.parametrize("name", ["call.wav", "audio/call", "audio/call.wav", "call.mp3"])
def test_rttm_that_names_files(name, tmp_path):
    wav(tmp_path / "audio/call.wav", 5.0)
    text(tmp_path, "x.rttm", f"SPEAKER {name} 1 0.5 1.0 <NA> <NA> ann <NA> <NA>\n")
    (row,), _ = list_corpus(corpus(tmp_path))
    assert (row.path, row.speakers) == (tmp_path / "audio/call.wav", ("ann",))


def test_tiers_of_speakers_texts_and_notes(tmp_path):
    tiers = [
        Tier("Speaker", [(0.0, 2.0, "Ann"), (2.0, 3.0, "Bob"), (4.0, 5.0, "Ann")]),
        Tier("text", [(0.0, 2.0, "good morning"), (2.1, 3.0, "hi")]),
        Tier("notes", [(0.0, 1.0, "coughs")]),
        Tier("IPA", [(0.0, 1.0, "gʊd")]),
    ]
    write_tiers(tmp_path / "x.TextGrid", tiers, 5.0)
    (one,) = label_format(tmp_path / "x.TextGrid").read(tmp_path / "x.TextGrid")
    assert [(part.start, part.speaker, part.text) for part in one.segments] == [
        (0.0, "Ann", "good morning"),
        (2.1, "Bob", "hi"),
        (4.0, "Ann", None),
    ]
    assert +one.left_out == {"tiers of notes": 1, "tiers of parts of words": 1}
    (tmp_path / "x.TextGrid").write_bytes("ooTextFile größe".encode("latin-1"))
    with pytest.raises(DataError, match=r"x\.TextGrid: not UTF-8 text \(byte \d+\); save it as UTF-8$"):
        segments(tmp_path / "x.TextGrid")


def test_a_turn_within_the_text_of_another_speaker_remains(tmp_path):
    tiers = [Tier("Ann", [(0.0, 6.0, "Ann")]), Tier("Bob", [(4.0, 5.0, "Bob")]), Tier("text", [(0.0, 6.0, "hello")])]
    write_tiers(tmp_path / "x.TextGrid", tiers, 6.0)
    assert segments(tmp_path / "x.TextGrid") == [(0.0, 6.0, "Ann", "hello"), (4.0, 5.0, "Bob", None)]


@pytest.mark.parametrize("name", ["translation", "silences"])
def test_tiers_of_notes_alone_are_refused(name, tmp_path):
    write_tiers(tmp_path / "x.TextGrid", [Tier(name, [(0.0, 2.0, "hello")])], 5.0)
    with pytest.raises(DataError, match=rf"only tiers of parts of words or of notes \({name}\).*rename the one"):
        segments(tmp_path / "x.TextGrid")


@pytest.mark.parametrize("said", ["you", " Thank you."])
def test_words_that_whisper_makes_up_of_silence_have_seconds(said, tmp_path):
    part = {"start": 0.0, "end": 30.0, "text": said, "speaker": "A"}
    file = text(tmp_path, "x.json", json.dumps({"segments": [part]}))
    assert segments(file) == [(0.0, 30.0, "A", said.strip())]


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("001", "001 Good morning.", "Good morning."),
        ("p225_001", "p225_001 Good morning.", "Good morning."),
        ("1984", "1984 Was a year.", "1984 Was a year."),
        ("morning", "morning has come", "morning has come"),
        ("001", "001", "001"),
    ],
)
def test_a_text_that_begins_with_the_name_of_its_recording(name, said, words, tmp_path):
    wav(tmp_path / f"{name}.wav", 3.0)
    text(tmp_path, f"{name}.txt", said)
    (row,), _ = list_corpus(corpus(tmp_path))
    assert row.text == words
