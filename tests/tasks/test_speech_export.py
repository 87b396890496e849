"""A trained voice as a file of its own: it says what torch says, without torch, and in Piper."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_export_runtimes import problems

from installed import missing
from phonate.cli import main
from phonate.tasks.speech.data import SpeechCorpus
from phonate.tasks.speech.inference import Synthesiser
from phonate.text.phonemes import Inventory, phonemizer
from phonate.workflows.demo import embedded
from phonate.workflows.train import train

if missing("onnxruntime", "onnxscript"):
    pytest.skip("needs onnxruntime, onnxscript: pip install 'phonate[onnx]'", allow_module_level=True)
pytestmark = pytest.mark.slow  # torch takes half a minute to export a voice

TEXTS = [
    "Hello.",
    "The kettle began to whistle.",
    "Fresh bread, sharp cheese and a jar of plum jam will do.",
]
SENTENCES = [
    *embedded.SENTENCES[:20],
    "Hello, there; I said: stay!",
    'It\'s "quoted" (and bracketed) text',
    "A well-known, high-quality thing.",
]


def uniform(corpus: SpeechCorpus) -> Any:
    """Durations without an aligner: the same for every token."""

    def align(position: int, words: Any) -> Any:
        frames, tokens = int(corpus.prepared.index.frames[position]), len(corpus.inventory.tokens(words))
        return np.diff(np.linspace(0, frames, tokens + 1).astype(np.int64))

    return align


def trained(folder: Path, name: str, **changes: Any) -> Path:
    """A run of a few steps on the recordings in `folder`."""
    settings = {
        "data.path": str(folder / "voices"),
        "data.cache_dir": str(folder / "cache"),
        "data.validation": 0.2,
        "data.phonemes": "espeak",
        "model.contour": True,
        "model.width": 48,
        "model.encoder_layers": 2,
        "model.decoder_layers": 2,
        "model.predictor_layers": 1,
        "model.discriminator_channels": 2,
        "training.batch_size": 4,
        "training.max_steps": 20,
        "training.optimizer.lr": 1e-2,
        "training.scheduler.warmup_steps": 1,
        "training.logging.tensorboard": False,
        "training.validation.interval": 20,
        "training.checkpoint.interval": 20,
        "training.ema": None,
        "data.vocoder": None,
        "data.judged": 0,
        "training.validation.metric_for_best_model": "val_loss",
        "training.validation.greater_is_better": False,
        **changes,
    }
    train("speech", settings, output=folder / name)
    return folder / name


@pytest.fixture(scope="module")
def folder(espeak: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of two speakers with their texts, and a run of the task vocoder, `vocoder`."""
    folder = tmp_path_factory.mktemp("export")
    made = embedded.make_corpus(folder / "made", embedded.SPEAKERS[:2], 5)
    rows = []
    for speaker in embedded.SPEAKERS[:2]:
        shutil.copytree(made.folder / speaker.name, folder / "voices" / "wavs" / speaker.name)
        for number, text in enumerate(embedded.SENTENCES[:5]):
            rows.append(f"wavs/{speaker.name}/{number:02d}.wav,{speaker.name},{text}".replace(text, f'"{text}"'))
    (folder / "voices" / "metadata.csv").write_text("file,speaker,text\n" + "\n".join(rows) + "\n", encoding="utf-8")
    changes = {
        "data.path": str(made.folder),
        "data.cache_dir": str(folder / "cache"),
        "data.validation": 0.2,
        "data.crop_frames": 24,
        "model.width": 32,
        "model.layers": 2,
        "model.discriminator_channels": 2,
        "training.batch_size": 4,
        "training.max_steps": 4,
        "training.logging.tensorboard": False,
        "training.validation.interval": 4,
        "training.checkpoint.interval": 4,
        "training.ema": None,
    }
    train("vocoder", changes, output=folder / "vocoder")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A run of the task speech with espeak's phones and two speakers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpeechCorpus, "_aligner", uniform)
        run = trained(folder, "run")
    (run / "evaluation.json").write_text(
        json.dumps(
            {"task": "speech", "systems": {"synthesised": {"wer": 0.25, "seconds": 0.975}}, "legend": "wer: errors."}
        )
    )
    return run


@pytest.fixture(scope="module")
def onnx_file(run: Path, folder: Path) -> Path:
    target = folder / "out" / "two.onnx"
    arguments = ["checkpoints", "export", str(run), "--format", "onnx", "-o", str(target)]
    assert main([*arguments, "--vocoder", str(folder / "vocoder")]) == 0
    return target


