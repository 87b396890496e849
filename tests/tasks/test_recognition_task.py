"""Recognition from recordings with texts to written text: on words made of sounds, and on real speech."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from phonate.cli import main
from phonate.config.errors import DataError, InputError
from phonate.config.resolve import resolve
from phonate.data.loading import padded_to
from phonate.evaluation.held_out import Clip
from phonate.evaluation.words import word_error_rate
from phonate.tasks.recognition.data import Symbols, Wording, standardised
from phonate.tasks.recognition.evaluation import _speaker_rates
from phonate.tasks.recognition.inference import Transcriber
from phonate.tasks.recognition.model import CtcModel, build_model, reduced
from phonate.tasks.recognition.task import RecognitionTask
from phonate.training.checkpoints import best_or_latest
from phonate.training.task import Picture
from phonate.workflows.evaluate import evaluate
from phonate.workflows.pages.report import write_report
from phonate.workflows.train import train

PAGE = Path(__file__).parents[2] / "docs" / "do" / "transcribe.md"
SAMPLE_RATE = 16000
SOUNDS = {"a": (120, 800, 1300), "e": (150, 450, 2200), "o": (110, 450, 800), "u": (210, 320, 2900)}
"""A sound for each letter: pitch and two formants."""
WORDS = ["a", "eo", "u", "oae", "ue", "aa"]


def said(words: list[str], seed: int) -> np.ndarray:
    """A recording of words: a sound a letter, a short pause after each and a longer one between words."""
    rng = np.random.default_rng(seed)
    parts = [np.zeros(1500)]
    for word in words:
        for letter in word:
            pitch, *formants = SOUNDS[letter]
            time = np.arange(int(rng.uniform(0.12, 0.18) * SAMPLE_RATE)) / SAMPLE_RATE
            harmonics = pitch * rng.uniform(0.95, 1.05) * np.arange(1, 30)
            gains = sum(np.exp(-(((harmonics - formant) / 200.0) ** 2)) for formant in formants)
            parts += [gains @ np.sin(2 * np.pi * harmonics[:, None] * time), np.zeros(600)]
        parts.append(np.zeros(2500))
    sound = np.concatenate(parts)
    sound = 0.5 * sound / np.abs(sound).max() + 0.002 * rng.standard_normal(len(sound))
    return sound.astype(np.float32)


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data.path": str(folder / "words"),
        "data.cache_dir": str(folder / "cache"),
        "data.validation": 0.2,
        "model.width": 48,
        "model.layers": 2,
        "model.kernel": 5,
        "model.beam": 4,
        "training.batch_size": 4,
        "training.validation.previews": False,
        "training.max_steps": 24,
        "training.optimizer.lr": 3e-3,
        "training.scheduler.warmup_steps": 2,
        "training.logging.tensorboard": False,
        "training.validation.interval": 12,
        "training.checkpoint.interval": 6,
        "training.checkpoint.save_total_limit": 10,
        "training.ema": None,
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `words/`: twenty recordings of two to four words."""
    folder = tmp_path_factory.mktemp("recognition")
    (folder / "words").mkdir()
    rng = np.random.default_rng(0)
    for number in range(20):
        words = [str(word) for word in rng.choice(WORDS, 2 + number % 3)]
        path = folder / "words" / f"{number:02d}.wav"
        soundfile.write(path, said(words, 10 * number), SAMPLE_RATE, subtype="PCM_16")
        path.with_suffix(".txt").write_text(" ".join(words).upper() + ".\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train("recognition", settings(folder), output=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def learnt(folder: Path) -> Path:
    """A run that knows its sounds."""
    changes = {"training.max_steps": 240, "training.validation.interval": 60, "training.checkpoint.interval": 60}
    train("recognition", settings(folder, **changes), output=folder / "learnt")
    return folder / "learnt"


@pytest.fixture(scope="module")
def task(folder: Path) -> RecognitionTask:
    return RecognitionTask(resolve("recognition", settings(folder)).recipe)


def lines(run: Path, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def batch_of(task: RecognitionTask, count: int = 4, split: str = "train") -> Any:
    samples = task.dataset(split)
    return samples.collate([samples.get(i, np.random.default_rng(i)) for i in range(count)])


def test_batches_padded_to_few_shapes_have_the_same_loss(task: RecognitionTask) -> None:
    model, batch = task.model(torch.device("cpu")).eval(), batch_of(task)
    padded = padded_to(batch, 64)
    assert any(padded[name].shape != batch[name].shape for name in batch if isinstance(batch[name], torch.Tensor))
    ours, theirs = task.loss(model, batch, "main"), task.loss(model, padded, "main")
    for name, (total, _) in ours.items():
        assert theirs[name][0].item() == pytest.approx(total.item(), rel=1e-4)
    assert task.dataset("train").unit_counts(padded) == task.dataset("train").unit_counts(batch)


def test_texts_become_spoken_words() -> None:
    wording = Wording("en-us")
    assert wording("Dr. Lee  owed $20, at 3:45!") == "doctor lee owed twenty dollars at three forty five"
    symbols = Symbols.of(["one two", "it's"], "en-us")
    assert symbols.letters == (" ", "'", *"einostw")
    assert symbols.text(symbols.ids("it's two")) == "it's two"
    assert Symbols.read(symbols.document()) == symbols
    with pytest.raises(InputError, match="'x'"):
        symbols.ids("six")


def test_accents_come_back() -> None:
    symbols = Symbols.of([Wording("de")("Über Größe")], "de")
    assert symbols.text(symbols.ids("größe über")) == "größe über"


@pytest.mark.parametrize(
    ("language", "text", "read"),
    [
        ("zh", "今天是2024年。", "今天是2024年"),
        ("ja", "東京へ行きます。", "東京へ行きます"),
        ("hi", "२०२४ में ५ लोग", "२०२४ में ५ लोग"),
        ("ar", "في عام ٢٠٢٤، كِتَابٌ", "في عام ٢٠٢٤ كِتَابٌ"),
        ("fa", "می\u200cخواهم ۳", "می\u200cخواهم ۳"),
        ("bn", "১২ বাড়ি", "১২ বাড়ি"),
        ("th", "๓ น้ำ", "๓ น้ำ"),
        ("ml", "മലയാളം", "മലയാളം"),
        ("pa", "ਘਰ ੫", "ਘਰ ੫"),
        ("my", "မြန်မာ", "မြန်မာ"),
        ("am", "አማርኛ።", "አማርኛ"),
        ("he", "צה״ל", "צה״ל"),
        ("uz", "Oʻzbek", "oʻzbek"),
        ("uz", "O‘zbek", "o'zbek"),
        ("ca", "Col·legi", "col·legi"),
        ("tr", "IŞIK, İstanbul, Irmak", "ışık istanbul ırmak"),
        ("az-AZ", "IŞIQ", "ışıq"),
        ("ru", "Он купил iPhone «5»", "он купил iphone 5"),
        ("ko", "한국어 3", "한국어 3"),
        ("fr", "L’été ‘noir’ ❤️", "l'été noir"),
    ],
)
def test_letters_marks_and_digits_of_any_script_come_back(language: str, text: str, read: str) -> None:
    wording = Wording(language)(text)
    symbols = Symbols.of([wording], language)
    assert symbols.text(symbols.ids(wording)) == unicodedata.normalize("NFC", read)


def test_texts_of_which_letters_would_be_lost_are_refused() -> None:
    wording = Wording("en")
    assert wording("Søren's naïve α") == "soren's naive alpha"
    with pytest.raises(InputError, match="京東"):
        wording("We went to 東京.")


@pytest.mark.parametrize("frames", range(1, 12))
def test_the_model_gives_as_many_frames_as_it_says(frames: int) -> None:
    model = CtcModel(8, 5, 16, 2, 3, 0.0)
    logits, lengths = model(torch.zeros(1, frames, 8), torch.tensor([frames]))
    assert logits.shape == (1, int(lengths), 5)
    assert int(lengths) == reduced(frames)


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.7), ("small", 2.1), ("default", 5.2), ("large", 26.8)])
def test_sizes_are_those_of_the_documentation(size: str, millions: float) -> None:
    recipe = resolve("recognition", {"data.path": "x", "size": size}).recipe
    model = build_model(recipe.model, recipe.data.audio.n_mels, 29)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(1e6 * millions, abs=0.5e5)
    assert f"| {size} | {recipe.model.width} | {recipe.model.layers} | {millions} M |" in PAGE.read_text()


