"""The voice that comes with phonate, and training that starts from it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import phonate
import phonate_process
from phonate.audio.pitch import f0
from phonate.audio.processor import AudioProcessor
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.nn.arrays import ArrayVocoder
from phonate.nn.vocoder import Vocoder
from phonate.rendering import TrainedVocoder
from phonate.tasks.speech.inference import Pause, Shaping, Synthesiser
from phonate.text.captions import TimedWord
from phonate.text.phonemes import Word, learnt_marks
from phonate.training.checkpoints import best_or_latest, resolve_checkpoint
from phonate.training.checkpoints.files import problems
from phonate.training.checkpoints.listing import BASE_VOCODER, BASE_VOICE
from phonate.training.checkpoints.loading import load
from phonate.training.plan import Plan, plan
from phonate.training.run import Run
from phonate.workflows import train

PACKAGE = Path(phonate.__file__).parent
TEXT = "The baker sold a yellow boat. Nobody knew why."


def corpus(folder: Path, count: int, seconds: float, speakers: int = 1) -> Path:
    """Noise with texts: enough to choose how to train."""
    folder.mkdir()
    rows = []
    for number in range(count):
        sound = 0.1 * np.random.default_rng(number).standard_normal(int(16000 * seconds))
        soundfile.write(folder / f"{number}.wav", sound, 16000)
        rows.append(f"{number}.wav|{number % speakers}|hello there")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize("name", [BASE_VOICE, BASE_VOCODER])
def test_it_is_intact_small_and_tells_nothing_of_the_machine(name: str) -> None:
    folder = resolve_checkpoint(name)
    assert folder == PACKAGE / name
    assert not problems(folder)
    assert main(["checkpoints", "verify", str(folder)]) == 0
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            assert not re.search(r"[\"' ]/\w", file.read_text()), "an absolute path"
    assert (folder / "MODEL_CARD.md").is_file()
    assert json.loads((folder / "metadata.json").read_text())["hostname"] is None


def test_it_speaks_without_importing_what_takes_long(tmp_path: Path) -> None:
    """torch alone takes longer than a sentence; its compiler and inflect once took seconds more."""
    code = (
        "import sys; from phonate.cli import main; code = main(['speak', 'Is it 12?', '-o', 'said.wav']); "
        "print(code, [name for name in ('torch', 'scipy', 'inflect', 'onnxruntime', 'librosa') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\n0 []\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "speaker", "speed", "semitones"),
    [
        (TEXT, None, 1.0, 0.0),
        ("Is it 12? Yes, nearly.", "librispeech-103", 1.3, -2.0),
        (
            '<speak>Slow: <prosody rate="70%" pitch="+3st">like this</prosody>.<break time="300ms"/> Oh!</speak>',
            None,
            1.0,
            0.0,
        ),
    ],
)
def test_without_torch_it_sounds_the_same(text: str, speaker: str | None, speed: float, semitones: float) -> None:
    voices = Synthesiser.load(BASE_VOICE), Synthesiser.load_torch(BASE_VOICE)
    (here, words), (there, their_words) = (voice.timed(text, speaker, speed, semitones) for voice in voices)
    assert len(here) == len(there)
    assert np.abs(here - there).max() < 1e-4
    assert words == their_words
    stream, their_stream = (np.concatenate([*voice.stream(text, speaker, speed, semitones)]) for voice in voices)
    assert np.abs(stream - their_stream).max() < 1e-4


def test_without_torch_a_vocoder_estimates_pitch_and_runs_causally_alike() -> None:
    processor, mel = AudioProcessor(), np.random.default_rng(0).random((40, 80), dtype=np.float32)
    for lookahead, postfilter in ((None, 0.3), (2, 0.0)):
        torch.manual_seed(0)
        network = Vocoder.of(processor, 16, 2, lookahead, postfilter).eval()
        weights = {name: value.numpy() for name, value in network.state_dict().items()}
        arrays = ArrayVocoder.of(processor.config.facts, weights, lookahead, postfilter)
        with torch.no_grad():
            estimate_T = network.predicted_f0(torch.from_numpy(mel)[None])[0].numpy()
        assert np.abs(arrays.predicted_f0(mel) - estimate_T).max() < 0.01
        f0_T = np.linspace(90.0, 310.0, len(mel), dtype=np.float32) * (np.arange(len(mel)) % 9 > 3)
        here, there = (TrainedVocoder(one)(mel, f0_T.astype(np.float32)) for one in (arrays, network))
        assert np.abs(here - there).max() < 1e-4


def test_both_fit_in_15_mb() -> None:
    assert sum(file.stat().st_size for file in (PACKAGE / "base").rglob("*")) < 15e6
    weights = sum(file.stat().st_size for file in (PACKAGE / "base").glob("*/weights.safetensors"))
    assert f"{weights / 1e6:.1f} MB" in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_it_speaks_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["speak", TEXT]) == 0
    with wave.open("spoken.wav") as sound:
        assert 2.0 < sound.getnframes() / sound.getframerate() < 5.0


def test_it_is_not_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*names: str) -> None:
        raise AssertionError(f"the hub was asked for {names}")

    monkeypatch.setattr("phonate.nn.pretrained.pretrained_file", asked)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="the hub was asked"):
        phonate.load("somebody/model")
    assert phonate.load(BASE_VOICE).speakers


def test_a_folder_in_the_place_of_a_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speak", str(tmp_path)]) == 2
    assert f"phonate speak {tmp_path} TEXT" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--speed", "100"], ["--semitones", "nan"], ["--captions", "nowhere/said.srt"]])
def test_what_cannot_be_is_refused_before_anything_is_spoken(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["speak", TEXT, *given]) == 2
    message = "no folder" if given[0] == "--captions" else f"{given[0][2:]} {given[1]} must be"
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_text_longer_than_any_file_name_is_spoken(tmp_path: Path) -> None:
    assert main(["speak", " ".join(8 * [TEXT]), "-o", str(tmp_path / "said.wav")]) == 0


def test_a_text_file_is_spoken_by_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "said.txt").write_text(TEXT)
    assert main(["speak", str(tmp_path / "said.txt")]) == 2
    assert f"phonate speak - < {tmp_path / 'said.txt'}" in capsys.readouterr().err


def test_standard_input_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    done = phonate_process.run("speak", "-", "-o", tmp_path / "said.wav", input=b"caf\xe9", text=False)
    assert done.returncode == 2
    assert b"standard input is not UTF-8" in done.stderr


def test_a_local_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base" / "voice").mkdir(parents=True)
    with pytest.raises(phonate.PhonateError, match=r"^base/voice: no checkpoints"):
        resolve_checkpoint(BASE_VOICE)


def test_times_of_words_cover_the_sound() -> None:
    voice = phonate.load(BASE_VOICE, "speech")
    waveform, words = voice.timed(TEXT)
    assert np.array_equal(waveform, voice.speak(TEXT))
    assert [word.text for word in words] == TEXT.split()
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert all(word.end - word.start >= 0.03 for word in words)
    seconds = len(waveform) / voice.sample_rate
    assert words[0].start < 0.5
    assert seconds - 1.0 < words[-1].end <= seconds
    assert words[6].start - words[5].end > 0.25  # the pause between the sentences
    slow = voice.timed(TEXT, speed=0.5)[1]
    assert slow[-1].end > 1.7 * words[-1].end


@pytest.mark.slow
def test_a_recogniser_hears_the_words_when_they_are_said() -> None:
    pytest.importorskip("faster_whisper", reason="needs phonate[eval]")
    from phonate.evaluation.words import count_word_errors
    from phonate.pretrained import Transcriber

    voice = phonate.load(BASE_VOICE, "speech")
    text = "In the morning, the old teacher walked slowly to the school beside the river, carrying seven heavy books."
    waveform, words = voice.timed(text)
    recogniser = Transcriber()
    assert count_word_errors([text], [recogniser.transcribe(waveform, voice.sample_rate)]).rate < 0.15
    middle = int((words[8].end + words[9].start) / 2 * voice.sample_rate)
    halves = [recogniser.transcribe(part, voice.sample_rate) for part in (waveform[:middle], waveform[middle:])]
    for half, expected in zip(halves, (words[:9], words[9:]), strict=True):
        assert count_word_errors([" ".join(word.text for word in expected)], [half]).rate < 0.3


def test_a_lexicon_changes_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("baker T IY1 CH ER0\n")
    voice = phonate.load(BASE_VOICE, "speech")
    before = voice.speak(TEXT)
    voice.pronounce(tmp_path / "names.txt")
    teacher = voice.speak(TEXT)
    assert not np.array_equal(before, teacher)
    assert np.array_equal(teacher, phonate.load(BASE_VOICE, "speech").speak(TEXT.replace("baker", "teacher")))


JUDGED = {"data.judged": 8, "training.validation.metric_for_best_model": "quality"}
"""As the recipe speech says, where judges are installed."""


def decided(plan: Plan) -> dict[str, Any]:
    """Every option that the plan decides, with its value."""
    return {".".join(path): change.value for path, change in plan.decided.items()}


def test_recordings_without_texts_do_not_count(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "mine", 4, 15.0)
    (folder / "metadata.csv").unlink()
    assert not any(
        "minutes of recordings" in line for line in plan("speech", [f"data.path={folder}"]).reason.split("\n")
    )
    (folder / "0.txt").write_text("hello there")
    assert plan("speech", [f"data.path={folder}"]).reason.startswith("0.2 minutes of recordings: ")


@pytest.mark.parametrize(("count", "seconds", "steps"), [(8, 15.0, 150), (8, 60.0, 800), (3, 500.0, 1200)])
def test_the_fewer_recordings_the_fewer_steps(tmp_path: Path, count: int, seconds: float, steps: int) -> None:
    chosen = plan("speech", [f"data.path={corpus(tmp_path / 'mine', count, seconds)}"])
    assert decided(chosen)["training.init_from"] == BASE_VOICE
    assert decided(chosen)["training.max_steps"] == steps
    minutes = "over 20" if steps == 1200 else f"{count * seconds / 60:.1f}"
    assert f"{minutes} minutes of recordings: training starts from {BASE_VOICE}" in chosen.reason
    assert ("training.callbacks" in decided(chosen)) == ("pace and melody stay" in chosen.reason) == (steps == 150)
    by_loss = decided(chosen).get("training.validation.metric_for_best_model") == "val_loss"
    told = "lowest val_loss chooses the checkpoint: naturalness" in chosen.reason
    assert (by_loss, told) == (steps == 150, steps == 150 and chosen.recipe.data.judged > 0)


@pytest.mark.parametrize(
    ("override", "unlike"),
    [
        ("size=tiny", "model.width 192"),
        ("data.audio.hop_length=300", "other features"),
    ],
)
def test_where_it_does_not_fit_training_starts_from_scratch(tmp_path: Path, override: str, unlike: str) -> None:
    chosen = plan("speech", [f"data.path={tmp_path}", override])
    features = {"data.vocoder": None} if "data.audio" in override else {}
    assert decided(chosen) == {**features, **JUDGED, "training.init_from": None}
    assert chosen.reason.endswith(f"training from scratch: {BASE_VOICE} has {unlike}" + " (data.audio)" * len(features))
    assert ("base/vocoder has other features" in chosen.reason) == bool(features)


def test_several_speakers_start_from_it_too(tmp_path: Path) -> None:
    chosen = plan("speech", [f"data.path={corpus(tmp_path / 'mine', 4, 2.0, speakers=2)}"])
    assert decided(chosen)["training.init_from"] == BASE_VOICE


def test_it_has_many_voices_and_the_first_is_its_own() -> None:
    voice = phonate.load(BASE_VOICE, "speech")
    assert voice.speakers[0] == "kathleen"
    assert len(voice.speakers) > 90
    assert np.array_equal(voice.speak("Hello."), voice.speak("Hello.", "kathleen"))
    heard = {name: pitch(voice.speak(TEXT, name), voice.sample_rate) for name in voice.speakers[:8]}
    assert max(heard.values()) > 1.25 * min(heard.values())


def test_without_judges_the_newest_checkpoint_is_the_best(tmp_path: Path) -> None:
    chosen = plan("speech", [f"data.path={tmp_path}", "training.init_from=null", "data.judged=0"])
    assert decided(chosen)["training.validation.metric_for_best_model"] == "step"
    assert "the newest checkpoint is the best (data.judged=0)" in chosen.reason
    few = plan("speech", [f"data.path={corpus(tmp_path / 'mine', 4, 2.0)}", "data.judged=0"])
    assert decided(few)["training.validation.metric_for_best_model"] == "val_loss"
    assert "val_loss chooses the checkpoint" not in few.reason


@pytest.mark.parametrize(
    ("clips", "best", "lacks"),
    [(4, "val_loss", "distillmos"), (200, "step", "distillmos"), (4, "val_loss", "resemblyzer")],
)
def test_where_no_judges_are_installed_training_starts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clips: int, best: str, lacks: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == lacks else find(name))
    chosen = plan("speech", [f"data.path={corpus(tmp_path / 'mine', clips, 2.0)}"])
    assert decided(chosen)["data.judged"] == 0
    assert decided(chosen)["training.validation.metric_for_best_model"] == best
    told = "what judges them is not installed (pip install --no-deps distillmos" in chosen.reason
    assert told == (best == "step"), "where they would choose"
    assert "val_loss chooses the checkpoint" not in chosen.reason, "as nobody measures naturalness"


def test_a_resume_says_that_judges_are_installed_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = [f"data.path={corpus(tmp_path / 'mine', 4, 2.0)}", "training.max_steps=9"]
    monkeypatch.setattr("phonate.tasks.speech.start.missing", lambda _: True)
    without = plan("speech", options).resolved.to_yaml().replace("max_steps: 9", "max_steps: 8")
    monkeypatch.setattr("phonate.tasks.speech.start.missing", lambda _: False)
    monkeypatch.setattr(train, "resolve_checkpoint", Path)
    monkeypatch.setattr(train, "load", lambda *_: SimpleNamespace(recipe_yaml=without))
    caplog.set_level("INFO")
    train._checkpoint_to_resume(plan("speech", options, resume=str(tmp_path)), Run(tmp_path))
    told = "settings changed since the checkpoint: data.judged 0 -> 8 (packages that judge speech: installed); "
    assert told + "training.max_steps 8 -> 9" in caplog.text
    assert "metric_for_best_model" not in caplog.text, "the loss chooses among so few recordings"


def test_null_turns_it_off(tmp_path: Path) -> None:
    (judges,) = plan("speech", [f"data.path={tmp_path}", "training.init_from=null"]).decisions
    assert judges.changes == JUDGED


def test_a_recipe_of_ones_own_is_not_overruled(tmp_path: Path) -> None:
    """What an edited copy of the recipe sets stays, what it leaves as it was follows from the recordings."""
    path = corpus(tmp_path / "mine", 4, 2.0)
    copy = resolve("speech", [f"data.path={path}"])
    plain = plan("speech", [f"data.path={path}"])
    assert plain.recipe.training.max_steps == 150
    assert "pace and melody stay" in plain.reason
    (tmp_path / "copy.yaml").write_text(copy.to_yaml())
    same = plan(tmp_path / "copy.yaml")
    assert same.recipe == plain.recipe
    assert same.reason == plain.reason
    edited = copy.to_yaml().replace("max_steps: 3200", "max_steps: 5000").replace("decay: 0.999", "decay: 0.9999")
    (tmp_path / "edited.yaml").write_text(edited)
    started = plan(tmp_path / "edited.yaml")
    training = started.recipe.training
    assert (training.max_steps, training.ema.decay) == (5000, 0.9999)
    assert (training.init_from, training.scheduler.warmup_steps) == (BASE_VOICE, 7)
    epochs = plan("speech", [f"data.path={path}", "training.epochs=3"])
    assert (epochs.recipe.training.max_steps, epochs.recipe.training.epochs) == (None, 3)


def test_only_what_holds_is_told(tmp_path: Path) -> None:
    path = corpus(tmp_path / "mine", 4, 2.0)
    chosen = plan("speech", [f"data.path={path}", "training.max_steps=4", "training.callbacks=[]"])
    assert chosen.reason.startswith("0.1 minutes of recordings: training starts from base/voice")
    assert "150" not in chosen.reason
    assert "rhythm and melody stay" not in chosen.reason


@pytest.mark.slow
def test_training_starts_from_it_and_says_so(tmp_path: Path) -> None:
    """Overrides win over what was chosen, the run's recipe names the base, and the run resumes."""
    path = corpus(tmp_path / "mine", 4, 2.0)
    run = tmp_path / "run"
    arguments = [
        "train",
        "speech",
        f"data.path={path}",
        "data.durations=learnt",
        "data.aligner_steps=2",
        "data.judged=0",
    ]
    arguments += ["data.vocoder=null", "data.validation=0", "training.validation.metric_for_best_model=val_loss"]
    arguments += ["training.validation.greater_is_better=false", "training.batch_size=2", "training.optimizer.lr=0"]
    assert main([*arguments, "training.max_steps=2", "--output", str(run)]) == 0
    log = (run / "logs" / "training.log").read_text()
    assert f"0.1 minutes of recordings: training starts from {BASE_VOICE}" in log
    recipe = resolve(run).recipe
    assert (recipe.training.init_from, recipe.training.max_steps) == (BASE_VOICE, 2)
    assert recipe.training.adversarial_start == 1
    mine, base = (load(best_or_latest(one), weights_only=True).weights for one in (run, BASE_VOICE))
    voices, acoustic = "acoustic.voices.weight", [name for name in base if name.startswith("acoustic.")]
    assert all(torch.equal(mine[name], base[name].float()) for name in acoustic if name != voices)
    assert torch.equal(mine[voices], base[voices].float().mean(dim=0).expand(1, -1))
    assert main(["train", str(run), "--output", str(run), "--resume", "auto", "training.max_steps=3"]) == 0
    assert resolve(run).recipe.training.max_steps == 3
    (run / "logs" / "training.log").unlink()
    assert main([*arguments, "training.max_steps=4", "--output", str(run), "--resume", "auto"]) == 0
    assert "training starts from" not in (run / "logs" / "training.log").read_text()
    # the texts have no mark, but the base had learnt some
    learnt = [learnt_marks(phonate.load(one, "speech").inference_metadata) for one in (run, BASE_VOICE)]
    assert learnt[0] == learnt[1] == {",", "."}
    assert load(best_or_latest(run)).state["task"] == [",", "."]


