"""Conversion to voices that recordings give, on small real recordings of several speakers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phonate.audio.decoding import read_audio, write_audio
from phonate.audio.pitch import median_f0
from phonate.cli import main
from phonate.config.errors import DataError, InputError, RecipeError
from phonate.config.resolve import resolve
from phonate.evaluation.held_out import Clip
from phonate.tasks.conversion.evaluation import _divided, _pairs
from phonate.tasks.conversion.features import SpeechFrames
from phonate.tasks.conversion.inference import Converter, Reference, long_term
from phonate.tasks.conversion.model import VoiceTransformer, network_of
from phonate.tasks.conversion.task import ConversionTask
from phonate.workflows.train import train

RATE = 22050
UNSEEN = "1688"
"""A speaker who is not in training."""
TINY = {
    "model.d_model": 48,
    "model.n_layers": 2,
    "model.n_heads": 2,
    "model.d_ff": 96,
    "training.batch_size": 6,
    "training.max_steps": 150,
    "training.optimizer.lr": 4e-3,
    "training.scheduler.warmup_steps": 2,
    "training.logging.tensorboard": False,
    "training.validation.previews": False,
    "training.ema": None,
    "training.validation.interval": 150,
    "training.checkpoint.interval": 150,
    "data.crop_frames": 80,
    "data.validation": 0.2,
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("whisper")]


@pytest.fixture(scope="module")
def corpus(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of speakers to train on (voices), and of one who is not among them (unseen), in clips of 4 seconds."""
    folder = tmp_path_factory.mktemp("reference")
    for speaker in sorted((recordings / "spk_en_librispeech/test-other").iterdir()):
        place = folder / ("unseen" if speaker.name == UNSEEN else "voices") / speaker.name
        place.mkdir(parents=True)
        for file in sorted(speaker.glob("*.flac"))[:4]:
            waveform, _ = read_audio(file, RATE)
            write_audio(place / file.name, waveform[: 4 * RATE], RATE)
    return folder


def settings(corpus: Path, **more: Any) -> dict[str, Any]:
    return {**TINY, "data.path": str(corpus / "voices"), "data.cache_dir": str(corpus / "cache"), **more}


def task(corpus: Path, **more: Any) -> ConversionTask:
    return ConversionTask(resolve("conversion-any", settings(corpus, **more)).recipe)


@pytest.fixture(scope="module")
def run(corpus: Path) -> Path:
    trained = train("conversion-any", settings(corpus), output=corpus / "run")
    assert trained.metrics["val_l1"] < 0.2
    return trained.run.path


@pytest.fixture(scope="module")
def converter(run: Path) -> Converter:
    return Converter.load(run)


def speakers_of(corpus: Path) -> tuple[Path, Path]:
    """The recordings of the unseen voice, and those of a voice as unlike in pitch as there is."""
    (unseen,) = (corpus / "unseen").iterdir()
    others = sorted((corpus / "voices").iterdir())
    return unseen, max(others, key=lambda one: abs(np.log(pitch_of(one) / pitch_of(unseen))))


def pitch_of(folder: Path) -> float:
    return float(np.median([median_f0(read_audio(file, RATE)[0], RATE) for file in sorted(folder.iterdir())]))


def spectrum_of(converter: Converter, waveform: np.ndarray) -> np.ndarray:
    """Long-term spectrum without its level."""
    mean_M = long_term(converter.extractor.processor.mel(waveform))[0]
    return mean_M - mean_M.mean()


def test_validation_is_on_speakers_who_are_not_in_training(corpus: Path) -> None:
    prepared = task(corpus).corpus.prepared
    speakers = prepared.index.speaker
    assert len(prepared.validation) > 0
    assert not {*speakers[prepared.train].tolist()} & {*speakers[prepared.validation].tolist()}


def test_the_voice_moves_to_that_of_the_reference(converter: Converter, corpus: Path) -> None:
    """From an unlike speaker to one who was not in training, by pitch and by spectrum."""
    unseen, other = speakers_of(corpus)
    source = sorted(other.iterdir())[0]
    given, kept = sorted(unseen.iterdir())[:3], sorted(unseen.iterdir())[3]
    converted = converter.convert(source, converter.reference(given))
    natural, wanted = read_audio(source, RATE)[0], read_audio(kept, RATE)[0]
    assert abs(len(converted) - len(natural)) <= 256
    before, after = (abs(np.log(median_f0(one, RATE) / median_f0(wanted, RATE))) for one in (natural, converted))
    assert after < 0.8 * before
    target = spectrum_of(converter, wanted)
    before, after = (np.abs(spectrum_of(converter, one) - target).mean() for one in (natural, converted))
    assert after < 0.8 * before


def test_a_model_that_ignores_the_reference_is_seen_in_the_metrics(converter: Converter, corpus: Path) -> None:
    conversion = task(corpus)
    samples = conversion.dataset("validation")
    total, count = conversion.evaluate(converter.model, samples, range(len(samples.ids)))["speaker_effect"]
    assert total / count > 0.3
    deaf = network_of(conversion.model(torch.device("cpu")).eval())
    torch.nn.init.zeros_(deaf.input.convolution.weight[:, -deaf.reference_dim :])
    total, _ = conversion.evaluate(deaf, samples, range(len(samples.ids)))["speaker_effect"]
    assert total == 0.0