def test_padding_changes_nothing(task: RecognitionTask) -> None:
    """An item alone and the same item beside longer ones get the same symbols and the same loss."""
    model = task.model(torch.device("cpu")).eval()
    batch = batch_of(task)
    batch["mel"] = batch["mel"].masked_fill(
        torch.arange(batch["mel"].shape[1])[None, :, None] >= batch["lengths"][:, None, None], 7.0
    )
    total = 0.0
    for item in range(4):
        frames, letters = int(batch["lengths"][item]), int(batch["symbol_lengths"][item])
        alone = {name: value[item : item + 1] for name, value in batch.items()}
        alone |= {"mel": alone["mel"][:, :frames], "symbols": alone["symbols"][:, :letters]}
        with torch.no_grad():
            single, _ = model(alone["mel"], alone["lengths"])
            padded, lengths = model(batch["mel"], batch["lengths"])
        assert torch.allclose(single[0], padded[item, : lengths[item]], atol=1e-5)
        total += float(task.loss(model, alone, "main")["ctc"][0].detach())
    together = task.loss(model, batch, "main")
    assert float(together["ctc"][0].detach()) == pytest.approx(total, rel=1e-4)
    assert together["ctc"][1] == "symbols"
    assert task.dataset("train").unit_counts(batch) == {"symbols": int(batch["symbol_lengths"].sum())}


