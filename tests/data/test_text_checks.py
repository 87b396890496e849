"""Odd recordings and texts are warned of, good ones are not; dropped ones are gone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from small_corpora import RATE, corpus

from phonate.audio.decoding import write_audio
from phonate.config.errors import DataError
from phonate.data.corpora.manifest import check_corpus
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData
from phonate.tasks.recognition.settings import RecognitionData
from phonate.tasks.speech.settings import SpeechData

SENTENCE = "A sentence of forty characters or there."


def silence(seconds):
    return np.zeros(int(seconds * RATE), dtype=np.float32)


def speech(seconds=2.5, seed=0):
    """A hum that comes and goes as syllables do, over faint noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    hum = sum(np.sin(2 * np.pi * 120 * n * time + rng.uniform(0, 6)) / n for n in range(1, 8))
    return (0.2 * hum * (1 - np.cos(2 * np.pi * 4 * time)) + 0.005 * rng.standard_normal(len(time))).astype(np.float32)


@pytest.fixture
def said(tmp_path):
    """Writes a corpus of fourteen good clips and others: name -> (samples, text)."""

    def write(**others):
        good = {f"g{n}": (speech(2.3 + 0.03 * n, n), f"{SENTENCE} {n}") for n in range(14)}
        lines = []
        for name, (samples, text) in {**good, **others}.items():
            write_audio(tmp_path / f"voice/{name}.wav", samples, RATE)
            lines.append(json.dumps({"audio": f"{name}.wav", "text": text}))
        (tmp_path / "voice/metadata.jsonl").write_text("\n".join(lines))
        return tmp_path / "voice"

    return write


def warned(path, **options):
    _, report = check_corpus(corpus(path), **options)
    return {(problem.id, problem.reason) for problem in report.warnings}


def test_good_clips_are_not_warned_of(said):
    assert warned(said()) == set()


NOISE = np.random.default_rng(0).standard_normal(3 * RATE).astype(np.float32)

ODD = {
    "fast": (speech(2.4, 50), f"{SENTENCE} " * 4, "too short for its text"),
    "slow": (speech(2.4, 51), "It is a short thing.", "spoken slowly"),
    "tiny": (speech(4.0, 52), "Yes.", "spoken slowly"),
    "early": (np.concatenate([silence(1.5), speech(2.4, 53)]), f"{SENTENCE} a", "long silence"),
    "late": (np.concatenate([speech(2.4, 54), silence(1.5)]), f"{SENTENCE} b", "long silence"),
    "gap": (np.concatenate([speech(0.8, 55), silence(2.5), speech(0.8, 55)]), f"{SENTENCE} c" * 2, "long silence"),
    "loud": (np.clip(4 * speech(2.4, 56), -0.9, 0.9), f"{SENTENCE} d", "clipping"),
    "noisy": (0.3 * speech(2.4, 57) + 0.1 * NOISE[: len(speech(2.4))], f"{SENTENCE} e", "noise"),
    "signs": (speech(2.4, 58), f"{SENTENCE}\u200b\x07 f", "odd characters"),
    "bytes": (speech(2.4, 59), f"{SENTENCE} \ufffd f", "odd characters"),
    "mute": (speech(2.4, 60), "...", "no text"),
    "none": (speech(2.4, 61), None, "no text"),
    "nan": (speech(2.4, 64), "nan", "missing value"),
    "same": (speech(2.4, 62), f"{SENTENCE.upper()}  3", "duplicate text"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_named(said, name):
    samples, text, reason = ODD[name]
    found = warned(said(**{name: (samples, text)}))
    assert (name, reason) in found
    assert {id for id, _ in found} == {name}


@pytest.mark.parametrize(
    ("name", "question"),
    [("slow", "; is its text all that is said?"), ("fast", "; was it cut, or is the text another's?")],
)
def test_what_to_look_for_is_said_of_an_odd_rate(said, name, question):
    samples, text, _ = ODD[name]
    _, report = check_corpus(corpus(said(**{name: (samples, text)})))
    (warning,) = report.warnings
    assert warning.detail.endswith(question)


def test_of_a_piece_in_which_its_text_cant_have_been_said_no_noise_is_told(said):
    assert warned(said(piece=(speech(2.4, 63)[9600:14400], f"{SENTENCE} g"))) == {("piece", "too short for its text")}


def test_where_a_text_belongs_is_said_by_a_real_name(said):
    data = corpus(said(mute=(speech(seed=80), None)))
    _, report = check_corpus(data, requirements=replace(data.requirements, text=True))
    (problem,) = report.refused
    assert "write it into mute.txt beside mute.wav" in problem.detail


def test_letters_that_need_joiners_are_no_odd_characters(said):
    assert warned(said(persian=(speech(2.4, 70), "می\u200cخواهم این جمله را بخوانم، ممنون"))) == set()


def test_text_can_be_required(said):
    path = said(mute=(speech(seed=80), "..."), none=(speech(seed=81), None))
    data = corpus(path)
    needed = replace(data.requirements, text=True)
    _, report = check_corpus(data, requirements=needed)
    assert {problem.id: problem.reason for problem in report.refused} == {"mute": "no text", "none": "no text"}
    assert len(prepare(data).index) == 16
    assert len(prepare(RecognitionData(**data.model_dump())).index) == 14


def test_dropped_recordings_are_left_out(said, tmp_path, caplog):
    path, drop = said(), tmp_path / "drop.txt"
    drop.write_text("\ufeffg3\r\n\n g5 \nnowhere\n")
    data = corpus(path, drop=str(drop))
    _, report = check_corpus(data)
    assert (report.usable, report.listed, report.dropped) == (12, 12, 2)
    (warning,) = report.warnings
    assert (warning.reason, warning.place) == ("unknown id", f"{drop}:4")
    prepared = prepare(data)
    assert not {"g3", "g5"} & set(prepared.index.id[:])
    assert "no recording has the id 'nowhere'" in caplog.text
    with pytest.raises(DataError, match=r"data\.drop: .*gone\.txt: no such file"):
        check_corpus(corpus(path, drop=str(tmp_path / "gone.txt")))


def test_careful_recordings_give_few_warnings(recordings):
    _, report = check_corpus(SpeechData(path=str(recordings / "tts_de_kerstin")))
    assert report.usable == 90
    assert len(report.warnings) <= 2


def test_texts_of_other_recordings_are_noticed(recordings, tmp_path):
    lines = (recordings / "tts_de_kerstin/metadata.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "wavs").symlink_to(recordings / "tts_de_kerstin/wavs")
    ordered = sorted(lines, key=len)
    swapped = {ordered[0]: ordered[-1], ordered[-1]: ordered[0]}
    mixed = [line.partition("|")[0] + "|" + swapped.get(line, line).partition("|")[2] for line in lines]
    (tmp_path / "metadata.csv").write_text("\n".join(mixed), encoding="utf-8")
    _, report = check_corpus(VoiceData(path=str(tmp_path)))
    found = {problem.id: problem.reason for problem in report.warnings}
    assert found[ordered[0].partition("|")[0]] == "too short for its text"
    assert found[ordered[-1].partition("|")[0]] == "spoken slowly"
