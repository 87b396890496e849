"""A run is a folder; this file names what lies in it."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phonate.config.errors import InputError


@dataclass(frozen=True)
class Run:
    """The folder of one training run."""

    path: Path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: step, split, and metrics by name."""
        return self.path / "metrics.jsonl"

    @property
    def logs(self) -> Path:
        """Text logs."""
        return self.path / "logs"

    @property
    def previews(self) -> Path:
        """Latest sounds and pictures of the task."""
        return self.path / "previews"

    def resume_command(self) -> str | None:
        """The command line that resumes this run. None where it has no recipe (it was started from Python)."""
        if not self.recipe.exists():
            return None
        records = self.path / "plugins.json"
        plugins = json.loads(records.read_text(encoding="utf-8"))["plugins"] if records.exists() else []
        options = [option for record in plugins for option in ("--plugin", record["path"])]
        return shlex.join(["phonate", *options, "train", str(self.path), "--resume", str(self.path)])

    def create(self, resuming: bool) -> None:
        """Make the folder. One with something in it is refused unless the run is resumed."""
        if not resuming and self.path.is_dir() and any(self.path.iterdir()):
            raise InputError(
                f"{self.path} is not empty; go on with it by --resume auto, or choose another folder by --output"
            )
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self.path}: can't make the run's folder ({error.strerror}); choose another by --output"
            ) from None

    def write(self, name: str, content: str) -> None:
        """Write a text file of the run, whole or not at all."""
        target = self.path / name
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        beside.write_text(content, encoding="utf-8")
        beside.replace(target)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file of the run."""
        self.write(name, json.dumps(content, indent=2, default=str) + "\n")

    def describe(self, hyperparameters: Mapping[str, Any], recipe_yaml: str, model_summary: str) -> None:
        """Write what this run is: recipe, hyperparameters, model and machine."""
        if recipe_yaml:
            self.write("recipe.yaml", recipe_yaml)
        self.write_json("hyperparameters.json", hyperparameters)
        self.write("model_summary.txt", model_summary)
        self.write_json("system.json", system_info())


def run_id(folder: Path, default: str | None = None) -> str:
    """The id of the run in `folder`: made once, when it is first asked for, and kept in the file `run_id`.

    `default` is taken instead of a new one where there is none yet.
    """
    file = folder / "run_id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        Run(folder).write("run_id", (default or secrets.token_hex(8)) + "\n")
    return file.read_text(encoding="utf-8").strip()


def system_info() -> dict[str, Any]:
    """What machine and software a run used."""
    import torch

    info: dict[str, Any] = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "hostname": platform.node(),
        "cpu_count": os.cpu_count(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "command": sys.argv,
    }
    if torch.cuda.is_available():
        info["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return info
