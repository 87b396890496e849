"""Where metrics, sounds and pictures go besides: TensorBoard, Weights & Biases, MLflow, Trackio, and RUN/previews."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import re
import socket
import struct
import tempfile
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from phonate.config.errors import InputError, TrainingError, not_installed, require_modules
from phonate.config.metrics import Metric
from phonate.config.randomness import derived_seed
from phonate.training.ledger import TimeLeft
from phonate.training.run import Run, run_id
from phonate.training.settings import LoggingSettings
from phonate.training.tracking import ConsoleSink, JsonLines, MetricStream, Sink, SystemMonitor, tag

if TYPE_CHECKING:
    from phonate.training.task import Preview


# -------------------------------------------------------------------------- RUN/events for TensorBoard


def tensorboard_enabled(setting: bool | Literal["auto"]) -> bool:
    """Whether `training.logging.tensorboard` lets events be written. Raises MissingPackageError if it is true, and
    tensorboard is not installed."""
    if not setting:
        return False
    if setting is True:
        purpose, install = "training.logging.tensorboard", "'phonate[tensorboard]'"
        return require_modules(purpose, "tensorboard", install=install, otherwise=", or set it to auto or false")
    return not not_installed("tensorboard")


class EventFile:
    """An event file, written without buffering.

    If the disk is full, the thread of tensorboard's own writer dies with a traceback on the console and the caller does
    not notice.

    Args:
        folder: Folder of the file.
        purge_step: TensorBoard hides events of earlier files from this step on. None: it shows all events.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = self.path.open("wb", buffering=0)
        self._records = RecordWriter(self._file)
        self._event = Event
        self._add(Event(file_version="brain.Event:2"))
        if purge_step is not None:
            # Twice, because TensorBoard takes the first START that it sees for the beginning of the run.
            for _ in range(2):
                self._add(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, summary: Any, step: int) -> None:
        """Append a Summary."""
        self._add(self._event(step=step, summary=summary))

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard(Sink):
    """Writes event files. TensorBoard is imported at the first metric, not at the start of the run.

    Args:
        folder: Folder of the event files.
        names: Mapping from metric names to displayed names.
        resume_step: Step of a resume; events after it from before the interruption are hidden. None: a new run.
    """

    def __init__(self, folder: Path, names: Mapping[str, str], resume_step: int | None = None) -> None:
        self.folder = folder
        self.names = names
        self._purge_step = None if resume_step is None else resume_step + 1
        self._file: EventFile | None = None

    def _add(self, summary: Any, step: int) -> None:
        try:
            if self._file is None:
                self._file = EventFile(self.folder, self._purge_step)
            self._file.add(summary, step)
        except OSError as error:
            where = self.folder if self._file is None else self._file.path
            raise TrainingError(
                f"{where}: can't write TensorBoard events: {error.strerror}; fix this, then resume; or set "
                "training.logging.tensorboard=false"
            ) from error

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Write scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        # One event for all scalars is much cheaper than one each.
        scalars = [
            Summary.Value(tag=tag(self.names, split, name), simple_value=value) for name, value in values.items()
        ]
        self._add(Summary(value=scalars), step)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write audio and images."""
        from torch.utils.tensorboard.summary import audio, image

        from phonate.training.task import Sound

        for name, preview in previews.items():
            if isinstance(preview, Sound):
                self._add(audio(name, preview.waveform[None], preview.sample_rate), step)  # type: ignore[no-untyped-call]
            else:
                pixels = grey(preview.values)[None]
                self._add(image(name, pixels, dataformats="CHW"), step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the event file."""
        if self._file is not None:
            self._file.close()


# ------------------------------------- RUN/previews: the latest audio and images of the task, as files


class PreviewFolder(Sink):
    """Writes each preview to `folder` as FLAC or PNG, replacing that of the previous validation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Write audio and images."""
        from phonate.audio.decoding import write_audio
        from phonate.training.task import Sound

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, preview in previews.items():
                target = self.folder / name.replace("/", "-")
                if isinstance(preview, Sound):
                    write_audio(target.with_name(target.name + ".flac"), preview.waveform, preview.sample_rate)
                else:
                    target.with_name(target.name + ".png").write_bytes(png(grey(preview.values)))
        except InputError as error:  # of a sound
            raise TrainingError(f"{error}; or set training.validation.previews=false") from error
        except OSError as error:
            raise TrainingError(
                f"{self.folder}: can't write previews: {error.strerror}; fix this, then resume; or set "
                "training.validation.previews=false"
            ) from error


def grey(values: Any) -> Any:
    """A (height, width) array scaled to bytes, 0 darkest, with low frequencies at the bottom."""
    import numpy as np

    low, high = float(np.min(values)), float(np.max(values))
    return (255 * (values[::-1] - low) / max(high - low, 1e-12)).astype(np.uint8)