def test_the_network_itself_hears_the_reference(converter: Converter, corpus: Path) -> None:
    """Other frames to look up change what is said, also at the same pitch and without the equaliser."""
    unseen, other = speakers_of(corpus)
    recording = converter.extractor.recording(read_audio(sorted(other.iterdir())[0], RATE)[0])
    first, second = converter.reference(unseen), converter.reference(other)
    plain = Converter(converter.model, converter.extractor.data.model_copy(update={"equalise": 0.0}), {}, None)
    one, again, another = (
        plain.convert_mel(recording, Reference(first.voice, of.frames)) for of in (first, first, second)
    )
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - another).mean() > 0.002


def test_recordings_of_a_batch_are_converted_as_alone(converter: Converter, corpus: Path) -> None:
    unseen, other = speakers_of(corpus)
    reference = converter.reference(unseen)
    files = sorted(other.iterdir())[:2]
    waveforms = [read_audio(file, RATE)[0][: (2 + n) * RATE] for n, file in enumerate(files)]
    recordings = [converter.extractor.recording(waveform) for waveform in waveforms]
    together = converter.convert_mels(recordings, reference)
    for recording, mel_TM in zip(recordings, together, strict=True):
        np.testing.assert_allclose(converter.convert_mel(recording, reference), mel_TM, atol=2e-4)


def test_a_reference_is_a_file_a_folder_samples_or_a_list_of_them(converter: Converter, corpus: Path) -> None:
    unseen, _ = speakers_of(corpus)
    files = sorted(unseen.iterdir())
    (unseen / "notes.txt").write_text("no recording")
    samples = [read_audio(file, RATE)[0] for file in files]
    whole, listed, arrays = (converter.reference(one) for one in (unseen, files, samples))
    (unseen / "notes.txt").unlink()
    for same in (listed, arrays):
        np.testing.assert_array_equal(whole.frames.mel_RM, same.frames.mel_RM)
    assert len(converter.reference(files[0]).frames) < len(whole.frames)


def test_what_can_not_be_a_reference_is_refused(converter: Converter, corpus: Path, tmp_path: Path) -> None:
    unseen, _ = speakers_of(corpus)
    speech = read_audio(sorted(unseen.iterdir())[0], RATE)[0]
    with pytest.raises(DataError, match=r"2\.0 s .*3 s"):
        converter.reference(speech[: 2 * RATE])
    with pytest.raises(DataError, match="nobody speaks"):
        converter.reference(0.01 * np.random.default_rng(0).standard_normal(4 * RATE).astype(np.float32))
    with pytest.raises(InputError, match="no recordings"):
        converter.reference(tmp_path)
    with pytest.raises(InputError, match="recordings of the voice"):
        converter.convert(speech)
    with pytest.raises(InputError, match="recordings of the voice"):
        converter.convert(speech, "1998")
    with pytest.raises(InputError, match="whole recording"):
        converter.live(converter.reference(unseen))


