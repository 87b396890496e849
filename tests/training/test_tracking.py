"""The metric stream and each of its sinks, read back from outside."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tasks import RegressionTask
from test_trainer import train

from phonate.compute.device import host_usage
from phonate.config.errors import InputError, MissingPackageError, TrainingError
from phonate.config.metrics import Metric
from phonate.config.metrics import losses as loss_terms
from phonate.config.randomness import derived_seed
from phonate.training import tracking
from phonate.training.callbacks import Callback
from phonate.training.metrics import Best
from phonate.training.settings import LoggingSettings
from phonate.training.state import Progress
from phonate.training.task import losses
from phonate.training.trackers import TensorBoard, artifact_name, build_stream
from phonate.training.tracking import (
    ConsoleSink,
    JsonLines,
    MetricStream,
    Sink,
    SystemMonitor,
    missing_metrics,
    read_events,
    read_metrics,
)
from phonate_process import run_python

PLAIN = LoggingSettings(tensorboard=False, system=False, verbosity="quiet")


class Recorder(Sink):
    def __init__(self) -> None:
        self.seen: list[tuple[int, str, dict[str, float]]] = []
        self.ticks: list[int] = []

    def write(self, step, split, values, epoch):
        self.seen.append((step, split, dict(values)))

    def tick(self, step):
        self.ticks.append(step)


# ------------------------------------------------------------------ the stream


def test_a_stream_reaches_every_sink():
    one, other = Recorder(), Recorder()
    stream = MetricStream([one, other])
    stream.emit(5, "train", {"loss": 1.0}, epoch=0)
    stream.tick(5)
    assert one.seen == other.seen == [(5, "train", {"loss": 1.0})]
    assert one.ticks == [5]


def test_other_ranks_emit_nowhere(tmp_path):
    stream = build_stream(LoggingSettings(), tmp_path, {}, 100, is_main=False)
    stream.emit(1, "train", {"loss": 1.0})
    stream.tick(1)
    stream.close()
    assert list(tmp_path.iterdir()) == []


def test_only_the_metrics_that_were_asked_for_are_reported(caplog):
    sink = Recorder()
    stream = MetricStream([sink], only=["loss", "grad_*", "acuracy"], system=SystemMonitor())
    stream.emit(1, "train", {"loss": 1.0, "mel": 2.0, "grad_norm": 3.0})
    stream.emit(1, "validation", {"val_loss": 4.0, "accuracy": 5.0})
    stream.emit(2, "train", {"mel": 2.0})
    stream.close()
    assert sink.seen == [
        (1, "train", {"loss": 1.0, "grad_norm": 3.0}),
        (1, "validation", {"val_loss": 4.0}),
    ]
    assert "no metric matched acuracy" in caplog.text


def test_the_console_shows_the_memory_of_a_gpu(caplog):
    sink = ConsoleSink(10, "normal")
    with caplog.at_level(logging.INFO, logger="phonate.metrics"):
        sink.write(2, "train", {"loss": 1.0, "system/memory_gb": 0.1, "system/gpu_memory_gb": 45.2}, 0)
    assert "loss 1  system/gpu_memory_gb 45.2" in caplog.text
    assert "system/memory_gb" not in caplog.text


def test_system_metrics_come_once_with_the_training_metrics_of_a_step():
    sink = Recorder()
    stream = MetricStream([sink], system=SystemMonitor())
    stream.emit(1, "train", {"loss": 1.0})
    stream.emit(1, "train", {"learning_rate": 0.1})
    stream.emit(1, "validation", {"loss": 1.0})
    with_system = [values for _, _, values in sink.seen if "system/memory_gb" in values]
    assert len(with_system) == 1
    assert 0.01 < with_system[0]["system/memory_gb"] < host_usage().total / 1e9
    assert with_system[0]["system/cpu_percent"] >= 0


# ------------------------------------------------------------------- JSON lines


def write_lines(path: Path, last_step: int, resume_step: int | None = None) -> None:
    sink = JsonLines(path, resume_step)
    for step in range(10 if resume_step is None else (resume_step // 10 + 1) * 10, last_step + 1, 10):
        sink.write(step, "train", {"loss": 1 / step}, epoch=step // 40)
        sink.write(step, "train", {"learning_rate": 0.1}, epoch=None)
        if step % 40 == 0:
            sink.write(step, "validation", {"loss": 2 / step}, epoch=step // 40)
    sink.close()


def test_what_comes_later_joins_its_line(tmp_path):
    write_lines(tmp_path / "metrics.jsonl", 40)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["split"]) for line in lines] == [
        (10, "train"), (20, "train"), (30, "train"), (40, "train"), (40, "validation"),
    ]  # fmt: skip
    assert lines[0] == {"step": 10, "split": "train", "epoch": 0, "loss": 0.1, "learning_rate": 0.1}


def test_each_line_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write(1, "train", {"loss": 0.5}, epoch=0)
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == 0.5


def test_numbers_that_are_not_finite_are_null(tmp_path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write(1, "train", {"loss": math.nan, "grad_norm": math.inf, "x": 1.0}, epoch=0)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 1, "split": "train", "since": 0, "epoch": 0, "loss": None, "grad_norm": None, "x": 1.0,
    }  # fmt: skip


@given(cut=st.integers(0, 900), resume=st.sampled_from([0, 10, 40, 70, 80]))
@settings(max_examples=40)
def test_a_killed_and_resumed_run_has_every_step_once(tmp_path_factory, cut, resume):
    """Cut anywhere behind the checkpoint's step, in the middle of a line too, then resume from that step."""
    folder = tmp_path_factory.mktemp("run")
    whole, killed = folder / "whole.jsonl", folder / "killed.jsonl"
    write_lines(whole, 120)
    write_lines(killed, 120)
    data = killed.read_bytes()
    saved = sum(
        len(line) + 1 for line in data.split(b"\n") if line and json.loads(line)["step"] <= resume
    )  # all that was written when the checkpoint was saved
    killed.write_bytes(data[: max(saved, cut)])
    write_lines(killed, 120, resume_step=resume)
    assert killed.read_bytes() == whole.read_bytes()


