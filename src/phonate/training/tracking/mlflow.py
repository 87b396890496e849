"""MLflow, at the address that its own MLFLOW_TRACKING_URI names. Its light client needs a server there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.config.errors import InputError, MissingPackageError
from phonate.training.run import run_id
from phonate.training.tracking.stream import Sink, tag
from phonate.training.tracking.tensorboard import PreviewFolder

if TYPE_CHECKING:
    from phonate.training.task import Preview

EXPERIMENT = "phonate"
_RUN = "phonate.run"
"""The tag by which a resumed run finds its own."""
_REFUSED = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow refuses in names."""


def require() -> None:
    """Raise MissingPackageError unless MLflow is installed."""
    if importlib.util.find_spec("mlflow") is None:
        raise MissingPackageError(
            "training.logging.mlflow: mlflow is not installed; pip install mlflow, or set it to false"
        )


class MLflow(Sink):
    """Reports to MLflow, in the experiment MLFLOW_EXPERIMENT_NAME (default: phonate).

    A resumed run goes on with its own. Metrics are sent by a thread of MLflow's, since a database takes tens of
    milliseconds for each report.

    Args:
        run_path: The run's folder, whose name is shown.
        names: Mapping from metric names to displayed names.
        hyperparameters: The recipe, as parameters of a new run.
        log_model: Whether checkpoints are uploaded.

    Raises InputError where MLflow can't be reached.
    """

    def __init__(
        self, run_path: Path, names: Mapping[str, str], hyperparameters: Mapping[str, Any], log_model: bool = False
    ) -> None:
        require()
        mlflow: Any = importlib.import_module("mlflow")
        entities: Any = importlib.import_module("mlflow.entities")
        self.names, self.log_model = names, log_model
        self._metric = entities.Metric
        own = run_id(run_path)
        try:
            self._client: Any = mlflow.MlflowClient()
            experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
            earlier = self._client.search_runs([experiment], f"tags.`{_RUN}` = '{own}'", max_results=1)
            if earlier:
                self.run_id: str = earlier[0].info.run_id
                self._client.update_run(self.run_id, status="RUNNING")
            else:
                tags = {"mlflow.runName": run_path.resolve().name, _RUN: own}
                self.run_id = self._client.create_run(experiment, tags=tags).info.run_id
                settings = [entities.Param(name, str(value)) for name, value in flat(hyperparameters).items()]
                for start in range(0, len(settings), 100):  # as many as it takes at once
                    self._client.log_batch(self.run_id, params=settings[start : start + 100])
        except Exception as error:  # its stores and its client raise errors of many libraries
            raise InputError(
                f"training.logging.mlflow: {' '.join(str(error).split())[:300]}; set MLFLOW_TRACKING_URI to the "
                "address of your server, such as http://localhost:5000, or set training.logging.mlflow=false"
            ) from error

    def _experiment(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        return str(known.experiment_id if known is not None else self._client.create_experiment(name))

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Report scalars."""
        shown = {tag(self.names, split, name): value for name, value in values.items()}
        if epoch is not None:
            shown["epoch"] = epoch
        now = int(time.time() * 1000)
        metrics = [self._metric(_REFUSED.sub("_", name), float(value), now, step) for name, value in shown.items()]
        self._client.log_batch(self.run_id, metrics=metrics, synchronous=False)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Upload audio and images of a step."""
        with tempfile.TemporaryDirectory(prefix="phonate-previews-") as folder:
            PreviewFolder(Path(folder)).media(step, previews)
            self._client.log_artifacts(self.run_id, folder, f"previews/step-{step:08d}")

    def artifact(self, path: Path) -> None:
        """Upload a checkpoint's folder if `log_model` is set."""
        if self.log_model:
            self._client.log_artifacts(self.run_id, str(path), f"checkpoints/{path.name}")

    def close(self) -> None:
        """Send what is left, and end the run."""
        importlib.import_module("mlflow").flush_async_logging()
        self._client.set_terminated(self.run_id)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe as {path: value}, such as {"training.optimizer.lr": 1e-3}."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
