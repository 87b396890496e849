"""The pages on other tools: what stands on the right of their tables is run on tiny data, and its result checked.

Only what makes a run small is added to a command. Options are trained with: the run must end, and have them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import soundfile

from cloning_runs import write_corpus
from examples import meetings
from higgs import small_model_folder
from higgs_codec import small_codec_folder
from installed import missing
from phonate.cli import main
from phonate.config.documents import parse_value
from phonate.config.resolve import parse_overrides
from phonate_process import run_ranks
from sessions import words_of
from sounds import SAMPLE_RATE, voiced_tone

if missing("transformers", "peft"):
    pytest.skip("needs transformers, peft: pip install 'phonate[language]'", allow_module_level=True)

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "do" / "coming-from").glob("*.md"))
PROGRAMS = ("phonate ", "torchrun ", "accelerate ", "./scripts/")
WORDS = ("a cat", "the old dog", "blue hens run", "one more cow", "it is a pig", "two owls see me")

SHORT = ("training.max_steps=2", "training.validation.interval=2", "training.checkpoint.interval=1")
_SPEECH = ("size=tiny", "training.batch_size=4", "data.phonemes=characters", "data.durations=learnt")
_CONVERSION = ("model.d_model=32", "model.n_layers=1", "model.n_heads=2", "model.d_ff=32", "data.crop_frames=40")
SMALL = {
    "conversion": _CONVERSION,
    "conversion-whisper": (*_CONVERSION, "training.batch_size=4"),
    "speech": (
        *_SPEECH,
        "data.aligner_steps=4",
        "data.judged=0",
        "training.validation.metric_for_best_model=val_loss",
        "training.validation.greater_is_better=false",
    ),
    "speech-autoregressive": (*_SPEECH, "data.aligner_steps=4", "model.postnet_channels=16", "model.width=32"),
    "vocoder": ("size=tiny", "training.batch_size=4"),
    "recognition": ("size=tiny", "training.batch_size=4"),
    "recognition-whisper": ("data.padding=[0,0]", "training.batch_size=2"),
    "diarization": (
        "size=tiny",
        "data.chunk_seconds=4",
        "data.validation=0.5",
        "data.simulation=null",
        "training.batch_size=2",
        "training.logging.tensorboard=false",
    ),
    "language": ("size=tiny", "model.vocabulary=300", "training.batch_size=2", "training.logging.tensorboard=false"),
    "voice-cloning": (
        "model.name=higgs/model",
        "model.codec=higgs/codec",
        "data.validation=0.3",
        "data.max_length=512",  # rows with several pairs, which the contrastive loss compares
        "training.logging.tensorboard=false",
    ),
    "sequence": (
        "data.vocabulary=300",
        "model.global_config={d_model: 16, num_layers: 1, num_heads: 2}",
        "training.batch_size=4",
    ),
}
"""Recipe -> what makes it small; a recipe file is small already."""
RECIPE = """\
task: conversion
data: {path: my_recordings, crop_frames: 40}
model: {d_model: 32, n_layers: 1, n_heads: 2, d_ff: 32}
training: {batch_size: 4, logging: {tensorboard: false}}
"""
MAKES = {
    "runs/conversion": ["train", "conversion", "data.path=my_recordings"],
    "runs/conversion-whisper": ["train", "conversion-whisper", "data.path=my_recordings"],
    "runs/vocoder": ["train", "vocoder", "data.path=my_voice"],
    "runs/speech": ["train", "speech", "data.path=my_voice"],
    "runs/speech-autoregressive": ["train", "speech-autoregressive", "data.path=LJSpeech-1.1"],
    "runs/recognition-whisper": ["train", "recognition-whisper", "data.path=my_voice"],
    "runs/recognition": ["train", "recognition", "data.path=manifest.json"],
    "runs/diarization": ["train", "diarization", "data.path=meetings"],
    "results": ["train", "recognition", "data.path=manifest.json", "--output", "results"],
    "runs/config": ["train", "config.yaml"],
    "outputs/mine": ["train", "voice-cloning", "data.path=data.json", "--output", "outputs/mine"],
    "deployment/merged_model": ["checkpoints", "merge", "outputs/mine", "-o", "deployment/merged_model"],
    "my_config.yaml": shlex.split("explain voice-cloning data.path=data.json --yaml > my_config.yaml"),
}
"""What a command may need -> the arguments that make it."""


class Ours(NamedTuple):
    """A right-hand side."""

    page: str
    code: str


def right_hand_sides() -> list[Ours]:
    """Those of all pages, each once a page, in order."""
    found: dict[Ours, None] = {}
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("| ") and not line.startswith(("| ---", "| to do ")):
                cells = line.strip("| ").split(" | ")
                assert len(cells) == 3, line
                codes = re.findall(r"`([^`]+)`", cells[2])
                assert "<br>".join(f"`{code}`" for code in codes) == cells[2], line
                found |= {Ours(page.stem, code): None for code in codes}
    return list(found)


ALL = right_hand_sides()
RUNS = list(dict.fromkeys(ours.code for ours in ALL if ours.code.startswith(PROGRAMS)))
OPTIONS = [ours for ours in ALL if re.match(r"[a-z]+(\.\w+)+=", ours.code)]
PYTHON = list(dict.fromkeys(ours.code for ours in ALL if ours.code not in RUNS and ours not in OPTIONS))


# --- the place of work ----------------------------------------------------------------------------------------------


def _sounds(folder: Path, pitch: float, formants: tuple[float, ...]) -> None:
    folder.mkdir(parents=True)
    for clip in range(len(WORDS)):
        sound = voiced_tone(0.8 + 0.16 * clip, pitch, formants, seed=clip)
        soundfile.write(folder / f"{clip:02d}.wav", sound, SAMPLE_RATE, subtype="PCM_16")


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the page's commands are given, and a cache that they share."""
    folder = tmp_path_factory.mktemp("stock")
    speakers = {"anna": (210.0, (700.0, 1800.0, 2900.0)), "ben": (110.0, (500.0, 1300.0, 2400.0))}
    for speaker, sound in speakers.items():
        _sounds(folder / "my_recordings" / speaker, *sound)
    shutil.copy(folder / "my_recordings/ben/03.wav", folder / "recording.wav")
    for voice in ("my_voice", "LJSpeech-1.1"):
        _sounds(folder / voice / "wavs", *speakers["anna"])
        table = "".join(f"{clip:02d}|{text}|{text}\n" for clip, text in enumerate(WORDS))
        (folder / voice / "metadata.csv").write_text(table, encoding="utf-8")
    wavs = [(f"my_voice/wavs/{clip:02d}.wav", text) for clip, text in enumerate(WORDS)]
    _lines(folder / "manifest.json", [{"audio_filepath": path, "text": text, "duration": 1.0} for path, text in wavs])
    animals = [(animal, colour) for animal in ("cat", "dog", "hen", "cow") for colour in ("red", "blue", "green")]
    _lines(folder / "my_pairs.jsonl", [{"prompt": f"What is the {a}?", "response": f"It is {c}."} for a, c in animals])
    (folder / "datasets/samples").mkdir(parents=True)
    (folder / "datasets/samples/a.md").write_text("# Who is it?\n\nIt is I.\n", encoding="utf-8")
    for place in ("recordings", "path/to/recordings"):
        shutil.copytree(folder / "my_recordings", folder / place, dirs_exist_ok=True)
    for place in ("configs/training_example.yml", "config.yaml"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(RECIPE, encoding="utf-8")
    meetings(folder / "meetings")
    for name in ("reference.rttm", "hypothesis.rttm"):
        shutil.copy(folder / "meetings/all.rttm", folder / name)
    small_model_folder(folder / "higgs/model")
    small_codec_folder(folder / "higgs/codec")
    write_corpus(folder).rename(folder / "data.json")
    return folder


@pytest.fixture
def lay_out(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], Path]:
    """A function that lays out what a command reads in a new current directory, and returns that directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(stock / "cache"))

    def lay_out(words: list[str]) -> Path:
        monkeypatch.chdir(stock)
        runs = needed(words)
        for name in runs:
            make(name)
        for entry in stock.iterdir():
            if entry.name not in ("runs", "outputs", "results", "deployment", "cache"):
                (tmp_path / entry.name).symlink_to(entry)
        for name in runs:
            if not (tmp_path / name).exists():
                shutil.copytree(stock / name, tmp_path / name)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return lay_out


def needed(words: list[str]) -> list[str]:
    """What of MAKES the command reads, a run that it resumes too."""
    values = [word.rpartition("=")[2] for word in words]
    if "--resume" not in words:
        values = [value for at, value in enumerate(values) if words[at - 1] not in ("-o", "--output", ">")]
    elif "--output" not in words:
        values.append(f"runs/{Path(words[words.index('train') + 1]).stem}")
    return [name for name in MAKES if name in values]


def make(name: str) -> None:
    """Make `name` of MAKES in the current directory, and first what it is made of."""
    if Path(name).exists():
        return
    for other in needed(MAKES[name]):
        make(other)
    assert phonate(MAKES[name])[0] == 0, name


def phonate(words: list[str]) -> tuple[int, str]:
    """(exit code, standard output) of `phonate WORDS` in the current directory, made small; `> FILE` is obeyed."""
    *words, target = words if words[-2:-1] == [">"] else [*words, ""]
    words = words[:-1] if target else words
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([*words, *small(words)])
    if target:
        Path(target).write_text(out.getvalue(), encoding="utf-8")
    return code, out.getvalue()


def small(words: list[str]) -> list[str]:
    """What is added to `phonate WORDS` to keep it small, over and above what it says itself."""
    if words[0] not in ("train", "explain"):
        return []
    given = {word.partition("=")[0] for word in words}
    added = [*SMALL.get(words[1], ()), *(SHORT if words[0] == "train" else ())]
    if "--resume" in words:  # what it resumes has ended
        added = [word.replace("max_steps=2", "max_steps=3") for word in added]
    return [word for word in added if word.partition("=")[0] not in given]


# --- what a command promises ----------------------------------------------------------------------------------------


def trained(run: str, steps: int = 2) -> Callable[[Path, str], None]:
    """A check: the run got as far as that, its losses are numbers, and its checkpoints are whole."""

    def look(folder: Path, out: str) -> None:
        lines = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in lines if "loss" in line]
        assert losses
        assert all(map(math.isfinite, losses))
        assert (folder / run / f"checkpoints/step-{steps:08d}").is_dir()
        assert main(["checkpoints", "verify", str(folder / run)]) == 0

    return look


def prints(*parts: str) -> Callable[[Path, str], None]:
    """A check: the command printed all of these."""

    def look(folder: Path, out: str) -> None:
        for part in parts:
            assert part in out

    return look


def sounds(name: str) -> Callable[[Path, str], None]:
    """A check: a recording was written, and it is not silent."""

    def look(folder: Path, out: str) -> None:
        waveform, _ = soundfile.read(folder / name)
        assert len(waveform) > 1000
        assert abs(waveform).max() > 0

    return look


def exists(*names: str) -> Callable[[Path, str], None]:
    """A check: these files are there; of tones, in which nobody speaks, with nothing in them."""
    return lambda folder, out: [(folder / name).stat() for name in names] and None


def writes(*names: str) -> Callable[[Path, str], None]:
    """A check: these files are there, with something in them."""

    def look(folder: Path, out: str) -> None:
        for name in names:
            assert (folder / name).stat().st_size > 0, name

    return look


def estimates(run: str) -> Callable[[Path, str], None]:
    """A check: costs were printed, nothing was kept."""

    def look(folder: Path, out: str) -> None:
        assert re.search(r"memory +[\d.]+ [MG]iB", out)
        assert not (folder / run).exists()

    return look


def says_json(**expected: Any) -> Callable[[Path, str], None]:
    """A check: one JSON object with these."""

    def look(folder: Path, out: str) -> None:
        told = json.loads(out)
        assert told.items() >= expected.items()

    return look


def holds(name: str, **expected: Any) -> Callable[[Path, str], None]:
    """A check: a file has a JSON object with these."""

    def look(folder: Path, out: str) -> None:
        assert json.loads((folder / name).read_text(encoding="utf-8")).items() >= expected.items()

    return look


_VOICE = "train speech data.path=my_voice"
_CLONING = "train voice-cloning data.path=data.json"
_NEMO = "train recognition data.path=manifest.json"
_ENGLISH = "train speech-autoregressive data.path=LJSpeech-1.1"
_SEARCH = (
    "train config.yaml training.tuning.library=optuna training.tuning.n_trials=4 "
    'training.tuning.search_space="{training.optimizer.lr: [1e-4, 3e-4]}"'
)
CHECKS: dict[str, Callable[[Path, str], None]] = {
    "data check my_recordings": prints("12 of 12"),
    "data check recordings": prints("12 of 12"),
    "data prepare my_voice": prints("recordings: 6"),
    "data prepare datasets/samples -o pairs.jsonl": writes("pairs.jsonl"),
    "resources": prints("CPU"),
    "train conversion data.path=my_recordings": trained("runs/conversion"),
    "convert runs/conversion recording.wav --speaker anna -o anna.wav": sounds("anna.wav"),
    "train conversion-whisper data.path=my_recordings": trained("runs/conversion-whisper"),
    "convert runs/conversion-whisper recording.wav --speaker anna -o anna.wav": sounds("anna.wav"),
    "convert runs/conversion-whisper recordings --speaker anna -o converted": sounds("converted/ben/03.wav"),
    "checkpoints list runs/conversion": prints("step-00000002"),
    "checkpoints verify runs/conversion": prints("step-00000002"),
    _ENGLISH: trained("runs/speech-autoregressive"),
    f"{_ENGLISH} --resume auto": trained("runs/speech-autoregressive", steps=3),
    "checkpoints list runs/speech-autoregressive": prints("step-00000002"),
    "train configs/training_example.yml": trained("runs/training_example"),
    "new loss my_loss": writes("my_loss.py", "test_my_loss.py"),
    "new callback my_callback": writes("my_callback.py", "test_my_callback.py"),
    "data check data.json --json > validation_report.json": holds("validation_report.json", usable=8),
    f"{_CLONING} --dry-run": estimates("runs/voice-cloning"),
    f"{_CLONING} --output outputs/mine": trained("outputs/mine"),
    f"{_CLONING} --output outputs/mine --resume auto": trained("outputs/mine", steps=3),
    "explain voice-cloning data.path=data.json --yaml > my_config.yaml": writes("my_config.yaml"),
    "train my_config.yaml": trained("runs/my_config"),
    "checkpoints verify outputs/mine latest": prints("step-00000002"),
    "checkpoints compare outputs/mine 1 2": prints("step"),
    "checkpoints compare outputs/mine --metric val_loss": prints("1", "step-00000002", "val_loss"),
    "checkpoints merge outputs/mine -o deployment/merged_model": writes(
        "deployment/merged_model/config.json", "deployment/merged_model/model.safetensors"
    ),
    "checkpoints merge outputs/mine -o production/model --quantize int8": holds(
        "production/model/merge.json", quantization="int8"
    ),
    "checkpoints merge outputs/mine --base higgs/model -o deployment/merged_model": holds(
        "deployment/merged_model/merge.json", base="higgs/model"
    ),
    "evaluate outputs/mine --data data.json --json > test_report.json": holds("test_report.json", task="cloning"),
    "evaluate deployment/merged_model --data data.json -o test_results": holds(
        "test_results/evaluation.json", task="cloning"
    ),
    'clone deployment/merged_model --reference recording.wav --text "A text." -o speech.wav': sounds("speech.wav"),
    "report outputs/mine": writes("outputs/mine/report.html"),
    f"{_NEMO} training.epochs=50 training.optimizer.lr=1e-3": trained("runs/recognition"),
    f"{_NEMO} --dry-run": estimates("runs/recognition"),
    f"{_NEMO} --output results --resume auto": trained("results", steps=3),
    "train recognition-whisper data.path=my_voice": trained("runs/recognition-whisper"),
    "train recognition data.path=my_voice training.epochs=50 training.optimizer.lr=1e-3": trained("runs/recognition"),
    "train diarization data.path=meetings training.epochs=10": trained("runs/diarization"),
    "diarize runs/diarization recording.wav -o recording.rttm": writes(),
    "diarize runs/diarization recording.wav --speakers 2 -o recording.rttm": writes(),
    "score reference.rttm hypothesis.rttm --collar 0.25": prints("0.0"),
    "train language data.path=my_pairs.jsonl": trained("runs/language"),
    "transcribe runs/recognition recordings -o texts": exists("texts/ben/03.txt", "texts/anna/00.txt"),
    "transcribe whisper/tiny.en recordings -o captions --format srt": exists("captions/ben/03.srt"),
    "transcribe runs/recognition recording.wav --json": says_json(recording="recording.wav"),
    "transcribe runs/recognition-whisper recording.wav --json": says_json(recording="recording.wav"),
    "checkpoints export runs/recognition-whisper -o merged --format transformers": holds("merged/merge.json"),
    "checkpoints export runs/recognition-whisper -o faster --format ctranslate2": holds("faster/config.json"),
    _VOICE: trained("runs/speech"),
    f"{_VOICE} data.language=de": trained("runs/speech"),
    f"{_VOICE} training.init_from=runs/speech --output runs/second": trained("runs/second"),
    "explain recognition data.path=my_voice --yaml": prints("task: recognition", "optimizer:"),
    f"{_VOICE} --resume auto": trained("runs/speech", steps=3),
    "train vocoder data.path=my_voice": trained("runs/vocoder"),
    'speak runs/speech "Text for TTS" -o speech.wav': sounds("speech.wav"),
    'speak "Text for TTS" -o speech.wav': sounds("speech.wav"),
    'speak "Text for TTS" --speed 0.8 -o speech.wav': sounds("speech.wav"),
    'speak runs/speech "Text for TTS" --vocoder runs/vocoder -o speech.wav': sounds("speech.wav"),
    "train config.yaml training.epochs=100": trained("runs/config"),
    "explain config.yaml --yaml": prints("task: conversion", "d_model: 32"),
    _SEARCH: writes("runs/config/best.yaml", "runs/config/trials.csv", "runs/config/trials/trial-0003/metrics.jsonl"),
    "explain config.yaml --yaml --describe": prints("# Passes over the training samples.", "epochs: 100"),
    "train config.yaml --dry-run": estimates("runs/config"),
    "train config.yaml --resume auto": trained("runs/config", steps=3),
}
"""What follows `phonate` -> the check of its result."""

PLAIN = [code for code in RUNS if code.startswith("phonate ") and not code.startswith("phonate session")]
LAUNCHED = [code for code in RUNS if code.startswith(("torchrun ", "accelerate "))]
SESSIONS = [code for code in RUNS if code.startswith(("phonate session", "./scripts/"))]


def test_the_objects_that_are_named_exist() -> None:
    """Dotted names, such as phonate.training.trainer.Trainer."""
    found = re.findall(
        r"`(phonate(?:\.\w+)*)\.([A-Z]\w*(?:\.\w+)?|train)`",
        "".join(page.read_text(encoding="utf-8") for page in PAGES),
    )
    assert len(found) >= 9
    for module, name in found:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
        assert callable(value)


def test_every_command_has_a_check() -> None:
    assert {f"phonate {words}" for words in CHECKS} == set(PLAIN)
    assert sorted([*PLAIN, *LAUNCHED, *SESSIONS]) == sorted(RUNS)
    assert len(LAUNCHED) >= 5
    assert len(SESSIONS) >= 16


NEEDS = {"--quantize": "bitsandbytes", "evaluate": "resemblyzer", "diarize ": "resemblyzer"}
"""Part of a command -> the package without which it is left out."""


@pytest.mark.slow
@pytest.mark.parametrize("code", PLAIN)
def test_commands_do_what_they_promise(
    code: str, lay_out: Callable[[list[str]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phonate.tasks.cloning.evaluation.MOST_PAIRS", 2)  # a recogniser is slow with tones
    if "--format onnx" in code:  # for which torch takes half a minute; test_speech_browser.py exports this voice
        from onnx import helper

        graph = helper.make_graph([], "graph", [], [])
        monkeypatch.setattr("phonate.tasks.speech.export._converted", lambda *_: helper.make_model(graph))
    for part, package in NEEDS.items():
        if part in code and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install {package}")
    words = shlex.split(code)[1:]
    folder = lay_out(words)
    exit_code, out = phonate(words)
    assert exit_code == 0
    CHECKS[code.removeprefix("phonate ")](folder, out)


@pytest.mark.slow
@pytest.mark.parametrize("code", LAUNCHED)
def test_launched_commands_train(code: str, lay_out: Callable[[list[str]], Path]) -> None:
    """With two processes each, however many the page has. Launched is the first command of either launcher; the other
    commands are given what torchrun gives them."""
    words = shlex.split(re.sub(r"(nproc_per_node|world_size)=\d+", r"\1=2", code))
    words += small(words[words.index("train") :])
    folder = lay_out(words)
    if code == next(other for other in LAUNCHED if other.startswith(words[0])):
        launchers = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.accelerate_cli"}
        command = [sys.executable, "-m", launchers[words[0]], *words[1:]]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        assert words[:4] == ["torchrun", "--nproc_per_node=2", "-m", "phonate"]
        ran = run_ranks(2, *words[4:])
    assert ran.returncode == 0, ran.stderr
    trained(f"runs/{Path(words[words.index('train') + 1]).stem}")(folder, "")
    several = re.search(r"over (\d+) rank", ran.stdout + ran.stderr)
    assert (several and several[1]) == (None if words[0] == "accelerate" else "2")


# --- sessions -------------------------------------------------------------------------------------------------------

needs_sessions = pytest.mark.skipif(
    importlib.util.find_spec("phonate.workflows.session.session") is None,
    reason="phonate session is not in this version",
)
SESSION_CONFIG = """\
size: tiny
training: {max_steps: 2, batch_size: 4, validation: {interval: 2}, checkpoint: {interval: 2}}
session: {vocoder: null, rules: {min_seconds: 0.5}}
"""


@needs_sessions
@pytest.mark.parametrize("code", [code for code in SESSIONS if "-show-resources" in code or "-check-voice" in code])
def test_sessions_tell_what_there_is(code: str, lay_out: Callable[[list[str]], Path]) -> None:
    words = shlex.split(code)[1:]
    lay_out(words)
    exit_code, out = phonate(words)
    assert exit_code == 0
    expected = "Available Compute Resources" if "--show-resources" in words else "Total files: 12"
    assert expected in out


@needs_sessions
@pytest.mark.slow
@pytest.mark.parametrize("code", [code for code in SESSIONS if "-show-resources" not in code and "-check" not in code])
def test_sessions_train(code: str, lay_out: Callable[[list[str]], Path]) -> None:
    """Where the GPU that is asked for is not there, the session fails, and its log says so."""
    import torch

    words = shlex.split(code)
    folder = lay_out(words)
    for place in ("training/config.yaml", "path/to/config.yaml"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(SESSION_CONFIG, encoding="utf-8")
    (folder / "scripts").symlink_to(ROOT / "scripts")
    exit_code = main(words[1:] if words[0] == "phonate" else words_of(*words))
    number = re.search(r"cuda:(\d)", code)
    wanted = int(number[1]) + 1 if number else int("gpu" in code.replace("--min-gpu", ""))
    there = torch.cuda.device_count() >= wanted
    assert exit_code == (0 if there else 1)
    output = words[words.index("--output-dir") + 1] if "--output-dir" in words else "training/output"
    (log,) = (folder / output / "logs").glob("session_*.json")
    session = json.loads(log.read_text(encoding="utf-8"))
    assert session.keys() == {"session_id", "mode", "voice_mode", "device", "log"}
    assert [line["level"] for line in session["log"]][-1] == ("SUCCESS" if there else "ERROR")
    saved = list((folder / output).glob("**/checkpoints/step-*"))
    assert bool(saved) == there
    for run in {checkpoint.parents[1] for checkpoint in saved}:
        assert main(["checkpoints", "verify", str(run)]) == 0


# --- options --------------------------------------------------------------------------------------------------------

LEFT_BEHIND = {
    "training.checkpoint.backup_dir": "runs/it/checkpoints_backup/*",
    "training.performance.profile_batches": "runs/it/profile/*",
    "training.profiling": "runs/it/profile/*",
    "training.logging.tensorboard": "runs/it/events/*",
    "data.cache_dir": "features/*",
}
"""Option -> what a run with it leaves behind."""


def _recipe(ours: Ours) -> str:
    if ours.page == "higgs-audio-scripts":
        return "voice-cloning"
    if "label_type" in ours.code:
        return "diarization"
    if re.match(r"model\.(model_type|encoder)|training\.(eval_knobs|feature_redraw|callbacks=.*pruning)", ours.code):
        return "sequence"
    if ours.code.startswith("training.loss.main=cross_entropy"):
        return "sequence"
    return "speech-autoregressive" if ours.code.startswith("model.checkpoint_segments") else "conversion"


def _slow(ours: Ours) -> bool:
    """Processes of loaders and of W&B, a compiler, a model of 20 million parameters."""
    return bool(re.search("wandb=true|compile_model|num_workers|d_model=512", ours.code))


def _values(ours: Ours) -> dict[str, Any]:
    """Option -> its value in the resolved recipe; values of mappings by their own names."""
    found: dict[str, Any] = {}
    for option in parse_overrides(shlex.split(ours.code)):
        name = ".".join(option.path)
        parts = option.value if isinstance(option.value, dict) else {}
        found |= {f"{name}.{key}": value for key, value in parts.items()} or {name: option.value}
    return found


def _clash(one: Ours, other: Ours) -> bool:
    """Whether they give an option different values, or both a list."""
    ones, others = _values(one), _values(other)
    return any(
        ones[name] != others[name] or isinstance(ones[name], list) for name in ones.keys() & others.keys()
    ) or any(a.startswith(f"{b}.") or b.startswith(f"{a}.") for a in ones for b in others)


def _together() -> list[Any]:
    """Options that one run can have: each is in one of the runs."""
    runs: list[list[Ours]] = []
    for ours in OPTIONS:
        kind = (_recipe(ours), _slow(ours), "profile_batches" in ours.code)
        for run in runs:
            first = (_recipe(run[0]), _slow(run[0]), "profile_batches" in run[0].code)
            if kind == first and not any(_clash(ours, other) for other in run):
                run.append(ours)
                break
        else:
            runs.append([ours])
    return [
        pytest.param(run, marks=[pytest.mark.slow] if _slow(run[0]) else [], id=f"{_recipe(run[0])}-{run[0].code}")
        for run in runs
    ]


@pytest.mark.parametrize("together", _together())
def test_options_are_trained_with(
    together: list[Ours], lay_out: Callable[[list[str]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn import Module

    compiled: list[Module] = []  # without minutes of compiling, which other tests do
    monkeypatch.setattr(Module, "compile", lambda self, **_: compiled.append(self))
    code, recipe = " ".join(ours.code for ours in together), _recipe(together[0])
    options = list(dict.fromkeys(shlex.split(code)))
    words = ["train", recipe, *options, "--output", "runs/it"]
    given = {"conversion": "my_recordings", "sequence": "my_pairs.jsonl", "voice-cloning": "data.json"}
    given |= {"diarization": "meetings"}
    words += [f"data.path={given.get(recipe, 'LJSpeech-1.1')}"]
    folder = lay_out(words)
    steps = 22 if "profile_batches" in code else 2
    assert phonate([*words, f"training.max_steps={steps}"])[0] == 0
    trained("runs/it", steps)(folder, "")
    assert bool(compiled) == ("compile_model" in code)
    resolved = parse_value((folder / "runs/it/recipe.yaml").read_text(encoding="utf-8"), "recipe.yaml")
    for option in parse_overrides(options):
        value = resolved
        for name in option.path:
            value = value[name]
        for name, kept in option.value.items() if isinstance(option.value, dict) else ():
            assert value[name] == kept
        assert value == option.value or isinstance(option.value, list | dict)
        pattern = LEFT_BEHIND.get(".".join(option.path))
        assert pattern is None or list(folder.glob(pattern)), pattern


# --- Python ---------------------------------------------------------------------------------------------------------

FIELDS = {
    "get_default_config()": {"batch_size": 16, "optimizer.lr": 1e-4},
    "get_small_config()": {"batch_size": 8, "epochs": 10},
    'EnglishTrainingConfig(data_dir="LJSpeech-1.1", batch_size=32, learning_rate=5e-5, hidden_dim=768, '
    "n_encoder_layers=8, use_wandb=True, enable_profiling=False)": {"batch_size": 32, "optimizer.lr": 5e-5},
}
TRAINER = "VoiceTrainer(model, TrainingConfig(num_epochs=3)).train(train_dataloader, val_dataloader)"
PARSER = "from phonate.parse_args import unified_parser"
CLONER = (
    'HiggsAudioInference(model_path="deployment/merged_model", device="cpu").generate_speech('
    'reference_audio="recording.wav", target_text="A text.")'
)


def test_every_piece_of_python_has_a_check() -> None:
    assert sorted([*FIELDS, TRAINER, PARSER, CLONER]) == sorted(PYTHON)


@pytest.mark.parametrize("code", FIELDS)
def test_configurations_are_what_they_say(code: str) -> None:
    import phonate

    config = eval(code, {name: getattr(phonate, name) for name in phonate.__all__})
    training = config.recipe().training
    for path, expected in FIELDS[code].items():
        value = training
        for name in path.split("."):
            value = getattr(value, name)
        assert value == expected


def test_a_model_and_loaders_of_ones_own_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from phonate.models import VoiceTransformer
    from phonate.training import TrainingConfig, VoiceTrainer

    monkeypatch.chdir(tmp_path)
    model = VoiceTransformer(input_dim=80, d_model=32, n_heads=2, n_layers=1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    features = torch.rand(4, 20, 80)
    batch = {"features": features, "target_features": features, "lengths": torch.full((4,), 20)}
    names = {"VoiceTrainer": VoiceTrainer, "TrainingConfig": TrainingConfig, "model": model}
    exec(TRAINER, {**names, "train_dataloader": [batch], "val_dataloader": [batch]})
    assert any((weight != before[name]).any() for name, weight in model.state_dict().items())
    assert list(tmp_path.glob("**/checkpoints/step-00000003"))


def test_the_parser_gives_the_recipes_parts(lay_out: Callable[[list[str]], Path]) -> None:
    lay_out([])
    names: dict[str, Any] = {}
    exec(PARSER, names)
    _, model, corpora, training = names["unified_parser"](["--config", "configs/training_example.yml", "--lr", "2e-4"])
    assert (model.d_model, corpora[0].path, training.optimizer.lr) == (32, "my_recordings", 2e-4)


def test_a_voice_is_cloned_by_the_scripts_names(lay_out: Callable[[list[str]], Path]) -> None:
    from phonate import HiggsAudioInference

    lay_out(["deployment/merged_model"])
    waveform = eval(CLONER, {"HiggsAudioInference": HiggsAudioInference})
    assert len(waveform) > 1000
    assert abs(waveform).max() > 0