def test_a_sentence_of_hardly_a_frame_sounds_in_a_batch_as_alone() -> None:
    voice = Synthesiser.load_torch(BASE_VOICE)
    words = [*voice.sentences("Oh. The baker sold a yellow boat. A long, long road.")]
    tokens = [torch.tensor(voice.inventory.ids(one)) for one in words]
    speeds = [torch.full((len(one),), speed) for one, speed in zip(tokens, (1e6, 1.0, 1e6), strict=True)]
    rises = [torch.stack([torch.arange(len(one)), torch.arange(len(one)) + 1.0], dim=1) for one in tokens]
    together = voice.model.speak(tokens, 0, speeds, rises)
    for number, made in enumerate(together):
        (alone,) = voice.model.speak([tokens[number]], 0, [speeds[number]], [rises[number]])
        assert len(made.mel_TM) == len(alone.mel_TM)
        assert torch.allclose(made.mel_TM, alone.mel_TM, atol=1e-4)
        assert torch.allclose(made.f0_T, alone.f0_T, atol=0.2)
    assert [len(made.mel_TM) for made in together][::2] == [2, 2]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["evaluate", BASE_VOICE, "--data", "sentences.txt"], "give a folder for the figures with --output"),
        (
            ["evaluate", BASE_VOICE, "--output", "figures"],
            "recordings are not part of phonate; give others with --data",
        ),
        (["report", BASE_VOICE], "a checkpoint, not a run, so there is no training to report on"),
        (["checkpoints", "list", BASE_VOICE], "not a run; phonate checkpoints verify"),
        (["speak", BASE_VOICE], "say what to speak, as in phonate speak base/voice TEXT"),
    ],
)
def test_what_needs_a_run_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) in (1, 2)
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_figures_need_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("figures").touch()
    assert main(["evaluate", BASE_VOICE, "--data", "sentences.txt", "--output", "figures"]) == 2
    assert "--output figures: a file; give a folder for the figures" in capsys.readouterr().err


