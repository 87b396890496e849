"""The autoregressive kind of acoustic model: masks, stop token, cached decoding, and a sentence learnt by heart."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from speech_batches import MELS, TOKENS, batch_of, sentences

from phonate.audio.decoding import read_audio
from phonate.cli import main
from phonate.config.errors import InputError, RecipeError
from phonate.config.resolve import resolve
from phonate.tasks.speech.inference import Synthesiser
from phonate.tasks.speech.model import AutoregressiveModel, AutoregressiveOutput, stop_targets
from phonate.tasks.speech.settings import SpeechModel
from phonate.tasks.speech.task import SpeechTask, build_acoustic
from phonate.training.task import counted
from phonate.workflows.demo import embedded
from phonate.workflows.train import train

COUNTED = {  # with 63 phones, one speaker and 80 mel bands: all, and without the post-net
    ("autoregressive", "tiny"): (6_199_458, 1_855_570),
    ("autoregressive", "small"): (14_045_346, 9_701_458),
    ("autoregressive", "medium"): (36_744_354, 32_400_466),
    ("autoregressive", "default"): (61_864_098, 57_520_210),
    ("autoregressive", "large"): (176_111_778, 171_767_890),
    ("parallel", "tiny"): (1_126_100, 1_126_100),
    ("parallel", "small"): (3_172_308, 3_172_308),
    ("parallel", "medium"): (7_194_196, 7_194_196),
    ("parallel", "default"): (16_099_668, 16_099_668),
    ("parallel", "large"): (38_027_348, 38_027_348),
}
PAGE = Path(__file__).parents[2] / "docs" / "do" / "voice.md"


def model_of(**settings: Any) -> AutoregressiveModel:
    return AutoregressiveModel(
        SpeechModel(kind="autoregressive", heads=4, postnet_channels=32, **settings), TOKENS, 1, MELS
    )


def small(dropout: float = 0.0) -> AutoregressiveModel:
    torch.manual_seed(0)
    return model_of(width=64, feed_forward=128, encoder_layers=2, decoder_layers=2, dropout=dropout)


def spoken(model: AutoregressiveModel, batch: Any) -> AutoregressiveOutput:
    names = ("tokens", "token_lengths", "durations", "target", "lengths", "speaker_id")
    with torch.no_grad():
        said: AutoregressiveOutput = model(*(batch[name] for name in names))
    return said


def terms(model: AutoregressiveModel, batch: Any) -> Any:
    return model.terms(model.teacher_forced(batch), batch)


def means(model: AutoregressiveModel, batch: Any) -> dict[str, torch.Tensor]:
    frames = float(batch["lengths"].sum())
    units = {"tokens": float(batch["token_lengths"].sum()), "frames": frames, "elements": MELS * frames}
    return {name: total / count for name, (total, count) in counted(terms(model, batch), units).items()}


@pytest.fixture(scope="module")
def learnt() -> AutoregressiveModel:
    """A model that has learnt four sentences by heart."""
    model, batch = small(), batch_of(sentences(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(300):
        loss = sum(model.weights[name] * mean for name, mean in means(model, batch).items())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize(("kind", "size"), COUNTED)
def test_parameters_are_as_many_as_the_page_says(kind: str, size: str) -> None:
    model = resolve("speech", {"data.path": "x", "model.kind": kind, "size": size}).recipe.model
    with torch.device("meta"):
        made = build_acoustic(model, 63, 1, 80)
    count = sum(parameter.numel() for parameter in made.parameters())
    postnet = getattr(made, "postnet", None)
    without = count - sum(parameter.numel() for parameter in postnet.parameters()) if postnet else count
    assert (count, without) == COUNTED[kind, size]
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {size} |"))
    assert row.split("|")[3 if kind == "parallel" else 5].strip() == f"{count / 1e6:.1f} M"
    if postnet:
        assert f"{(count - without) / 1e6:.1f} M" in PAGE.read_text()


def test_padding_changes_nothing() -> None:
    model, items = small(dropout=0.1).eval(), sentences(3)
    together, alone = spoken(model, batch_of(items)), spoken(model, batch_of(items[:1]))
    tokens, frames = len(items[0][0]), len(items[0][2])
    assert frames < len(together.mel_BTM[0])
    for one, many, end in zip(alone, together, (frames, frames, tokens, frames), strict=True):
        assert torch.allclose(one[0], many[0, :end], atol=1e-5)


def test_a_later_frame_changes_no_earlier_output() -> None:
    """The post-net, as ever, looks two frames ahead in each of its layers; what is spoken from is before it."""
    model, batch = small().eval(), batch_of(sentences(1))
    before = spoken(model, batch)
    batch["target"] = batch["target"].clone()
    batch["target"][:, 20] += 1.0
    after = spoken(model, batch)
    assert torch.equal(before.before_BTM[:, :21], after.before_BTM[:, :21])
    assert torch.equal(before.stop_BT[:, :21], after.stop_BT[:, :21])
    assert not torch.allclose(before.before_BTM[:, 21], after.before_BTM[:, 21], atol=1e-4)


@pytest.mark.slow
def test_what_it_speaks_is_what_it_would_say_after_the_same_frames(learnt: AutoregressiveModel) -> None:
    tokens = torch.as_tensor(sentences(1)[0][0])[None]
    with torch.no_grad():
        memory = learnt.regulated(learnt.encode(tokens, None, None), torch.full((1, 8), 5), 40)
        said = learnt.generate(memory, least=70, most=70, threshold=2.0)
        again, _ = learnt.decode(memory, None, said)
    assert said.shape == (1, 70, MELS)
    assert torch.allclose(again.clamp(0.0, 1.0), said, atol=1e-4)


@pytest.mark.slow
def test_a_learnt_sentence_ends_by_itself_and_is_the_right_one(
    learnt: AutoregressiveModel, caplog: pytest.LogCaptureFixture
) -> None:
    learnt_by_heart = sentences(4)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "phonate"):
        said = [learnt.speak([torch.as_tensor(tokens)], 0)[0][0] for tokens, _, _ in learnt_by_heart]
    assert not caplog.records  # none was cut off
    for number, (_, _, mel) in enumerate(learnt_by_heart):
        assert abs(len(said[number]) - len(mel)) <= 2
        distances = []
        for _, _, other in learnt_by_heart:
            frames = min(len(other), len(said[number]))
            distances.append(float(np.abs(said[number].numpy()[:frames] - other[:frames]).mean()))
        assert distances[number] < 0.04
        assert min(distances[:number] + distances[number + 1 :]) > 0.2


@pytest.mark.slow
def test_its_length_stays_between_a_third_and_twice_what_was_expected(
    learnt: AutoregressiveModel, caplog: pytest.LogCaptureFixture
) -> None:
    tokens, durations, _ = sentences(1)[0]
    expected = int(durations.sum())
    bias = learnt.stop.bias.data.clone()
    try:
        for change, frames, cut in ((100.0, math.ceil(expected / 3) + 2, 0), (-100.0, 2 * expected, 1)):
            learnt.stop.bias.data = bias + change
            caplog.clear()
            with torch.no_grad(), caplog.at_level(logging.WARNING, "phonate"):
                mel = learnt.speak([torch.as_tensor(tokens)], 0)[0].mel_TM
            assert len(mel) == pytest.approx(frames, abs=2)
            assert len(caplog.records) == cut
    finally:
        learnt.stop.bias.data = bias


@pytest.mark.slow
def test_a_long_sentence_is_not_cut_at_any_fixed_length() -> None:
    model = small().eval()
    with torch.no_grad():
        model.durations[-1].weight.zero_()
        model.durations[-1].bias.fill_(math.log(101.0))  # 100 frames each
        model.stop.bias.fill_(-100.0)
        mel = model.speak([torch.ones(15, dtype=torch.long)], 0)[0].mel_TM
        assert len(mel) == 3000
        fast = model.speak([torch.ones(15, dtype=torch.long)], 0, [torch.full((15,), 2.0)])[0].mel_TM
        assert len(fast) == 1500


def test_the_stop_token_rises_over_the_last_frames() -> None:
    targets = stop_targets(torch.tensor([6, 2]), 6)
    assert torch.allclose(targets[0], torch.tensor([0, 0, 0, 1 / 3, 2 / 3, 1]))
    assert torch.allclose(targets[1], torch.tensor([2 / 3, 1, 0, 0, 0, 0]))


def test_a_missed_end_costs_seventeen_times_a_false_one() -> None:
    model, batch = small().eval(), batch_of(sentences(1))
    frames = int(batch["lengths"])

    def cost(logit: float) -> float:
        with torch.no_grad():
            model.stop.weight.zero_()
            model.stop.bias.fill_(logit)
            return float(terms(model, batch)["stop"][0])

    softplus = math.log1p(math.exp(2.0))
    ends = 2.0  # 1 + 2/3 + 1/3
    rest = frames - ends
    assert cost(-2.0) == pytest.approx(17 * ends * softplus + rest * (softplus - 2.0), rel=1e-4)
    assert cost(2.0) == pytest.approx(17 * ends * (softplus - 2.0) + rest * softplus, rel=1e-4)


def test_counts_are_those_of_the_loss() -> None:
    batch = batch_of(sentences(3))
    units = {name: unit for name, (_, unit) in terms(small(), batch).items()}
    assert units == {"mel": "elements", "mel_before": "elements", "duration": "tokens", "stop": "frames"}


def test_checkpointing_changes_no_gradient() -> None:
    batch, gradients = batch_of(sentences(2)), []
    for segments in (None, 2):
        torch.manual_seed(0)
        model = model_of(width=32, feed_forward=64, encoder_layers=2, decoder_layers=4, checkpoint_segments=segments)
        torch.manual_seed(1)
        sum(means(model, batch).values()).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.kind": "parallel", "model.heads": 4}, "heads: .*parallel"),
        ({"model.kind": "autoregressive", "model.predictor_layers": 3}, "autoregressive .*predictor_layers"),
        ({"model.kind": "autoregressive", "model.width": 100}, "width 100 .*8 heads"),
        ({"model.kind": "autoregresive"}, "model.kind"),
    ],
)
def test_numbers_of_the_other_kind_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        resolve("speech", {"data.path": "x", **changes})
    assert len(str(caught.value).splitlines()) == 1


def test_a_discriminator_is_refused() -> None:
    recipe = resolve("speech", {"data.path": "x", "model.kind": "autoregressive"}).recipe
    with pytest.raises(InputError, match=r"training\.adversarial_start: .*autoregressive"):
        SpeechTask(recipe)


def test_a_recipe_written_out_in_full_is_read_again(tmp_path: Path) -> None:
    for kind in ("parallel", "autoregressive"):
        resolved = resolve("speech", {"data.path": "x", "model.kind": kind})
        (tmp_path / "recipe.yaml").write_text(resolved.to_yaml())
        assert resolve(tmp_path / "recipe.yaml").recipe == resolved.recipe


@pytest.mark.slow
def test_from_recordings_to_a_file(espeak: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training learns, a resumed run goes on, and `phonate speak` writes speech."""
    made = embedded.make_corpus(tmp_path / "made", embedded.SPEAKERS[:1], 6)
    voice = made.folder / embedded.SPEAKERS[0].name
    rows = [f"{number:02d}|{text}" for number, text in enumerate(embedded.SENTENCES[:6])]
    (tmp_path / "voice").mkdir()
    voice.rename(tmp_path / "voice" / "wavs")
    (tmp_path / "voice" / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    changes = {
        "data.path": str(tmp_path / "voice"),
        "data.cache_dir": str(tmp_path / "cache"),
        "data.validation": 0.2,
        "size": "tiny",
        "model.width": 32,
        "model.heads": 2,
        "model.feed_forward": 64,
        "model.postnet_channels": 16,
        "training.batch_size": 4,
        "training.max_steps": 30,
        "training.optimizer.lr": 5e-3,
        "training.scheduler.warmup_steps": 2,
        "training.logging.interval": 1,
        "training.logging.tensorboard": False,
        "training.checkpoint.interval": 15,
    }
    run = tmp_path / "run"
    train("speech-autoregressive", {**changes, "training.max_steps": 15}, output=run)
    train("speech-autoregressive", changes, output=run, resume="auto")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for name in AutoregressiveModel.weights:
        values = [line[name] for line in lines if line["split"] == "train"]
        assert len(values) == 30
        assert np.mean(values[-3:]) < 0.8 * np.mean(values[:3]), name
    assert main(["speak", str(run), "Hello there.", "-o", str(tmp_path / "said.wav")]) == 0
    assert soundfile.info(tmp_path / "said.wav").samplerate == 22050
    assert np.isfinite(read_audio(tmp_path / "said.wav")[0]).all()
    capsys.readouterr()
    words = next(Synthesiser.load(run).sentences("Hello there."))
    with pytest.raises(InputError, match="pitch"):
        Synthesiser.load(run).mel(words, semitones=2.0)
