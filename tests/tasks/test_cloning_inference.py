"""Cloning as a user sees it: Python, the command line, the service; recordings in, sound out."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[cloning]'", allow_module_level=True)

from cloning_prompts import disciplined_model, end_after

import phonate
from higgs import small_tokenizer
from higgs_codec import small_codec_folder
from phonate.cli import main
from phonate.config.errors import CheckpointError, InputError, PhonateError
from phonate.models import HiggsAudioInference
from phonate.tasks.cloning import inference
from phonate.tasks.cloning.decoding import Sampling
from phonate.tasks.cloning.inference import VoiceCloner, frame_limit, parts
from phonate.training.inference import Reference, SpeechRequest
from sounds import SAMPLE_RATE, voiced_tone

HOP = 960
SAID = "the quick brown fox"
SHORT = {"max_seconds": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`merged/`, a model with its codec, and `voices/` with two voices, one of them with its text."""
    folder = tmp_path_factory.mktemp("cloning")
    disciplined_model().save_pretrained(folder / "merged")
    small_tokenizer().save_pretrained(folder / "merged")
    small_codec_folder(folder / "merged" / "codec")
    (folder / "merged" / "cloning.json").write_text(json.dumps({"codec": "codec", "arabic": {"unify_alef": True}}))
    (folder / "voices").mkdir()
    for name, pitch in (("anna", 210.0), ("ben", 110.0)):
        sound = voiced_tone(0.6, pitch, (700.0, 1800.0, 2900.0), seed=0)
        soundfile.write(folder / "voices" / f"{name}.wav", sound, SAMPLE_RATE, subtype="PCM_16")
    (folder / "voices" / "anna.txt").write_text(f"{SAID}\n")
    return folder


@pytest.fixture(scope="module")
def cloner(folder: Path) -> VoiceCloner:
    return phonate.load(folder / "merged", "cloning", voices=folder / "voices")


@pytest.fixture
def anna(folder: Path) -> Path:
    return folder / "voices" / "anna.wav"


