"""The three parts of a recipe from a command line, for scripts with a training loop of their own.

`args, model_config, dataset_configs, training_config = unified_parser()` reads `--config RECIPE` and the
usual short flags; `key.path=value` sets any other option. Mistakes in flags or in the recipe are one line
each, with exit code 2, as in argparse.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from phonate.cli.parsing import Parser
from phonate.config.errors import InputError, command_line
from phonate.data.settings import KaldiData
from phonate.training.plan import plan

FLAGS = {
    "--lr": "training.optimizer.lr",
    "--weight-decay": "training.optimizer.weight_decay",
    "--optimizer": "training.optimizer.type",
    "--scheduler": "training.scheduler.type",
    "--warmup-steps": "training.scheduler.warmup_steps",
    "--batch-size": "training.batch_size",
    "--epochs": "training.epochs",
    "--max-steps": "training.max_steps",
    "--seed": "training.random_seed",
    "--gradient-clipping": "training.gradient_clipping",
    "--gradient-accumulation-steps": "training.gradient_accumulation_steps",
    "--mixed-precision": "training.mixed_precision",
    "--num-workers": "training.performance.num_workers",
    "--resume": "training.checkpoint.resume",
    "--device": "training.device",
}
"""Flag -> the option that it sets."""


def unified_parser(
    argv: Sequence[str] | None = None,
) -> tuple[argparse.Namespace, Any | None, list[Any] | None, Any | None]:
    """Parse `argv` (default: the command line) into `(args, model_config, dataset_configs, training_config)`.

    The configurations are what `phonate train` would take: the recipe's typed settings, with what it leaves to its
    recordings, one data set for each corpus. With `--model-only`, `--data-only` or `--training-only` the other two are
    None, and without the data part a recipe needs no `data.path`. Raises SystemExit for a mistake.
    """
    parser = Parser(description=__doc__)
    parser.add_argument("--config", required=True, metavar="RECIPE", help="a recipe file or a shipped name")
    only = parser.add_mutually_exclusive_group()
    for part in ("model", "data", "training"):
        only.add_argument(f"--{part}-only", action="store_true", help=f"only the {part} part")
    for flag, key in FLAGS.items():
        parser.add_argument(flag, metavar="VALUE", help=f"sets {key}")
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[], help="any other option")
    args = parser.parse_intermixed_args(argv)

    values = {key: getattr(args, flag[2:].replace("-", "_")) for flag, key in FLAGS.items()}
    flags = [f"{key}={value}" for key, value in values.items() if value is not None]
    whole = not (args.model_only or args.data_only or args.training_only)
    try:
        with command_line():
            recipe = plan(args.config, [*args.overrides, *flags], incomplete=not (whole or args.data_only)).recipe
    except InputError as error:
        parser.exit(2, "".join(f"error: {line}\n" for line in str(error).splitlines()))
    corpora = recipe.data.separate() if isinstance(recipe.data, KaldiData) else [recipe.data]
    return (
        args,
        recipe.model if whole or args.model_only else None,
        corpora if whole or args.data_only else None,
        recipe.training if whole or args.training_only else None,
    )
