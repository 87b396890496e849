"""Corpora that recipes of Lhotse prepare, alone and beside others, without a network."""

from __future__ import annotations

import json
import pickle

import lhotse.recipes
import numpy as np
import pytest
from small_corpora import wav

from phonate.config.errors import DataError, InputError, Interrupted
from phonate.data.cache import SPLITS
from phonate.data.corpora import lhotse as recipes
from phonate.data.corpora.manifest import list_corpus
from phonate.data.prepared import prepare
from phonate.data.settings import PARTS, DatasetSettings, KaldiData, recipe_names
from phonate_process import PythonProcess
from recipe_corpora import ami, librispeech, timit, voxconverse, yesno


@pytest.fixture
def data(tmp_path):
    def settings(*datasets, **changes):
        common = {"corpus_dir": str(tmp_path / "data"), "output_dir": str(tmp_path / "manifests")}
        entries = tuple(DatasetSettings(**({"name": one} if isinstance(one, str) else one)) for one in datasets)
        common["cache_dir"] = str(tmp_path / "cache")
        return KaldiData(datasets=entries, **{**common, **changes})

    return settings


@pytest.fixture
def no_download(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("nothing may be downloaded")

    for name in ("download_ami", "download_yesno"):
        monkeypatch.setattr(lhotse.recipes, name, refuse)


def test_names_are_those_of_lhotse():
    functions = {name.removeprefix("prepare_") for name in dir(lhotse.recipes) if name.startswith("prepare_")}
    assert set(recipe_names()) == functions | set(PARTS)
    assert {"ami", "voxconverse", "librispeech", "mini_librispeech", "timit", "yesno"} <= set(recipe_names())


@pytest.mark.usefixtures("no_download")
def test_ami_is_read_with_its_segments_and_official_parts(tmp_path, data):
    ami(tmp_path / "data" / "ami")
    prepared = prepare(data("ami"))
    index = prepared.index
    assert sorted(index.id[:]) == ["ES2002a", "ES2004a", "ES2011a"]
    for positions, meeting in (
        (prepared.train, "ES2002a"),
        (prepared.validation, "ES2011a"),
        (prepared.test, "ES2004a"),
    ):
        assert [index.id[int(position)] for position in positions] == [meeting]
    found = index.segments(index.id[:].index("ES2002a"))
    assert [(one.start, one.end, prepared.speakers[one.speaker]) for one in found] == [
        (0.5, 2.0, "FES2002a"),
        (1.5, 3.0, "MES2002a"),
    ]
    assert all("Mix-Headset" in path for path in index.path[:])


@pytest.mark.parametrize(
    ("name", "lay_out", "parts", "speakers"),
    [
        ("voxconverse", voxconverse, [0, 1, 1], ["abjxc/spk00", "abjxc/spk01", "aepyx/spk00", "aepyx/spk01"]),
        ("librispeech", librispeech, [1, 1, 0], ["19", "84"]),
        ("mini_librispeech", librispeech, [1, 1, 0], ["19", "84"]),
        ("timit", timit, [1, 1, 1], ["FAKS0", "FCJF0", "MDAB0"]),
    ],
)
@pytest.mark.usefixtures("no_download")
def test_other_corpora_are_read_with_their_parts(tmp_path, data, name, lay_out, parts, speakers, capsys):
    lay_out(tmp_path / "data" / name)
    prepared = prepare(data(name, num_jobs=2))
    official = np.asarray(prepared.index.official_split)
    assert [int((official == number).sum()) for number in (1, 2, 3)] == parts
    assert prepared.speakers == speakers
    assert capsys.readouterr().out == ""  # where `--json` prints its document


@pytest.mark.usefixtures("no_download")
def test_process_params_reach_the_recipe(tmp_path, data):
    ami(tmp_path / "data" / "ami")
    rows, _ = list_corpus(data({"name": "ami", "process_params": {"mic": "sdm"}}))
    assert all("Array1-01" in str(row.path) for row in rows)
    # manifests of other arguments are not those that are wanted
    rows, _ = list_corpus(data({"name": "ami", "process_params": {"mic": "ihm-mix"}}))
    assert all("Mix-Headset" in str(row.path) for row in rows)


@pytest.mark.usefixtures("no_download")
def test_several_corpora_are_one_index(tmp_path, data):
    ami(tmp_path / "data" / "ami")
    yesno(tmp_path / "data" / "yesno" / "waves_yesno")
    for speaker in ("FES2002a", "bob"):  # a name that is another's in AMI
        wav(tmp_path / "own" / speaker / "0.wav", seconds=1.0)
    settings = data("ami", {"name": "yesno", "limit": 10}, {"name": "mine", "path": str(tmp_path / "own")})
    prepared = prepare(settings)
    index = prepared.index
    assert len(index) == 3 + 10 + 2
    assert {name.split("/")[0] for name in index.id[:]} == {"ami", "yesno", "mine"}
    assert {"ami/FES2002a", "mine/FES2002a"} <= set(prepared.speakers)
    splits = {index.id[i]: SPLITS[int(index.official_split[i])] for i in range(len(index))}
    assert splits["ami/ES2011a"] == "validation"
    assert {splits[name] for name in splits if name.startswith("yesno/")} <= {"train", "test"}
    position = next(i for i in range(len(index)) if index.id[i].startswith("yesno/"))
    assert prepared.cache.features(position).shape == (20, 80)  # 8 kHz resampled to 16
    assert prepared.report["over_limit"] == 50
    alone, _ = list_corpus(settings.separate()[0])
    assert sorted(row.id for row in alone) == ["ES2002a", "ES2004a", "ES2011a"]


def test_a_corpus_is_downloaded_once(tmp_path, data, monkeypatch):
    calls = []

    def download(target_dir=".", force_download=False, url="http://example.org"):
        calls.append((force_download, url))
        if len(calls) == 1:
            yesno(target_dir / "waves_yesno")
        return target_dir / "waves_yesno"

    monkeypatch.setattr(lhotse.recipes, "download_yesno", download)
    entry = {"name": "yesno", "download_params": {"url": "http://mirror"}}
    assert len(list_corpus(data(entry))[0]) == 60
    assert len(list_corpus(data(entry))[0]) == 60
    assert calls == [(False, "http://mirror")]
    for number in range(2):  # without the manifests, the corpus is still there
        assert len(list_corpus(data(entry, output_dir=str(tmp_path / f"again{number}")))[0]) == 60
    assert len(calls) == 1
    monkeypatch.setattr(recipes, "_downloaded_here", set())  # as in another process
    for _ in range(2):
        list_corpus(data(entry, force_download=True))
    assert calls[1:] == [(True, "http://mirror")]


def test_a_download_that_fails_says_where_to_put_the_corpus(tmp_path, data, monkeypatch):
    def download(target_dir, force_download=False):
        (target_dir / "part.zip").write_text("half of it")
        raise OSError("Network is unreachable")

    monkeypatch.setattr(lhotse.recipes, "download_ami", download)
    with pytest.raises(DataError, match=rf"ami: .*unreachable.* {tmp_path}/data/ami$"):
        list_corpus(data("ami"))
    assert not list((tmp_path / "manifests").glob("ami/*"))
    with pytest.raises(DataError, match="download failed"):  # what is left of it is not taken for a corpus
        list_corpus(data("ami"))


@pytest.mark.usefixtures("no_download")
def test_a_recipe_that_fails_leaves_no_manifests(tmp_path, data):
    folder = yesno(tmp_path / "data" / "yesno")
    next(folder.glob("*.wav")).unlink()
    with pytest.raises(DataError, match=r"data/yesno: .*AssertionError"):
        list_corpus(data("yesno"))
    assert [file.name for file in (tmp_path / "manifests" / "yesno").iterdir()] == ["phonate.json"]


@pytest.mark.usefixtures("no_download")
def test_a_corpus_that_lhotse_can_not_download_is_asked_for(tmp_path, data):
    with pytest.raises(DataError, match=r"data/callhome_english: .*can't download"):
        list_corpus(data({"name": "callhome_english", "process_params": {"rttm_dir": "r"}}))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"name": "ami", "process_params": {"microphone": "sdm"}},
            "process_params: .*'microphone'; .*mic",
        ),
        ({"name": "ami", "process_params": {"output_dir": "x"}}, "process_params: .*'output_dir'"),
        ({"name": "heroico"}, "process_params .*transcript_dir"),
    ],
)
@pytest.mark.usefixtures("no_download")
def test_arguments_that_a_recipe_does_not_take_are_refused(tmp_path, data, entry, said):
    (tmp_path / "data" / entry["name"] / "x").mkdir(parents=True)
    with pytest.raises(InputError, match=said):
        list_corpus(data(entry))