@pytest.fixture(scope="module")
def voice(run: Path, folder: Path) -> Path:
    arguments = ["checkpoints", "export", str(run), "--format", "piper", "-o", str(folder / "piper")]
    assert main([*arguments, "--vocoder", str(folder / "vocoder")]) == 0
    return folder / "piper" / "voice.onnx"


@pytest.fixture(scope="module")
def synthesiser(run: Path, folder: Path) -> Synthesiser:
    synthesiser = Synthesiser.load_torch(run, folder / "vocoder")
    synthesiser.prosody_rules = False  # files have none
    return synthesiser


def session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def say(runtime: Any, tokens: list[int], sid: int = 0, **scales: float) -> Any:
    values = [scales.get("noise", 1.0), scales.get("length", 1.0), 0.0]
    inputs = {"input": np.array([tokens]), "scales": np.array(values, dtype=np.float32), "sid": np.array([sid])}
    return runtime.run(None, inputs)[0]


def test_the_file_says_what_torch_says(onnx_file: Path, synthesiser: Synthesiser) -> None:
    runtime = session(onnx_file)
    differences, distances = [], []
    for text, speaker, speed in itertools.product((*TEXTS, *SENTENCES[:4]), (0, 1), (1.0, 2.0)):
        tokens = synthesiser.inventory.ids(next(synthesiser.sentences(text)))
        said = say(runtime, tokens, speaker, length=1.0 / speed)
        wanted = synthesiser.speak(text, synthesiser.speakers[speaker], speed)
        assert said.shape == (1, 1, len(wanted))
        differences.append(float(np.abs(said[0, 0] - wanted).max() / np.abs(wanted).max()))
        mels = [synthesiser.processor.mel(sound) for sound in (said[0, 0], wanted)]
        distances.append(float(np.abs(mels[0] - mels[1]).mean()))
    # Each is rounding alone, but that a pitch or a voicing at the very edge of two steps may fall to either side: in up
    # to three of the 28 sentences, by processor.
    assert sorted(differences)[-5] <= 1e-3, differences
    assert max(distances) <= 0.02, distances


def test_scales_stretch_time_and_silence_the_noise(onnx_file: Path, synthesiser: Synthesiser) -> None:
    runtime = session(onnx_file)
    tokens = synthesiser.inventory.ids(next(synthesiser.sentences(TEXTS[1])))
    said = say(runtime, tokens)
    assert np.array_equal(said, say(runtime, tokens))
    assert say(runtime, tokens, length=2.0).shape[2] == pytest.approx(2 * said.shape[2], rel=0.02)
    assert say(runtime, tokens, noise=0.0).shape == said.shape
    assert not np.allclose(say(runtime, tokens, noise=0.0), said, atol=1e-3)
    assert say(runtime, tokens[:1]).shape[2] > 0


_WITHOUT_TORCH = """
import json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "onnxscript"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Refuse())
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
from phonate.text.phonemes import Inventory
inventory = Inventory.read(json.loads(session.get_modelmeta().custom_metadata_map["inventory"]))
tokens = inventory.ids(inventory.phonemizer()(sys.argv[2]))
scales = np.array([1, 1, 0], dtype=np.float32)
made = session.run(None, {"input": np.array([tokens]), "scales": scales, "sid": np.array([1])})[0]
assert "torch" not in sys.modules
np.save(sys.argv[3], made[0, 0])
"""


def test_the_oldest_runtime_has_what_files_compute(onnx_file: Path, voice: Path) -> None:
    assert problems(onnx_file) == problems(voice) == []


def test_no_torch_is_needed(onnx_file: Path, synthesiser: Synthesiser, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _WITHOUT_TORCH, str(onnx_file), TEXTS[1], str(tmp_path / "said.npy")]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    tokens = synthesiser.inventory.ids(next(synthesiser.sentences(TEXTS[1])))
    assert np.allclose(np.load(tmp_path / "said.npy"), say(session(onnx_file), tokens, sid=1)[0, 0], atol=1e-4)


