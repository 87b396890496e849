from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_task import ToyData, ToyModel, ToyTask

from phonate.config.documents import parse
from phonate.config.errors import RecipeError, command_line
from phonate.config.resolve import Resolved, parse_overrides, resolve, resolve_document
from phonate.config.tasks import TASKS, TaskEntry, TaskInfo, task_info
from phonate.training.settings import EMASettings, TrainingSettings

MINIMAL = "task: toy\ndata: {path: x}\n"


@pytest.fixture(autouse=True)
def _a_command() -> Iterator[None]:
    with command_line():
        yield


def resolved(text: str = MINIMAL, overrides: Any = ()) -> Resolved:
    return resolve_document(parse(text, "recipe.yaml"), overrides)


def mistakes(text: str = MINIMAL, overrides: Any = ()) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        resolved(text, overrides)
    return str(caught.value).splitlines()


def test_layers_in_their_order(recipe_file: Path) -> None:
    found = resolve(recipe_file, ["training.epochs=7", "size=tiny"])
    training = found.recipe.training
    assert (training.epochs, training.optimizer.lr, training.optimizer.type) == (7, 2e-4, "sgd")
    assert (found.recipe.model.d_model, found.recipe.model.heads) == (4, 2)
    origins = {".".join(path): origin for path, origin in found.origins.items()}
    assert origins["training.epochs"] == "command line"
    assert origins["training.optimizer.lr"] == f"{recipe_file}:11:9"
    assert origins["model.d_model"] == "size tiny"
    assert origins["model.layers.widths"] == f"{recipe_file}:6:13"
    assert origins["model.layers.count"] == "default"
    assert origins["training.loss.weights.a"] == "size tiny"


def test_the_recipe_is_typed_by_its_task() -> None:
    recipe = resolved().recipe
    assert isinstance(recipe.model, ToyModel)
    assert isinstance(recipe.training, TrainingSettings)
    assert recipe.training == TrainingSettings()


def test_empty_parts_are_sections_left_empty() -> None:
    assert resolved("task: toy\ndata: {path: x}\nmodel:\ntraining:\n").recipe == resolved().recipe


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training.optimizer.lr=2e-4", ("training", "optimizer", "lr"), 2e-4),
        ("training.optimizer.betas=[0.5, 0.9]", ("training", "optimizer", "betas"), (0.5, 0.9)),
        ("training.gradient_clipping=null", ("training", "gradient_clipping"), None),
        ("training.ema.decay=0.9", ("training", "ema"), EMASettings(decay=0.9)),
        ("training.ema={}", ("training", "ema"), EMASettings()),
        ("training.ema={decay: 0.5}", ("training", "ema"), EMASettings(decay=0.5)),
        ("training.loss.weights={a: 2}", ("training", "loss", "weights"), {"a": 2.0}),
        ("training.loss.weights.b=3", ("training", "loss", "weights"), {"b": 3.0}),
        ("training.validation.interval=5 epochs", ("training", "validation", "interval"), "5 epochs"),
        ("training.validation.interval=500 steps", ("training", "validation", "interval"), 500),
        ("training.validation.interval=500", ("training", "validation", "interval"), 500),
        ("training.mixed_precision=true", ("training", "mixed_precision"), True),
        ("training.logging.wandb_name=no", ("training", "logging", "wandb_name"), "no"),
        ("data.path=a=b", ("data", "path"), "a=b"),
        ("data.path='500'", ("data", "path"), "500"),
    ],
)
def test_overrides(override: str, path: tuple[str, ...], value: object) -> None:
    found: Any = resolved(overrides=[override]).recipe
    for part in path:
        found = getattr(found, part)
    assert found == value


def test_overrides_come_one_after_the_other() -> None:
    recipe = resolved(
        overrides=["training.callbacks=[{type: pruning}, {type: lr_monitor}]", "training.callbacks.1.options.x=1e-3"]
    ).recipe
    assert recipe.training.callbacks[1].options == {"x": 1e-3}
    assert resolved(overrides=["training.epochs=1", "training.epochs=2"]).recipe.training.epochs == 2