def test_download_params_that_the_recipe_does_not_take_are_refused(data):
    with pytest.raises(InputError, match=r"'mirror'; .*'target_dir', 'force_download', 'url'"):
        list_corpus(data({"name": "yesno", "download_params": {"mirror": "x"}}))


@pytest.mark.usefixtures("no_download")
def test_other_files_in_the_output_folder_stay(tmp_path, data):
    ami(tmp_path / "data" / "ami")
    (tmp_path / "out" / "notes").mkdir(parents=True)
    (tmp_path / "out" / "readme.txt").write_text("mine")
    for mic in ("sdm", "ihm-mix"):
        list_corpus(data({"name": "ami", "output_dir": str(tmp_path / "out"), "process_params": {"mic": mic}}))
        manifests = [file.name for file in (tmp_path / "out").glob("*.gz")]
        assert len(manifests) == 6
        assert all(name.startswith(f"ami-{mic}_") for name in manifests)
    assert (tmp_path / "out" / "readme.txt").read_text() == "mine"
    assert (tmp_path / "out" / "notes").is_dir()


@pytest.mark.usefixtures("no_download")
def test_what_a_stopped_process_wrote_is_made_again(tmp_path, data, monkeypatch):
    ami(tmp_path / "data" / "ami")
    own = lhotse.recipes.prepare_ami

    def stopped(data_dir, output_dir=None, mic="ihm"):
        own(data_dir, output_dir=output_dir, mic=mic)
        raise Interrupted("stopped", 15)

    monkeypatch.setattr(lhotse.recipes, "prepare_ami", stopped)
    with pytest.raises(Interrupted):
        list_corpus(data({"name": "ami", "process_params": {"mic": "sdm"}}))
    monkeypatch.setattr(lhotse.recipes, "prepare_ami", own)
    rows, _ = list_corpus(data("ami"))
    assert len(rows) == 3
    assert all("Mix-Headset" in str(row.path) for row in rows)