def png(pixels_HW: Any, palette: Any = None) -> bytes:
    """A (height, width) array of bytes as a PNG file: shades of grey, or numbers in `palette` (256, 3)."""
    height, width = pixels_HW.shape
    colour_type = 0 if palette is None else 3
    rows = b"".join(b"\0" + row.tobytes() for row in pixels_HW)  # each begins with its filter: none
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0))]
    chunks += [] if palette is None else [(b"PLTE", palette.tobytes())]
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


# -------------- Weights & Biases. accelerate's tracker adds nothing to it, and takes seconds to import


class TrackerError(InputError):
    """A tracker enabled in the recipe can't be used."""


class WeightsAndBiases(Sink):
    """Reports to W&B, or with WANDB_MODE=offline to RUN/wandb for a later `wandb sync`.

    The W&B run id is stored in the run folder, so that a resumed run continues its curves and a new run gets new ones.
    The step is a metric of its own, because W&B drops rows with an earlier step.

    Args:
        settings: The recipe's `training.logging`.
        run_path: The run's folder.
        names: Mapping from metric names to displayed names.
        hyperparameters: The recipe, shown with the curves.
        resumed: Whether the run was resumed.

    Raises:
        TrackerError: there is no W&B API key, or W&B can't be reached.
    """

    def __init__(
        self,
        settings: LoggingSettings,
        run_path: Path,
        names: Mapping[str, str],
        hyperparameters: Mapping[str, Any] | None = None,
        resumed: bool = False,
    ) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self.names = names
        self.log_model = settings.log_model
        self.name = settings.wandb_name or run_path.resolve().name
        # runs of earlier versions have no stored id: it was a hash of the folder
        earlier = f"{derived_seed(str(run_path.resolve())):016x}" if resumed else None
        self.run_id = run_id(run_path, default=earlier)
        try:
            self.run = self._wandb.init(
                project=settings.wandb_project,
                entity=settings.wandb_entity,
                name=self.name,
                id=self.run_id,
                tags=list(settings.wandb_tags),
                dir=str(run_path),
                config=dict(hyperparameters or {}),
                resume="allow",
            )
        except self._wandb.Error as error:
            reason = str(error).split("\n", maxsplit=1)[0].rstrip(".")
            raise TrackerError(
                f"training.logging.wandb: {reason}. Log in with `wandb login`, record for `wandb sync` with "
                "WANDB_MODE=offline in the environment, or set training.logging.wandb=false"
            ) from error
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Report scalars."""
        tagged: dict[str, Any] = {tag(self.names, split, name): value for name, value in values.items()}
        tagged["step"] = step
        if epoch is not None:
            tagged["epoch"] = epoch
        self.run.log(tagged)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Report audio and images."""
        from phonate.training.task import Sound

        shown: dict[str, Any] = {"step": step}
        for name, preview in previews.items():
            if isinstance(preview, Sound):
                shown[name] = self._wandb.Audio(preview.waveform, sample_rate=preview.sample_rate)
            else:
                shown[name] = self._wandb.Image(grey(preview.values))
        self.run.log(shown)

    def artifact(self, path: Path) -> None:
        """Upload a checkpoint folder if `log_model` is set."""
        if not self.log_model:
            return
        artifact = self._wandb.Artifact(artifact_name(self.name, self.run_id), type="model")
        artifact.add_dir(str(path))
        self.run.log_artifact(artifact, aliases=[path.name, "latest"])

    def close(self) -> None:
        """Finish the W&B run."""
        self.run.finish()


def artifact_name(name: str, run_id: str) -> str:
    """Artifact name of a run's checkpoints, in the characters and length that W&B allows. The run id is added to names
    that had to be changed, to keep them unique."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    allowed = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain)[:80].strip("-.")
    if allowed != name:
        allowed = f"{allowed}-{run_id}".lstrip("-")
    return f"{allowed}-checkpoint"


EXPERIMENT = "phonate"
_RUN = "phonate.run"
"""The tag by which a resumed run finds its own."""
_REFUSED = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow refuses in names."""


# ------------------------------- MLflow, at MLFLOW_TRACKING_URI. Its light client needs a server there


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
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{prefix}{name}.")
        else:
            flattened[f"{prefix}{name}"] = value
    return flattened


PROJECT = "phonate"


# -------------------- Trackio: a local database, or a Space of the Hugging Face Hub (TRACKIO_SPACE_ID)


