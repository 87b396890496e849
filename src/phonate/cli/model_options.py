"""Options of the commands that open a model made of a base, adapters and a codec."""

from __future__ import annotations

import argparse

_NAMES = ("dtype", "codec", "base")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """`--dtype`, `--codec` and `--base`, for voice cloning."""
    parser.add_argument(
        "--dtype",
        choices=("auto", "fp32", "bf16", "fp16", "int8"),
        help="cloning: type of the weights (default: as they are stored)",
    )
    parser.add_argument("--codec", metavar="DIR", help="cloning: a folder with the codec, or its name on the hub")
    add_base_option(parser)


def add_base_option(parser: argparse.ArgumentParser) -> None:
    """`--base`."""
    parser.add_argument(
        "--base",
        metavar="DIR",
        help="a folder with the model that adapters were trained on, or its name on the hub (default: as in training)",
    )


def model_options(args: argparse.Namespace) -> dict[str, str | None]:
    """The options of `add_model_options`, as `phonate.load` takes them."""
    return {name: getattr(args, name) for name in _NAMES}
