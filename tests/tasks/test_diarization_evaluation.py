"""`phonate evaluate` of a diarization run, and the baselines beside it."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from meetings import recipe, trained_on_meetings, write_meetings
from phonate.audio.decoding import read_audio
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.config.tasks import task_info
from phonate.evaluation.diarization import score
from phonate.tasks.diarization.evaluation import LabelledRecording, conversations_of
from phonate.tasks.diarization.inference import Diarizer
from phonate.tasks.diarization.settings import SmoothingSettings
from phonate.workflows.pages.report import evaluation as evaluation_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("resemblyzer") is None, reason="needs resemblyzer: pip install 'phonate[eval]'"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A corpus of meetings and a run that was trained on it for a moment."""
    return shutil.copytree(trained_on_meetings(), tmp_path_factory.mktemp("trained") / "meetings")


def test_validation_recordings(trained, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(trained / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["focus"] == "the model, as phonate diarize does it"
    assert found["columns"]["speakers"]["label"] == "speakers miscounted"
    assert "speakers miscounted: by how many speakers too many or too few" in found["legend"]
    assert "too few may be found all the same: near voices stay one" in found["legend"]
    assert "RTF: seconds of computation per second of audio, timed once, on this machine under its" in found["legend"]
    systems = found["systems"]
    assert set(systems) == {
        "one speaker throughout",
        "voice activity, embeddings, clustering",
        "voice activity, embeddings, clustering, told how many speak",
        "the model, voices not compared",
        "the model, as phonate diarize does it",
        "the model, voices compared, told how many speak",
    }
    for values in systems.values():
        assert values["der"] == pytest.approx(values["miss"] + values["false_alarm"] + values["confusion"])
    assert systems["the model, voices not compared"]["der"] < systems["one speaker throughout"]["der"]
    assert found["notes"]["recordings_trained_on"] == 0
    assert len(found["items"]) == found["notes"]["recordings"]
    assert json.loads((trained / "run" / "evaluation.json").read_text())["systems"] == systems


def test_what_validation_shows_has_a_caption_in_the_report(trained):
    shown = {path.stem for path in (trained / "run" / "previews").iterdir()}
    assert shown == set(task_info("diarization").previews)


def test_another_corpus(trained, tmp_path, capsys):
    """Its recordings are read whole, and those that were trained on are counted."""
    capsys.readouterr()
    assert main(["evaluate", str(trained / "run"), "--data", str(trained_on_meetings() / "corpus"), "--json"]) == 0
    captured = capsys.readouterr()
    notes = json.loads(captured.out)["notes"]
    assert notes["recordings"] == 10
    assert 0 < notes["recordings_trained_on"] < 10
    assert "were trained on, so the figures are too good" in captured.err


def test_a_folder_called_as_that_of_the_packaged_diarizer_is_another(tmp_path, monkeypatch, capsys):
    """Its recipe says data.path: meetings, which is what the lesson calls the reader's."""
    monkeypatch.chdir(tmp_path)
    write_meetings(tmp_path / "meetings", 3)
    assert main(["evaluate", "base/diarizer", "--data", "meetings", "--output", "figures"]) == 0
    assert "too good" not in capsys.readouterr().err
    (tmp_path / "meetings").rename("other")
    assert main(["evaluate", "base/diarizer", "--data", "other", "--output", "figures"]) == 0
    assert "can't tell" not in capsys.readouterr().err


def test_recordings_without_speech_are_refused(trained, tmp_path, capsys):
    soundfile.write(tmp_path / "quiet.wav", 1e-3 * np.random.default_rng(0).normal(size=16000), 16000)
    (tmp_path / "quiet.uem").write_text("quiet 1 0 1\n")
    (tmp_path / "quiet.rttm").write_text("SPKR-INFO quiet 1 <NA> <NA> <NA> unknown ann <NA>\n")
    assert main(["evaluate", str(trained / "run"), "--data", str(tmp_path)]) == 2


def test_recordings_without_labels_are_refused(trained, tmp_path, capsys):
    """They would be one speaker throughout."""
    (write_meetings(tmp_path / "meetings", 3) / "meetings.rttm").unlink()
    assert main(["evaluate", str(trained / "run"), "--data", str(tmp_path / "meetings")]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    said = "no labels say who speaks when in 3 of 3 recordings: m0, m1, m2; put labels beside them"
    assert told.startswith(f"error: {tmp_path / 'meetings'}: {said}")
    assert "data.drop" not in told, "a run's recipe is given"


def test_recordings_that_cannot_be_used_are_named(trained, tmp_path, capsys):
    labels = write_meetings(tmp_path / "meetings", 3) / "meetings.rttm"
    labels.write_text("".join(line for line in labels.read_text().splitlines(keepends=True) if " m1 " not in line))
    assert main(["evaluate", str(trained / "run"), "--data", str(tmp_path / "meetings"), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["notes"]["recordings"] == 2
    assert "1 recording can't be used, and is left out: " in captured.err
    assert "m1.wav" in captured.err


def test_baselines_of_real_meetings(recordings, trained):
    """About what others measured: 42 to 44 % with Silero as detector, 57 % on other extracts."""
    from phonate.tasks.diarization.evaluation import Baseline
    from phonate.tasks.diarization.inference import Diarizer
    from phonate.tasks.diarization.segmentation import SpeakerLimits

    data = Diarizer.load(trained / "run").recipe.data
    baseline = Baseline(0.4)
    wrong, speech = np.zeros(2), 0.0
    for one in conversations_of(data, str(recordings / "diar_en_ami")):
        count = len({turn.speaker for turn in one.turns})
        for system, limits in enumerate((None, SpeakerLimits(count, count))):
            turns = baseline.diarize(one.read(), data.audio.sample_rate, limits)
            errors = score(one.turns, turns, regions=[(0.0, one.seconds)])
            wrong[system] += errors.wrong
            assert limits is None or len({turn.speaker for turn in turns}) <= count
        speech += errors.speech
    assert (wrong / speech > 0.4).all()
    assert (wrong / speech < 0.6).all()


def test_rows_of_a_corpus_are_read_as_they_are(recordings):
    from phonate.tasks.diarization.settings import DiarizationData

    found = list(conversations_of(DiarizationData(), str(recordings / "diar_en_ami")))
    assert len(found) == 10
    one = found[0]
    waveform = np.concatenate(list(one.read()))
    np.testing.assert_array_equal(waveform, read_audio(one.file, 16000)[0][: len(waveform)])
    assert one.seconds == 30.0 == len(waveform) / 16000  # as the UEM says
    assert all(0.0 <= turn.start < turn.end <= one.seconds + 1e-6 for turn in one.turns)


def test_custom_labels_are_refused(trained, monkeypatch):
    from phonate.tasks.diarization import evaluation

    class Custom:
        label_type = "custom"

    monkeypatch.setattr(Diarizer, "load", classmethod(lambda *_, **__: Custom()))
    with pytest.raises(InputError, match="custom"):
        evaluation.evaluate(trained / "run")


@pytest.mark.parametrize("gone", [False, True])
def test_the_model_that_training_began_from_is_judged_beside_the_run(trained, tmp_path, monkeypatch, caplog, gone):
    from phonate.tasks.diarization import evaluation

    diarizer = Diarizer.load(trained / "run")
    source = str(tmp_path / "gone") if gone else str(trained / "run")
    training = diarizer.recipe.training.model_copy(update={"init_from": source})
    diarizer.recipe = diarizer.recipe.model_copy(update={"training": training})
    monkeypatch.setattr(Diarizer, "load", _first(diarizer, Diarizer.load))
    systems = evaluation.evaluate(trained / "run").systems
    if gone:
        assert not any("where training began" in name for name in systems)
        assert "what training began from is not compared" in caplog.text
    else:
        before, now = systems[f"{source}, where training began"], systems["the model, as phonate diarize does it"]
        assert before["der"] == now["der"]  # it is the same model


def _first(given, load):
    """`load`, whose first call gives what is `given`."""
    left = [given]
    return lambda *arguments, **named: left.pop() if left else load(*arguments, **named)


def test_tuning_finds_the_threshold_that_validation_wants(tmp_path, capsys):
    """A model whose recipe has a threshold that hardly any frame reaches is as good as another after tuning."""
    corpus = write_meetings(tmp_path / "corpus", 8)
    (tmp_path / "recipe.yaml").write_text(recipe(corpus, 40, decoding="{threshold: 0.999}"))
    run = tmp_path / "run"
    settings = ["training.validation.metric_for_best_model=der", "data.validation=0.4"]
    assert main(["train", str(tmp_path / "recipe.yaml"), *settings, "--output", str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.err.count(" and say little") + printed.err.count(" and says little") == 1
    assert re.search(
        r"^m\d, m\d.* validate and say little; a larger data.validation holds out more$", printed.err, re.M
    )
    assert "Validation scores single chunks" in printed.err
    assert ", best der " in printed.out.splitlines()[0]

    def der(*options):
        assert main(["evaluate", str(run), "--json", *options]) == 0
        printed = capsys.readouterr()
        said.append(printed.err)
        return json.loads(printed.out)["systems"]["the model, as phonate diarize does it"]["der"]

    said = []
    before = der()
    after = der("--tune")
    assert after < before - 0.1
    figures = json.loads((run / "evaluation.json").read_text())
    assert f"{figures['notes']['recordings']} recordings: DER {100 * before:.3g} % -> {100 * after:.3g} %" in said[-1]
    assert f"kept in {run / 'decoding.json'}" in said[-1]
    assert "delete it to undo" in said[-1]
    assert "so few recordings may decide badly for others" in said[-1]
    assert figures["notes"]["tuned_on"] == "these recordings"
    assert "chosen on these recordings: the figures are not a test" in figures["caveats"][0]
    assert "chosen on these recordings" in evaluation_table(run / "evaluation.json")[0]["note"]
    chosen = json.loads((run / "decoding.json").read_text())
    assert chosen["threshold"] < 0.9
    assert der() == after  # kept in the run
    (run / "decoding.json").write_text("{")
    assert main(["diarize", str(run), str(corpus / "m0.wav")]) == 2
    assert "decoding.json: invalid decoding settings; delete it, then " in capsys.readouterr().err
    assert main(["evaluate", str(run), "--tune"]) == 2  # reads them, too


def test_two_recordings_are_too_few_to_tune_on(trained, tmp_path, capsys):
    run = shutil.copytree(trained / "run", tmp_path / "run")
    assert main(["evaluate", str(run), "--tune"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {run}: training held out 2 recordings, and --tune needs 3 or more to choose values that others gain "
        "by; train with more labelled recordings, or a larger data.validation"
    ]
    assert not (run / "decoding.json").exists()


def test_another_corpus_is_not_tuned_on(trained, tmp_path, capsys):
    run = shutil.copytree(trained / "run", tmp_path / "run")
    assert main(["evaluate", str(run), "--tune", "--data", str(trained / "corpus")]) == 2
    assert main(["evaluate", "base/diarizer", "--tune", "--output", str(run)]) == 2
    told, packaged = capsys.readouterr().err.splitlines()
    assert packaged == "error: base/diarizer: --tune writes to the run that it tunes; give the folder of one"
    assert told.startswith(f"error: --tune chooses on what training held out, not on --data {trained / 'corpus'}: ")
    assert not (run / "decoding.json").exists()


@pytest.mark.parametrize("fewest", [2, 3])
def test_tuning_is_advised_where_it_is_possible(trained, monkeypatch, fewest):
    """The run's validation set has two recordings."""
    from phonate.tasks.diarization import evaluation

    def systems(_):
        right, nobody = (lambda one: one.turns), (lambda one: [])
        return {evaluation._OTHERWISE["overlap"]: right, evaluation._DIARIZED: nobody}, evaluation._DIARIZED, ""

    monkeypatch.setattr(evaluation, "_systems", systems)
    monkeypatch.setattr(evaluation, "FEWEST_TUNED_ON", fewest)
    for data in (None, str(trained / "corpus")):
        assert ("advice" in evaluation.evaluate(trained / "run", data).notes) == (fewest == 2)


def test_what_tuning_leaves_alone_is_not_among_its_values(trained, tmp_path, monkeypatch):
    from phonate.tasks.diarization import evaluation

    run = shutil.copytree(trained / "run", tmp_path / "run")
    diarizer = Diarizer.load(run)
    model = diarizer.recipe.model
    smoothed = model.decoding.model_copy(update={"smoothing": SmoothingSettings()})
    changed = {"model": model.model_copy(update={"decoding": smoothed})}
    diarizer.recipe = diarizer.recipe.model_copy(update=changed)
    monkeypatch.setattr(Diarizer, "load", _first(diarizer, Diarizer.load))
    monkeypatch.setattr(evaluation, "_tuned", lambda *_: (smoothed.model_copy(update={"threshold": 0.35}), 0.3, 0.2))
    monkeypatch.setattr(evaluation, "FEWEST_TUNED_ON", 2)
    assert evaluation.tune(run) == {"threshold": 0.35}


def test_values_that_are_worse_when_voices_are_taken_anew_are_not_kept(trained, tmp_path, monkeypatch, caplog):
    """Voices are taken from segments, which depend on the threshold: what suits those of the recipe may be worse."""
    from phonate.tasks.diarization import evaluation

    run = shutil.copytree(trained / "run", tmp_path / "run")
    (run / "decoding.json").write_text('{"threshold": 0.8}')
    untuned = Diarizer.load(run).recipe.model.decoding
    turns = next(iter(conversations_of(Diarizer.load(run).recipe.data, str(trained / "corpus")))).turns

    def decode(self, analysis, limits=None, settings=None):
        if analysis.settings == settings == untuned:
            return SimpleNamespace(turns=turns[:-1])
        return SimpleNamespace(turns=[] if analysis.settings == settings else turns)

    def analyse(self, read, limits=None, settings=None, name=""):
        return SimpleNamespace(settings=settings, voices=[])

    monkeypatch.setattr(Diarizer, "analyse", analyse)
    monkeypatch.setattr(Diarizer, "decode", decode)
    monkeypatch.setattr(evaluation, "FEWEST_TUNED_ON", 2)
    one = LabelledRecording("one", list, turns, 6.0)
    monkeypatch.setattr(evaluation, "validation_recordings", lambda recipe: [one, one])
    with caplog.at_level("INFO"):
        assert evaluation.tune(run) == {}
    assert "nothing is better than the values of the recipe, DER " in caplog.text
    assert not (run / "decoding.json").exists()


def test_other_tasks_have_nothing_to_tune(tmp_path, capsys):
    assert main(["evaluate", "base/voice", "--tune", "--output", str(tmp_path)]) == 2
    assert "inference of the task speech has nothing to tune" in capsys.readouterr().err