def ending(folder: Path, anna: Path, frames: int) -> VoiceCloner:
    """A model that says `frames` frames of the text "hello", if it takes the likeliest codes."""
    cloner = VoiceCloner.load(folder / "merged")
    pieces = [cloner.pieces(Reference(*soundfile.read(anna, dtype="float32"), SAID), "hello", 0.5)]
    first = cloner.generate(pieces, Sampling(0.0), 0)[0][:, 0]
    assert first[frames] not in first[:frames]
    end_after(cloner.model, int(first[frames]))
    return cloner


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is one sentence, of at most 20 frames, so that the model, which never ends, is done soon."""
    monkeypatch.setattr(inference, "parts", lambda text, rate, seconds: text.split(". "))
    monkeypatch.setattr(inference, "frame_limit", lambda text, rate, seconds: 20)


@pytest.mark.usefixtures("short_parts")
def test_a_stream_adds_up_to_what_clone_gives_alone_and_in_a_list(folder: Path, anna: Path) -> None:
    """In double precision: in single, the rounding of a batch, which depends on the processor, may change a draw."""
    cloner = phonate.load(folder / "merged", "cloning", voices=folder / "voices")
    cloner.model.double()
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3}
    texts = ["hello there", "a fox. a dog. a cat"]
    waveforms = cloner.clone([anna, "ben"], texts, reference_text=[SAID, None], **options)
    assert [len(waveform) for waveform in waveforms] == [20 * HOP, 60 * HOP]
    alone = cloner.clone(anna, texts[0], reference_text=SAID, **options)
    np.testing.assert_allclose(alone, waveforms[0], atol=1e-5)
    chunks = list(cloner.stream("ben", texts[1], **options))
    assert len(chunks) > 2
    assert len(chunks[0]) < 0.25 * cloner.sample_rate
    np.testing.assert_allclose(np.concatenate(chunks), waveforms[1], atol=1e-5)


def test_recordings_texts_and_seeds_all_matter(cloner: VoiceCloner, anna: Path) -> None:
    def spoken(voice: Any = anna, text: str = "hello", **options: Any) -> np.ndarray:
        return cloner.clone(voice, text, **{"reference_text": SAID, "temperature": 1.0, **SHORT, **options})

    first = spoken()
    np.testing.assert_array_equal(first, spoken())
    for other in (spoken("ben"), spoken(text="hallo"), spoken(seed=1), spoken(reference_text=None)):
        assert not np.array_equal(first, other)
    np.testing.assert_array_equal(spoken("anna", reference_text=None), first)  # its text is in the folder
    waveform, rate = soundfile.read(anna, dtype="float32")
    np.testing.assert_array_equal(spoken(waveform, sample_rate=rate), first)
    np.testing.assert_array_equal(spoken(text="إلى"), spoken(text="الى"))  # as the model was trained
    assert np.abs(first).max() > 1e-3


@pytest.mark.parametrize("frames", [1, 5, 9])
def test_the_model_ends_in_its_own_time(folder: Path, anna: Path, frames: int) -> None:
    """Also where fewer frames are said than the delay pattern is long."""
    cloner = ending(folder, anna, frames)
    assert len(cloner.clone(anna, "hello", reference_text=SAID, temperature=0.0)) == frames * HOP
    chunks = list(cloner.stream(anna, "hello", reference_text=SAID, temperature=0.0))
    assert sum(map(len, chunks)) == frames * HOP


def test_a_model_that_says_nothing_is_an_error(folder: Path, anna: Path) -> None:
    cloner = ending(folder, anna, 0)
    options: dict[str, Any] = {"reference_text": SAID, "temperature": 0.0}
    with pytest.raises(PhonateError, match="before it said anything"):
        cloner.clone(anna, "hello", **options)
    with pytest.raises(PhonateError, match="before it said anything"):
        list(cloner.stream(anna, "hello", **options))


def test_the_limit_is_reported(cloner: VoiceCloner, anna: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "phonate"):
        assert len(cloner.clone(anna, "hello", max_seconds=0.4)) == 10 * HOP
    assert "cut short" in caplog.text
    assert "(1 of 1 texts)" in caplog.text


def test_a_slow_voice_has_more_time(cloner: VoiceCloner) -> None:
    """Five words in ten seconds, two for each, so four words may take 9.6."""
    sound = np.ones(10 * SAMPLE_RATE, dtype=np.float32)
    slow, quick = Reference(sound, SAMPLE_RATE, "one two three four five"), Reference(sound, SAMPLE_RATE, 60 * "word ")
    unknown, short = Reference(sound, SAMPLE_RATE), Reference(sound, SAMPLE_RATE, "one")
    text = "this is the text"
    assert cloner.longest(text, reference=slow) == pytest.approx(9.6, abs=0.1)
    usual = cloner.longest(text)
    assert usual == pytest.approx(4 * 60 / 130 * 1.2, abs=0.1)
    for reference in (quick, unknown, short):
        assert cloner.longest(text, reference=reference) == usual
    (piece,) = cloner.pieces(replace(slow, waveform=slow.waveform * 0.1), text)
    assert piece.limit / cloner.codec.frame_rate == pytest.approx(9.6, abs=0.1)


def test_limits_of_texts() -> None:
    assert frame_limit("one", 25) == 48
    assert frame_limit("word " * 13, 25) == 180  # 6 s at 130 words per minute, and a fifth
    assert frame_limit("word " * 500, 25) == 384
    text = "The first sentence is short. " + "And so on, and so on, and further on; " * 20 + "في البيت كتاب؟"
    found = parts(text, 25)
    assert all(len(part.split()) <= 28 for part in found)
    assert " ".join(found).split() == text.split()
    assert len(parts("北京" * 40, 25)) > 1
    assert parts("كيف الحال؟ " + "نص طويل، " * 13, 25)[0] == "كيف الحال؟"


SILENT, LONG = np.zeros(24000, np.float32), np.ones(24000 * 61, np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": "  "}, "empty"),
        ({"text": "..."}, "nothing"),
        ({"text": "word " * 1001}, "5005 characters"),
        ({"text": "<|eot_id|>"}, "special token"),
        ({"reference": "missing.wav"}, "missing.wav"),
        ({"reference": SILENT}, "silent"),
        ({"reference": LONG}, "61.0 s"),
        ({"reference": 3}, "not int"),
        ({"temperature": -1.0}, "temperature"),
        ({"max_seconds": 0.0}, "max seconds"),
        ({"max_seconds": 160.0}, "2040"),
        ({"text": ["a", "b"], "reference": ["anna"]}, "1 references for 2 texts"),
    ],
)
def test_what_can_not_be_spoken_is_refused(cloner: VoiceCloner, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cloner.clone(**{"reference": "anna", "text": "hello", **changes})


def test_the_names_of_fine_tuning_scripts(folder: Path, anna: Path) -> None:
    higgs = HiggsAudioInference(model_path=folder / "merged", device="cpu", torch_dtype="bfloat16")
    assert phonate.HiggsAudioInference is HiggsAudioInference
    by_path = higgs.generate_speech(reference_audio=str(anna), target_text="hello", speaker_name="anna")
    assert by_path.dtype == np.float32
    assert higgs.sample_rate == 24000
    assert str(higgs.cloner.model.dtype) == "torch.bfloat16"
    with anna.open("rb") as file:
        np.testing.assert_array_equal(higgs.generate_speech(file, "hello"), by_path)
    np.testing.assert_array_equal(higgs.generate_speech(target_text="hello", speaker_name="anna"), by_path)
    short = higgs.generate_speech(target_text="hello " * 9, speaker_name="anna", max_seconds=0.4)
    assert len(short) <= 0.4 * 24000
    with pytest.raises(InputError, match="'cleo'"):
        higgs.generate_speech(target_text="hello", speaker_name="cleo")


@pytest.mark.usefixtures("short_parts")
def test_requests_to_the_service_give_what_clone_gives(cloner: VoiceCloner, anna: Path) -> None:
    service = cloner.speech_service(2)
    try:
        assert (service.sample_rate, service.needs_reference, list(service.voices)) == (24000, True, ["anna", "ben"])
        reference = Reference(*soundfile.read(anna, dtype="float32"), SAID)
        sent = [
            service.submit(SpeechRequest("hello", reference=reference, temperature=1.0, seed=5)),
            service.submit(SpeechRequest("a fox. a dog", voice="ben", temperature=1.0, seed=5)),
            service.submit(SpeechRequest("hello", voice="anna", temperature=1.0, seed=5)),
        ]
        heard = [np.concatenate(list(one.chunks(60))) for one in sent]
        expected = cloner.clone(["anna", "ben"], ["hello", "a fox. a dog"], temperature=1.0, seed=5)
        np.testing.assert_allclose(heard[0], expected[0], atol=1e-5)
        np.testing.assert_allclose(heard[1], expected[1], atol=1e-5)
        np.testing.assert_allclose(heard[2], expected[0], atol=1e-5)
        stopped = service.submit(SpeechRequest("hello", voice="anna"))
        stopped.cancel()
        list(stopped.chunks(60))
        for wrong, message in [
            (SpeechRequest("", voice="anna"), "empty"),
            (SpeechRequest("hello"), "give a reference, or .*'anna', 'ben'"),
            (SpeechRequest("hello", voice="ana"), "anna"),
            (SpeechRequest("hello", voice="anna", speed=2.0), "speed 2"),
            (SpeechRequest("hello", voice="anna", top_p=2.0), "top p"),
        ]:
            with pytest.raises(InputError, match=message):
                service.submit(wrong)
    finally:
        service.close()
    with pytest.raises(PhonateError, match="closed"):
        service.submit(SpeechRequest("hello", voice="anna"))


def test_a_service_compiles_the_step_where_it_is_asked_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def compile_nothing(step: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        asked.append(options)
        return step

    monkeypatch.setattr(torch, "compile", compile_nothing)
    for compile_model in (False, True):
        phonate.load(folder / "merged", "cloning", compile_model=compile_model).speech_service(2).close()
        assert len(asked) == compile_model
    with pytest.raises(InputError, match="compile_model: cuda_graphs needs an NVIDIA GPU"):
        phonate.load(folder / "merged", "cloning", compile_model="cuda_graphs")


Command = Callable[..., int]


@pytest.fixture
def clone(folder: Path) -> Command:
    def command(*arguments: str) -> int:
        return main(["clone", str(folder / "merged"), *arguments])

    return command


def test_the_command_writes_a_tagged_file(
    clone: Command, cloner: VoiceCloner, anna: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.wav"
    options = ["--reference-text", SAID, "--max-seconds", "0.4", "--seed", "2", "--temperature", "1"]
    assert clone("--reference", str(anna), "--text", "hello", "-o", str(out), *options) == 0
    assert f"{out}: 0.4 s at 24000 Hz, made in" in capsys.readouterr().out
    with soundfile.SoundFile(out) as file:
        assert file.comment == "AI-generated by phonate"
        written = file.read(dtype="float32")
    expected = cloner.clone(anna, "hello", reference_text=SAID, max_seconds=0.4, seed=2, temperature=1.0)
    np.testing.assert_allclose(written, expected / max(1.0, np.abs(expected).max()), atol=1e-4)


def test_the_command_streams_to_standard_output(
    clone: Command, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    voices = ["--voices", str(folder / "voices"), "--voice", "anna"]
    assert clone(*voices, "--text", "hello", "--max-seconds", "0.4", "-o", "-") == 0
    printed = capfdbinary.readouterr()
    assert len(np.frombuffer(printed.out, "<i2")) == 10 * HOP
    assert b"standard output: 0.4 s" in printed.err
    assert b"cut short" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "a"], "give the voice"),
        (["--text", "a", "--reference", "none.wav"], "none.wav"),
        (["--text", "a", "--voices", "VOICES", "--voice", "ana"], "--voice ana: .*anna"),
        (["--text", "a", "--voices", "none", "--voice", "anna"], "none: no such folder"),
        (["--text", "a", "--reference", "ANNA", "--codec", "none"], "none: the codec can't be loaded"),
        (["--text", "a", "--reference", "ANNA", "--device", "cuda:7"], "cuda:7"),
    ],
)
def test_mistakes_are_one_line(
    clone: Command,
    folder: Path,
    anna: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    real = {"VOICES": str(folder / "voices"), "ANNA": str(anna)}
    arguments = [real.get(one, one) for one in arguments]
    assert clone(*arguments, "-o", str(tmp_path / "out.wav")) == 2
    printed = capsys.readouterr().err.strip()
    assert len(printed.splitlines()) == 1
    assert re.search(message, printed), printed


def test_what_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^{tmp_path}: no checkpoints"):
        phonate.load(tmp_path, "cloning")
    with pytest.raises(InputError, match="vocoder=: the task cloning"):
        phonate.load(folder / "merged", vocoder="griffin_lim")
    other = tmp_path / "other"
    shutil.copytree(folder / "merged", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(CheckpointError, match=f"^{other}: no checkpoints"):
        phonate.load(other, "cloning")