def test_overrides_in_python() -> None:
    found = resolved(overrides={"training.max_steps": 10, "data.path": Path("a/b"), "training": {"epochs": 2}})
    assert (found.recipe.training.max_steps, found.recipe.training.epochs) == (10, 2)
    assert found.recipe.data.path == "a/b"
    assert found.origins["training", "max_steps"] == "overrides"
    assert mistakes(overrides={"training.optimizer.lrr": 1}) == [
        "overrides training.optimizer.lrr: no such option; did you mean training.optimizer.lr?"
    ]


def test_sections_merge_and_other_values_replace() -> None:
    text = MINIMAL + "size: tiny\ntraining: {loss: {weights: {b: 2}}, optimizer: {type: sgd}}\n"
    training = resolved(text).recipe.training
    assert training.loss.weights == {"b": 2.0}
    assert (training.optimizer.lr, training.optimizer.type) == (0.5, "sgd")


def test_presets_are_never_changed_by_overrides() -> None:
    resolved(MINIMAL + "size: tiny\n", ["training.loss.weights.z=5"])
    assert resolved(MINIMAL + "size: tiny\n").recipe.training.loss.weights == {"a": 1.0}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "training:\n  optimizer:\n    lrr: 1\n",
            "recipe.yaml:5:5 training.optimizer.lrr: no such option; did you mean lr?",
        ),
        ("model:\n  heads: six\n", "recipe.yaml:4:10 model.heads: expected a whole number, got 'six'"),
        ("model:\n  heads: 2.0\n", "recipe.yaml:4:10 model.heads: expected a whole number, got 2.0; write 2"),
        ("model:\n  heads: true\n", "recipe.yaml:4:10 model.heads: expected a whole number, got true"),
        ("model:\n  heads: 0\n", "recipe.yaml:4:10 model.heads: expected a number > 0, got 0"),
        (
            "training: {optimizer: {lr: '2e-4'}}\n",
            "recipe.yaml:3:28 training.optimizer.lr: expected a number, got '2e-4'; write 2e-4 without quotes",
        ),
        (
            "training: {optimizer: {lr: 'nan'}}\n",  # which is a text without quotes too
            "recipe.yaml:3:28 training.optimizer.lr: expected a number, got 'nan'",
        ),
        (
            "training: {scheduler: {metric: 0o17}}\n",
            "recipe.yaml:3:32 training.scheduler.metric: expected text, got 0o17; put it in quotes, as in '\"0o17\"'",
        ),
        (
            "model:\n  heads: '0o17'\n",
            "recipe.yaml:4:10 model.heads: expected a whole number, got '0o17'; write 0o17 without quotes",
        ),
        (
            "training: {optimizer: {lr: .inf}}\n",
            "recipe.yaml:3:28 training.optimizer.lr: expected a finite number, got .inf",
        ),
        (
            "training: {optimizer: {amsgrad: yes}}\n",
            "recipe.yaml:3:33 training.optimizer.amsgrad: expected true or false, got 'yes'; write true",
        ),
        (
            "training: {optimizer: {betas: [0.9]}}\n",
            "recipe.yaml:3:24 training.optimizer.betas.1: missing, the list is too short",
        ),
        (
            "training: {scheduler: {mode: maximum}}\n",
            "recipe.yaml:3:30 training.scheduler.mode: expected 'min' or 'max', got 'maximum'",
        ),
        (
            "training: {performance: {num_workers: many}}\n",
            "recipe.yaml:3:39 training.performance.num_workers: expected a whole number, or 'auto', got 'many'",
        ),
        ("training: {ema: 0.9}\n", "recipe.yaml:3:17 training.ema: expected a mapping (key: value), got 0.9"),
        ("model: null_\n", "recipe.yaml:3:8 model: expected a mapping (key: value), got 'null_'"),
        (
            "training: {callbacks: [{typ: a}]}\n",
            "recipe.yaml:3:25 training.callbacks.0.typ: no such option; did you mean type?",
        ),
        (
            "training: {checkpoint: {interval: 5 furlongs}}\n",
            "recipe.yaml:3:35 training.checkpoint.interval: an interval is a number of optimizer steps (500) "
            "or of epochs ('5 epochs'), at least 1, got '5 furlongs'",
        ),
        ("model: {heads: 3}\n", "recipe.yaml:3:8 model: d_model 16 is no multiple of heads 3"),
        (
            "optimizer: {lr: 1}\n",
            "recipe.yaml:3:1 optimizer: no such option; did you mean training.optimizer?",
        ),
        ("modle: {}\n", "recipe.yaml:3:1 modle: no such option; did you mean model?"),
        (
            "training: {restore_best_weights: false}\n",
            "recipe.yaml:3:12 training.restore_best_weights: no such option; "
            "did you mean training.early_stopping.restore_best_weights?",
        ),
    ],
)
def test_a_mistake_is_one_line(text: str, line: str) -> None:
    assert line in mistakes(MINIMAL + text)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("learning_rate", "training.optimizer.lr"),
        ("lr", "training.optimizer.lr"),
        ("num_epochs", "training.epochs"),
        ("num_train_epochs", "training.epochs"),
        ("gradient_clip", "training.gradient_clipping"),
        ("max_grad_norm", "training.gradient_clipping"),
        ("use_amp", "training.mixed_precision"),
        ("per_device_train_batch_size", "training.batch_size"),
        ("dataloader_num_workers", "training.performance.num_workers"),
        ("save_steps", "training.checkpoint.interval"),
        ("logging_steps", "training.logging.interval"),
        ("eval_steps", "training.validation.interval"),
    ],
)
def test_names_of_other_projects_are_refused_with_ours(name: str, right: str) -> None:
    assert mistakes(overrides=[f"training.{name}=1"]) == [
        f"command line training.{name}: no such option; phonate calls it {right}"
    ]