def test_the_file_and_its_card_say_what_it_is(onnx_file: Path, synthesiser: Synthesiser) -> None:
    facts = session(onnx_file).get_modelmeta().custom_metadata_map
    assert facts["notice"] == "makes AI-generated speech"
    assert int(facts["sample_rate"]) == synthesiser.sample_rate
    assert json.loads(facts["speaker_names"]) == synthesiser.speakers
    assert Inventory.read(json.loads(facts["inventory"])) == synthesiser.inventory
    card = (onnx_file.parent / "MODEL_CARD.md").read_text(encoding="utf-8")
    for text in (
        "AI-generated speech",
        synthesiser.speakers[1],
        "| recordings | 8 |",
        "licence",
        "| WER % ↓ | length × natural |",
        "| 25.0 | 0.975 |",
        "22050 Hz",
        "| weights | fp32 |",
    ):
        assert text in card, text


def piper_voice(voice: Path) -> Any:
    piper = pytest.importorskip("piper", reason="needs Piper itself: pip install piper-tts")
    return piper.PiperVoice.load(voice)


def test_piper_and_our_phonemizer_mean_the_same_tokens(voice: Path, synthesiser: Synthesiser) -> None:
    """The symbols that Piper sends become, within the graph, the tokens that training had."""
    import torch

    from phonate.tasks.speech.export import piper_numbers
    from phonate.tasks.speech.graph import SpokenPiper, SpokenText

    theirs, inventory = piper_voice(voice), synthesiser.inventory
    numbers = piper_numbers(inventory)
    spoken = SpokenText(synthesiser.model, synthesiser.render.network)
    graph = SpokenPiper(spoken, numbers.tokens, numbers.weights, rules=numbers.rules)
    for text in SENTENCES:
        (phonemes,) = theirs.phonemize(text)
        sent = torch.tensor([theirs.phonemes_to_ids(phonemes)])
        heard = graph.tokens(sent, torch.tensor([sent.shape[1]]))[0].tolist()
        assert [inventory.symbols[token] for token in heard] == inventory.tokens(phonemizer("espeak")(text)), text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("de", "Das Radio der Familie steht in der Kreisstadt, am Brunnen."),
        ("it", "Il treno per Milano parte fra poco; mia nonna legge il giornale."),
        ("ar", "كتب الطالب رسالة طويلة إلى صديقه."),
        ("ar", "ال\u0634\u0651\u064eهَادَةِ ظَاهِرَةً."),
        ("cmn", "是."),
        ("cmn", "我们明天去海边玩。"),
        ("ja", "あしたともだちとうみへいきます。"),
        ("hi", "आज मौसम बहुत अच्छा है।"),
        ("da", "Tredive."),
        ("en-gb", "The old farm is near."),
    ],
)
def test_piper_says_what_a_voice_of_another_language_learnt(code: str, text: str) -> None:
    """Piper's espeak is later, writes some phones as marks, lacks some codes and gets Arabic with other diacritics."""
    pytest.importorskip("piper", reason="needs Piper itself: pip install piper-tts")
    import torch
    from piper import PiperConfig, PiperVoice
    from torch import nn

    from phonate.tasks.speech.export import piper_config, piper_numbers
    from phonate.tasks.speech.graph import SpokenPiper
    from phonate.text.phonemes import Inventory

    ours = phonemizer("espeak", code)
    inventory = Inventory.of(ours)
    numbers = piper_numbers(inventory)
    config = PiperConfig.from_dict(piper_config(numbers, "voice", code, ["one"], 22050, 256))
    theirs = PiperVoice(None, config)  # type: ignore[arg-type]  # speaks nothing here
    graph = SpokenPiper(nn.Identity(), numbers.tokens, numbers.weights, rules=numbers.rules)  # type: ignore[arg-type]
    (phonemes,) = theirs.phonemize(text)
    sent = torch.tensor([theirs.phonemes_to_ids(phonemes)])
    heard = graph.tokens(sent, torch.tensor([sent.shape[1]]))[0].tolist()
    assert [inventory.symbols[token] for token in heard] == inventory.tokens(ours(text))


@pytest.mark.parametrize("code", ["pt", "pt-br", "sv", "my"])
def test_a_language_that_piper_pronounces_otherwise_is_refused(code: str) -> None:
    from phonate.config.errors import InputError
    from phonate.tasks.speech.export import require_piper

    voice = SimpleNamespace(inventory=Inventory.of(phonemizer("espeak", code)))
    with pytest.raises(InputError, match=r"run: Piper's espeak-ng is later .* choose form=.onnx"):
        require_piper(voice, Path("run"))  # type: ignore[arg-type]  # reads the inventory alone