class Trackio(Sink):
    """Reports to Trackio, in the project TRACKIO_PROJECT (default: phonate); `trackio show` shows it.

    Trackio knows runs by their names, so the name of the run's folder is followed by the run's id, and a resumed run
    goes on with its own.

    Args:
        run_path: The run's folder.
        names: Mapping from metric names to displayed names.
        hyperparameters: The recipe, shown with the curves.
    """

    def __init__(self, run_path: Path, names: Mapping[str, str], hyperparameters: Mapping[str, Any]) -> None:
        self._trackio: Any = importlib.import_module("trackio")
        self.names = names
        with contextlib.redirect_stdout(io.StringIO()):  # it prints how to look at the curves
            self.run: Any = self._trackio.init(
                project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
                name=f"{run_path.resolve().name}-{run_id(run_path)[:6]}",
                config=dict(hyperparameters),
                resume="allow",
            )

    def write(self, step: int, split: str, values: Mapping[str, float], epoch: int | None) -> None:
        """Report scalars."""
        shown: dict[str, Any] = {tag(self.names, split, name): value for name, value in values.items()}
        self.run.log(shown if epoch is None else {**shown, "epoch": epoch}, step=step)

    def media(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Report audio and images."""
        import numpy as np

        from phonate.training.task import Sound

        shown: dict[str, Any] = {}
        for name, preview in previews.items():
            if isinstance(preview, Sound):
                # of float samples Trackio makes the loudest full scale, and warns
                samples = (np.clip(preview.waveform, -1.0, 1.0) * 32767.0).astype(np.int16)
                shown[name] = self._trackio.Audio(samples, sample_rate=preview.sample_rate)
            else:
                shown[name] = self._trackio.Image(np.repeat(grey(preview.values)[..., None], 3, axis=-1))
        self.run.log(shown, step=step)

    def close(self) -> None:
        """Finish the run."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


log = logging.getLogger("phonate")


# ---------------------------------------------------------------------------------- The sinks of a run


_PACKAGES = {"wandb": "'phonate[wandb]'", "mlflow": "mlflow", "trackio": "trackio"}


def check_trackers(settings: LoggingSettings) -> None:
    """Raise MissingPackageError if a tracker is not installed. Called before the corpus is prepared."""
    for name, package in _PACKAGES.items():
        if getattr(settings, name):
            require_modules(f"training.logging.{name}", name, install=package, otherwise=", or set it to false")
    tensorboard_enabled(settings.tensorboard)


def build_stream(
    settings: LoggingSettings,
    run_path: Path,
    names: Mapping[str, str],
    total_steps: int,
    resume_step: int | None = None,
    logged: int = 0,
    is_main: bool = True,
    hyperparameters: Mapping[str, Any] | None = None,
    metrics: Iterable[Metric] = (),
    selected: str = "",
    time_left: TimeLeft | None = None,
    running_epoch: Callable[[], int | None] | None = None,
) -> MetricStream:
    """Build the stream for `settings`.

    Args:
        settings: The recipe's `training.logging`.
        run_path: The run's folder.
        names: The task's mapping from metric names to those shown by TensorBoard and W&B.
        total_steps: Optimizer steps of the whole run.
        resume_step: The step from which a resumed run continues. None: a new run.
        logged: The last step up to there whose training metrics the run's folder should have.
        is_main: False for ranks other than the first; their stream has no sinks.
        hyperparameters: The recipe, for trackers that record it.
        metrics: What the task declares; the console shows the first terms of the loss.
        selected: The metric that selects checkpoints.
        time_left: The estimate that the console shows.
        running_epoch: The epoch that the console shows, from 1.

    Raises:
        MissingPackageError: a tracker is not installed.
        InputError: a tracker has no API key or can't be reached.
    """
    if not is_main:
        return MetricStream()
    check_trackers(settings)
    sinks: list[Sink] = []
    if settings.wandb:
        sinks.append(WeightsAndBiases(settings, run_path, names, hyperparameters, resume_step is not None))
    if settings.mlflow:
        sinks.append(MLflow(run_path, names, hyperparameters or {}, settings.log_model))
    if settings.trackio:
        sinks.append(Trackio(run_path, names, hyperparameters or {}))
    if tensorboard_enabled(settings.tensorboard):
        sinks.append(TensorBoard(run_path / "events", names, resume_step))
    elif settings.tensorboard:
        log.debug("no events for TensorBoard, which is not installed; pip install 'phonate[tensorboard]' to have them")
    sinks.append(PreviewFolder(run_path / "previews"))
    sinks.append(JsonLines(Run(run_path).metrics, resume_step, logged))
    interval, verbosity = settings.interval, settings.verbosity
    shown = (metrics, selected, time_left, running_epoch)
    sinks.append(ConsoleSink(total_steps, verbosity, None, interval, *shown))
    system = SystemMonitor() if settings.system else None
    return MetricStream(sinks, only=settings.log_metrics, system=system)