@pytest.mark.slow
def test_it_is_evaluated_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("faster_whisper", "jiwer", "whisper_normalizer", "distillmos", "resemblyzer"):
        if importlib.util.find_spec(package) is None:
            pytest.skip("needs phonate[eval]")
    monkeypatch.chdir(tmp_path)
    before = sorted((PACKAGE / BASE_VOICE).rglob("*"))
    Path("sentences.txt").write_text("The baker sold a yellow boat.\n")
    assert main(["evaluate", BASE_VOICE, "--data", "sentences.txt", "--output", "figures/voice"]) == 0
    figures = json.loads(Path("figures/voice/evaluation.json").read_text())
    assert figures["systems"]["this voice"]["wer"] < 0.2
    assert sorted((PACKAGE / BASE_VOICE).rglob("*")) == before


def test_an_unknown_base_is_refused() -> None:
    with pytest.raises(InputError, match="base/singer: no such"):
        resolve_checkpoint("base/singer")


def ssml(inside: str, speed: float = 1.0) -> tuple[np.ndarray, list[TimedWord], int]:
    voice = phonate.load(BASE_VOICE, "speech")
    sound, words = voice.timed(f"<speak>{inside}</speak>", speed=speed)
    return sound, words, voice.sample_rate


def test_python_follows_ssml_wherever_it_speaks() -> None:
    voice = phonate.load(BASE_VOICE, "speech")
    document = '<speak><break time="500ms"/>The old baker <break time="1s"/> sold it.</speak>'
    said = voice.speak(document)
    assert len(said) > 1.5 * voice.sample_rate + len(voice.speak("The old baker")) / 2
    streamed = np.concatenate(list(voice.stream(document)))
    assert len(streamed) == len(said)
    assert not streamed[: voice.sample_rate // 2].any()
    assert [len(one) for one in voice.speak([document, "Hello."])] == [len(said), len(voice.speak("Hello."))]
    with pytest.raises(InputError, match="<speak>"):
        voice.speak("Wait <break time='1s'/> here.")


def test_marks_stay_behind_initials() -> None:
    _, words = phonate.load(BASE_VOICE, "speech").timed("Is it 5 p.m.? At 6 p.m., we left the U.S.")
    assert [word.text for word in words if "." in word.text] == ["P.M.?", "P.M.,", "U.S."]


def test_no_piece_of_a_stream_is_empty() -> None:
    """As encoders take none: a silence at the edge of a piece, and one of less than a sample."""
    voice = phonate.load(BASE_VOICE, "speech")
    (spoken,) = voice.synthesise(list(voice.sentences("Hmm (yes) no.")))
    edges = np.cumsum([len(piece) for piece in voice.render.stream(spoken.mel_TM, spoken.f0_T)])
    at_an_edge = spoken._replace(shaping=Shaping(voice.sample_rate, [Pause(int(edges[0]), 100)]))
    assert [len(piece) for piece in voice.pieces(at_an_edge)] == [edges[0], 100, *np.diff(edges)]
    assert all(len(piece) for piece in voice.stream('<speak><break time="0.01ms"/>Hi.</speak>'))


def test_speeds_multiply_up_to_the_fastest() -> None:
    _, words, _ = ssml('<prosody rate="500%">a a a a</prosody>', speed=5.0)
    assert all(word.end > word.start for word in words)


def test_a_sentence_that_cannot_be_pronounced_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    voice = phonate.load(BASE_VOICE, "speech")
    english = voice.phonemizer

    def strange(text: str) -> list[Word]:
        if "500" in text:
            raise InputError("not a phone")
        return english(text)

    monkeypatch.setattr(voice, "phonemizer", strange)
    with pytest.raises(InputError, match="not a phone"):
        voice.speak("Hello there. Pay 500 now. Goodbye.")
    assert len(list(voice.sentences("Hello there. *** Goodbye."))) == 2


def part_of(sound: np.ndarray, word: TimedWord, rate: int) -> np.ndarray:
    return sound[round(word.start * rate) : round(word.end * rate)]


def test_breaks_are_as_long_as_they_are_to_be() -> None:
    sound, words, rate = ssml('<break time="500ms"/>The old baker <break time="2s"/> sold a yellow boat.')
    assert words[0].start > 0.5
    assert not sound[: rate // 2].any()
    assert words[3].start - words[2].end == pytest.approx(2.0, abs=0.02)
    middle = round((words[2].end + words[3].start) / 2 * rate)
    assert not sound[middle - rate // 2 : middle + rate // 2].any()
    assert len(sound) / rate == pytest.approx(words[-1].end, abs=0.6)


def test_rate_pitch_and_level_are_those_of_the_words() -> None:
    text = "Yesterday a very <{}>long and lonely</{}> winter began."
    plain, before, rate = ssml(text.format("prosody", "prosody"))
    for opening, check in (
        ('prosody rate="50%"', lambda mine, theirs: len(mine) / len(theirs) == pytest.approx(2.0, rel=0.1)),
        ('prosody volume="-12dB"', lambda mine, theirs: rms(mine) / rms(theirs) == pytest.approx(0.25, rel=0.2)),
        (
            'prosody pitch="+5st"',
            lambda mine, theirs: pitch(mine, rate) / pitch(theirs, rate) == pytest.approx(1.33, rel=0.08),
        ),
    ):
        sound, words, _ = ssml(text.format(opening, "prosody"))
        for number in (3, 5):  # "long" and "lonely"
            assert check(part_of(sound, words[number], rate), part_of(plain, before[number], rate)), opening
        outside = [part_of(sound, words[0], rate), part_of(plain, before[0], rate)]
        assert rms(outside[0]) == pytest.approx(rms(outside[1]), rel=0.4), opening  # the peak is the same
        assert len(outside[0]) == pytest.approx(len(outside[1]), abs=3), opening


def rms(sound: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(sound))))


def pitch(sound: np.ndarray, rate: int) -> float:
    found = f0(sound.astype(np.float32), rate, 256)
    return float(np.median(found[found > 0]))


def test_the_command_speaks_ssml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = ["-o", str(tmp_path / "said.wav"), "--captions", str(tmp_path / "said.vtt")]
    assert main(["speak", "<speak>Hello <emphasis>there</emphasis>.</speak>", *target]) == 0
    assert "Hello there." in (tmp_path / "said.vtt").read_text()
    assert main(["speak", "<speak>Hello <loud>there</loud>.</speak>", *target]) == 2
    assert "<loud> is not understood" in capsys.readouterr().err


def test_an_export_without_onnx_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("phonate.tasks.speech.export", "phonate.tasks.speech.graph")
    for name in [one for one in sys.modules if one in own or one.split(".")[0] in ("onnx", "onnxscript")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["checkpoints", "export", BASE_VOICE, "--format", "onnx", "-o", str(tmp_path / "out")]) != 0
    assert "onnx, onnxscript, which are not installed; pip install 'phonate[onnx]'" in capsys.readouterr().err
