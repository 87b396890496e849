"""From text files to dialogues: what is read, what is refused, and how they are split."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from phonate.config.errors import DataError, InputError
from phonate.data.dialogues import Audio, Dialogue, Text, Turn, dialogue_of, read_dialogues, row_of, split_dialogues


def texts(dialogue: Dialogue) -> tuple[str, ...]:
    return tuple(turn.text for turn in dialogue.turns)


def test_a_folder_of_texts_and_what_a_document_is(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("one\n\ntwo\nand more\n\n\n  three\n", encoding="utf-8")
    (tmp_path / "sub" / "B.TXT").write_text("\ufefffirst\nsecond\n", encoding="utf-8")
    (tmp_path / "c.md").write_text("# Title\n\nText.\n", encoding="utf-8")
    (tmp_path / ".hidden.txt").write_text("no", encoding="utf-8")
    (tmp_path / "d.jsonl").write_text(
        '{"text": "plain"}\n\n{"prompt": "p", "response": "r\\u2028s"}\n', encoding="utf-8"
    )
    (tmp_path / "e.json").write_text('[{"text": "plain"}, {"prompt": "p", "response": "r"}]', encoding="utf-8")
    found = {one.id: texts(one) for one in read_dialogues(tmp_path).dialogues}
    assert found == {
        "a.txt:1": ("one",),
        "a.txt:3": ("two\nand more",),
        "a.txt:7": ("three",),
        "sub/B.TXT:1": ("first",),
        "sub/B.TXT:2": ("second",),
        "c.md:1": ("# Title",),
        "c.md:3": ("Text.",),
        "d.jsonl:1": ("plain",),
        "d.jsonl:3": ("p", "r\u2028s"),
        "e.json:1": ("plain",),
        "e.json:2": ("p", "r"),
    }
    assert [texts(one) for one in read_dialogues(tmp_path / "a.txt", "file").dialogues] == [
        ("one\n\ntwo\nand more\n\n\n  three",)
    ]
    assert len(read_dialogues(tmp_path / "a.txt", "line").dialogues) == 4


@pytest.mark.slow
def test_a_long_file_is_read_once_and_its_lines_are_numbered(tmp_path: Path) -> None:
    """200,000 lines; counting from the start for each would take a quarter of an hour."""
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{'  ' * (i % 2)}line {i}\r\n" for i in range(1, 200_001)), encoding="utf-8", newline="")
    found = read_dialogues(path).dialogues
    assert [one.id for one in found[::1000]] == [f"long.txt:{i}" for i in range(1, 200_001, 1000)]
    assert texts(found[-1]) == ("line 200000",)


def test_file_names_that_are_not_utf_8_are_shown(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    for name in (b"a\xff.txt", b"b\xfe.txt"):
        Path(os.fsdecode(bytes(tmp_path / "lines") + b"/" + name)).write_text("some words\n", encoding="utf-8")
    found = read_dialogues(tmp_path / "lines").dialogues
    assert [one.id for one in found] == ["a\\udcff.txt:1", "b\\udcfe.txt:1"]


def test_what_cant_be_opened_is_refused_and_the_rest_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.txt").write_text("words\n", encoding="utf-8")
    (tmp_path / "a.txt").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "locked").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "again").symlink_to(tmp_path)
    scandir = os.scandir

    def locked(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    found = read_dialogues(tmp_path)
    assert [one.id for one in found.dialogues] == ["b.txt:1"]
    assert {row.place: row.reason.partition(";")[0] for row in found.refused} == {
        "a.txt": "not a file (a broken link, or a pipe)",
        "pipe.txt": "not a file (a broken link, or a pipe)",
        "locked": "Permission denied",
    }


def chat(*messages: Any, **row: Any) -> str:
    return json.dumps({"messages": list(messages), **row})


USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def part(**values: Any) -> str:
    return chat({"role": "user", "content": [values]}, ANSWER)


BAD = {
    "{": "not JSON",
    "[1]": "not an object",
    "{}": "no 'response', 'text' or 'messages'",
    '{"prompt": "p"}': "no 'response'",
    '{"response": "r"}': "no 'prompt'",
    '{"prompt": " ", "response": "r"}': "'prompt' is empty",
    '{"prompt": "p", "response": 3}': "'response' is int, not a text",
    '{"text": "\\ud800"}': "half a character",
    '{"messages": {}}': "'messages' is not a list of messages",
    chat("hello"): "message 1 is not an object",
    chat(
        {"role": "tool", "content": "x"}, ANSWER
    ): "message 1 has the role 'tool'; choose from 'system', 'user', 'assistant'",
    chat({"role": ["user"], "content": "x"}, ANSWER): "message 1 has the role ['user']",
    chat(USER): "nothing to learn",
    chat(USER, ANSWER, start_index=2): "nothing to learn",
    chat(USER, ANSWER, start_index="1"): "'start_index' is '1'",
    chat(USER, ANSWER, speaker=3): "'speaker' is int",
    chat(USER, {**ANSWER, "weight": 0}): "nothing to learn",
    chat(USER, {**ANSWER, "weight": 0.5}): "message 2 has the weight 0.5",
    chat(USER, {**ANSWER, "content": None}): "no 'content' of message 2",
    chat(USER, {**ANSWER, "content": []}): "'content' of message 2 is empty",
    chat(USER, {**ANSWER, "tool_calls": [{}]}): "message 2 has 'tool_calls'",
    part(type="image", image_url="x"): "part 1 of message 1 has the type 'image'; choose from 'text', 'audio'",
    part(type="text", text=""): "'text' of part 1 of message 1 is empty",
    part(type="audio"): "no 'audio_url' of part 1 of message 1",
    part(type="audio", audio_url="https://x/y.wav"): "is not a local file",
    part(type="audio", audio_url="x.wav", start=-1): "'start' of part 1 of message 1 is -1, not seconds",
    part(type="audio", audio_url="x.wav", start=2, end=1): "ends at 1 s, not after its start at 2 s",
    part(type="audio", audio_url="x.wav", duration=float("nan")): "'duration' of part 1 of message 1 is nan",
}


def test_bad_rows_are_refused_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(['{"prompt": "p", "response": "r"}', *BAD]) + "\n", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "settings.json").write_text("{}", encoding="utf-8")
    (tmp_path / "cut.json").write_text("[{}", encoding="utf-8")
    with caplog.at_level("WARNING", logger="phonate"):
        found = read_dialogues(tmp_path)
    assert [one.id for one in found.dialogues] == ["pairs.jsonl:1"]
    refused = {row.place: row.reason for row in found.refused}
    for number, why in enumerate(BAD.values(), start=2):
        assert why in refused[f"pairs.jsonl:{number}"]
    assert "not UTF-8 (byte 3)" in refused["latin.txt:1"]
    assert "not JSON" in refused["cut.json:1"]
    assert f"{len(BAD) + 2} rows can't be used" in caplog.text
    assert f"and {len(BAD) + 2 - 5} more" in caplog.text
    path.write_text("{\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"pairs\.jsonl:1: not JSON"):
        read_dialogues(path)
    with pytest.raises(DataError, match=r"settings\.json:1: .*list of rows"):
        read_dialogues(tmp_path / "settings.json")
    with pytest.raises(DataError, match="no such file"):
        read_dialogues(tmp_path / "nothing")


def test_long_values_are_not_repeated_in_errors(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(chat({"role": "x" * 100_000, "content": "x"}) + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_dialogues(tmp_path)
    assert len(str(caught.value)) < 500


def test_files_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text(" \n\n")
    with pytest.raises(DataError, match="empty"):
        read_dialogues(tmp_path)


def test_chat_messages_with_audio() -> None:
    """The ChatML of voice cloning: a reference, an instruction, a target."""
    user = [
        {"type": "text", "text": "reference"},
        {"type": "audio", "audio_url": "wavs/one.flac"},
        {"type": "text", "text": "Please say: target"},
    ]
    assistant = [
        {"type": "text", "text": "target"},
        {"type": "audio", "audio_url": "wavs/two.flac", "offset": 0.5, "duration": 2},
    ]
    row = {
        "messages": [
            {"role": "system", "content": "Speak."},
            {"role": "user", "content": user},
            {"role": "assistant", "content": assistant},
        ],
        "speaker": "7",
        "misc": {"duration": 2.0},
    }
    dialogue = dialogue_of("x:1", row)
    assert dialogue == Dialogue(
        "x:1",
        (
            Turn("system", (Text("Speak."),), learnt=False),
            Turn("user", (Text("reference"), Audio("wavs/one.flac"), Text("Please say: target")), learnt=False),
            Turn("assistant", (Text("target"), Audio("wavs/two.flac", 0.5, 2.5)), learnt=True),
        ),
        speaker="7",
    )
    assert dialogue_of("x:1", row_of(dialogue)) == dialogue
    nested = {"type": "audio_url", "audio_url": {"url": "one.wav"}}
    turns = dialogue_of("x", {"messages": [{"role": "user", "content": [nested]}, ANSWER]}).turns
    assert turns[0].parts == (Audio("one.wav"),)


def test_a_voice_cloning_corpus_is_read(recordings: Path) -> None:
    found = read_dialogues(recordings / "voice_ar_commands/chatml.json")
    assert not found.refused
    assert len(found.dialogues) == 90
    for one in found.dialogues:
        assert [turn.role for turn in one.turns] == ["system", "user", "assistant"]
        assert [turn.learnt for turn in one.turns] == [False, False, True]
        assert one.speaker
        reference, target = one.turns[1].audio[0], one.turns[2].audio[0]
        assert (recordings / "voice_ar_commands" / reference.path).is_file()
        assert (recordings / "voice_ar_commands" / target.path).is_file()
        assert one.turns[2].text in one.turns[1].text


def test_which_messages_are_learnt() -> None:
    def learnt(*messages: Any, **row: Any) -> list[bool]:
        return [turn.learnt for turn in dialogue_of("x", {"messages": list(messages), **row}).turns]

    conversation = (USER, ANSWER, USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1})
    assert learnt(*conversation) == [False, True, False, False, False, True]
    assert learnt(*conversation, start_index=2) == [False, False, False, False, False, True]


@pytest.mark.parametrize(
    "row",
    [
        {"text": "plain"},
        {"prompt": "p", "response": "r"},
        {"messages": [USER, ANSWER, USER, {**ANSWER, "weight": 0}, USER, ANSWER]},
    ],
)
def test_rows_are_written_as_they_were_read(row: dict[str, Any]) -> None:
    assert row_of(dialogue_of("x", row)) == row


def test_a_pair_is_the_simplest_conversation() -> None:
    assert dialogue_of("x", {"messages": [USER, ANSWER]}) == Dialogue.pair("x", "q", "a")


def test_copies_are_on_one_side() -> None:
    dialogues = [Dialogue.plain(f"x:{i}", f"text {i % 50}") for i in range(200)]
    train, validation = split_dialogues(dialogues, 0.3)
    assert not set(map(texts, train)) & set(map(texts, validation))
    assert 0.1 < len(validation) / 200 < 0.5
    few = [Dialogue.plain("a", "one"), Dialogue.plain("b", "two")]
    for share in (0.001, 0.999):
        assert [len(side) for side in split_dialogues(few, share)] == [1, 1]
    assert [len(side) for side in split_dialogues(few[:1], 0.5)] == [1, 0]
    spoken = [Dialogue(str(i), (Turn("assistant", (Audio("a.wav", float(i % 20)),), learnt=True),)) for i in range(100)]
    sides = [{one.turns for one in side} for side in split_dialogues(spoken, 0.5)]
    assert not sides[0] & sides[1]
    assert all(sides)


def test_the_side_of_a_text_is_that_of_earlier_versions() -> None:
    """A resumed run must not train on what it was validated on."""
    pairs = [Dialogue.pair(str(i), f"prompt {i}", f"response {i}") for i in range(40)]
    plain = [Dialogue.plain(str(i), f"text {i}") for i in range(40)]
    assert [int(one.id) for one in split_dialogues(pairs, 0.2)[1]] == [3, 6, 15, 18, 27, 28, 36, 39]
    assert [int(one.id) for one in split_dialogues(plain, 0.2)[1]] == [10, 15, 21, 23, 24, 33, 35]


def test_an_address_is_refused_as_it_was_given() -> None:
    with pytest.raises(InputError, match=r"^s3://bucket/texts\.jsonl: .*on a disk are read and written"):
        read_dialogues("s3://bucket/texts.jsonl")


def test_utf_16_is_read_and_other_files_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("größe", encoding="utf-16")
    for name in ("b.pdf", "c.csv", "d.json"):
        (tmp_path / name).write_text("{}")
    with caplog.at_level("INFO", "phonate"):
        (one,) = read_dialogues(tmp_path).dialogues
    assert one == Dialogue.plain("a.txt:1", "größe")
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}: ignored, not texts: ")
    assert {"1 .pdf", "1 .csv", "1 .json"} == {*line.rpartition("texts: ")[2].split(", ")}
