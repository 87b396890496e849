"""`phonate.load`: the object of each task, for files and arrays, one or many, on a device."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_texts import settings as language_settings
from language_texts import write_texts
from safetensors.torch import load_file, save_file

import phonate
from phonate.audio.decoding import read_audio, resample, write_audio, write_pieces
from phonate.cli import main
from phonate.config.errors import CheckpointError, DataError, InputError
from phonate.training.checkpoints import best_or_latest, listing
from phonate.workflows.train import train
from trained import trained

RATE = 22050
TEXTS = ("one two", "three", "four five six", "two one", "six five", "four")


def settings(voices: Path, cache: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data.path": str(voices),
        "data.cache_dir": str(cache),
        "data.validation": 0.2,
        "training.batch_size": 6,
        "training.validation.previews": False,
        "training.max_steps": 4,
        "training.scheduler.warmup_steps": 1,
        "training.logging.tensorboard": False,
        "training.validation.interval": 4,
        "training.checkpoint.interval": 4,
        "training.ema": None,
        **changes,
    }


CONVERSION = {"model.d_model": 32, "model.n_heads": 2, "model.n_layers": 2, "model.d_ff": 64, "data.target": "anna"}
VOCODER = {"model.width": 32, "model.layers": 2, "model.discriminator_channels": 2, "training.adversarial_start": None}
SPEECH = {
    "data.phonemes": "characters",
    "data.durations": "learnt",
    "data.aligner_steps": 4,
    "data.judged": 0,
    "training.validation.metric_for_best_model": "val_loss",
    "training.validation.greater_is_better": False,
    "model.width": 32,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "training.adversarial_start": None,
}


@pytest.fixture(scope="module")
def folder(tone_corpus: Path) -> Path:
    """A folder with `voices/`: recordings of three speakers with texts."""

    def write(folder: Path) -> None:
        shutil.copytree(tone_corpus, folder / "voices")
        for number, path in enumerate(sorted((folder / "voices").rglob("*.wav"))):
            path.with_suffix(".txt").write_text(TEXTS[number % len(TEXTS)], encoding="utf-8")

    return trained("voices", write)


@pytest.fixture(scope="module")
def vocoder(folder: Path) -> Path:
    options = settings(folder / "voices", folder / "cache", **VOCODER)
    return trained("voices-vocoder", lambda run: train("vocoder", options, output=run))


@pytest.fixture(scope="module")
def conversion(folder: Path) -> Path:
    options = settings(folder / "voices", folder / "cache", **CONVERSION)
    return trained("voices-conversion", lambda run: train("conversion", options, output=run))


@pytest.fixture(scope="module")
def recognition(folder: Path) -> Path:
    model = {"model.width": 32, "model.layers": 1, "model.kernel": 5, "model.beam": 2, "training.max_steps": 30}
    options = settings(folder / "voices", folder / "cache", **model)
    return trained("voices-recognition", lambda run: train("recognition", options, output=run))


@pytest.fixture(scope="module")
def speech(folder: Path) -> Path:
    options = settings(folder / "voices", folder / "cache", **SPEECH)
    return trained("voices-speech", lambda run: train("speech", options, output=run))


@pytest.fixture(scope="module")
def language(folder: Path) -> Path:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'phonate[language]'")

    def write(folder: Path) -> None:
        train("language", language_settings(write_texts(folder)[0]), output=folder / "run")

    return trained("language", write) / "run"


@pytest.fixture(scope="module")
def clips(folder: Path) -> list[Path]:
    """Recordings of different lengths."""
    return [
        folder / "voices" / speaker / f"{number:02d}.wav" for speaker, number in (("ben", 0), ("cleo", 5), ("ben", 3))
    ]


def test_converted_batches_are_the_recordings_one_by_one(conversion: Path, vocoder: Path, clips: list[Path]) -> None:
    converter = phonate.load(conversion, "conversion", vocoder=vocoder)
    recordings = [converter.extractor.recording(read_audio(clip, RATE)[0]) for clip in clips]
    for made, recording in zip(converter.convert_mels(recordings), recordings, strict=True):
        np.testing.assert_allclose(made, converter.convert_mel(recording), atol=1e-5)
    together = converter.convert(clips)
    for clip, waveform in zip(clips, together, strict=True):  # the vocoder's pitch adds up to a phase, rounding too
        np.testing.assert_allclose(waveform, converter.convert(clip), atol=2e-2)
    assert len({len(waveform) for waveform in together}) == 3
    assert converter.convert([]) == []


def test_a_long_recording_in_a_batch_is_converted_in_windows(conversion: Path, clips: list[Path]) -> None:
    converter = phonate.load(conversion, "conversion")
    long = np.tile(read_audio(clips[0], RATE)[0], 16)  # 13 s, two windows
    recordings = [converter.extractor.recording(waveform) for waveform in (long, read_audio(clips[1], RATE)[0])]
    for made, recording in zip(converter.convert_mels(recordings, "ben"), recordings, strict=True):
        np.testing.assert_allclose(made, converter.convert_mel(recording, "ben"), atol=1e-5)
        assert len(made) == len(recording.mel_TM)


def test_a_recording_of_any_length_is_converted_in_parts(
    conversion: Path, clips: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converter = phonate.load(conversion, "conversion", vocoder="griffin_lim")
    clip = read_audio(clips[0], RATE)[0]
    write_audio(tmp_path / "long.wav", np.concatenate([clip, np.zeros(RATE // 2, np.float32)] * 4), RATE)
    (whole,) = converter.parts(tmp_path / "long.wav")
    monkeypatch.setattr("phonate.tasks.conversion.inference._PART_SECONDS", 2.0)
    parts = list(converter.parts(tmp_path / "long.wav"))
    assert len(parts) > 1
    assert all(RATE <= len(part) <= 2 * RATE + 256 for part in parts[:-1])
    assert abs(sum(map(len, parts)) - len(whole)) <= 256 * len(parts)
    converted = converter.convert(tmp_path / "long.wav")
    assert len(converted) == sum(map(len, parts))
    assert write_pieces(tmp_path / "pieces.wav", parts, RATE) == len(converted)
    write_audio(tmp_path / "whole.wav", converted, RATE)
    np.testing.assert_array_equal(read_audio(tmp_path / "pieces.wav")[0], read_audio(tmp_path / "whole.wav")[0])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["long.wav", "pieces.wav", "whole.wav"]


def test_parts_are_as_loud_beside_each_other_as_in_the_recording(
    conversion: Path, clips: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    converter = phonate.load(conversion, "conversion", vocoder="griffin_lim")
    clip = np.concatenate([read_audio(clips[0], RATE)[0], np.zeros(RATE, np.float32)])
    monkeypatch.setattr("phonate.tasks.conversion.inference._PART_SECONDS", len(clip) / RATE)
    loud, quiet = converter.parts(np.concatenate([clip, 0.1 * clip]), sample_rate=RATE)
    assert np.abs(loud).max() / np.abs(quiet).max() == pytest.approx(10.0, rel=0.3)


def test_a_long_recording_is_cut_where_it_is_quiet() -> None:
    from phonate.tasks.conversion.inference import _quietest

    waveform = np.sin(np.arange(10 * RATE) / 20).astype(np.float32)
    waveform[8 * RATE : 9 * RATE] *= 0.01
    assert 8 * RATE < _quietest(waveform, RATE) < 9 * RATE


def test_arrays_and_files_are_the_same_audio(conversion: Path, clips: list[Path]) -> None:
    converter = phonate.load(conversion, "conversion", vocoder="griffin_lim")
    samples, rate = read_audio(clips[0])
    from_file = converter.convert(clips[0])
    np.testing.assert_array_equal(converter.convert(str(clips[0])), from_file)
    np.testing.assert_array_equal(converter.convert(samples, sample_rate=rate), from_file)
    lower = resample(samples, rate, 16000)
    assert abs(len(converter.convert(lower.astype(np.float64), sample_rate=16000)) - len(from_file)) <= 256
    for wrong, message in (
        (np.zeros((2, 4000), np.float32), "mono"),
        (np.zeros(4000, np.int16), "floats"),
        (np.zeros(0, np.float32), "mono"),
    ):
        with pytest.raises(InputError, match=message):
            converter.convert(wrong)
    with pytest.raises(DataError, match="NaN"):
        converter.convert(np.full(4000, np.nan, np.float32))
    with pytest.raises(InputError, match="sample rate"):
        converter.convert(clips[0], sample_rate=16000)


def test_a_converted_stream_is_the_whole_in_pieces(conversion: Path, vocoder: Path, clips: list[Path]) -> None:
    converter = phonate.load(conversion, "conversion", vocoder=vocoder)
    pieces = list(converter.stream(clips[1]))
    whole = converter.convert(clips[1])
    streamed = np.concatenate(pieces)
    assert len(pieces) > 1
    assert len(streamed) == len(whole)
    kept = np.abs(streamed) < 0.7  # at a fixed level louder samples are bent
    level = streamed[kept] @ whole[kept] / np.square(whole[kept]).sum()
    np.testing.assert_allclose(streamed[kept], level * whole[kept], atol=1e-3)


def test_spoken_batches_are_the_texts_one_by_one(speech: Path, vocoder: Path) -> None:
    synthesiser = phonate.load(speech, "speech", vocoder=vocoder)
    texts = ["One two three. Four five!", "Six one five two.", "Two one four six, three five one two."]
    sentences = [words for text in texts for words in synthesiser.sentences(text)]
    assert len(sentences) == 4
    for one, words in zip(synthesiser.synthesise(sentences, "ben", 1.1, 2.0), sentences, strict=True):
        alone, pitch = synthesiser.mel(words, "ben", 1.1, 2.0)
        assert pitch is not None
        np.testing.assert_allclose(one.mel_TM, alone, atol=1e-5)
        np.testing.assert_allclose(one.f0_T, pitch, atol=1e-5)
    together = synthesiser.speak(texts, "cleo")
    for text, waveform in zip(texts, together, strict=True):
        np.testing.assert_allclose(waveform, synthesiser.speak(text, "cleo"), atol=1e-5)
    with pytest.raises(InputError, match="text 2 of 2: "):
        synthesiser.speak(["One.", "***"])


def test_transcribed_batches_are_the_recordings_one_by_one(recognition: Path, clips: list[Path]) -> None:
    transcriber = phonate.load(recognition, "recognition")
    waveforms = [read_audio(clip, transcriber.sample_rate)[0] for clip in clips]
    mels = [transcriber.processor.mel(waveform) for waveform in waveforms]
    for together, mel in zip(transcriber.log_probs(mels), mels, strict=True):
        np.testing.assert_allclose(together, transcriber.log_probs([mel])[0], atol=1e-5)
    silence = np.zeros(8000, np.float32)
    texts = transcriber.transcribe([*waveforms, silence])
    assert texts == [*(transcriber.transcribe(clip) for clip in clips), ""]


def test_generated_batches_and_streams_are_the_texts_one_by_one(language: Path) -> None:
    generator = phonate.load(language, "language")
    prompts = ["The red", "The green fox saw", "The"]
    for temperature in (0.0, 0.9):
        alone = [generator.generate(prompt, 6, temperature, seed=3) for prompt in prompts]
        assert generator.generate(prompts, 6, temperature, seed=3) == alone
        assert ["".join(generator.stream(prompt, 6, temperature, 3)) for prompt in prompts] == alone
    first = list(itertools.islice(generator.stream("The", max_tokens=40), 1))
    assert len(first) <= 1  # closing the iterator ends its thread
    assert generator.generate([]) == []


def test_a_vocoder_renders_mels_and_recordings(vocoder: Path, clips: list[Path]) -> None:
    model = phonate.load(vocoder, "vocoder")
    mels = [model.mel(clip) for clip in clips]
    hop = model.processor.config.hop_length
    for mel, waveform in zip(mels, model.render(mels), strict=True):
        assert len(waveform) == (len(mel) - 1) * hop
        np.testing.assert_array_equal(waveform, model.render(mel))
    np.testing.assert_allclose(np.concatenate(list(model.stream(mels[1]))), model.render(mels[1]), atol=1e-4)
    assert np.abs(model.resynthesise(clips[0])).max() == pytest.approx(0.95, abs=0.01)
    with pytest.raises(InputError, match="one by one"):
        model.render(mels, np.zeros(len(mels[0]), np.float32))


def test_a_run_is_loaded_by_what_it_is(conversion: Path, vocoder: Path) -> None:
    model = phonate.load(conversion)
    assert isinstance(model, phonate.Converter)
    assert isinstance(model, phonate.Inference)
    assert model.device == torch.device("cpu")
    assert model.sample_rate == RATE
    assert set(model.inference_metadata["voices"]) == {"anna", "ben", "cleo"}
    assert isinstance(phonate.load(best_or_latest(vocoder)), phonate.NeuralVocoder)
    with pytest.raises(CheckpointError, match="conversion, not of speech; give a run of speech"):
        phonate.load(conversion, "speech")
    with pytest.raises(InputError, match="did you mean speech"):
        phonate.load(conversion, "speach")
    with pytest.raises(InputError, match="vocoder=: the task vocoder "):
        phonate.load(vocoder, vocoder="griffin_lim")
    with pytest.raises(InputError, match="'tpu'"):
        phonate.load(conversion, device="tpu")


def test_every_network_moves_and_computes_where_it_is(conversion: Path, vocoder: Path) -> None:
    model = phonate.load(conversion, "conversion", vocoder=vocoder)
    model.to(torch.device("meta"))  # stands for a GPU: nothing may stay behind on the processor
    assert {tensor.device.type for network in model.networks for tensor in network.state_dict().values()} == {"meta"}
    assert model.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["conversion", "speech", "recognition", "vocoder", "language"])
def test_a_gpu_gives_what_the_processor_gives(request: pytest.FixtureRequest, task: str, clips: list[Path]) -> None:
    run = request.getfixturevalue(task)
    made = []
    for device in ("cpu", "cuda:0"):
        model = phonate.load(run, device=device)
        assert model.device.type == torch.device(device).type
        if isinstance(model, phonate.Converter):
            made.append(model.convert_mel(model.extractor.recording(read_audio(clips[0], RATE)[0])))
        elif isinstance(model, phonate.Synthesiser):
            made.append(model.mel(next(model.sentences("One two.")))[0])
        elif isinstance(model, phonate.Transcriber):
            made.append(model.log_probs([model.processor.mel(read_audio(clips[0], model.sample_rate)[0])])[0])
        elif isinstance(model, phonate.NeuralVocoder):
            mel = model.mel(clips[0])  # with a given pitch, since rounding shifts the phases of a predicted one
            made.append(model.render(mel, np.full(len(mel), 150.0, np.float32)))
        elif isinstance(model, phonate.Generator):
            made.append(np.array([ord(letter) for letter in model.generate("The", 4, 0.0)]))
    np.testing.assert_allclose(made[0], made[1], atol=1e-2)


def test_weights_that_are_not_finite_are_refused(
    conversion: Path, tmp_path: Path, clips: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from phonate.training.checkpoints import files
    from phonate.training.checkpoints import files as manifest

    made = listing.export(best_or_latest(conversion), tmp_path / "model")
    weights = load_file(made / files.WEIGHTS)
    weights["network.output.bias"][0] = float("nan")
    save_file(weights, made / files.WEIGHTS)
    record = files.write_durably(made / files.WEIGHTS, (made / files.WEIGHTS).read_bytes())
    manifest.write_manifest(made, {**manifest.read_manifest(made), files.WEIGHTS: record})
    assert main(["convert", str(made), str(clips[0]), "-o", str(tmp_path / "out.wav")]) == 1
    error = capsys.readouterr().err
    assert "output.bias holds NaN" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.wav").exists()


def test_sound_is_not_written_into_a_folder_that_is_not_there(
    conversion: Path, tmp_path: Path, clips: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nope"
    assert main(["convert", str(conversion), str(clips[0]), "-o", str(missing / "x.wav")]) == 2
    assert (
        capsys.readouterr().err == f"error: {missing / 'x.wav'}: the folder {missing} does not exist; create it first\n"
    )
    assert not missing.exists()


def test_the_command_line_takes_a_device(
    conversion: Path, recognition: Path, tmp_path: Path, clips: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.wav"
    assert main(["convert", str(conversion), str(clips[0]), "--device", "cpu", "-o", str(out)]) == 0
    assert main(["transcribe", str(recognition), str(clips[0]), "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(["transcribe", str(recognition), str(clips[0]), "--device", "cuda:99"]) == 2
    assert "device cuda:99 does not exist" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs phonate[language]")
def test_a_failure_while_streaming_is_raised_where_the_text_is_read(
    language: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = phonate.load(language, "language")

    def fails(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(generator.model, "generate", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        list(generator.stream("The"))