def test_a_name_that_no_registry_has_is_told_with_its_line() -> None:
    text = MINIMAL + "training:\n  optimizer: {type: adamww}\n  callbacks: [{type: lr_monitr}]\n"
    assert mistakes(text, ["training.scheduler.type=cosin"]) == [
        "recipe.yaml:4:21 training.optimizer.type: optimizer 'adamww' is not known; did you mean adamw?",
        "command line training.scheduler.type: schedule 'cosin' is not known; did you mean cosine?",
        "recipe.yaml:5:22 training.callbacks.0.type: callback 'lr_monitr' is not known; did you mean lr_monitor?",
    ]


def test_our_names_of_elsewhere_exist() -> None:
    from phonate.config.resolve import recipe_class
    from phonate.config.settings import ELSEWHERE, names_at

    for path in ELSEWHERE.values():
        *above, last = path.split(".")
        found = [last in names_at(recipe_class(task), tuple(above)) for task in ("speech", "cloning", "conversion")]
        assert any(found), path


def test_a_name_of_elsewhere_is_only_told_where_we_have_it() -> None:
    assert mistakes(overrides=["training.test_mode=1"]) != [
        "command line training.test_mode: no such option; phonate calls it data.limit"
    ]


def test_what_is_missing_is_named_with_its_meaning() -> None:
    assert mistakes("task: toy\ndata:\n  weights: {}\n") == [
        "recipe.yaml:2:1 data.path: missing required option; give data.path=... (Folder of the recordings)"
    ]
    assert mistakes("task: toy\n") == [
        "recipe.yaml data.path: missing required option; give data.path=... (Folder of the recordings)"
    ]
    assert mistakes("task: toy\ndata: {pth: x}\n") == ["recipe.yaml:2:8 data.pth: no such option; did you mean path?"]


def test_a_recipe_without_a_task_is_that_of_an_option_that_one_task_has() -> None:
    text = "data: {path: recordings}\nmodel: {heads: 4}\n"
    (line,) = mistakes(text)
    assert line.startswith("recipe.yaml: no task; write task: with one of ")
    TASKS.register("implied", TaskEntry(ToyData, ToyModel, ToyTask, info=TaskInfo(implied_by=("model.heads",))))
    resolved = resolve_document(parse(text, "recipe.yaml"))
    assert resolved.recipe.task == "implied"
    assert resolved.origins["task",] == "implied by model.heads"
    assert resolve_document(parse("data: {path: x}\n", "r.yaml"), ["model.heads=2"]).recipe.task == "implied"
    TASKS.register("other", TaskEntry(ToyData, ToyModel, ToyTask, info=TaskInfo(implied_by=("data.path",))))
    (line,) = mistakes(text)
    assert "no task (model.heads and data.path imply different ones)" in line


