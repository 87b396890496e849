"""Text-to-speech from recordings with texts to spoken files, on sentences that espeak-ng says."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

from compiled import calls_of_compiled
from phonate.audio.decoding import MADE, read_audio
from phonate.cli import main
from phonate.compute.distributed import Ranks
from phonate.config.errors import DataError, InputError, MissingPackageError
from phonate.config.resolve import resolve
from phonate.data.loading import padded_to
from phonate.evaluation.held_out import Clip, Sentence
from phonate.tasks.speech import evaluation
from phonate.tasks.speech import model as adoption
from phonate.tasks.speech.data import melody, token_means
from phonate.tasks.speech.inference import Synthesiser
from phonate.tasks.speech.model import ParallelModel, ParallelOutput, Prosody, build_acoustic
from phonate.tasks.speech.settings import SpeechModel, SpeechRecipe
from phonate.tasks.speech.task import SpeechTask, _cropped
from phonate.tasks.vocoder.data import VocoderCorpus, VocoderDataset
from phonate.text import espeak
from phonate.text.phonemes import SPECIAL, START_MARKS_KEY, Inventory, phonemizer
from phonate.training.checkpoints import best_or_latest
from phonate.training.setup import batch_source
from phonate.training.task import Picture, Sound
from phonate.workflows.demo import embedded
from phonate.workflows.evaluate import evaluate
from phonate.workflows.pages.report import write_report
from phonate.workflows.train import train

SENTENCES = 8
VOICES = "acoustic.voices.weight"


BY_LOSS = {
    "data.vocoder": None,
    "data.judged": 0,
    "training.validation.metric_for_best_model": "val_loss",
    "training.validation.greater_is_better": False,
}


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data.path": str(folder / "voice"),
        "data.cache_dir": str(folder / "cache"),
        "data.validation": 0.2,
        **BY_LOSS,
        "model.width": 48,
        "model.encoder_layers": 2,
        "model.decoder_layers": 2,
        "model.predictor_layers": 1,
        "model.discriminator_channels": 2,
        "training.batch_size": 4,
        "training.validation.previews": False,
        "training.max_steps": 24,
        "training.adversarial_start": 12,
        "training.optimizer.lr": 3e-3,
        "training.scheduler.warmup_steps": 2,
        "training.logging.tensorboard": False,
        "training.validation.interval": 24,
        "training.checkpoint.interval": 6,
        "training.checkpoint.save_total_limit": 10,
        "training.ema": None,
        **changes,
    }


@pytest.fixture(scope="module")
def folder(espeak: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `voice/`, LJSpeech's layout, of one speaker."""
    folder = tmp_path_factory.mktemp("speech")
    made = embedded.make_corpus(folder / "made", embedded.SPEAKERS[:1], SENTENCES)
    (folder / "voice").mkdir()
    shutil.copytree(made.folder / embedded.SPEAKERS[0].name, folder / "voice" / "wavs")
    rows = [f"{number:02d}|{text}" for number, text in enumerate(embedded.SENTENCES[:SENTENCES])]
    (folder / "voice" / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train("speech", settings(folder), output=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def task(folder: Path) -> SpeechTask:
    return SpeechTask(resolve("speech", settings(folder)).recipe)


def require(*packages: str) -> None:
    """Skip without these. (distillmos can't be imported as it is: it asks for torchaudio.)"""
    if missing := [name for name in packages if find_spec(name) is None]:
        pytest.skip(f"needs the judges {', '.join(missing)}: pip install 'phonate[eval]'")


def batch_of(task: SpeechTask, count: int = 3) -> Any:
    samples = task.dataset("train")
    return samples.collate([samples.get(i, np.random.default_rng(i)) for i in range(count)])


def losses(folder: Path) -> list[dict[str, float]]:
    """The loss terms of each step."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    names = ("loss", *ParallelModel.weights, "adversarial", "features", "discriminator")
    return [{name: row[name] for name in names if name in row} for row in rows if row["split"] == "train"]


@pytest.mark.slow
def test_parts_of_a_batch_train_as_the_whole(folder: Path, tmp_path: Path) -> None:
    changes = {
        "model.dropout": 0.0,
        "model.predictor_dropout": 0.0,
        "training.adversarial_start": 1,
        "training.batch_size": 6,
        "training.max_steps": 4,
        "training.logging.interval": 1,
    }
    for split in (True, False):
        options = {f"training.performance.{name}": split for name in ("split_by_length", "batch_shim")}
        train("speech", settings(folder, **changes, **options), output=tmp_path / str(split))
    recipe = resolve("speech", settings(folder, **changes)).recipe
    source = batch_source(SpeechTask(recipe).dataset("train"), recipe.training, Ranks(), torch.device("cpu"))
    assert len(list(source.epoch(0))) > source.steps(0), "the batch is not split"
    parts, whole = losses(tmp_path / "True"), losses(tmp_path / "False")
    assert "discriminator" in parts[-1]
    assert len(parts) == len(whole) == 4
    for one, other in zip(parts, whole, strict=True):
        assert one == pytest.approx(other, rel=1e-3)


def test_batches_padded_to_few_shapes_have_the_same_loss(task: SpeechTask) -> None:
    model, batch = task.model(torch.device("cpu")).eval(), batch_of(task)
    padded = padded_to(batch, 64)
    shapes = {name: value.shape[1] for name, value in padded.items() if value.dim() > 1}
    assert {name for name, size in shapes.items() if size % 64 == 0} >= {"target", "pitch", "noise"}
    assert all(size % 16 == 0 for size in shapes.values())
    assert padded["tokens"].shape[1] < batch["tokens"].shape[1] + 16
    ours, theirs = task.loss(model, batch, "main"), task.loss(model, padded, "main")
    for name, (total, _) in ours.items():
        assert theirs[name][0].item() == pytest.approx(total.item(), rel=1e-4)
    assert task.dataset("train").unit_counts(padded) == task.dataset("train").unit_counts(batch)


def test_what_the_discriminator_sees_of_a_clip_does_not_depend_on_its_batch() -> None:
    lengths = torch.tensor([40, 200])
    mels = torch.rand(2, 200, 3)  # those of the first go on behind its end, as a model's do
    together = _cropped(mels, {"lengths": lengths, "crop": torch.tensor([0.5, 0.5])})
    alone = _cropped(mels[:1, :40], {"lengths": lengths[:1], "crop": torch.tensor([0.5])})
    assert together.shape == (2, 96, 3)
    assert torch.equal(together[:1], alone)
    assert torch.equal(together[0, :40], mels[0, :40])
    assert not together[0, 40:].any()
    assert torch.equal(together[1], mels[1, 52:148])


def test_durations_cover_every_frame_and_every_phone_has_some(task: SpeechTask) -> None:
    samples = task.dataset("train")
    for index in range(len(samples.ids)):
        item = samples.get(index, np.random.default_rng(0))
        assert item.durations_L.sum() == len(item.mel_TM) == samples.lengths[index]
        assert len(item.tokens_L) == len(item.durations_L) == len(item.energy_L)
        assert len(item.pitch_T2) == len(item.mel_TM)
        words = task.corpus.words[samples.positions[index]]
        phones = [len(token) > 1 and token[0].isalpha() for token in task.corpus.inventory.tokens(words)]
        assert (item.durations_L[np.array(phones)] > 0).all()
        assert (item.durations_L >= 0).all()


def test_the_melody_goes_on_where_there_is_no_voice() -> None:
    pitch = melody(np.array([0, 100, 0, 400, 400, 0], dtype=np.float32))
    assert pitch[:, 1].tolist() == [0, 1, 0, 1, 1, 0]
    assert np.allclose(200 * np.exp(pitch[:, 0]), [100, 100, 200, 400, 400, 400])
    assert not melody(np.zeros(3, dtype=np.float32)).any()


def test_energy_of_a_token_is_the_mean_of_its_frames() -> None:
    values = np.array([0, 100, 100, 0, 400, 400], dtype=np.float32)
    assert np.allclose(token_means(values, np.array([2, 0, 4])), [50, 0, 225])


@pytest.mark.slow
def test_it_learns_what_is_said(folder: Path, tmp_path: Path) -> None:
    """A few sentences can be learnt by heart; without their texts they can't."""
    changes = {"training.max_steps": 150, "training.adversarial_start": None, "training.logging.interval": 1}
    train("speech", settings(folder, **changes), output=tmp_path / "run")
    losses = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    mel = [line["mel"] for line in losses if line["split"] == "train"]
    duration = [line["duration"] for line in losses if line["split"] == "train"]
    assert np.mean(mel[-5:]) < 0.1
    assert np.mean(mel[-5:]) < 0.35 * np.mean(mel[:5])
    assert np.mean(duration[-5:]) < 0.1 * np.mean(duration[:5])
    said, unsaid = (
        Synthesiser.load(tmp_path / "run").mel(task_words)[0] for task_words in _known_and_unknown(tmp_path / "run")
    )
    assert len(said) != len(unsaid)


def _known_and_unknown(run: Path) -> list[Any]:
    synthesiser = Synthesiser.load(run)
    return [next(synthesiser.sentences(text)) for text in (embedded.SENTENCES[0], "Hello.")]


def test_padding_changes_nothing(task: SpeechTask) -> None:
    """An item alone and the same item beside longer ones get the same mel and the same predictions."""
    model = task.model(torch.device("cpu")).eval()
    batch = batch_of(task)
    short = int(batch["lengths"].argmin())
    alone = {name: value[short : short + 1] for name, value in batch.items()}
    tokens, frames = int(alone["token_lengths"]), int(alone["lengths"])
    for name in ("tokens", "durations", "energy"):
        alone[name] = alone[name][:, :tokens]
    for name in ("target", "noise", "pitch"):
        alone[name] = alone[name][:, :frames]

    def said(of: Any) -> ParallelOutput:
        recorded = Prosody(of["durations"], of["energy"], of["pitch"])
        with torch.no_grad():
            made: ParallelOutput = model.acoustic(
                of["tokens"], of["token_lengths"], recorded, of["noise"], of["lengths"], of["speaker_id"]
            )
        return made

    padded, single = said(batch), said(alone)
    assert torch.allclose(single.mel_BTM[0], padded.mel_BTM[short, :frames], atol=1e-5)
    assert torch.allclose(single.pitch_BT2[0], padded.pitch_BT2[short, :frames], atol=1e-5)
    assert torch.allclose(single.predicted_BL2[0], padded.predicted_BL2[short, :tokens], atol=1e-5)


def test_frames_are_given_to_their_tokens() -> None:
    torch.manual_seed(0)
    model = ParallelModel(SpeechModel(width=8, encoder_layers=1, decoder_layers=1, predictor_layers=1), 10, 1, 4).eval()
    encoded = torch.arange(3.0)[None, :, None].expand(1, 3, 8)
    with torch.no_grad():
        for layer in (model.energy_embedding, model.place_embedding):
            layer.weight.zero_()
            layer.bias.zero_()
    prosody = Prosody(torch.tensor([[2, 0, 3]]), torch.zeros(1, 3))
    assert model.regulated(encoded, prosody, 5)[0, :, 0].tolist() == [0, 0, 2, 2, 2]


def test_a_contour_follows_the_ends_of_a_sentence_in_a_batch_as_alone() -> None:
    torch.manual_seed(0)
    small = SpeechModel(width=8, encoder_layers=1, decoder_layers=1, predictor_layers=1, contour=True)
    model = ParallelModel(small, 10, 1, 4).eval()
    frames = torch.randn(1, 60, 8).expand(2, -1, -1)
    mask = torch.arange(60) < torch.tensor([[40], [60]])
    with torch.no_grad():
        before = model.pitch(frames, mask)
        assert model.contour is not None
        model.contour.weight[0, 0], model.contour.weight[0, 3] = 1.0, -1.0
        rise = (model.pitch(frames, mask) - before)[..., 0]
        alone = model.pitch(frames[:1, :40], None)
    assert torch.allclose(rise[0, [0, 39]], torch.tensor([1.0, -1.0]), atol=0.06)
    assert torch.allclose(rise[1, [0, 59]], torch.tensor([1.0, -1.0]), atol=0.02)
    assert torch.allclose(alone, model.pitch(frames, mask)[:1, :40], atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_so_much_of_the_gradient_of_the_melody_reaches_the_encoder(folder: Path, share: float) -> None:
    def gradient(share: float) -> torch.Tensor:
        task = SpeechTask(resolve("speech", settings(folder, **{"model.melody_gradient": share})).recipe)
        torch.manual_seed(0)
        model, batch = task.model(torch.device("cpu")).eval(), batch_of(task)
        terms = task.loss(model, batch, SpeechTask.generator)
        sum(terms[name][0] for name in ("pitch", "voicing")).backward()
        reached = model.get_parameter("acoustic.embedding.weight").grad
        return torch.zeros(1) if reached is None else reached

    assert torch.allclose(gradient(share), share * gradient(1.0), rtol=1e-3, atol=1e-4)


def test_predicted_lengths_sum_to_what_was_predicted() -> None:
    model = ParallelModel(SpeechModel(width=8, encoder_layers=1, decoder_layers=1, predictor_layers=1), 10, 1, 4).eval()
    predicted = torch.zeros(1, 40, 2)
    predicted[..., 0] = np.log(1.4 + 1.0)  # 1.4 frames each
    prosody = model.prosody(predicted)
    assert int(prosody.durations_BL.sum()) == 56
    assert set(prosody.durations_BL[0].tolist()) == {1, 2}
    assert int(model.prosody(predicted, speed=2.0).durations_BL.sum()) == 28


def test_counts_are_those_of_the_loss(folder: Path) -> None:
    task = SpeechTask(resolve("speech", settings(folder)).recipe)
    model, batch = task.model(torch.device("cpu")), batch_of(task)
    units = task.dataset("train").unit_counts(batch)
    assert units["elements"] == int(batch["lengths"].sum()) * batch["target"].shape[2]
    assert units["tokens"] == int((batch["tokens"] > 0).sum())
    assert 0 < units["voiced frames"] < units["frames"] == int(batch["durations"].sum())
    for task.step in (0, 12):
        for phase in (SpeechTask.generator, SpeechTask.discriminator):
            assert {unit for _, unit in task.loss(model, batch, phase).values()} <= units.keys()


def test_a_resumed_run_is_the_undisturbed_one(run: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000024")
    (tmp_path / "run/checkpoints/best.json").unlink()
    train("speech", settings(folder), output=tmp_path / "run", resume="auto")
    first, second = (
        load_file(where / "checkpoints/step-00000024/weights.safetensors") for where in (run, tmp_path / "run")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_questions_change_nothing_and_what_its_start_knew_is_resumed(folder: Path) -> None:
    task = SpeechTask(resolve("speech", settings(folder)).recipe)
    task.own_state.restore(["?"])
    facts = task.inference_metadata(torch.nn.Module())
    assert facts[START_MARKS_KEY] == ["?"]
    assert task.identity() == task.identity()
    assert task.own_state.state() == ["?"]
    assert task.inference_metadata(torch.nn.Module()) == facts


def test_the_command_writes_speech_that_says_a_model_made_it(run: Path, tmp_path: Path) -> None:
    assert main(["speak", str(run), "Hello there. And 21 more!", "-o", str(tmp_path / "said.wav")]) == 0
    with soundfile.SoundFile(tmp_path / "said.wav") as file:
        assert (file.comment, file.samplerate, file.channels) == (MADE, 22050, 1)
    one, _ = read_audio(tmp_path / "said.wav")
    assert main(["speak", str(run), "Hello there. And 21 more!", "-o", str(tmp_path / "again.wav")]) == 0
    assert np.array_equal(one, read_audio(tmp_path / "again.wav")[0])
    fast = ["speak", str(run), "Hello there. And 21 more!", "-o", str(tmp_path / "fast.wav"), "--speed", "1.6"]
    assert main(fast) == 0
    assert len(read_audio(tmp_path / "fast.wav")[0]) < 0.85 * len(one)


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("***", [], "can be spoken"),
        ("Hello.", ["--speaker", "nobody"], "nobody"),
        ("Hello.", ["--speed", "0"], "speed"),
        ("Hello.", ["--vocoder", "no/such"], "no/such"),
    ],
)
def test_what_cant_be_said_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    assert main(["speak", str(run), text, "-o", str(tmp_path / "said.wav"), *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "said.wav").exists()


def test_previews_are_a_text_spoken_beside_its_recording(run: Path, task: SpeechTask) -> None:
    shown = task.previews(task.model(torch.device("cpu")).eval())
    assert {name: type(preview) for name, preview in shown.items()} == {
        "natural": Sound,
        "natural_mel": Picture,
        "spoken": Sound,
        "spoken_mel": Picture,
    }


def test_a_recording_without_speech_has_no_voice_to_resemble() -> None:
    """While a model that does not speak yet resembles nobody."""

    class Speakers:
        def embed(self, waveform: np.ndarray[Any, Any], rate: int, name: str) -> np.ndarray[Any, Any]:
            if not waveform.any():
                raise DataError(f"{name}: no speech")
            return np.array([0.6, 0.8])

    silence, speech = np.zeros(8), np.ones(8)
    judges = SimpleNamespace(
        recogniser=SimpleNamespace(transcribe=lambda *_: "hello"),
        naturalness=SimpleNamespace(score_synthesised=lambda *_: 3.0),
        speakers=Speakers(),
        word_edits=lambda *_: (0, 3),
    )
    clips = [Clip(name, "anna", "hello", sound) for name, sound in (("a", speech), ("b", speech), ("c", silence))]
    found = evaluation.judged(cast(Any, judges), clips, [speech, silence, speech], 16000)
    assert found["speaker"] == (pytest.approx(1.0), 2)
    assert found["mos"] == (9.0, 3)


@pytest.mark.slow
def test_the_best_checkpoint_can_be_chosen_by_judges(folder: Path, tmp_path: Path) -> None:
    require("faster_whisper", "distillmos", "resemblyzer")
    changes = {"data.judged": 1, "training.validation.metric_for_best_model": "quality"}
    changes |= {"training.validation.greater_is_better": True, "training.validation.interval": 12}
    train("speech", settings(folder, **changes), output=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    judged = [line for line in lines if line["split"] == "validation"]
    assert [line["quality"] for line in judged] == pytest.approx([line["mos"] - 5 * line["wer"] for line in judged])
    assert all(-1.0 <= line["speaker"] <= 1.0 for line in judged)
    best = max(judged, key=lambda line: line["quality"])["step"]
    assert best_or_latest(tmp_path / "run").name == f"step-{best:08d}"


@pytest.mark.slow
def test_evaluation_stands_beside_nature_and_its_copy(run: Path) -> None:
    require("faster_whisper", "distillmos", "resemblyzer")
    found = evaluate(run)
    assert list(found.systems) == ["natural", "Griffin-Lim copy", "this voice"]
    natural, copy, made = found.systems.values()
    assert {"wer", "cer", "skipped", "repeated", "mos"} <= natural.keys()
    assert '"140" for "one hundred and forty" counts in CER alone, "3.45" for "3:45" in WER alone' in found.legend
    assert {"speaker", "mcd", "f0", "voicing", "seconds", "rtf"} <= made.keys()
    assert natural["seconds"] == 1
    assert copy["mcd"] < made["mcd"]
    assert json.loads((run / "evaluation.json").read_text())["notes"]["texts"] == 2
    report = write_report(run).read_text(encoding="utf-8")
    assert report.count("<audio") >= 3


def test_recordings_that_the_voice_was_trained_on_are_counted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluation, "judge_of", lambda *_: None)
    corpus = evaluation.describe_trained(run, "speech", SpeechRecipe)
    held_out = len(corpus.inference_metadata["validation"])
    found = evaluate(run, data=str(corpus.recipe.data.path), output=tmp_path / "own")
    assert found.notes["recordings_trained_on"] == found.notes["texts"] - held_out > 0
    assert "were trained on, so the figures are too good" in caplog.text
    assert "recordings_trained_on" not in evaluate(run, output=tmp_path / "held out").notes


@pytest.mark.parametrize("from_a_run", [True, False])
def test_the_voice_that_training_began_from_speaks_beside_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_a_run: bool
) -> None:
    described = evaluation.describe_trained(run, "speech", SpeechRecipe)
    training = described.recipe.training.model_copy(update={"init_from": str(run) if from_a_run else "base"})
    recipe = described.recipe.model_copy(update={"training": training})
    monkeypatch.setattr(evaluation, "describe_trained", lambda *_: replace(described, recipe=recipe))
    monkeypatch.setattr(evaluation, "judge_of", lambda *_: None)
    before = [f"{run}, where training began"] if from_a_run else []  # base is what the packaged voice itself has
    systems = evaluate(run, output=tmp_path / "figures").systems
    assert list(systems) == ["natural", "Griffin-Lim copy", *before, "this voice"]
    assert all(systems[name]["seconds"] == systems["this voice"]["seconds"] for name in before)  # it is the same voice
    examples = json.loads((tmp_path / "figures" / "samples" / "samples.json").read_text())["examples"]
    assert all([clip["label"] for clip in example["clips"]] == list(systems) for example in examples)


def test_what_nobody_judges_is_named_under_the_table(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "judge_of", lambda *_: None)
    assert main(["evaluate", str(run), "--output", str(tmp_path / "figures")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "MOS" not in lines[0]
    assert "recogniser: none, so no WER and CER" in lines
    assert "naturalness: none, so no MOS" in lines
    assert "speaker judge: none, so no similarity" in lines


def test_a_voice_of_another_rate_is_judged_at_that_of_the_run() -> None:
    voice: Any = SimpleNamespace(speakers=["ann"], sample_rate=16000, speak=lambda *_: np.zeros(1600, np.float32))
    for rate, samples in ((16000, 1600), (24000, 2400)):
        assert len(evaluation._spoken_by(voice, rate, Sentence("one", "ann", "Good morning."))) == samples


@pytest.mark.slow
def test_predicted_mels_fit_the_recordings_and_train_a_vocoder(run: Path, folder: Path, tmp_path: Path) -> None:
    assert main(["predict", str(run), "-o", str(tmp_path / "mels")]) == 0
    assert main(["predict", str(run), "-o", str(tmp_path / "mels")]) == 2  # it is there now
    changes = {
        "data.path": str(folder / "voice"),
        "data.cache_dir": str(folder / "cache"),
        "data.validation": 0.2,
        "data.crop_frames": 24,
        "data.predicted": str(tmp_path / "mels"),
        "model.width": 16,
        "model.layers": 1,
        "training.max_steps": 2,
        "training.scheduler.warmup_steps": 0,
        "training.ema": None,
    }
    corpus = VocoderCorpus(resolve("vocoder", changes).recipe.data)
    recorded = corpus.prepared.cache
    for position in range(len(corpus.prepared.index)):
        predicted = corpus.predicted_mel(position)
        assert predicted is not None
        assert predicted.shape == recorded.features(position).shape
    samples = VocoderDataset(corpus, "train")
    natural = VocoderDataset(VocoderCorpus(corpus.data.model_copy(update={"predicted": None})), "train")
    swapped = 0
    for seed in range(60):
        mine, theirs = (some.get(0, np.random.default_rng(seed)) for some in (samples, natural))
        swapped += not any(np.array_equal(mine.mel_TM, part) for part in _crops(recorded, samples.positions[0], 24))
        assert theirs.mel_TM.shape == mine.mel_TM.shape
    assert 15 < swapped < 45
    assert train("vocoder", changes, output=tmp_path / "run").step == 2
    with pytest.raises(DataError, match="use the same one"):
        train("vocoder", {**changes, "data.audio.preemphasis": 0.9}, output=tmp_path / "other")
    elsewhere = {**changes, "data.path": str(tmp_path / "renamed")}
    shutil.copytree(folder / "voice" / "wavs", tmp_path / "renamed")
    for file in sorted((tmp_path / "renamed").iterdir()):
        file.rename(file.with_stem(f"another-{file.stem}"))
    with pytest.raises(DataError, match="other recordings"):
        train("vocoder", elsewhere, output=tmp_path / "elsewhere")
    with pytest.raises(DataError, match="no predicted mels"):
        train("vocoder", {**changes, "data.predicted": str(tmp_path)}, output=tmp_path / "another")


def _crops(cache: Any, position: int, frames: int) -> Any:
    mel = cache.features(position)
    return (mel[start : start + frames] for start in range(len(mel) - frames + 1))


def test_a_stream_says_the_same(run: Path) -> None:
    synthesiser = Synthesiser.load(run)
    text = "Hello there. And 21 more!"
    streamed = np.concatenate(list(synthesiser.stream(text)))
    whole = synthesiser.speak(text)
    assert len(streamed) == len(whole)
    assert np.corrcoef(streamed, whole)[0, 1] > 0.95


def test_what_does_not_fit_is_refused(run: Path, folder: Path, tmp_path: Path) -> None:
    own = {"data.phonemes": "characters", "data.durations": "pocketsphinx"}
    with pytest.raises(InputError, match="English phones"):
        train("speech", settings(folder, **own), output=tmp_path / "run")
    with pytest.raises(InputError, match=r"features .*data\.audio\.preemphasis"):
        train("speech", settings(folder, **{"data.audio.preemphasis": 0.0}), output=run, resume="auto")
    with pytest.raises(InputError, match=r"data\.vocoder: nowhere: "):
        train("speech", settings(folder, **{"data.vocoder": "nowhere"}), output=tmp_path / "run")
    with pytest.raises(InputError, match="no such run"):
        Synthesiser.load(tmp_path / "nothing")


def test_recordings_without_text_are_one_clear_error(tone_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text"):
        train(
            "speech",
            {"data.path": str(tone_corpus), "data.cache_dir": str(tmp_path / "c"), **BY_LOSS},
            output=tmp_path / "run",
        )


def test_who_is_to_judge_is_known_before_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("speaker", "quality"):
        chosen = {"training.validation.metric_for_best_model": name}
        with pytest.raises(InputError, match=rf"{name} is measured on data\.judged .*0.*data\.judged=0 .*=step"):
            train("speech", settings(folder, **chosen), output=tmp_path / "run")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "distillmos" else find(name))
    with pytest.raises(MissingPackageError, match=r"distillmos, .*data\.judged=0"):
        train("speech", settings(folder, **{"data.judged": 2}), output=tmp_path / "run")
    monkeypatch.undo()
    require("faster_whisper", "distillmos")
    with pytest.raises(InputError, match=r"quality.* higher"):
        train("speech", settings(folder, **{"data.judged": 2, **chosen}), output=tmp_path / "run")


def test_speakers_of_another_run_keep_their_vectors_and_new_ones_start_as_the_average(
    task: SpeechTask, tmp_path: Path
) -> None:
    """What training starts from (`training.init_from`) has other speakers."""
    facts = tmp_path / "model.json"
    facts.write_text(json.dumps({"speakers": ["ann", "voice", "bob"]}))
    table = torch.tensor([[1.0, 2.0], [3.0, 5.0], [5.0, 5.0]])
    assert task.corpus.speakers == ["voice"]
    assert torch.equal(task.adopted({VOICES: table}, tmp_path)[VOICES], table[1:2])
    facts.write_text(json.dumps({"speakers": ["ann", "eve", "bob"]}))
    assert torch.equal(task.adopted({VOICES: table}, tmp_path)[VOICES], torch.tensor([[3.0, 4.0]]))
    old = {"acoustic.speakers.weight": 8 * table, "acoustic.embedding.weight": torch.zeros(9, 2)}
    assert torch.equal(task.adopted(old, tmp_path)[VOICES], torch.tensor([[3.0, 4.0]]))
    facts.write_text("{}")
    for source in (tmp_path, tmp_path / "without"):  # a checkpoint of another task, or of other software
        assert task.adopted({"other": table}, source) == {"other": table}


@pytest.mark.parametrize("speakers", [1, 2])
def test_weights_from_before_vectors_of_voices_were_scaled_speak_as_before(task: SpeechTask, speakers: int) -> None:
    """A single voice had no vector."""
    sizes = (task.recipe.model, len(task.corpus.inventory), speakers, task.recipe.data.audio.n_mels)
    model, again = (cast(ParallelModel, build_acoustic(*sizes)).eval() for _ in range(2))
    if speakers == 2:
        torch.nn.init.normal_(model.voices.weight)
    weights = model.state_dict()
    table = weights.pop("voices.weight")
    again.load_state_dict(weights if speakers == 1 else {**weights, "speakers.weight": 8.0 * table})
    tokens = [torch.arange(1, 9)]
    assert torch.equal(again.speak(tokens, speakers - 1)[0].mel_TM, model.speak(tokens, speakers - 1)[0].mel_TM)
    if speakers == 2:
        first, second = (model.speak(tokens, voice)[0].mel_TM for voice in (0, 1))
        assert first.shape != second.shape or not torch.allclose(first, second)
        with pytest.raises(RuntimeError, match=r"voices\.weight"):
            again.load_state_dict(weights)


def test_phones_of_another_language_start_as_the_english_ones_that_sound_like_them() -> None:
    english = Inventory.of(phonemizer("english", "en-us"))
    german = Inventory((*SPECIAL, *espeak.SYMBOLS), "espeak", "de")
    table = torch.randn(len(english), 4)
    started = dict(zip(german.symbols, adoption.phones(table, english, german), strict=True))
    known = dict(zip(english.symbols, table, strict=True))
    assert all(torch.equal(started[mark], known[mark]) for mark in SPECIAL)
    assert torch.equal(started["ʃ"], known["SH"])
    assert torch.equal(started["ə"], known["AH0"])
    assert torch.allclose(started["i"], (known["IY0"] + known["IY1"] + known["IY2"]) / 3)
    assert torch.allclose(started["x"], (known["HH"] + known["K"]) / 2)
    assert not started["ˈ"].any()  # stress is a symbol of its own in one, a part of vowels in the other
    letters = Inventory((*SPECIAL, "a", "b"), "characters", "de")
    assert adoption.phones(table, english, letters) is table
    assert adoption.phones(table, german, german) is table


def test_what_is_compiled_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"training.max_steps": 2, "training.adversarial_start": 1, "training.performance.compile_model": True}
    calls = calls_of_compiled(monkeypatch)
    train("speech", settings(folder, **more), output=tmp_path / "run")
    assert calls.keys() == {"ParallelModel", "MelDiscriminator"}
    assert all(calls.values())