@pytest.mark.parametrize(("phones", "form"), [("english", "sherpa"), ("characters", "onnx")])
def test_who_has_other_phones_than_piper_is_told_what_takes_them(phones: str, form: str) -> None:
    from phonate.config.errors import InputError
    from phonate.tasks.speech.export import require_piper

    voice = SimpleNamespace(inventory=SimpleNamespace(phonemizer_name=phones))
    with pytest.raises(InputError, match=f"Piper speaks espeak's phones, .* choose form=.{form}"):
        require_piper(voice, Path("run"))  # type: ignore[arg-type]  # reads the inventory alone


def test_of_boundaries_side_by_side_the_weightiest_is_said(synthesiser: Synthesiser) -> None:
    import torch

    from phonate.tasks.speech.export import piper_numbers
    from phonate.tasks.speech.graph import SpokenPiper, SpokenText

    numbers, symbols = piper_numbers(synthesiser.inventory), synthesiser.inventory.symbols
    spoken = SpokenText(synthesiser.model, synthesiser.render.network)
    graph = SpokenPiper(spoken, numbers.tokens, numbers.weights, rules=numbers.rules)

    def heard(phonemes: str, more: int = 0) -> str:
        sent = [number for phoneme in phonemes for number in (*numbers.of_phonemes[phoneme], 0)]
        tokens = graph.tokens(torch.tensor([sent + [14] * more]), torch.tensor([len(sent)]))[0].tolist()
        return "".join({"<start>": "^", "<word>": " "}.get(symbols[token], symbols[token]) for token in tokens)

    assert heard("^ab c$") == "^ab c "
    assert heard("^ab, c.$") == "^ab,c."
    assert heard("^ ab ,? (c) ; d-e  $") == "^ab?c;de "
    assert heard("^ab$", more=3) == "^ab "
    assert heard("^$") == "^"


@pytest.mark.parametrize("speaker", [0, 1])
def test_piper_speaks_with_the_voice(voice: Path, onnx_file: Path, synthesiser: Synthesiser, speaker: int) -> None:
    loaded = piper_voice(voice)
    from piper import SynthesisConfig

    plain = session(onnx_file)
    for text in TEXTS:
        config = SynthesisConfig(speaker_id=speaker, normalize_audio=False)
        (chunk,) = loaded.synthesize(text, config)
        wanted = say(plain, synthesiser.inventory.ids(next(synthesiser.sentences(text))), speaker)[0, 0]
        assert chunk.sample_rate == synthesiser.sample_rate
        assert len(chunk.audio_float_array) == len(wanted) > 0.2 * chunk.sample_rate
        assert np.abs(chunk.audio_float_array - wanted).max() <= 1e-3
    (slow,) = loaded.synthesize(TEXTS[-1], SynthesisConfig(speaker_id=speaker, length_scale=1.5))
    assert len(slow.audio_float_array) == pytest.approx(1.5 * len(wanted), rel=0.02)


def test_piper_says_when_each_phoneme_is_heard(voice: Path, synthesiser: Synthesiser) -> None:
    loaded = piper_voice(voice)
    from piper import SynthesisConfig

    for text in TEXTS:
        config = SynthesisConfig(speaker_id=0, normalize_audio=False)
        (chunk,) = loaded.synthesize(text, config, include_alignments=True)
        assert [one.phoneme for one in chunk.phoneme_alignments] == ["^", *chunk.phonemes, "$"]
        assert sum(one.num_samples for one in chunk.phoneme_alignments) == len(chunk.audio_float_array)
        _, words = synthesiser.timed(text, synthesiser.speakers[0])
        begin, first = 0, len(chunk.audio_float_array)
        for one in chunk.phoneme_alignments:
            if one.phoneme == " " and begin < first:
                first = begin
            begin += one.num_samples
        if len(words) > 1:
            assert first / chunk.sample_rate == pytest.approx(words[0].end, abs=0.05)


def one_speaker(folder: Path, where: Path, **changes: Any) -> Path:
    """A run on the first speaker alone."""
    rows = (folder / "voices" / "metadata.csv").read_text(encoding="utf-8").splitlines()
    (where / "voices").mkdir()
    (where / "voices" / "wavs").symlink_to(folder / "voices" / "wavs")
    (where / "voices" / "metadata.csv").write_text("\n".join(rows[:6]) + "\n", encoding="utf-8")
    changes |= {"data.vocoder": str(folder / "vocoder"), "training.max_steps": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpeechCorpus, "_aligner", uniform)
        return trained(where, "run", **changes)


