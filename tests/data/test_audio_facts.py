"""Measuring recordings: what can't be used is said, never silence; files that did not change are not read again."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from phonate.data import codes as facts_module
from phonate.data.codes import measure
from phonate.data.corpora.validation import Inspection, Unusable
from phonate.data.dialogues import Audio
from sounds import voiced_tone

RATE = 16000


def written(path: Path, seconds: float, seed: int = 0) -> Audio:
    sound = voiced_tone(seconds, 140.0, (600.0, 1500.0, 2500.0), seed=seed)
    soundfile.write(path, sound[: round(seconds * RATE)], RATE, subtype="PCM_16")
    return Audio(str(path))


def reason(audio: Audio, max_seconds: float = 30.0) -> str:
    found = measure([audio], max_seconds)[audio]
    return found.reason if isinstance(found, Unusable) else "usable"


def test_why_an_audio_cant_be_used(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.wav", 1.0)
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("no sound", encoding="ascii")
    (tmp_path / "folder.wav").mkdir()
    flac = tmp_path / "cut.flac"
    soundfile.write(flac, soundfile.read(whole.path)[0], RATE)
    flac.write_bytes(flac.read_bytes()[:-2000])
    soundfile.write(tmp_path / "nan.wav", np.full(8000, np.nan), RATE, subtype="FLOAT")
    os.mkfifo(tmp_path / "pipe.wav")  # reading it would not end
    assert reason(whole) == "usable"
    assert reason(Audio(str(tmp_path / "none.wav"))) == "missing file"
    assert reason(Audio("/dev/zero")) == "not a file"
    assert reason(Audio("a\0b.wav")) in ("missing file", "unreadable")
    assert reason(Audio("x" * 5000)) in ("missing file", "unreadable")
    for name, wanted in (("pipe", "not a file"), ("folder", "not a file"), ("empty", "empty file")):
        assert reason(Audio(str(tmp_path / f"{name}.wav"))) == wanted
    for name in ("text.wav", "cut.flac", "nan.wav"):
        assert reason(Audio(str(tmp_path / name))) == "unreadable"
    assert reason(whole, max_seconds=0.9) == "too long"
    assert reason(Audio(whole.path, 0.25, 0.75), max_seconds=0.6) == "usable"
    for span in ((0.5, 1.2), (1.0, None), (3.0, 4.0), (0.5, 1e300)):
        assert reason(Audio(whole.path, *span)) == "no such part"


def test_facts_are_of_the_part_and_of_the_samples(tmp_path: Path) -> None:
    one = written(tmp_path / "a.wav", 1.0)
    copy = tmp_path / "copy.flac"
    soundfile.write(copy, soundfile.read(one.path, dtype="int16")[0], RATE)
    part, rest = Audio(one.path, 0.0, 0.5), Audio(one.path, 0.5)
    found = measure([one, Audio(str(copy)), part, rest, one], 30.0)
    assert len(found) == 4
    facts = {audio: value for audio, value in found.items() if isinstance(value, Inspection)}
    assert facts[one].digest == facts[Audio(str(copy))].digest
    assert len({value.digest for value in facts.values()}) == 3
    assert [facts[audio].quality.duration for audio in (one, part, rest)] == [1.0, 0.5, 0.5]


def test_files_that_did_not_change_are_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audios = [written(tmp_path / f"{i}.wav", 0.4, seed=i) for i in range(4)]
    missing = Audio(str(tmp_path / "none.wav"))
    memory = tmp_path / "cache" / "facts.jsonl"
    first = measure([*audios, missing], 30.0, memory)
    decoded: list[Audio] = []
    measured = facts_module._measured
    monkeypatch.setattr(facts_module, "_measured", lambda most, audio: decoded.append(audio) or measured(most, audio))
    assert measure([*audios, missing], 30.0, memory) == first
    assert decoded == [missing]  # it may be there by now
    decoded.clear()
    written(tmp_path / "2.wav", 0.4, seed=9)
    os.utime(tmp_path / "2.wav", ns=(1, 1))
    again = measure([*audios, Audio(audios[0].path, 0.1)], 30.0, memory)
    assert decoded == [audios[2], Audio(audios[0].path, 0.1)]
    assert again[audios[2]] != first[audios[2]]
    memory.write_text("{]\n[]\n" + memory.read_text(encoding="utf-8").replace('"version": 1', '"version": 0'))
    decoded.clear()
    measure(audios, 30.0, memory)
    assert len(decoded) == 4


def test_a_limit_that_was_changed_counts_for_remembered_files_too(tmp_path: Path) -> None:
    audio = written(tmp_path / "a.wav", 1.0)
    memory = tmp_path / "facts.jsonl"
    assert isinstance(measure([audio], 30.0, memory)[audio], Inspection)
    found = measure([audio], 0.5, memory)[audio]
    assert isinstance(found, Unusable)
    assert found.reason == "too long"


def _measure_slowly(audios: list[Audio], memory: Path, log: Path) -> None:
    measured = facts_module._measured

    def slow(most: float, audio: Audio) -> facts_module.Measurement:
        time.sleep(0.05)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{audio.path}\n")
        return measured(most, audio)

    facts_module._measured = slow
    assert len(measure(audios, 30.0, memory)) == len(audios)


def test_of_several_processes_one_measures(tmp_path: Path) -> None:
    audios = [written(tmp_path / f"{i}.wav", 0.4, seed=i) for i in range(4)]
    arguments = (audios, tmp_path / "cache" / "facts.jsonl", tmp_path / "log")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_measure_slowly, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted((tmp_path / "log").read_text(encoding="utf-8").split()) == sorted(audio.path for audio in audios)