def test_a_model_that_learnt_its_voices_takes_no_reference(
    tone_corpus: Path, tmp_path: Path, converter: Converter, corpus: Path
) -> None:
    sizes = {name: value for name, value in TINY.items() if name.startswith(("model.", "training."))}
    paths = {"data.path": str(tone_corpus), "data.cache_dir": str(tmp_path / "cache"), "data.crop_frames": 40}
    learnt = Converter.load(
        train("conversion", {**sizes, **paths, "training.max_steps": 1}, output=tmp_path / "run").run.path
    )
    unseen, _ = speakers_of(corpus)
    message = r"\(anna, ben, cleo\).*recipe conversion-any"
    with pytest.raises(InputError, match=message):
        learnt.reference(unseen)
    with pytest.raises(InputError, match=message):
        learnt.convert(tone_corpus / "anna" / "05.wav", converter.reference(unseen))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data.content": "mel"}, "set content to whisper"),
        ({"data.target": "1998"}, "leave it out"),
        ({"model.causal": True}, "set data.voices to corpus"),
    ],
)
def test_recipes_that_contradict_themselves_are_refused(corpus: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises((RecipeError, InputError), match=message):
        task(corpus, **change)


def test_a_sample_never_finds_itself(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a speaker with one recording, only what is not in the crop is looked up."""
    for speaker in sorted((corpus / "voices").iterdir()):
        (tmp_path / "voices" / speaker.name).mkdir(parents=True)
        shutil.copy(sorted(speaker.iterdir())[0], tmp_path / "voices" / speaker.name)
    samples = task(tmp_path, **{"data.validation": 0.0}).dataset("train")
    searched: list[SpeechFrames] = []
    nearest = SpeechFrames.nearest
    monkeypatch.setattr(SpeechFrames, "nearest", lambda self, said: searched.append(self) or nearest(self, said))
    for seed in range(5):
        item = samples.get(0, np.random.default_rng(seed))
        (frames,) = searched
        searched.clear()
        assert item.reference_TM is not None
        assert item.reference_TM.shape == item.mel_TM.shape
        assert 90 < len(frames) < 4 * 50 - 80 / 86 * 50
        distance = np.abs(frames.mel_RM[:, None] - item.mel_TM[None]).max(axis=2)
        assert distance.min() > 0.0


def test_speakers_without_other_speech_are_left_out(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    voices = tmp_path / "voices"
    shutil.copytree(corpus / "voices", voices)
    waveform, _ = read_audio(sorted((corpus / "unseen").rglob("*.flac"))[0], RATE)
    (voices / "brief").mkdir()
    write_audio(voices / "brief" / "one.wav", waveform[: 2 * RATE], RATE)
    samples = task(tmp_path, **{"data.validation": 0.0}).dataset("train")
    assert not any(name.startswith("brief") for name in samples.ids)
    assert "1 recording comes without 2 s of other speech of the same speaker as a reference" in caplog.text
    alone = tmp_path / "alone"
    (alone / "voices").mkdir(parents=True)
    shutil.move(str(voices / "brief"), alone / "voices" / "brief")
    with pytest.raises(DataError, match="give several of each speaker"):
        task(alone, **{"data.validation": 0.0}).dataset("train")


def test_padding_of_a_batch_changes_nothing() -> None:
    torch.manual_seed(0)
    model = VoiceTransformer(
        8, 32, 2, 2, 64, output_dim=6, prosody_dim=4, reference_dim=6, positions="rotary", stride=2, post_net_layers=2
    ).eval()
    parts = {"features": torch.randn(1, 30, 8), "prosody": torch.randn(1, 30, 4), "reference": torch.randn(1, 30, 6)}
    alone = model(**parts)
    padded = {name: torch.cat((value, 9.0 * torch.ones(1, 10, value.shape[2])), dim=1) for name, value in parts.items()}
    longer = model(**padded, lengths=torch.tensor([30]))
    torch.testing.assert_close(longer[:, :30], alone, atol=1e-5, rtol=1e-4)
    other = model(**{**parts, "reference": torch.randn(1, 30, 6)})
    assert (other - alone).abs().mean() > 1e-3
    with pytest.raises(ValueError, match="reference is needed"):
        model(parts["features"], prosody=parts["prosody"])


def test_the_command_takes_recordings_or_one_line_says_why_not(
    run: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unseen, other = speakers_of(corpus)
    files = [str(file) for file in sorted(unseen.iterdir())]
    command = ["convert", str(run), str(sorted(other.iterdir())[0]), "-o", str(tmp_path / "out.wav")]
    assert main([*command, "--reference", files[0], "--reference", files[1]]) == 0
    assert f" s as {files[0]}, {files[1]}" in capsys.readouterr().out
    one, _ = read_audio(tmp_path / "out.wav")
    assert main([*command, "--reference", str(other)]) == 0
    assert np.abs(one - read_audio(tmp_path / "out.wav")[0]).mean() > 0.01
    capsys.readouterr()
    for more, message in (
        ([], "name them by --reference"),
        (["--reference", str(unseen), "--speaker", "1998"], "give one voice"),
        (["--reference", str(unseen), "--live"], "leave out --live"),
        (["--reference", str(tmp_path / "nothing.wav")], "nothing.wav"),
    ):
        assert main([*command, *more]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


class AnyVoice:
    """As much of a converter as dividing a corpus needs."""

    target = None
    sample_rate = 10

    def reference(self, waveforms: list[np.ndarray]) -> int:
        return sum(map(len, waveforms))


def clips(*counts: tuple[str, int]) -> list[Clip]:
    return [Clip(f"{name}{n}", name, "", np.zeros(100, np.float32)) for name, count in counts for n in range(count)]


def test_voices_are_given_by_some_clips_and_compared_with_others() -> None:
    targets, sources, rest = _divided(AnyVoice(), clips(("ben", 1), ("anna", 40), ("cleo", 4), ("dora", 3)))
    assert [wanted.name for wanted in targets] == ["anna", "cleo"]
    assert [len(wanted.reference_clips) for wanted in targets] == [6, 2]  # a minute of clips of 10 s, or two thirds
    assert [wanted.voice for wanted in targets] == [600, 200]
    assert [len(wanted.clips) for wanted in targets] == [10, 2]
    for wanted in targets:
        assert not {clip.id for clip in wanted.reference_clips} & {clip.id for clip in wanted.clips}
    assert {source.clip.speaker for source in sources} == {"ben", "anna", "cleo", "dora"}
    assert "anna" in rest
    pairs = _pairs(sources, ["words"] * len(sources), targets)
    assert {pair.target.name for pair in pairs if pair.source.clip.speaker == "ben"} == {"anna", "cleo"}
    assert all(pair.target.name != pair.source.clip.speaker for pair in pairs)
    assert len({pair.id for pair in pairs}) == len(pairs)
    with pytest.raises(InputError, match="two speakers with 4 clips"):
        _divided(AnyVoice(), clips(("anna", 9), ("ben", 3)))