@pytest.mark.parametrize(
    ("key", "other"),
    [
        (key, other)
        for task in TASKS.names()
        for key in task_info(task).implied_by
        for other in TASKS.names()
        if other != task
    ],
)
def test_no_other_task_has_an_option_that_implies_one(key: str, other: str) -> None:
    """As `data.target` did, which is also the speaker of a conversion."""
    with pytest.raises(RecipeError, match=r"no such option|it belongs to the task"):
        resolved(f"task: {other}\ndata: {{path: x}}\n", [f"{key}=x"])


def test_every_mistake_is_told_in_the_order_of_the_file() -> None:
    text = MINIMAL + "training:\n  lrr: 1\n  epochs: x\nmodel:\n  d_model: y\n  depth: 1\n"
    lines = mistakes(text, ["training.batch_size=z"])
    assert [line.split()[0] for line in lines] == [
        "recipe.yaml:4:3",
        "recipe.yaml:5:11",
        "recipe.yaml:7:12",
        "recipe.yaml:8:3",
        "command",
    ]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("training.epochs", "command line training.epochs: an override is written key.path=value, without spaces"),
        ("=1", "command line : a key is names joined by dots, such as training.optimizer.lr"),
        ("a..b=1", "command line a..b: a key is names joined by dots, such as training.optimizer.lr"),
        (
            "training.optimizer.lrr=1",
            "command line training.optimizer.lrr: no such option; did you mean training.optimizer.lr?",
        ),
        ("training.epochs=many", "command line training.epochs: expected a whole number, got 'many'"),
        ("training.epochs.x=1", "command line training.epochs: expected a whole number, got a mapping"),
        ("training.callbacks=[{type: pruning}]", ""),
        ("size=huge", "command line size: no size 'huge'; choose from 'large', 'tiny'"),
        ("size=larg", "command line size: no size 'larg'; did you mean large?"),
        ("task=toi", "command line task: no task 'toi'; did you mean toy?"),
    ],
)
def test_a_mistaken_override_is_one_line(override: str, line: str) -> None:
    if line:
        assert mistakes(overrides=[override]) == [line]
    else:
        assert mistakes(overrides=[override, "training.callbacks.1.type=pruning"]) == [
            "command line training.callbacks.1.type: 1 is no position in a list of 1"
        ]


def test_a_name_that_is_no_utf8_is_told_as_that() -> None:
    (line,) = mistakes(overrides={"data.path": "caf\udce9"})
    assert line == r"overrides data.path: 'caf\udce9' is not UTF-8, as recipes are; rename it"


def test_a_bad_value_on_the_command_line_is_one_line() -> None:
    (line,) = mistakes(overrides=["training.epochs=[1"])
    assert line.startswith("command line training.epochs: not valid YAML")


def test_a_recipe_without_task_is_told_the_choices() -> None:
    (line,) = mistakes("data: {path: x}\n")
    assert line.startswith("recipe.yaml: no task; write task: with one of ")
    assert "toy" in line


def test_a_size_that_changes_nothing_is_a_mistake() -> None:
    complete = resolved(MINIMAL + "size: tiny\n").to_yaml()
    (line,) = mistakes(complete, ["size=large"])
    assert line.startswith("command line size: recipe.yaml sets every option of size large itself")


def test_a_task_without_sizes_says_so() -> None:
    TASKS.register("plain", TaskEntry(ToyData, ToyModel, task=dict))
    assert resolved("task: plain\nsize: default\ndata: {path: x}\n").recipe.size == "default"
    assert mistakes("task: plain\nsize: tiny\ndata: {path: x}\n") == [
        "recipe.yaml:2:7 size: no size 'tiny'; this task has no sizes"
    ]


def test_the_resolved_recipe_is_complete_and_needs_no_preset() -> None:
    first = resolved(MINIMAL + "size: tiny\n", ["training.loss.weights={}", "training.ema={}"])
    second = resolved(first.to_yaml())
    assert second.recipe == first.recipe
    assert second.to_yaml() == first.to_yaml()
    assert set(second.origins) == set(first.origins)
    assert "default" not in second.origins.values()
    assert "size tiny" not in second.origins.values()