def test_a_voice_of_one_speaker_has_no_sid(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And the recipe's vocoder is exported where no other is given, without the exporter's chatter."""
    run = one_speaker(folder, tmp_path)
    killed = tmp_path / "out/.voice.onnx.999999999.a_b1.unfinished"  # an export that was
    killed.mkdir(parents=True)
    capfd.readouterr()
    assert main(["checkpoints", "export", str(run), str(tmp_path / "out"), "--format", "piper"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("exporting ")
    assert not list((tmp_path / "out").glob(".*"))
    names = [given.name for given in session(tmp_path / "out" / "voice.onnx").get_inputs()]
    assert names == ["input", "input_lengths", "scales"]
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert card.startswith("# out\n"), "the folder's name, not that of the file in it"
    assert "Not evaluated" in card
    (chunk,) = piper_voice(tmp_path / "out" / "voice.onnx").synthesize(TEXTS[0])
    assert np.abs(chunk.audio_float_array).max() == pytest.approx(1.0)


@pytest.mark.parametrize("there", [False, True])
def test_a_stopped_export_leaves_no_folder(
    run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    target = tmp_path / "new" / "out"
    if there:
        target.mkdir(parents=True)
    monkeypatch.setattr("phonate.tasks.speech.export._write_voice", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    words = ["--format", "piper", "--vocoder", str(folder / "vocoder")]
    assert main(["checkpoints", "export", str(run), str(target), *words]) == 130
    assert target.exists() == target.parent.exists() == there


def test_piper_has_no_letters(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = one_speaker(folder, tmp_path, **{"data.phonemes": "characters"})
    capsys.readouterr()
    assert main(["checkpoints", "export", str(run), str(tmp_path / "out"), "--format", "piper"]) == 2
    assert "train one with data.phonemes=espeak" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "onnx", "-o", "{new}"], "of the task vocoder with --vocoder"),
        (["--format", "onnx", "-o", "{new}", "--vocoder", "no/such"], "no/such"),
        (["--format", "onxx", "-o", "{new}"], "did you mean onnx"),
        (["--format", "onnx", "-o", "{old}", "--vocoder", "{vocoder}"], "exists already"),
        (["--format", "onnx"], "give one target"),
        (["-o", "{new}", "--vocoder", "{vocoder}"], "only for other formats than weights"),
    ],
)
def test_what_cant_be_exported_is_one_line(
    run: Path,
    folder: Path,
    onnx_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    places = {"new": tmp_path / "new", "old": onnx_file, "vocoder": folder / "vocoder"}
    capsys.readouterr()
    assert main(["checkpoints", "export", str(run), *(one.format(**places) for one in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_task_without_files_of_its_own_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "export", str(folder / "vocoder"), "-o", str(folder / "v"), "--format", "onnx"]) == 2
    assert "weights only" in capsys.readouterr().err


def test_a_run_is_judged_with_the_vocoder_that_is_given(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing := [name for name in ("faster_whisper", "distillmos", "resemblyzer") if find_spec(name) is None]:
        pytest.skip(f"needs the judges {', '.join(missing)}: pip install 'phonate[eval]'")
    capsys.readouterr()
    assert main(["evaluate", str(run), "--vocoder", str(folder / "vocoder"), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["systems"]) == ["natural", "vocoder copy", "this voice"]


def test_sentences_that_nobody_recorded_are_judged(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing := [name for name in ("faster_whisper", "distillmos") if find_spec(name) is None]:
        pytest.skip(f"needs the judges {', '.join(missing)}: pip install 'phonate[eval]'")
    (tmp_path / "mine.txt").write_text("The kettle began to whistle.\n\nNobody noticed the fox.\n", encoding="utf-8")
    copy = shutil.copytree(run, tmp_path / "run")
    capsys.readouterr()
    assert main(["evaluate", str(copy), "--data", str(tmp_path / "mine.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["systems"]) == ["this voice"]
    assert {"wer", "skipped", "repeated", "mos", "rtf"} <= found["systems"]["this voice"].keys()
    assert found["notes"]["texts"] == 2
    assert found["notes"]["words"] == 9
    assert "speaker_judge" not in found["notes"], "there is no voice to compare with"
    assert main(["evaluate", str(copy), "--data", str(tmp_path / "no.txt")]) == 2
    (tmp_path / "there").mkdir()
    (tmp_path / "there/samples").write_text("a file, where the samples go")
    capsys.readouterr()
    assert main(["evaluate", str(copy), "--data", str(tmp_path / "mine.txt"), "-o", str(tmp_path / "there")]) == 2
    assert "can't be written" in capsys.readouterr().err.splitlines()[-1]
