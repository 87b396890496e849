"""From ChatML to samples: both shapes, checks of every row, splits that share no target, codes made once."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from chatml import audio, chatml_corpus, recording, row, text

from higgs_codec import small_codec_folder
from phonate.audio.decoding import read_audio
from phonate.audio.higgs_codec import HiggsCodec
from phonate.cli import main
from phonate.config.errors import DataError
from phonate.data.dialogues import Audio, dialogue_of
from phonate.tasks.cloning.data import (
    INSTRUCTION,
    CloningCorpus,
    CloningSample,
    check_pairs,
    cloning_sample,
    examples_of,
)
from phonate.tasks.cloning.settings import CloningData
from phonate.text.arabic import ArabicText


def sample_of(*messages: tuple[str, Any], **more: Any) -> CloningSample:
    rows = [{"role": role, "content": content} for role, content in messages]
    return cloning_sample(dialogue_of("a.json:1", {"messages": rows, **more}))


R, T = audio("r.wav"), audio("/abs/t.wav", start=1.0, end=2.5)
SPOKEN = [text("the target"), T]


def parts_of(sample: CloningSample) -> tuple[str | None, str, str, str]:
    return sample.reference_text, sample.reference.path, sample.target_text, sample.target.path


def test_the_documents_shape() -> None:
    sample = sample_of(
        ("system", "Speak."),
        ("user", [text("the reference"), R, text(f"{INSTRUCTION} the  target\n")]),
        ("assistant", SPOKEN),
        speaker="anna",
    )
    target = Audio("/abs/t.wav", 1.0, 2.5)
    assert sample == CloningSample(
        "a.json:1", "anna", "Speak.", "the reference", Audio("r.wav"), "the target", target, None
    )


@pytest.mark.parametrize(
    ("messages", "transcript"),
    [
        ([("user", "the reference"), ("assistant", [R]), ("user", "the target"), ("assistant", [T])], "the reference"),
        ([("user", "the reference"), ("assistant", [R]), ("assistant", SPOKEN)], "the reference"),
        ([("assistant", [text("the reference"), R]), ("user", "the target"), ("assistant", [T])], "the reference"),
        ([("assistant", [R]), ("user", "the target"), ("assistant", [T])], None),
        ([("user", [R, text("the target")]), ("assistant", [T])], None),
        ([("user", [R]), ("assistant", SPOKEN)], None),
        ([("user", [text("the target"), R]), ("assistant", [T])], None),
        ([("user", [text(f"{INSTRUCTION} the target"), R]), ("assistant", SPOKEN)], None),
        ([("user", [text("the reference"), R]), ("assistant", SPOKEN)], "the reference"),
        ([("user", [text("the reference"), R, text(INSTRUCTION)]), ("assistant", SPOKEN)], "the reference"),
        ([("user", [R, text("the reference"), text("the target")]), ("assistant", [T])], "the reference"),
        ([("user", [text("the reference"), R]), ("user", "the target"), ("assistant", [T])], "the reference"),
        (
            [
                ("user", [R, text("PLEASE generate speech for the given text in reference audio’s voice :the target")]),
                ("user", "the reference"),
                ("assistant", [T]),
            ],
            "the reference",
        ),
    ],
)
def test_other_shapes(messages: list[tuple[str, Any]], transcript: str | None) -> None:
    sample = sample_of(*messages)
    assert parts_of(sample) == (transcript, "r.wav", "the target", "/abs/t.wav")
    assert sample.prompted_text is None
    assert sample.system is None


def test_what_the_assistant_says_is_learnt() -> None:
    sample = sample_of(("user", [text("ref"), R, text(f"{INSTRUCTION} another text")]), ("assistant", SPOKEN))
    assert (sample.target_text, sample.prompted_text) == ("the target", "another text")


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([("user", [text("x"), R]), ("assistant", "words")], "no recording .*assistant"),
        ([("user", [text("x"), R]), ("assistant", [T, T])], "2 recordings .*assistant"),
        ([("user", "x"), ("assistant", SPOKEN)], "no recording .*before"),
        ([("user", [R, R, text("x")]), ("assistant", SPOKEN)], "2 recordings .*before"),
        ([("user", [R]), ("assistant", [T])], "no text"),
        ([("user", [text("a"), text("b"), R, text("c")]), ("assistant", SPOKEN)], "2 texts beside"),
        ([("user", [text("a")]), ("assistant", [text("b"), R]), ("user", "c"), ("assistant", [T])], "2 texts beside"),
    ],
)
def test_what_is_no_pair_is_said(messages: list[tuple[str, Any]], why: str) -> None:
    with pytest.raises(DataError, match=f"^a.json:1: {why}"):
        sample_of(*messages)
    with pytest.raises(DataError, match="plain text"):
        cloning_sample(dialogue_of("a.json:1", {"text": "words"}))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatml_corpus(tmp_path_factory.mktemp("pairs"), pairs=4)


def bad_rows(folder: Path) -> list[Any]:
    """A row for each reason, in their order below."""
    good, other = recording(folder / "good.wav"), recording(folder / "other.wav", seed=1)
    words = "enough words to speak"
    soundfile.write(folder / "silent.wav", np.zeros(22050), 22050)
    (folder / "text.wav").write_text("no sound", encoding="ascii")
    return [
        row(good, other, words),
        7,
        {"messages": [{"role": "assistant", "content": "text alone"}]},
        row(good, folder / "none.wav", words),
        row(folder / "text.wav", other, words),
        row(good, recording(folder / "short.wav", 0.3), words),
        row(good, recording(folder / "long.wav", 2.5), words),
        row(folder / "silent.wav", other, words),
        row(good, other, "abc"),
        row(good, other, "?!. ..."),
    ]


REASONS = {
    "malformed row": 1,
    "not a pair": 1,
    "missing file": 1,
    "unreadable": 1,
    "too short": 1,
    "too long": 1,
    "silent": 1,
    "text too short": 1,
    "no words": 1,
}


def test_every_row_is_checked_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(bad_rows(tmp_path) + [row("gone.wav", "gone.wav", "words and words")] * 1500))
    data = CloningData(path=str(path), max_seconds=2.0, cache_dir=str(tmp_path / "cache"))
    report = check_pairs(data).report
    assert report.reasons() == {**REASONS, "missing file": 1501}
    assert (report.listed, report.usable) == (1510, 1)
    assert [problem.place for problem in report.refused if problem.reason == "too long"] == ["rows.json:7"]
    assert {problem.place for problem in report.refused} == {f"rows.json:{i}" for i in range(2, 1511)}
    with caplog.at_level(logging.WARNING, "phonate"):
        assert len(CloningCorpus(data, HiggsCodec.load).samples("train")) == 1  # type: ignore[arg-type]
    logged = caplog.text
    assert "1509 of 1510 rows are left out" in logged
    assert "1501 missing file" in logged
    assert "rows.json:6: too short: target:" in logged
    assert "... and 1496 more: missing file" in logged


def test_findings_are_warnings(tmp_path: Path) -> None:
    good, other = recording(tmp_path / "a.wav"), recording(tmp_path / "b.wav", seed=1)
    clipped = np.clip(3 * soundfile.read(good)[0], -0.5, 0.5)
    soundfile.write(tmp_path / "clipped.wav", clipped, 22050, subtype="PCM_16")
    soundfile.write(tmp_path / "pause.wav", np.concatenate([np.zeros(60000), soundfile.read(good)[0]]), 22050)
    shutil.copy(good, tmp_path / "copy.wav")
    differs = row(good, other, "what is asked for")
    differs["messages"][2]["content"][0] = text("what is said")
    words = "some words to speak"
    rows = [
        differs,
        row(good, tmp_path / "clipped.wav", words),
        row(tmp_path / "pause.wav", other, words),
        row(good, tmp_path / "copy.wav", words),
        row(tmp_path / "copy.wav", tmp_path / "clipped.wav", words),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    report = check_pairs(CloningData(path=str(path))).report
    assert report.usable == 5
    found = sorted((problem.reason, problem.place) for problem in report.warnings)
    assert found == [
        ("clipping", "rows.jsonl:2"),
        ("clipping", "rows.jsonl:5"),
        ("duplicate pair", "rows.jsonl:5"),
        ("mostly silent", "rows.jsonl:3"),
        ("same recording", "rows.jsonl:4"),
        ("texts differ", "rows.jsonl:1"),
    ]


def test_targets_and_their_copies_are_on_one_side(tmp_path: Path) -> None:
    rows = []
    for i in range(20):
        target = recording(tmp_path / f"{i}.wav", 0.6, seed=i)
        shutil.copy(target, tmp_path / f"copy {i}.wav")
        reference = recording(tmp_path / f"r{i}.wav", 0.6, seed=50 + i)
        rows += [row(reference, one, f"the words of {one.name}") for one in (target, tmp_path / f"copy {i}.wav")]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows), encoding="utf-8")

    def sides(share: float) -> tuple[set[str], set[str]]:
        made = CloningCorpus(CloningData(path=str(path), validation=share, cache_dir=str(tmp_path / "c")), None)  # type: ignore[arg-type]
        found = [{Path(one.target.path).stem for one in made.samples(split)} for split in ("train", "validation")]
        return found[0], found[1]

    train, validation = sides(0.2)
    assert len(train) + len(validation) == 40
    assert 2 <= len(validation) <= 16
    assert not {name.removeprefix("copy ") for name in train} & {name.removeprefix("copy ") for name in validation}
    assert sides(0.2) == (train, validation)
    assert validation <= sides(0.4)[1]  # a larger share adds to it
    assert sides(0.0) == (train | validation, set())
    path.write_text(json.dumps(rows[:2]), encoding="utf-8")
    assert sides(0.2) == ({"0", "copy 0"}, set())  # one target can't be split


def test_codes_are_made_once_and_are_those_of_the_codec(corpus: Path, tmp_path: Path) -> None:
    loaded: list[HiggsCodec] = []
    folder = small_codec_folder(tmp_path / "codec")

    def codec() -> HiggsCodec:
        loaded.append(HiggsCodec.load(folder))
        return loaded[-1]

    data = CloningData(path=str(corpus), cache_dir=str(tmp_path / "cache"), validation=0.3)
    made = CloningCorpus(data, codec)
    samples = [*made.samples("train"), *made.samples("validation")]
    assert len(samples) == 4
    assert not loaded
    made.codes(samples[0].target)
    for one in [part for sample in samples for part in (sample.reference, sample.target)]:
        np.testing.assert_array_equal(made.codes(one), loaded[0].encode(*read_audio(one.path)))
        assert made.frames(one) == len(made.codes(one))
        assert made.seconds(one) == pytest.approx(made.frames(one) / 25, abs=0.05)
    assert len(loaded) == 1
    again = CloningCorpus(data, codec)
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("codes.npy"))
    np.testing.assert_array_equal(again.codes(samples[0].target), made.codes(samples[0].target))
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("codes.npy")) == before
    other = small_codec_folder(tmp_path / "other", seed=1)
    with_other = CloningCorpus(data, lambda: HiggsCodec.load(other))
    assert (with_other.codes(samples[0].target) != made.codes(samples[0].target)).mean() > 0.5


def test_a_damaged_cache_is_said_once(corpus: Path, tmp_path: Path) -> None:
    folder = small_codec_folder(tmp_path / "codec")
    data = CloningData(path=str(corpus), cache_dir=str(tmp_path / "cache"), validation=0.0)
    made = CloningCorpus(data, lambda: HiggsCodec.load(folder))
    made.codes(made.samples("train")[0].target)
    (codes,) = (tmp_path / "cache").rglob("codes.npy")
    codes.write_bytes(codes.read_bytes()[:-10] + b"\0" * 10)
    tokenizer: Any = None  # not reached
    with pytest.raises(DataError, match=r"part-[0-9a-f]*: damaged .*delete this folder"):
        examples_of(CloningCorpus(data, lambda: HiggsCodec.load(folder)), "train", tokenizer, data)


def test_arabic_texts_are_changed_as_the_settings_say(tmp_path: Path) -> None:
    one, other = recording(tmp_path / "a.wav"), recording(tmp_path / "b.wav", seed=1)
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row(one, other, "مَرْحَباً، أَهْلاً", said="كِتَابٌ")]), encoding="utf-8")
    for arabic, wanted in (
        (ArabicText(), ("كِتَابٌ", "مَرْحَباً، أَهْلاً")),
        (ArabicText(remove_diacritics=True, unify_alef=True, punctuation="western"), ("كتاب", "مرحبا, اهلا")),
    ):
        data = CloningData(path=str(path), validation=0.0, arabic=arabic, cache_dir=str(tmp_path))
        (sample,) = CloningCorpus(data, None).samples("train")  # type: ignore[arg-type]
        assert (sample.reference_text, sample.target_text) == wanted


def test_data_check(tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    assert main(["data", "check", str(corpus)]) == 0
    assert "(chatml): 4 of 4 recordings can be used" in capsys.readouterr().out
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, bad_rows(tmp_path))), encoding="utf-8")
    assert main(["data", "check", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "chatml"
    assert report["reasons"] == {name: count for name, count in REASONS.items() if name != "too long"}
    assert (report["listed"], report["usable"]) == (10, 2)
    assert report["refused"][0]["place"] == "rows.jsonl:2"
    assert main(["data", "check", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "8 refused: 1 malformed row, 1 not a pair, 1 missing file" in shown
    path.write_text(json.dumps(row("gone.wav", "gone.wav", "words and words")), encoding="utf-8")
    assert main(["data", "check", str(path)]) == 2
    assert main(["data", "check", str(path), "--page", str(tmp_path / "p.html")]) == 2


def test_real_pairs(recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """90 Arabic pairs, whose paths are relative to their folder."""
    monkeypatch.chdir(recordings / "voice_ar_commands")
    checked = check_pairs(CloningData(path="chatml.json"), tmp_path / "facts.jsonl")
    assert len(checked.samples) == checked.report.listed == 90
    assert not checked.report.refused
    assert len(checked.report.speakers) == 18
    assert checked.samples[0].target_text == "سبعة تعطيل إلغاء تراجع أمام تحريك"
    assert checked.samples[0].reference_text == "خلف واحد صفر توقف إرسال سبعة"
    monkeypatch.chdir(tmp_path)
    report = check_pairs(CloningData(path=str(recordings / "voice_ar_commands" / "chatml.json"))).report
    assert report.reasons() == {"missing file": 90}
    assert "it is relative to" in report.refused[0].detail


def test_data_check_of_a_recipe_refuses_texts_that_its_model_can_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'phonate[language]'")
    from higgs import small_model_folder

    good, other = recording(tmp_path / "good.wav"), recording(tmp_path / "other.wav", seed=1)
    texts = ["enough words to speak", "word " * 700, "words with <|eot_id|> in them"]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row(good, other, text)) for text in texts))
    small_model_folder(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(
        f"task: cloning\nmodel: {{name: {tmp_path / 'model'}}}\ndata: {{path: {tmp_path / 'rows.jsonl'}}}\n"
    )
    assert main(["data", "check", str(tmp_path / "recipe.yaml"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["usable"], report["listed"]) == (1, 3)
    details = " ".join(problem["detail"] for problem in report["refused"])
    assert "over data.max_tokens 512" in details
    assert "special token" in details