def test_the_loss_is_that_of_the_text_and_not_of_what_fills_it_up(task: RecognitionTask) -> None:
    model, batch = task.model(torch.device("cpu")).eval(), batch_of(task)
    loss = task.loss(model, batch, "main")["ctc"][0]
    other = {**batch, "symbols": torch.where(batch["symbols"] == 0, 3, batch["symbols"])}
    assert torch.equal(task.loss(model, other, "main")["ctc"][0], loss)
    with torch.no_grad():
        logits, lengths = model(batch["mel"], batch["lengths"])
    faulty = F.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1),
        other["symbols"],
        lengths,
        torch.full_like(batch["symbol_lengths"], batch["symbols"].shape[1]),
        reduction="sum",
    )
    assert not torch.isclose(faulty, loss)


def test_training_samples_vary_and_validation_ones_do_not(task: RecognitionTask) -> None:
    training, validation = task.dataset("train"), task.dataset("validation")
    one, again, other = (training.get(0, np.random.default_rng(seed)).mel_TM for seed in (0, 0, 1))
    assert np.array_equal(one, again)
    assert one.shape != other.shape  # played at another speed
    assert not training.cached
    assert np.array_equal(*(validation.get(0, np.random.default_rng(seed)).mel_TM for seed in (0, 1)))
    mel = validation.get(0, np.random.default_rng(0)).mel_TM
    assert np.abs(mel.mean(axis=0)).max() < 1e-4
    assert np.isfinite(standardised(np.zeros((5, 3), dtype=np.float32))).all()


def test_recordings_too_short_for_their_texts_are_left_out(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder / "words", tmp_path / "words")
    (tmp_path / "words" / "00.txt").write_text("aaaa eeee " * 20, encoding="utf-8")
    changes = {"data.path": str(tmp_path / "words"), "data.validation": 0.0}
    samples = RecognitionTask(resolve("recognition", settings(folder, **changes)).recipe).dataset("train")
    assert "00" not in samples.ids
    assert len(samples.ids) == 19
    assert "1 recording is too short for its text, and is left out: 00" in caplog.text