def test_the_resolved_recipe_is_the_same_to_readers_of_yaml_1_1() -> None:
    """PyYAML takes 1e-05 for a text, `no` (Norwegian) for false and 12:30 for 750."""
    yaml = pytest.importorskip("yaml")
    path = "no"
    weights = {"on": 1e-05, "12:30": 2.5e-07, "y": 1e20, "plain": 0.5, "1_0": 3.0}
    found = resolved(overrides={"data.path": path, "data.weights": weights, "training.optimizer.lr": 1e-05})
    assert "lr: 1.0e-05" in found.to_yaml()
    assert yaml.safe_load(found.to_yaml()) == found.values
    assert resolved(found.to_yaml()).recipe == found.recipe


def test_the_text_is_kept_as_written(recipe_file: Path) -> None:
    found = resolve(recipe_file, ["training.epochs=9"])
    assert found.text == recipe_file.read_text()
    assert found.name == "recipe"
    assert resolve(recipe_file.parent).name == recipe_file.parent.name
    assert resolved().name == "toy"


FINITE = st.floats(min_value=0, max_value=1e30, allow_nan=False)
WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "size": st.sampled_from(["default", "tiny", "large"]),
        "data.path": WORDS,
        "data.weights": st.dictionaries(WORDS, FINITE, max_size=3),
        "model.layers.widths": st.lists(st.integers(1, 10**12), max_size=3),
        "training.optimizer.lr": FINITE,
        "training.optimizer.type": st.sampled_from(["sgd", "lion"]),
        "training.gradient_clipping": st.none() | FINITE.filter(bool),
        "training.validation.interval": st.integers(1, 999) | st.integers(1, 9).map("{} epochs".format),
        "training.mixed_precision": st.sampled_from([True, False, "auto", "bf16"]),
        "training.logging.wandb_tags": st.lists(WORDS, max_size=3),
        "training.ema": st.none() | st.fixed_dictionaries({}, optional={"decay": st.floats(0, 0.99)}),
        "training.callbacks": st.lists(
            st.fixed_dictionaries(
                {"type": st.just("pruning"), "options": st.dictionaries(WORDS, st.booleans() | WORDS)}
            ),
            max_size=2,
        ),
    },
)


@given(CHANGES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_resolving_the_resolved_recipe_is_identity(changes: dict[str, Any]) -> None:
    first = resolved(overrides=changes)
    second = resolved(first.to_yaml())
    assert second.recipe == first.recipe
    assert second.to_yaml() == first.to_yaml()


KEYS = st.from_regex(r"[a-z]{1,3}(\.[a-z0-9]{1,3}){0,3}", fullmatch=True)
OVERRIDES = st.text(max_size=30) | st.builds("{}={}".format, KEYS, st.text(max_size=12))


@given(st.lists(OVERRIDES, max_size=3))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_overrides_never_fail_otherwise(overrides: list[str]) -> None:
    with contextlib.suppress(RecipeError):
        resolved(overrides=overrides)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_mutated_recipe_is_valid_or_refused_with_a_position(data: st.DataObject) -> None:
    from phonate.config.resolve import to_yaml

    values: Any = resolved(overrides=["training.ema={}", "training.callbacks=[{type: pruning}]"]).recipe.model_dump(
        mode="json"
    )
    target = values
    while True:
        key = data.draw(st.sampled_from(sorted(target)))
        if isinstance(target[key], dict) and target[key] and data.draw(st.booleans()):
            target = target[key]
            continue
        break
    action = data.draw(st.sampled_from(["replace", "remove", "rename"]))
    if action == "replace":
        target[key] = data.draw(ANYTHING)
    else:
        removed = target.pop(key)
        if action == "rename":
            target[key + data.draw(WORDS)] = removed
    try:
        found = resolved(to_yaml(values))
    except RecipeError as error:
        for line in str(error).splitlines():
            assert line.startswith("recipe.yaml"), line
    else:
        training = found.recipe.training
        assert math.isfinite(training.optimizer.lr)
        assert resolved(found.to_yaml()).recipe == found.recipe


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("/a #1", "/a #1"),
        ("/a b: c", "/a b: c"),
        ("- dash", "- dash"),
        ('"1234"', "1234"),
        ("plain", "plain"),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("{a: 1}", {"a": 1}),
        ("12 # twelve", 12),
    ],
)
def test_plain_text_on_the_command_line_is_taken_as_it_stands(text, value):
    assert parse_overrides([f"data.path={text}"])[0].value == value


