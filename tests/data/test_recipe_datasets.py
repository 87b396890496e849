"""A recipe's `global_config` and `datasets`: where their options go, and what is said of mistakes in them."""

from __future__ import annotations

import pytest
from datasets_task import register

from documents import DATA
from phonate.config.errors import RecipeError
from phonate.config.resolve import resolve
from phonate.config.tasks import TASKS
from phonate.parse_args import unified_parser
from phonate.workflows.explain import schema

DOCUMENT = f"""\
task: meetings{DATA}
training:
  optimizer:
    type: adamw
    lr: 2e-4
  scheduler:
    type: cosine
    min_lr: 1e-6
"""
"""The published example, and floats that YAML 1.1 reads as text."""


@pytest.fixture(autouse=True)
def _task(monkeypatch):
    monkeypatch.setattr(TASKS, "_registered", dict(TASKS._registered))
    register()


@pytest.fixture
def recipe(tmp_path):
    def write(text):
        path = tmp_path / "meetings.yaml"
        path.write_text(text)
        return path

    return write


def refused(path, overrides=()):
    with pytest.raises(RecipeError) as error:
        resolve(path, overrides)
    return str(error.value)


def test_the_published_example_is_read_as_it_stands(recipe):
    found = resolve(recipe(DOCUMENT)).recipe
    assert found.training.optimizer.lr == 2e-4
    assert found.training.scheduler.min_lr == 1e-6
    assert [one.name for one in found.data.datasets] == ["ami"]
    assert (found.data.audio.width, found.data.audio.frames_per_second) == (80, 100.0)
    assert found.data.storage == "on_the_fly"


def test_defaults_are_those_of_the_example(recipe):
    found = resolve(recipe("task: meetings\ndatasets: [{name: ami}]\n")).recipe
    written = resolve(recipe(DOCUMENT)).recipe
    assert found.data.model_copy(update={"audio": written.data.audio}) == written.data
    assert found.data.audio == written.data.audio.model_copy(update={"num_mel_bins": None})
    assert found.data.audio.width == written.data.audio.width


def test_a_resolved_recipe_reads_the_same(recipe):
    found = resolve(recipe(DOCUMENT))
    assert resolve(recipe(found.to_yaml())).recipe == found.recipe


def test_values_know_where_they_were_written(recipe):
    origins = resolve(recipe(DOCUMENT), ["global_config.num_ceps=12", "datasets.0.limit=3"]).origins
    assert origins["data", "audio", "num_mel_bins"].endswith("meetings.yaml:10:17")
    assert origins["data", "corpus_dir"].endswith("meetings.yaml:3:15")
    assert origins["data", "audio", "num_ceps"] == "overrides"


def test_overrides_take_the_written_keys(recipe):
    path = recipe(DOCUMENT)
    data = resolve(
        path, ["global_config.num_mel_bins=40", "global_config.output_dir=m", "datasets.0.limit=3"]
    ).recipe.data
    assert (data.audio.num_mel_bins, data.output_dir, data.datasets[0].limit) == (40, "m", 3)
    data = resolve(path, {"global_config": {"num_mel_bins": 24, "corpus_dir": "c"}}).recipe.data
    assert (data.audio.num_mel_bins, data.corpus_dir, data.audio.frame_shift) == (24, "c", 0.01)
    data = resolve(path, ["datasets=[{name: yesno}, {name: timit}]"]).recipe.data
    assert [one.name for one in data.datasets] == ["yesno", "timit"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("global_config: {num_mel_bin: 80}", "2:17 global_config.num_mel_bin: no such option; did you mean num_mel"),
        ("global_config: {corpusdir: x}", "2:17 global_config.corpusdir: no such option; did you mean corpus_dir?"),
        ("global_config: {num_mel_bins: '80'}", "2:31 global_config.num_mel_bins: expected a whole number"),
        ("global_config: {window_type: kaiser}", "2:30 global_config.window_type: expected 'povey'"),
        ("global_config: {storage_type: lilcom_chunky}", "2:31 global_config.storage_type: Lhotse's compressed files"),
        ("global_config: {storage_type: hdf5}", "write disk"),
        ("global_config: {mix_eagerly: true}", "2:17 global_config.mix_eagerly: mixtures are mixed as waveforms"),
        ("global_config: {device: cuda}", "2:17 global_config.device: features are computed on the CPU"),
        ("global_config: {frame_length: 25}", "expected a number <= 1"),
        ("global_config: [fbank]", "2:16 global_config: expected a mapping"),
        ("global_config: {low_freq: 8000}", "half the sampling_rate"),
        ("datasets: [{name: amii}]", "2:12 datasets.0: no path, and Lhotse has no recipe 'amii'; did you mean ami?"),
        ("datasets: [{name: ami, num_mel_bins: 40}]", "2:24 datasets.0.num_mel_bins: features must be the same"),
        ("datasets: [{name: ami, storage_path: x}]", "2:24 datasets.0.storage_path: all corpora are prepared together"),
        ("datasets: [{name: ami, processparams: {}}]", "did you mean process_params?"),
        ("datasets: [{name: x, path: y, force_download: true}]", "force_download is only for corpora prepared by"),
        ("datasets: [{name: ami}, {name: ami}]", "two datasets are called ami"),
        ("datasets: ami", "2:11 datasets: expected a list, got 'ami'"),
        ("datasets: [{name: ami}]\ndata: {path: x}", "give one of the two"),
        ("global_config: {num_ceps: 12}\ndata: {audio: {num_ceps: 12}}", "written twice, also at"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(recipe, line, said):
    message = refused(recipe(f"task: meetings\n{line}\n"))
    assert len(message.splitlines()) == 1
    assert said in message
    assert message.startswith(str(recipe("")))


def test_each_mistake_of_several_has_its_line(recipe):
    lines = refused(
        recipe(DOCUMENT.replace("dither: 0.0", "dither: -1").replace("num_jobs: 1", "num_jobs: 0"))
    ).splitlines()
    assert [line.split()[1] for line in lines] == ["global_config.dither:", "global_config.num_jobs:"]


def test_other_tasks_have_no_such_keys(recipe):
    assert "global_config: no such option" in refused(recipe("task: vocoder\ndata: {path: x}\nglobal_config: {}\n"))


def test_the_schema_has_the_keys(recipe):
    properties = schema(recipe(DOCUMENT))["properties"]
    assert {"num_mel_bins", "corpus_dir"} <= properties["global_config"]["properties"].keys()
    assert properties["datasets"]["type"] == "array"


def test_the_parser_gives_one_configuration_for_each_corpus(recipe):
    path = str(recipe(DOCUMENT.replace("  - name: ami\n", "  - name: ami\n  - name: yesno\n")))
    _, _, corpora, _ = unified_parser(["--config", path, "--data-only"])
    assert [[one.name for one in data.datasets] for data in corpora] == [["ami"], ["yesno"]]
    assert all(data.audio == corpora[0].audio for data in corpora)
    *_, training = unified_parser(["--config", path, "--training-only", "--lr", "1e-3"])
    assert training.optimizer.lr == 1e-3