def test_a_resumed_run_is_the_undisturbed_one(run: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    for step in (18, 24):
        shutil.rmtree(tmp_path / f"run/checkpoints/step-{step:08d}")
    train("recognition", settings(folder), output=tmp_path / "run", resume="auto")
    first, second = (
        load_file(where / "checkpoints/step-00000024/weights.safetensors") for where in (run, tmp_path / "run")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert lines(run, "validation")[-1]["wer"] == lines(tmp_path / "run", "validation")[-1]["wer"]


@pytest.mark.slow
def test_it_learns_what_is_said(learnt: Path) -> None:
    validations = lines(learnt, "validation")
    assert min(line["wer"] for line in validations) < 0.1
    best = min(validations, key=lambda line: (line["wer"], line["step"]))
    assert best_or_latest(learnt).name == f"step-{best['step']:08d}"


@pytest.mark.slow
def test_what_a_checkpoint_hears_is_what_was_validated(learnt: Path) -> None:
    transcriber = Transcriber.load(learnt)
    task = RecognitionTask(transcriber.recipe)
    samples = task.dataset("validation")
    cache = task.corpus.prepared.cache
    heard = [transcriber.transcribe(cache.waveform(position), beam=1) for position in samples.positions]
    step = int(best_or_latest(learnt).name.removeprefix("step-"))
    measured = next(line["wer"] for line in lines(learnt, "validation") if line["step"] == step)
    assert word_error_rate(samples.wordings, heard) == pytest.approx(measured)


@pytest.mark.slow
def test_windows_of_a_long_recording_give_what_the_whole_gives(learnt: Path) -> None:
    transcriber = Transcriber.load(learnt)
    mel = standardised(transcriber.processor.mel(transcriber.processor.load(learnt.parent / "words" / "02.wav")))
    whole = transcriber.log_probs([mel])[0]
    transcriber.window = 37
    assert transcriber.log_probs([mel])[0].shape == whole.shape == (reduced(len(mel)), len(transcriber.symbols))
    assert np.allclose(transcriber.log_probs([mel])[0], whole, atol=1e-4)
    transcriber.model.context = 0  # faulty: windows without what the model sees around them
    assert not np.allclose(transcriber.log_probs([mel])[0], whole, atol=1e-2)


@pytest.mark.slow
def test_a_long_recording_is_written_down_whole(learnt: Path, tmp_path: Path) -> None:
    words = [WORDS[number % len(WORDS)] for number in range(90)]
    soundfile.write(tmp_path / "long.flac", said(words, 5), SAMPLE_RATE)
    assert soundfile.info(tmp_path / "long.flac").duration > 40
    heard = Transcriber.load(learnt).transcribe(tmp_path / "long.flac")
    assert word_error_rate([" ".join(words)], [heard]) < 0.15


@pytest.mark.slow
def test_the_command_prints_the_text(learnt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = learnt.parent / "words" / "02.wav"
    text = recording.with_suffix(".txt").read_text().strip().rstrip(".").lower()
    for more in ([], ["--beam", "1"], ["--beam", "8"]):
        assert main(["transcribe", str(learnt), str(recording), *more]) == 0
        assert capsys.readouterr().out == f"{text}\n"
    assert main(["transcribe", str(learnt), str(recording), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["recording"], document["text"]) == (str(recording), text)
    ends = [0.0, *(word["end"] for word in document["words"])]
    assert " ".join(word["text"] for word in document["words"]) == text
    assert all(before <= word["start"] < word["end"] for before, word in zip(ends, document["words"], strict=False))
    soundfile.write(tmp_path / "silence.wav", np.zeros(8000), 8000)
    assert main(["transcribe", str(learnt), str(tmp_path / "silence.wav")]) == 0
    said_of_silence = capsys.readouterr()
    assert said_of_silence.out == ""
    assert "no words recognised in 1.0 s" in said_of_silence.err


@pytest.mark.parametrize(
    ("recording", "more", "message"),
    [("words/02.wav", ["--beam", "0"], "beam 0: must be"), ("words/none.wav", [], "no such file")],
)
def test_what_cant_be_heard_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], recording: str, more: list[str], message: str
) -> None:
    assert main(["transcribe", str(run), str(run.parent / recording), *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_evaluation_stands_beside_what_never_listened(learnt: Path, folder: Path) -> None:
    found = evaluate(learnt)
    assert list(found.systems) == ["untrained", "most frequent word", "greedy", "beam 4 and language model"]
    untrained, deaf, greedy, beam = (system["wer"] for system in found.systems.values())
    assert max(greedy, beam) < 0.2 < min(untrained, deaf)
    assert {"text", "heard", "wer", "cer", "speaker"} <= next(iter(found.items.values())).keys()
    assert found.notes["recordings"] == len(found.items) == 4
    assert found.notes["recordings_trained_on"] == 0
    assert write_report(learnt).read_text(encoding="utf-8").count("<audio") == 4
    assert evaluate(learnt, str(folder / "words")).notes["recordings_trained_on"] == 16
    with pytest.raises(InputError, match="vocoder=: the task recognition "):
        evaluate(learnt, vocoder="runs/vocoder")


def test_whole_speakers_are_kept_for_validation_where_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    for number in range(12):
        speaker = tmp_path / "words" / f"speaker{number % 4}"
        speaker.mkdir(parents=True, exist_ok=True)
        for suffix in (".wav", ".txt"):
            shutil.copy(folder / "words" / f"{number:02d}{suffix}", speaker)
    changes = {"data.path": str(tmp_path / "words"), "data.validation": 0.25}

    def speakers(split: str, **more: Any) -> set[str]:
        task = RecognitionTask(resolve("recognition", settings(folder, **changes | more)).recipe)
        return {name.split("/")[-2] for name in task.dataset(split).ids}

    by_speaker = {"data.validation_by": "speaker"}
    assert len(speakers("validation", **by_speaker)) == 1
    assert speakers("train", **by_speaker) == {f"speaker{i}" for i in range(4)} - speakers("validation", **by_speaker)
    assert speakers("train") == {f"speaker{i}" for i in range(4)}  # each has one to train on
    assert speakers("train", **by_speaker | {"data.validation": 0.0}) == speakers("train")
    assert len(speakers("train", **by_speaker | {"data.validation": 0.9})) == 1
    rows = [
        f"{file},{file.parent.name},{file.with_suffix('.txt').read_text().strip()},{split}"
        for number, file in enumerate(sorted((tmp_path / "words").glob("*/*.wav")))
        for split in [("train", "dev", "train", "test")[number % 4]]
    ]
    (tmp_path / "official.csv").write_text("\n".join(["audio_path,speaker_id,text,split", *rows]))
    official = {"data.path": str(tmp_path / "official.csv")}
    assert speakers("validation", **by_speaker, **official) == speakers("validation", **official)
    assert speakers("train", **by_speaker, **official) == speakers("train", **official)
    changes["data.path"] = str(tmp_path / "words" / "speaker0")
    with pytest.raises(DataError, match="only one speaker"):
        speakers("train", **by_speaker)


def test_a_run_of_one_recording_says_what_it_can_be_judged_by(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one").mkdir()
    for suffix in (".wav", ".txt"):
        shutil.copy(folder / "words" / f"02{suffix}", tmp_path / "one")
    changes = {"data.path": str(tmp_path / "one"), "training.max_steps": 2}
    train("recognition", settings(folder, **changes), output=tmp_path / "run")
    with pytest.raises(InputError, match="no validation"):
        evaluate(tmp_path / "run")
    strange = tmp_path / "strange"
    strange.mkdir()
    for name, text in (("0", "Zebra señor"), ("1", "..."), ("2", "")):
        shutil.copy(folder / "words" / "02.wav", strange / f"{name}.wav")
        (strange / f"{name}.txt").write_text(text, encoding="utf-8")
    found = evaluate(tmp_path / "run", str(strange))  # letters that the model does not have are its errors
    assert (found.notes["recordings"], found.notes["words"]) == (1, 2)
    assert all(system["wer"] >= 1.0 for system in found.systems.values())


def test_previews_are_pictures_of_what_is_heard(task: RecognitionTask) -> None:
    shown = task.previews(task.model(torch.device("cpu")).eval())
    assert {name: type(preview) for name, preview in shown.items()} == {"mel": Picture, "symbols": Picture}


def test_what_does_not_fit_is_refused(run: Path, folder: Path, tone_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"features .*data\.audio\.preemphasis"):
        train("recognition", settings(folder, **{"data.audio.preemphasis": 0.0}), output=run, resume="auto")
    with pytest.raises(DataError, match="no text"):
        train("recognition", settings(folder, **{"data.path": str(tone_corpus)}), output=tmp_path / "run")
    for name, value, why in (("model.kernel", 4, "odd"), ("data.speed", [1.2, 0.8], "other way round")):
        with pytest.raises(InputError, match=why):
            resolve("recognition", settings(folder, **{name: value}))


@pytest.mark.slow
def test_real_utterances_are_learnt_by_heart(recordings: Path, tmp_path: Path) -> None:
    corpus = recordings / "asr_en_an4"
    rows = (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines()[:6]
    (tmp_path / "wavs").mkdir()
    for row in rows:
        name = row.split("|")[0]
        (tmp_path / "wavs" / f"{name}.flac").symlink_to(corpus / "wavs" / f"{name}.flac")
    (tmp_path / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    changes = {"data.path": str(tmp_path), "data.cache_dir": str(tmp_path / "cache"), "data.validation": 0.0}
    changes |= {"data.speed": None, "data.augmentation": None, "model.width": 96, "model.dropout": 0.0}
    changes |= {"training.max_steps": 250, "training.batch_size": 6, "training.validation.metric_for_best_model": "wer"}
    train("recognition", settings(tmp_path, **changes), output=tmp_path / "run")
    transcriber = Transcriber.load(tmp_path / "run")
    for row in rows:
        name, _, text = row.split("|")
        for beam in (1, 8):
            assert transcriber.transcribe(corpus / "wavs" / f"{name}.flac", beam) == text.lower()


def test_speakers_of_one_recording_are_scored_apart() -> None:
    second = np.zeros(100, dtype=np.float32)
    clips = [
        Clip("a", "ann", "good morning all", second, Path("talk.wav"), 0.0),
        Clip("b", "ben", "how are you", second, Path("talk.wav"), 0.5),
        Clip("c", "ann", "fine thanks", second, Path("talk.wav"), 2.0),
    ]
    heard = ["good morning", "how are you", "fine thank"]
    assert _speaker_rates(clips, heard, 100) == {"cpwer": 2 / 8, "tcpwer": 2 / 8}
    assert _speaker_rates(clips[::2], heard[::2], 100) == {}
    assert Wording("en", refuses=False)("to 東京") == "to"