def test_a_list_that_is_too_short_is_a_mistake_where_options_may_be_missing() -> None:
    """`phonate explain` allows options to be missing, but not parts of what was written."""
    for override, said in [
        ("training.optimizer.betas=[0.9]", "training.optimizer.betas.1: missing"),
        ("training.callbacks=[{options: {}}]", "training.callbacks.0.type: missing"),
    ]:
        with pytest.raises(RecipeError, match=said.replace("[", r"\[")):
            resolve_document(parse("task: toy\n", "recipe.yaml"), [override], incomplete=True)
    found = resolve_document(parse("task: toy\n", "recipe.yaml"), incomplete=True)
    assert found.recipe.data.path == "required"


def test_a_mistake_across_options_is_not_blamed_on_the_size() -> None:
    (line,) = mistakes(overrides=["size=tiny", "model.heads=3"])
    assert line == "recipe.yaml model: d_model 4 is no multiple of heads 3"


SECOND_NAMES = TaskInfo(synonyms={"model.layers.count": "training.batch_size"})


def test_an_option_takes_the_value_of_its_synonym() -> None:
    TASKS.register("second", TaskEntry(ToyData, ToyModel, task=ToyTask, info=SECOND_NAMES))
    text = "task: second\ndata: {path: x}\nmodel:\n  layers: {count: 5}\n"
    found = resolved(text)
    assert found.recipe.training.batch_size == 5
    assert found.origins["training", "batch_size"] == "recipe.yaml:4:19 model.layers.count"
    assert resolved(found.to_yaml()).recipe == found.recipe
    assert resolved(text, ["training.batch_size=7"]).recipe.training.batch_size == 7


def test_epochs_on_top_of_a_recipe_replace_its_steps() -> None:
    """Steps count before epochs, so a recipe's would silently leave those that are asked for without effect."""
    steps = "task: toy\ndata: {path: x}\ntraining: {max_steps: 100}\n"

    def length(text: str, overrides: object = (), base: str | None = None) -> tuple[int, int | None]:
        below = None if base is None else parse(base, "base.yaml")
        training = resolve_document(parse(text, "recipe.yaml"), overrides, below).recipe.training  # type: ignore[arg-type]
        return training.epochs, training.max_steps

    assert length(steps) == (100, 100)
    assert length(steps, ["training.epochs=5"]) == (5, None)
    assert length(steps, {"training": {"epochs": 5}}) == (5, None)
    assert length(steps, ["training.epochs=5", "training.max_steps=7"]) == (5, 7)
    assert length("training: {epochs: 5}\n", base=steps) == (5, None)
    assert length("training: {epochs: 5, max_steps: 7}\n", base=steps) == (5, 7)
    assert length(steps.replace("{", "{epochs: 5, ", 2).replace("data: {epochs: 5, ", "data: {")) == (5, 100)


@pytest.mark.parametrize("typed", ["007", "2024", "1688", "1e5", "true", "0x1F", "3.10"])
def test_an_option_that_is_a_text_takes_what_was_typed(typed):
    overrides = [f"data.path={typed}", f"data.target={typed}", f"data.speaker={typed}", "data.limit=7"]
    resolved = resolve("conversion", overrides)
    data = resolved.recipe.data
    assert (data.path, data.target, data.speaker, data.limit) == (typed, typed, typed, 7)
    assert resolve("conversion", ["data.path=x", "data.target=null"]).recipe.data.target is None
    assert resolve("conversion", ["data.path=x", 'data.target="007"']).recipe.data.target == "007"
    with pytest.raises(RecipeError, match=r"data\.limit: .*whole number"):
        resolve("conversion", ["data.path=x", "data.limit=many"])


def test_several_corpora_where_one_is_expected_are_told_how() -> None:
    with pytest.raises(RecipeError, match=r"data\.path: is one corpus, not a list; put the corpora into one folder"):
        resolve("recognition", {"data.path": ["one", "two"]})
