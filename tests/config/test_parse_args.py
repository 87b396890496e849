from __future__ import annotations

from pathlib import Path

import pytest

from phonate.parse_args import FLAGS, unified_parser


def test_the_documented_call(recipe_file: Path) -> None:
    args, model_config, dataset_configs, training_config = unified_parser(
        ["--config", str(recipe_file), "--lr", "1e-3", "--batch-size", "8", "--max-steps", "5"]
    )
    assert args.config == str(recipe_file)
    assert model_config.layers.widths == (4, 4)
    assert [data.path for data in dataset_configs] == ["recordings"]
    assert training_config.optimizer.lr == 1e-3
    assert (training_config.batch_size, training_config.max_steps, training_config.epochs) == (8, 5, 3)


@pytest.mark.parametrize(("flag", "given"), [("--model-only", 0), ("--data-only", 1), ("--training-only", 2)])
def test_one_part_only(recipe_file: Path, flag: str, given: int) -> None:
    _, *parts = unified_parser(["--config", str(recipe_file), flag])
    assert [part is not None for part in parts] == [index == given for index in range(3)]


def test_every_flag_sets_its_option(recipe_file: Path) -> None:
    values = {"--optimizer": "adam", "--scheduler": "linear", "--mixed-precision": "bf16", "--resume": "auto"}
    values |= {"--device": "cpu"}
    for flag, key in FLAGS.items():
        value = values.get(flag, "7")
        found: object = unified_parser(["--config", str(recipe_file), flag, value])[3]
        for part in key.split(".")[1:]:
            found = getattr(found, part)
        assert str(found).removesuffix(".0") == value


def test_overrides_between_flags(recipe_file: Path) -> None:
    *_, training = unified_parser(["training.epochs=9", "--config", str(recipe_file), "training.ema={}"])
    assert training.epochs == 9
    assert training.ema is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr", "fast"], "error: command line training.optimizer.lr: expected a number, got 'fast'"),
        (["--learning", "1"], "error: unrecognized arguments: --learning"),
        (["model.depth=1"], "error: command line model.depth: no such option"),
    ],
)
def test_a_mistake_is_one_line(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        unified_parser(["--config", str(recipe_file), *arguments])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


@pytest.mark.parametrize("flag", ["--training-only", "--model-only"])
def test_a_part_without_the_data_needs_no_path(tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("task: toy\ntraining: {epochs: 3}\n")
    args = ["--config", str(recipe)]
    _, model, data, training = unified_parser([*args, flag])
    assert data is None
    assert (training or model) is not None
    with pytest.raises(SystemExit):
        unified_parser(args)
    assert "data.path: missing required option" in capsys.readouterr().err
