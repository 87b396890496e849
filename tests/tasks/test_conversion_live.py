"""Live conversion: blocks of sound in, blocks of sound out, by small networks that were trained for a few steps."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from phonate.audio.decoding import read_audio
from phonate.audio.live import streamed
from phonate.audio.pitch import f0_stream
from phonate.config.errors import InputError, RecipeError
from phonate.config.resolve import resolve
from phonate.tasks.conversion import inference
from phonate.tasks.conversion.features import Register, RunningTransposition
from phonate.tasks.conversion.inference import Converter, MelConversion, Voice
from phonate.tasks.conversion.model import build_model
from phonate.tasks.conversion.settings import ConversionModel
from phonate.tasks.conversion.task import ConversionTask
from phonate.workflows.train import train
from trained import trained

SMALL = {
    "training.batch_size": 4,
    "training.scheduler.warmup_steps": 2,
    "training.ema": None,
    "training.validation.previews": False,
    "training.max_steps": 6,
    "data.validation": 0.2,
}
TINY = {"model.d_model": 32, "model.n_layers": 2, "model.n_heads": 2, "model.d_ff": 64, "data.target": "anna"}


@pytest.fixture(scope="module")
def runs(two_voices: Path) -> Path:
    """A folder with a causal converter, `live`, and two vocoders, `vocoder` and `centred`."""

    def write(folder: Path) -> None:
        shutil.copytree(two_voices / "voices", folder / "voices")
        data = {"data.path": str(folder / "voices"), **SMALL}
        small = {"model.width": 16, "model.layers": 1, "training.adversarial_start": None}
        train("vocoder", {**data, **small, "model.lookahead": 1}, output=folder / "vocoder")
        train("vocoder", {**data, **small}, output=folder / "centred")
        live = {**data, **TINY, "model.memory": 40, "data.vocoder": str(folder / "vocoder")}
        train("conversion-live", live, output=folder / "live")

    return trained("live", write)


@pytest.fixture(scope="module")
def converter(runs: Path) -> Converter:
    return Converter.load(runs / "live")


@pytest.fixture(scope="module")
def sound(tone_corpus: Path) -> np.ndarray:
    """Two seconds of a voice that is not in the corpus, with a pause, quieter than recordings usually are."""
    waveform = read_audio(tone_corpus / "cleo" / "05.wav", 22050)[0]
    pause = np.zeros(4000, dtype=np.float32)
    return 0.1 * np.concatenate([pause, waveform, pause, waveform])[: 2 * 22050]


def in_blocks(converter: Converter, sound: np.ndarray, sizes) -> np.ndarray:
    """The conversion of `sound`, pushed in blocks of the sizes that `sizes()` gives."""
    live, parts, start = converter.live(), [], 0
    while start < len(sound):
        end = start + sizes()
        parts.append(live.push(sound[start:end]))
        start = end
    return np.concatenate([*parts, live.finish()])


@pytest.mark.slow
def test_that_loudness_is_not_that_of_recordings_is_said(converter, caplog):
    converter.live()
    assert "data.loudness" not in caplog.text
    data = converter.extractor.data
    louder = data.model_copy(update={"audio": data.audio.at_loudness(-23.0)})
    other = copy.copy(converter)
    other.extractor = copy.copy(converter.extractor)
    other.extractor.data = louder
    other.live()
    assert caplog.text.count("not to data.loudness (-23 LUFS)") == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_blocks_of_any_size_give_what_the_whole_recording_gives(converter, sound, seed):
    rng = np.random.default_rng(seed)
    made = in_blocks(converter, sound, lambda: int(rng.choice([1, 100, 256, 512, 700, 5000])))
    whole = np.concatenate(list(converter.stream(sound)))
    assert made.shape == whole.shape == (len(sound) // 256 * 256,)
    assert np.abs(whole).max() > 0.01
    np.testing.assert_array_equal(made, whole)


def test_blocks_give_what_the_networks_make_of_all_frames_at_once(converter, sound):
    """The stream against `forward` of both networks, with features of the whole recording."""
    extractor, voice, vocoder = converter.extractor, converter.voices["anna"], converter.render.network
    mel_stream, pitch = extractor.processor.mel_stream(), f0_stream(22050, 256, extractor.data.f0_method)
    mel = np.concatenate([mel_stream.push(sound), mel_stream.finish()])
    f0 = np.concatenate([pitch.push(sound), pitch.finish(len(mel))])
    conversion = MelConversion(converter.model, extractor, voice, 0)
    converted, moved = conversion.push(mel, f0)
    converted = np.concatenate([converted, conversion.finish()])
    with torch.no_grad():
        whole = vocoder(torch.from_numpy(converted)[None], torch.from_numpy(moved)[None])[0].numpy()
    made = np.concatenate(list(converter.stream(sound)))
    assert np.abs(made - streamed(whole)).max() < 1e-5


@pytest.mark.slow
def test_convert_is_the_stream_at_full_level(converter, sound):
    whole = np.concatenate(list(converter.stream(sound)))
    assert np.allclose(converter.convert(sound), 0.95 * whole / np.abs(whole).max(), atol=1e-6)
    batch = converter.convert([sound, sound[:30000]])
    assert np.allclose(batch[0], converter.convert(sound), atol=1e-6)
    assert len(batch[1]) == 30000 // 256 * 256


def test_a_long_file_is_read_in_blocks_to_the_same_samples(converter, sound, tmp_path, monkeypatch):
    soundfile.write(tmp_path / "long.wav", sound, 22050, subtype="FLOAT")
    soundfile.write(tmp_path / "silent.wav", np.zeros_like(sound), 22050)
    whole = np.concatenate(list(converter.parts(sound)))
    monkeypatch.setattr(inference, "_PART_SECONDS", 1.0)
    monkeypatch.setattr(inference, "as_waveform", None)  # what reads all of it
    np.testing.assert_array_equal(np.concatenate(list(converter.parts(tmp_path / "long.wav"))), whole)
    silent = np.concatenate(list(converter.parts(tmp_path / "silent.wav")))
    assert len(silent) == len(whole)
    assert not silent.any()


def test_the_model_in_blocks_is_the_model_on_the_whole(converter):
    """`step` against `forward`, which training uses: an odd number of frames, more than attention reaches back."""
    model, generator = converter.model, torch.Generator().manual_seed(1)
    content = torch.randn(1, 301, 80, generator=generator)
    prosody = torch.randn(1, 301, 82, generator=generator)
    speaker = torch.tensor([1])
    with torch.no_grad():
        whole = model(content, speaker, prosody=prosody)
        state, parts = model.initial_state(), []
        ahead = torch.cat([content[:, 3:], torch.zeros(1, 4, 80)], dim=1)
        behind = torch.cat([prosody, torch.zeros(1, 1, 82)], dim=1)
        for part in torch.split(torch.arange(302), [1, 2, 7, 100, 3, 189]):
            parts.append(model.step(ahead[:, part], state, speaker, behind[:, part]))
    assert torch.allclose(torch.cat(parts, dim=1)[:, :301], whole, atol=1e-5)


@pytest.fixture(scope="module")
def distilled():
    """A converter through the features of a teacher, 12 of each frame."""
    settings = ConversionModel(
        d_model=32, n_heads=2, n_layers=2, d_ff=64, positions="rotary", norm="pre", stride=2, causal=True, memory=40
    )
    torch.manual_seed(0)
    return build_model(settings, n_speakers=2, input_dim=80, output_dim=80, prosody_dim=82, teacher_dim=12).eval()


def test_a_distilled_model_in_blocks_is_the_model_on_the_whole(distilled):
    content, prosody = torch.randn(1, 200, 80), torch.randn(1, 200, 82)
    speaker = torch.tensor([1])
    with torch.no_grad():
        whole, taught = distilled.with_content(content, speaker, prosody=prosody)
        state, parts = distilled.initial_state(), []
        ahead = torch.cat([content[:, 3:], torch.zeros(1, 3, 80)], dim=1)
        for part in torch.split(torch.arange(200), [1, 2, 7, 100, 3, 87]):
            parts.append(distilled.step(ahead[:, part], state, speaker, prosody[:, part]))
    assert taught.shape == (1, 200, 12)
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5)


def test_the_content_is_learnt_from_the_teacher_alone(distilled):
    """Else it would let the voice through, which makes the mel easier to predict."""
    made, content = distilled.with_content(torch.randn(2, 20, 80), torch.tensor([0, 1]), prosody=torch.randn(2, 20, 82))
    assert not any(p.requires_grad and p.grad is not None for p in distilled.content.parameters())
    made.sum().backward()
    assert all(p.grad is None for p in distilled.content.parameters())
    assert any(p.grad is not None for p in distilled.converter.parameters())
    content.square().sum().backward()
    assert any(p.grad is not None for p in distilled.content.parameters())


def test_digital_silence_stays_silent(converter):
    assert not converter.convert(np.zeros(22050, dtype=np.float32)).any()


@pytest.mark.slow
def test_later_sound_changes_nothing_that_was_said(converter, sound):
    changed = 40000
    other = sound.copy()
    other[changed:] = 0.05 * np.random.default_rng(1).standard_normal(len(sound) - changed)
    difference = np.abs(in_blocks(converter, sound, lambda: 512) - in_blocks(converter, other, lambda: 512))
    latency = converter.live().latency
    first = int(np.flatnonzero(difference > 1e-6)[0])
    assert changed - latency <= first < changed


@pytest.mark.slow
def test_the_stated_latency_is_that_of_an_impulse(converter):
    """Silence with one click: how long before it does the output change, over all its places in a block?"""
    latency, block = converter.live().latency, converter.live().block
    silence = 1e-3 * np.random.default_rng(5).standard_normal(12000).astype(np.float32)
    before = in_blocks(converter, silence, lambda: block)
    reach = []
    for place in range(8000, 8000 + block, 32):
        clicked = silence.copy()
        clicked[place] += 0.9
        changed = np.abs(in_blocks(converter, clicked, lambda: block) - before) > 1e-9
        reach.append(place - int(np.flatnonzero(changed)[0]))
    assert latency - 64 <= max(reach) <= latency


def test_a_sample_is_converted_once_the_stated_samples_are_there(converter, sound):
    live, given, late = converter.live(), 0, []
    for start in range(0, 40000, 16):
        given += len(live.push(sound[start : start + 16]))
        late.append(start + 16 - given)
    assert live.latency - 16 <= max(late[500:]) <= live.latency + 16
    assert live.latency / live.sample_rate < 0.12


def test_blocks_of_the_recommended_size_add_no_delay(converter, sound):
    live, given, late = converter.live(), 0, []
    for start in range(0, 40 * live.block, live.block):
        late.append(start - given)  # the oldest sample that is not there yet, when the next block begins
        given += len(live.push(sound[start : start + live.block]))
    assert max(late[20:]) + live.block == live.latency


def test_features_in_blocks_are_those_of_training(converter, sound):
    """What the model is shown in a stream, and the crops it was trained on, come from one rule."""
    recording = converter.extractor.recording(sound)
    trained = converter.extractor.content(recording)
    running = converter.extractor.envelope.running()
    smoothed = converter.extractor.envelope.smoothed(recording.mel_TM)
    parts = [running.push(recording.mel_TM[i : i + 7], smoothed[i : i + 7]) for i in range(0, len(smoothed), 7)]
    assert np.allclose(np.concatenate(parts), trained, atol=1e-5)
    assert np.abs(trained).max() < 20


@pytest.mark.slow
def test_the_pitch_is_raised_as_asked(converter, sound):
    """What comes out is the same for a voice whose register is an octave higher."""
    raised = converter.live("anna", semitones=12.0)
    voice = converter.voices["anna"]
    higher = replace(voice, register=replace(voice.register, median=2 * voice.register.median))
    expected = WithVoice(converter, higher).live("anna")
    parts = [np.concatenate([one.push(sound), one.finish()]) for one in (raised, expected, converter.live("anna"))]
    assert np.array_equal(parts[0], parts[1])
    assert not np.array_equal(parts[0], parts[2])
    assert np.array_equal(
        converter.convert(sound, "anna", semitones=12.0), WithVoice(converter, higher).convert(sound, "anna")
    )
    with pytest.raises(InputError, match=r"semitones 30: give -24 to 24"):
        converter.convert(sound, semitones=30.0)


class WithVoice(Converter):
    """A converter with another voice for anna."""

    def __init__(self, converter: Converter, voice: Voice) -> None:
        self.__dict__ |= converter.__dict__ | {"voices": converter.voices | {"anna": voice}}


def test_silence_stays_silent(converter):
    live = converter.live()
    made = np.concatenate([live.push(np.zeros(30000, dtype=np.float32)), live.finish()])
    assert np.abs(made).max() < 1e-3


def test_a_previewed_mel_is_converted_in_order(converter, sound):
    recording = converter.extractor.recording(sound)
    whole = converter.convert_mel(recording)
    assert whole.shape == recording.mel_TM.shape
    conversion = MelConversion(converter.model, converter.extractor, converter.voices["anna"], 0)
    parts = [conversion.push(recording.mel_TM[i : i + 5], recording.f0_T[i : i + 5])[0] for i in range(0, 300, 5)]
    assert np.allclose(np.concatenate([*parts, conversion.finish()]), whole, atol=1e-5)


def test_a_centred_vocoder_is_refused_with_the_command_that_trains_another(runs, sound):
    with pytest.raises(InputError, match=r"causal vocoder.*model\.lookahead=1"):
        Converter.load(runs / "live", runs / "centred").live()
    offline = Converter.load(runs / "live", runs / "centred").convert(sound)
    assert len(offline) == len(sound) // 256 * 256


def test_a_stream_without_a_pitch_is_refused(tone_corpus):
    recipe = resolve("conversion-live", {"data.path": str(tone_corpus), "data.prosody": False})
    with pytest.raises(InputError, match="pitch"):
        ConversionTask(recipe.recipe)


def test_positions_with_an_end_are_refused(tone_corpus):
    with pytest.raises(RecipeError, match="rotary"):
        resolve("conversion-live", {"data.path": str(tone_corpus), "model.positions": "sinusoidal"})


def test_a_low_voice_is_moved_to_the_register_of_the_target_within_a_second():
    rng = np.random.default_rng(1)
    pitch = (90.0 * np.exp(0.15 * np.sin(np.arange(600) / 20) + 0.02 * rng.standard_normal(600))).astype(np.float32)
    pitch[100:130] = 0.0
    pitch[300:306] *= 2.0  # an octave off
    transposition = RunningTransposition(Register(200.0, 0.15))
    moved = np.concatenate([transposition.push(pitch[i : i + 7]) for i in range(0, 600, 7)])
    assert (moved > 0.0).tolist() == (pitch > 0.0).tolist()
    assert np.median(moved[86:]) == pytest.approx(200.0, rel=0.05)
    assert np.allclose(moved, RunningTransposition(Register(200.0, 0.15)).push(pitch), rtol=1e-5)


def test_sentences_of_sinking_pitch_have_the_median_of_the_target():
    sentence = 130.0 * np.exp(np.linspace(0.1, -0.15, 260))  # 3 seconds
    pitch = np.concatenate([np.append(sentence, np.zeros(40))] * 4).astype(np.float32)
    moved = RunningTransposition(Register(200.0, 0.1)).push(pitch)
    assert np.median(moved[moved > 0.0]) == pytest.approx(200.0, rel=0.02)