def test_a_step_reported_again_after_the_resume_is_there_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_lines(path, 60)
    sink = JsonLines(path, resume_step=40)
    sink.write(40, "validation", {"loss": 7.0}, epoch=1)
    sink.write(50, "train", {"loss": 8.0}, epoch=1)
    sink.close()
    keys = [(line["step"], line["split"]) for line in read_metrics(path)]
    assert keys == [(10, "train"), (20, "train"), (30, "train"), (40, "train"), (40, "validation"), (50, "train")]
    assert read_metrics(path)[4]["loss"] == 7.0


def test_events_are_kept_over_resumes_and_are_not_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_lines(path, 60)
    for resume_step in (40, 20):
        sink = JsonLines(path, resume_step=resume_step)
        sink.event(resume_step, "resumed", {"epoch": 1})
        sink.write(resume_step, "validation", {"loss": 7.0}, epoch=1)
        sink.close()
    assert [line["step"] for line in read_metrics(path)] == [10, 20, 20]
    assert read_events(path, "resumed") == [{"step": 20, "split": "event", "event": "resumed", "epoch": 1}]
    assert read_events(path, "other") == []


def test_lines_that_are_missing_in_the_middle_are_said_at_a_resume_and_afterwards(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    for step in range(10, 80, 10):
        sink.write(step, "train", {"loss": 1.0}, epoch=0)
        if step % 20 == 0:
            sink.write(step, "validation", {"loss": 1.0}, epoch=0)
    sink.close()
    whole = path.read_text().splitlines(keepends=True)
    JsonLines(path, resume_step=60, logged=60).close()
    assert not caplog.records
    assert missing_metrics(path) == ""
    spoilt = {'{"step": 30, "split": "train"', '{"step": 40, "split": "train"', '{"step": 20, "split": "validation"'}
    path.write_text("".join(line for line in whole if not any(map(line.startswith, spoilt))))
    words = "validation metrics of steps 1 to 20 and train metrics of steps 21 to 40 are"
    for resume_step in (60, 60, 40):
        caplog.clear()
        sink = JsonLines(path, resume_step=resume_step, logged=resume_step)
        sink.write(resume_step, "validation", {"loss": 2.0}, epoch=0)  # which a resume repeats
        sink.write(70, "train", {"loss": 2.0}, epoch=0)
        sink.close()
        (said,) = [record.getMessage() for record in caplog.records]
        assert said == f"{path}: {words} missing; the run goes on without them"
        assert missing_metrics(path) == words
    assert "since" not in read_metrics(path)[0]


@pytest.mark.parametrize(("kept", "missing"), [(0, "1 to 50"), (130, "11 to 50"), (10_000, None)])
def test_lines_that_are_missing_at_a_resume_are_said(tmp_path, caplog, kept, missing):
    """Cut in the middle of a line, or gone: the checkpoint knows at which step the last line was written."""
    path = tmp_path / "metrics.jsonl"
    write_lines(path, 60)
    path.write_bytes(path.read_bytes()[:kept])
    JsonLines(path, resume_step=55, logged=50).close()
    said = [record.getMessage() for record in caplog.records]
    assert [f"steps {missing} are missing" in line for line in said] == ([True] if missing else [])


def test_a_fresh_run_begins_an_empty_file(tmp_path):
    write_lines(tmp_path / "metrics.jsonl", 40)
    JsonLines(tmp_path / "metrics.jsonl").close()
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_a_spoilt_line_is_said(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "split": "train"}\n\x00\x00\n{"step": 2, "split": "train"}\n{"step": 3, "sp')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    assert "metrics.jsonl:2" in caplog.text


def test_a_full_disk_ends_in_one_clear_line():
    sink = JsonLines.__new__(JsonLines)
    sink.path = Path("/dev/full")
    sink._file = open("/dev/full", "w")  # noqa: SIM115 - stands for a file on a full disk
    sink._repeatable, sink._latest, sink._last, sink._last_start = set(), {}, {}, 0
    with pytest.raises(TrainingError, match=r"/dev/full: .*No space left"):
        sink.write(1, "train", {"loss": 1.0}, None)


# ----------------------------------------------------------------- TensorBoard


def events(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_tensorboard_shows_the_documents_names_and_hides_what_a_resume_repeats(tmp_path):
    names = {"mel": "train/mel_loss", "validation/loss": "epoch/val_loss"}
    first = TensorBoard(tmp_path, names)
    for step in (10, 20, 30):
        first.write(step, "train", {"loss": 1.0, "mel": 2.0, "system/memory_gb": 0.1}, 0)
    first.write(30, "validation", {"loss": 3.0}, 0)
    first.close()
    second = TensorBoard(tmp_path, names, resume_step=20)
    second.write(30, "train", {"loss": 0.5}, 0)
    second.close()
    found = events(tmp_path)
    assert set(found.Tags()["scalars"]) == {"train/loss", "train/mel_loss", "epoch/val_loss", "system/memory_gb"}
    assert [(event.step, event.value) for event in found.Scalars("train/loss")] == [(10, 1), (20, 1), (30, 0.5)]
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    shown = EventAccumulator(str(tmp_path))  # what `tensorboard --load_fast=false` reads with
    shown.Reload()
    assert [event.step for event in shown.Tensors("train/loss")] == [10, 20, 30]


def test_tensorboard_shows_sounds_and_pictures(tmp_path):
    from phonate.training.task import Picture, Sound

    sink = TensorBoard(tmp_path, {})
    tone = np.sin(np.arange(2205) / 5).astype(np.float32)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    sink.media(7, {"converted": Sound(tone, 22050), "mel": Picture(values)})
    sink.close()
    found = events(tmp_path)
    assert found.Audio("converted")[0].sample_rate == 22050
    assert (found.Images("mel")[0].height, found.Images("mel")[0].width) == (3, 4)


FULL = """
import resource, sys
from pathlib import Path
from phonate.compute.distributed import Ranks
from phonate.config.errors import TrainingError
from phonate.training.metrics import Best
from phonate.training.settings import LoggingSettings
from phonate.training.state import Progress
from phonate.training.trackers import build_stream
from phonate.training.tracking import log_file
import logging
logging.getLogger("phonate").addHandler(logging.StreamHandler(sys.stdout))
settings = LoggingSettings(tensorboard=sys.argv[2] == "tensorboard", system=False, verbosity="quiet")
stream = build_stream(settings, Path(sys.argv[1]), {}, 10)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # stands in for a full disk
try:
    with log_file(Path(sys.argv[1]) / "log", Ranks()):
        for step in range(1000):
            if sys.argv[2] == "log":
                logging.getLogger("phonate").info("x" * 100)
            else:
                sink = stream.sinks[0 if sys.argv[2] == "tensorboard" else 1]
                sink.write(step, "train", {"loss": 1.0}, 0)
except TrainingError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("tensorboard", r"events\.out\.tfevents\..*: can't write TensorBoard events: File too large; fix this"),
        ("metrics", r"metrics.jsonl: can't write metrics: File too large; fix this"),
        ("log", r"log: can't be written \(File too large\); no more is logged to this file"),
    ],
)
def test_a_disk_that_fills_is_one_line_that_names_the_file(what, said, tmp_path):
    done = run_python("-c", FULL, tmp_path, what)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("xxx")]
    assert len(lines) == 1
    assert re.search(said, lines[0])


def test_rows_of_another_form_are_left_out(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    rows = [
        '{"step": "9", "split": "train"}',
        '{"step": 1, "split": 2}',
        "[" * 100_000,
        '{"step": 2, "split": "train"}',
    ]
    path.write_text("\n".join(rows) + "\n")
    assert read_metrics(path) == [{"step": 2, "split": "train"}]
    assert caplog.text.count("not a line of metrics") == 3


def test_tensorboard_is_imported_at_the_first_metric(tmp_path):
    code = (
        "import sys; from pathlib import Path; from phonate.training.trackers import build_stream; "
        "from phonate.training.settings import LoggingSettings; "
        f"stream = build_stream(LoggingSettings(verbosity='quiet'), Path({str(tmp_path)!r}), {{}}, 10); "
        "heavy = {'torch', 'tensorboard', 'accelerate', 'wandb'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("setting", "said"),
    [(True, "error"), ("auto", "pip install 'phonate[tensorboard]'"), (False, "")],
)
def test_tensorboard_that_is_missing_is_said_where_all_is_asked_for(setting, said, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    settings = PLAIN.model_copy(update={"tensorboard": setting})
    if said == "error":
        with pytest.raises(MissingPackageError, match=r"pip install 'phonate\[tensorboard\]'"):
            build_stream(settings, tmp_path, {}, 10)
        return
    with caplog.at_level("INFO", "phonate"):
        build_stream(settings, tmp_path, {}, 10).close()
    assert not caplog.records, "not at each training"
    with caplog.at_level("DEBUG", "phonate"):
        build_stream(settings, tmp_path, {}, 10).close()
    assert said in caplog.text
    assert len(caplog.records) == bool(said)
    assert not (tmp_path / "events").exists()


# ------------------------------------------------------------------------- W&B


def test_wandb_that_is_missing_is_one_line_with_the_mend(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'phonate\[wandb\]'"):
        build_stream(PLAIN.model_copy(update={"wandb": True}), tmp_path, {}, 10)


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in that records what W&B is told."""
    calls: list[tuple[str, object]] = []

    class Run:
        def define_metric(self, name, step_metric=None):
            pass

        def log(self, values):
            calls.append(("log", values))

        def log_artifact(self, artifact, aliases):
            calls.append(("artifact", (artifact.name, artifact.folder, aliases)))

        def finish(self):
            calls.append(("finish", None))

    class Artifact:
        def __init__(self, name, type):
            self.name, self.type = name, type

        def add_dir(self, folder):
            self.folder = folder

    def init(**options):
        calls.append(("init", options))
        return Run()

    module = types.ModuleType("wandb")
    module.init, module.Artifact, module.Error = init, Artifact, type("Error", (Exception,), {})
    module.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


def test_wandb_is_told_names_steps_and_the_recipe(tmp_path, wandb):
    chosen = PLAIN.model_copy(
        update={
            "wandb": True,
            "wandb_project": "voices",
            "wandb_entity": "us",
            "wandb_name": "one",
            "wandb_tags": ("a",),
        }
    )
    for resume_step in (None, 50):
        names = {"train/loss": "train/batch_total_loss"}
        stream = build_stream(chosen, tmp_path, names, 100, resume_step, hyperparameters={"lr": 0.1})
        stream.emit(60, "train", {"loss": 1.0}, epoch=2)
        stream.artifact(tmp_path / "step-00000060")
        stream.close()
    first, second = (options for call, options in wandb if call == "init")
    assert first["id"] == second["id"]
    assert (first["project"], first["entity"], first["name"], first["tags"]) == ("voices", "us", "one", ["a"])
    assert first["config"] == {"lr": 0.1}
    assert ("log", {"train/batch_total_loss": 1.0, "step": 60, "epoch": 2}) in wandb
    assert "artifact" not in dict(wandb)
    assert wandb[-1] == ("finish", None)


def test_wandb_uploads_checkpoints_when_asked(tmp_path, wandb):
    chosen = PLAIN.model_copy(update={"wandb": True, "wandb_name": "one", "log_model": True})
    stream = build_stream(chosen, tmp_path, {}, 100)
    stream.artifact(tmp_path / "step-00000060")
    name, folder, aliases = dict(wandb)["artifact"]
    assert (name, folder) == ("one-checkpoint", str(tmp_path / "step-00000060"))
    assert aliases == ["step-00000060", "latest"]


def wandb_ids(folder, wandb, *resume_steps):
    chosen = PLAIN.model_copy(update={"wandb": True})
    for resume_step in resume_steps:
        build_stream(chosen, folder, {}, 100, resume_step).close()
    return [options["id"] for call, options in wandb if call == "init"]


def test_a_wandb_run_has_one_id_of_its_own(tmp_path, wandb):
    """Also when a run is deleted and another one is trained in the same folder."""
    first, resumed = wandb_ids(tmp_path / "run", wandb, None, 50)
    assert first == resumed
    shutil.rmtree(tmp_path / "run")
    assert wandb_ids(tmp_path / "run", wandb, None)[-1] != first


def test_a_wandb_run_of_an_earlier_version_keeps_its_id(tmp_path, wandb):
    """It was a hash of the folder's path."""
    (tmp_path / "run").mkdir()
    before = f"{derived_seed(str((tmp_path / 'run').resolve())):016x}"
    assert wandb_ids(tmp_path / "run", wandb, 50, 60) == [before, before]


@pytest.mark.parametrize("folder", ["wb run", "Stimme für Jörg", "a/b:c", "名前", "x" * 300])
def test_wandb_takes_the_name_of_any_run(folder):
    pytest.importorskip("wandb")
    import wandb as real

    name = artifact_name(folder, "0123456789abcdef")
    assert real.Artifact(name, type="model").name == name
    assert name != artifact_name(folder, "another")


@pytest.mark.parametrize("said", ["No API key configured. Use `wandb login` to log in.", "Timed out\nConsider ..."])
def test_wandb_that_cannot_start_is_one_line_with_the_ways_out(said, tmp_path, wandb, monkeypatch):
    def refuse(**options):
        raise sys.modules["wandb"].Error(said)

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(InputError, match=r"training\.logging\.wandb: .*`wandb login`.*WANDB_MODE=offline") as caught:
        build_stream(PLAIN.model_copy(update={"wandb": True}), tmp_path, {}, 10)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_wandb_works_offline(tmp_path):
    pytest.importorskip("wandb")
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "weights").write_text("weights")
    code = (
        "from pathlib import Path; from phonate.training.trackers import build_stream; "
        "from phonate.training.settings import LoggingSettings; import numpy as np; "
        "from phonate.training.task import Picture, Sound; "
        "settings = LoggingSettings(tensorboard=False, wandb=True, log_model=True, verbosity='quiet'); "
        f"run = Path({str(tmp_path)!r}); stream = build_stream(settings, run, {{}}, 10); "
        "stream.emit(1, 'train', {'loss': 1.0}, epoch=0); "
        "stream.media(1, {'mel': Picture(np.eye(4, dtype=np.float32))}); "
        "stream.artifact(run / 'step-00000001'); stream.close()"
    )
    environment = {"WANDB_MODE": "offline", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


# --------------------------------------------------------------------- console


def console(terminal: bool):
    from rich.console import Console

    return Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False)


def test_where_there_is_no_terminal_there_are_plain_lines(caplog):
    caplog.set_level(logging.INFO, logger="phonate.metrics")
    screen = console(terminal=False)
    sink = ConsoleSink(500, console=screen)
    sink.tick(49)
    sink.write(50, "train", {"loss": 0.312149, "learning_rate": 1e-4, "system/memory_gb": 1.0}, 0)
    sink.close()
    line = "step 50/500  epoch 0  train  loss 0.3121  learning_rate 0.0001"
    assert screen.file.getvalue() == line + "\n"
    assert line in caplog.text


def test_where_there_is_no_terminal_the_time_left_is_told_once_a_minute(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 16.0, 60.0, 77.0, 200.0, 270.0])
    monkeypatch.setattr(tracking, "perf_counter", lambda: next(clock))
    sink = ConsoleSink(100)
    for step in (1, 6, 11):  # at 0, 10 and 16 s
        sink.tick(step)
    sink.write(12, "train", {"loss": 0.5}, 0)
    for step in (20, 21):  # at 60 and 77
        sink.tick(step)
    for step in (1, 11):  # at 200, back at a checkpoint, and 270
        sink.tick(step)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "step 11/100  time left 2.4 min",
        "step 12/100  epoch 0  train  loss 0.5",
        "step 21/100  time left 5.1 min",
        "step 11/100  time left 10.4 min",
    ]