@pytest.mark.usefixtures("no_download")
def test_manifests_that_someone_else_wrote_are_used(tmp_path, data):
    corpus = yesno(tmp_path / "elsewhere")
    lhotse.recipes.prepare_yesno(corpus, tmp_path / "manifests" / "yesno")
    assert len(list_corpus(data("yesno"))[0]) == 60
    with pytest.raises(DataError, match="not written by phonate"):
        list_corpus(data("yesno", force_download=True))


def test_what_a_recipe_only_returns_is_written(tmp_path, data, monkeypatch):
    corpus = yesno(tmp_path / "data" / "yesno")
    made = lhotse.recipes.prepare_yesno(corpus)

    def prepare_yesno(corpus_dir, parts="all"):
        return {"hebrew": made}

    monkeypatch.setattr(lhotse.recipes, "prepare_yesno", prepare_yesno)
    rows, _ = list_corpus(data("yesno"))
    assert {row.split for row in rows} == {"train", "test"}
    assert json.loads((tmp_path / "manifests/yesno/phonate.json").read_text())["made_from"]["name"] == "yesno"


@pytest.mark.usefixtures("no_download")
@pytest.mark.parametrize("kind", ["fbank", "mfcc", "spectrogram"])
def test_features_are_the_same_on_the_fly_in_memory_and_on_disk(tmp_path, data, kind):
    ami(tmp_path / "data" / "ami")
    audio = {"feature_type": kind, "dither": 1e-4}
    found = {}
    for storage in ("on_the_fly", "memory", "disk"):
        settings = data("ami", storage_type=storage).model_copy(update={"audio": type(data().audio)(**audio)})
        prepared = prepare(settings)
        assert prepared.cache.computes == (storage == "on_the_fly")
        assert prepared.cache.width == settings.audio.width
        stored = (prepared.folder / "features.bin").stat().st_size
        assert bool(stored) == (storage == "disk")
        assert np.array_equal(pickle.loads(pickle.dumps(prepared.cache)).features(1), prepared.cache.features(1))
        count = len(prepared.index)
        found[storage] = [prepared.cache.features(i) for i in range(count)]
        found[f"{storage} in parts"] = [
            np.concatenate([prepared.cache.features(i, start, start + 130) for start in range(0, 400, 130)])
            for i in range(count)
        ]
    for values in found.values():
        for one, other in zip(values, found["disk"], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("no_download")
def test_storage_path_is_the_folder_of_features(tmp_path, data):
    ami(tmp_path / "data" / "ami")
    prepared = prepare(data("ami", storage_path=str(tmp_path / "features")))
    assert prepared.folder.parent == tmp_path / "features"
    assert (prepared.folder / "features.bin").stat().st_size == 3 * 400 * 80 * 4
    # on the fly, other features need no other waveforms
    on_the_fly = prepare(data("ami"))
    other = data("ami").model_copy(update={"audio": type(data().audio)(num_mel_bins=40)})
    assert prepare(other).folder == on_the_fly.folder
    assert prepare(other).cache.features(0).shape == (400, 40)


@pytest.mark.usefixtures("no_download")
def test_progress_is_shown_unless_progress_bar_is_false(tmp_path, data):
    from phonate.data.parallel import progress_listener

    ami(tmp_path / "data" / "ami")
    for shown in (True, False):
        said: list[tuple[object, ...]] = []
        with progress_listener(lambda *what, said=said: said.append(what)):
            prepare(data("ami", progress_bar=shown, cache_dir=str(tmp_path / f"cache{shown}")))
        assert bool(said) == shown


def test_processes_that_start_together_prepare_once(tmp_path):
    """As the ranks of a run do."""
    ami(tmp_path / "data" / "ami")
    script = """if True:
        import sys, time
        import lhotse.recipes
        from phonate.data.corpora.lhotse import manifests_of
        from phonate.data.settings import DatasetSettings
        own = lhotse.recipes.prepare_ami
        def prepare_ami(data_dir, annotations_dir=None, output_dir=None, mic="ihm"):
            with open(sys.argv[1] + "/calls", "a") as file:
                file.write("prepared")
            time.sleep(1)
            return own(data_dir, output_dir=output_dir, mic=mic)
        lhotse.recipes.prepare_ami = prepare_ami
        folder = sys.argv[1]
        manifests_of(DatasetSettings(name="ami", corpus_dir=folder + "/data/ami", output_dir=folder + "/m/ami"))
    """
    started = [PythonProcess("-c", script, tmp_path) for _ in range(2)]
    assert [one.wait() for one in started] == [0, 0]
    assert (tmp_path / "calls").read_text() == "prepared"