def test_people_read_epochs_from_1_and_metrics_with_their_unit(capsys):
    progress = Progress(Best("val_loss", greater_is_better=False), averaged_is_better=False)
    metrics = [Metric("der", unit="%", label="DER"), Metric("mos", "higher", unit="1–5")]
    sink = ConsoleSink(9, metrics=metrics, running_epoch=progress.running_epoch)
    progress.consume(3, None)
    sink.write(1, "train", {"loss": 0.312149}, progress.epoch)
    progress.epoch, progress.consumed = 1, ()
    sink.write(2, "validation", {"der": 1.63812, "mos": 4.5}, progress.epoch)
    sink.write(2, "epoch", {"loss": 0.3}, progress.epoch)  # is not shown, as the step above was
    progress.consume(3, None)
    sink.write(3, "epoch", {"loss": 0.25}, progress.epoch)
    assert capsys.readouterr().err.splitlines() == [
        "step 1/9  epoch 1  train  loss 0.3121",
        "step 2/9  epoch 1  validation  der 163.8 %  mos 4.5",
        "step 3/9  epoch 2  train (mean of the epoch)  loss 0.25",
    ]


def test_lines_need_no_rich(monkeypatch, capsys):
    """Its import takes a while, at the start of each training."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    ConsoleSink(500).write(50, "train", {"loss": 0.312149}, 0)
    assert capsys.readouterr().err == "step 50/500  epoch 0  train  loss 0.3121\n"


WIDE = {"loss": 8.205, **{f"term{i}": 0.4067 for i in range(12)}, "learning_rate": 1e-4, "data_wait": 0.1,
        "memory/cleanup_overhead_percent": 0.01, "grad_norm/main": 3.0}  # fmt: skip


@pytest.mark.parametrize(("terminal", "verbosity"), [(True, "normal"), (False, "normal"), (True, "debug")])
def test_a_line_of_metrics_is_short(terminal, verbosity):
    screen = console(terminal)
    ConsoleSink(500, verbosity, console=screen).write(50, "train", WIDE, 0)
    (line,) = screen.file.getvalue().splitlines()
    assert line.startswith("step 50/500  epoch 0  train  loss 8.205  term0 0.4067")
    assert ("memory/" in line, "data_wait" in line, "grad_norm" in line) == (verbosity == "debug",) * 3
    assert ("learning_rate" in line) == (not terminal or verbosity == "debug")
    if terminal and verbosity == "normal":
        assert len(line) <= 120
        assert line.endswith("  ...")


TERMS = loss_terms(["mel", "duration", "pitch", "energy"])
VALUES = {"loss": 9.0, "mel": 1.0, "duration": 2.0, "pitch": 3.0, "energy": 4.0, "features": 5.0, "mos": 3.9}


@pytest.mark.parametrize(
    ("split", "selected", "shown"),
    [
        ("train", "val_loss", "loss 9  mel 1  duration 2  mos 3.9"),
        ("validation", "val_loss", "loss 9  mos 3.9  mel 1  duration 2  features 5"),
        ("validation", "val_energy", "loss 9  mos 3.9  mel 1  duration 2  energy 4  features 5"),
    ],
)
def test_of_many_terms_of_a_loss_the_first_are_shown(split, selected, shown, caplog):
    screen = console(terminal=False)
    metrics = [*TERMS, Metric("mos", "higher"), Metric("effect", "", "dB")]  # the last says nothing by itself
    sink = ConsoleSink(9, console=screen, metrics=metrics, selected=selected)
    sink.write(1, split, {**VALUES, "effect": 4.0}, None)
    assert screen.file.getvalue() == f"step 1/9  {split}  {shown}\n"


def test_epochs_of_one_step_are_no_line_each():
    screen = console(terminal=False)
    sink = ConsoleSink(100, console=screen, interval=50)
    for step in range(1, 101):
        sink.write(step, "epoch", {"loss": 1.0, "ctc": 1.0}, epoch=step)
    lines = screen.file.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/100", "51/100"]
    assert all(line.endswith("loss 1") for line in lines), "the only term of the loss is not shown twice"


def test_the_means_of_an_epoch_are_shown_where_nothing_else_of_it_was():
    screen = console(terminal=False)
    sink = ConsoleSink(500, console=screen)
    for step, split in ((1, "validation"), (2, "epoch"), (3, "train"), (4, "validation"), (4, "epoch"), (6, "epoch")):
        sink.write(step, split, {"loss": 1.0}, 0)
    assert [line.split()[1:5:3] for line in screen.file.getvalue().splitlines()] == [
        ["1/500", "validation"], ["2/500", "train"], ["3/500", "train"], ["4/500", "validation"], ["6/500", "train"]
    ]  # fmt: skip


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text):
        raise OSError(5, "Input/output error")


def test_a_terminal_that_has_gone_does_not_end_training(caplog):
    caplog.set_level(logging.INFO, logger="phonate.metrics")
    screen = console(terminal=True)
    sink = ConsoleSink(500, console=screen)
    screen.file = Gone()
    sink.tick(10)
    sink.write(10, "train", {"loss": 0.5}, 0)
    sink.close()
    assert "step 10/500" in caplog.text, "the log has it still"


def test_the_bar_ends_at_the_last_step():
    screen = console(terminal=True)
    sink = ConsoleSink(3, console=screen)
    for step in (1, 2, 3):
        sink.tick(step)
    sink.close()
    assert "3/3" in screen.file.getvalue()


def test_a_terminal_shows_progress_and_the_time_left():
    screen = console(terminal=True)
    sink = ConsoleSink(500, console=screen)
    assert not screen.file.getvalue(), "before the first step others may show how far the preparation is"
    sink.tick(150)
    sink.write(150, "train", {"loss": 0.5}, 0)
    sink.close()
    shown = screen.file.getvalue()
    assert "150/500" in shown
    assert "time left" in shown
    assert "loss 0.5" in shown


@pytest.mark.parametrize(("terminal", "verbosity"), [(True, "normal"), (False, "normal"), (False, "quiet")])
def test_the_log_tells_the_time_left_whatever_the_console_shows(monkeypatch, caplog, terminal, verbosity):
    caplog.set_level(logging.INFO, logger="phonate.metrics")
    clock = iter([0.0, 10.0, 16.0, 60.0, 77.0])
    monkeypatch.setattr(tracking, "perf_counter", lambda: next(clock))
    sink = ConsoleSink(100, verbosity=verbosity, console=console(terminal=True) if terminal else None)
    for step in (1, 6, 11, 20, 21):
        sink.tick(step)
    sink.close()
    assert caplog.messages == ["step 11/100  time left 2.4 min", "step 21/100  time left 5.1 min"]


@pytest.mark.parametrize(("verbosity", "lines"), [("quiet", 0), ("normal", 1), ("debug", 2)])
def test_verbosity(verbosity, lines):
    screen = console(terminal=False)
    sink = ConsoleSink(10, verbosity=verbosity, console=screen)
    sink.write(1, "train", {"loss": 0.5}, 0)
    sink.write(2, "train", {"system/memory_gb": 0.5}, 0)
    assert len(screen.file.getvalue().splitlines()) == lines


def test_log_metrics_may_mean_validation_alone(caplog):
    recorder = Recorder()
    stream = MetricStream([recorder], only=["val_loss"])
    for split in ("train", "epoch", "validation"):
        stream.emit(10, split, {"loss": 1.0, "mse": 1.0})
    stream.close()
    assert [(split, values) for _, split, values, *_ in recorder.seen] == [("validation", {"loss": 1.0})]
    assert not caplog.text


@pytest.mark.parametrize("name", ["nosuch", "mxe", "train_loss"])
def test_log_metrics_that_nothing_reports_are_refused_before_training(tmp_path, name):
    class Declared(RegressionTask):
        @property
        def metrics(self):
            return losses(["mse"])

    hint = {"nosuch": "choose from.* 'mse'", "mxe": r"did you mean mse\?", "train_loss": "loss"}[name]
    with pytest.raises(InputError, match=rf"log_metrics: .*'{name}'; .*{hint}"):
        train(tmp_path / "run", Declared(), logging={"log_metrics": ["loss", name]})
    assert not (tmp_path / "run/metrics.jsonl").exists()
    shown = ["mse", "val_mse", "learning_rate", "grad_norm/0", "data_wait", "system/*", "nosuch*"]
    train(tmp_path / "known", Declared(), max_steps=1, logging={"log_metrics": shown})


def test_log_metrics_may_name_what_callbacks_of_ones_own_report(tmp_path):
    class Own(Callback):
        def on_optimizer_step(self, trainer):
            trainer.emit({"mood": 1.0})

    class Declared(RegressionTask):
        @property
        def metrics(self):
            return losses(["mse"])

    train(tmp_path / "run", Declared(), max_steps=1, callbacks=[Own()], logging={"log_metrics": ["mood"]})


def test_log_metrics_that_keep_nothing_are_reported_at_the_first_line(caplog):
    """Not only at the end of a run that recorded nothing."""
    recorder = Recorder()
    stream = MetricStream([recorder], only=["nosuch"])
    for step in (10, 20):
        stream.emit(step, "train", {"loss": 1.0, "mse": 1.0})
    assert recorder.seen == []
    assert caplog.text.count("nosuch matches none of the train metrics") == 1
    assert "available: 'loss', 'mse'" in caplog.text
